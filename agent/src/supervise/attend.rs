//! Staying with one host after another: started here or found, listened to, and its end told.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use selvedge_control::{Client, Event, HostStatus, PackageRef};
use tokio::sync::{mpsc, oneshot};

use super::backoff::Backoff;
use super::launch::Launch;
use super::listeners::Listeners;
use super::process::{self, Fate, Process, Trace, write_run_file};
use super::service::Service;
use super::{Farewell, HostEvent, Options, START, listen, log};
use crate::bounded;

/// The host holds an events answer back for up to 30 s; one that takes longer is not well.
const EVENTS: Duration = Duration::from_secs(45);
/// Longest wait for an answer of a host that has missed one.
const HUNG: Duration = Duration::from_secs(5);
/// Unanswered questions after which a host counts as hung.
const MISSES: u32 = 3;
/// Exit code of a host that ends because a model cannot be stopped.
pub(super) const CANNOT_STOP: i32 = 86;
/// How often the log's size is looked at.
const LOG_CHECK: Duration = Duration::from_secs(60);

/// How attending to a host ended.
enum Over {
    Stopped(Farewell),
    Died { what: String, named: Vec<PackageRef>, fate: Fate },
}

/// Who starts the host.
pub(super) enum Keeper {
    /// The agent, which hands its listeners down; none yet where an adopted host gave none.
    Agent(Option<Listeners>),
    /// Its service.
    Service(Service),
}

pub(super) struct Attendant {
    pub options: Options,
    pub keeper: Keeper,
    pub events: mpsc::Sender<HostEvent>,
    pub client: Client,
}

impl Attendant {
    pub async fn run(
        mut self,
        adopted: Option<(Process, HostStatus)>,
        mut stop: oneshot::Receiver<Farewell>,
    ) {
        let mut backoff = Backoff::default();
        let mut next = adopted.map(|(process, status)| (process, Some(status)));
        loop {
            let began = crate::clock::since_boot();
            let (mut process, status) = match next.take() {
                Some(found) => found,
                None => {
                    let found = tokio::select! {
                        biased;
                        _ = &mut stop => return,
                        found = self.start_or_find() => found,
                    };
                    match found {
                        Ok(found) => found,
                        Err(why) => {
                            let pause = backoff.ended(Duration::ZERO);
                            if self.tell_and_wait(HostEvent::Trouble(why), pause, &mut stop).await {
                                return;
                            }
                            continue;
                        }
                    }
                }
            };
            let over = self.attend(&mut process, status, &mut stop).await;
            match over {
                Over::Stopped(farewell) => {
                    if farewell == Farewell::End && self.starts_it() {
                        end(Some(&self.client), &self.options, &mut process).await;
                    }
                    return;
                }
                Over::Died { what, named, fate } => {
                    let _ = std::fs::remove_file(self.options.run_file("host.json"));
                    let ran = crate::clock::since_boot().saturating_sub(began);
                    let pause = backoff.ended(ran);
                    if self.tell_and_wait(HostEvent::Down { what, named, fate }, pause, &mut stop).await {
                        return;
                    }
                }
            }
        }
    }

    /// Whether to stop.
    async fn tell_and_wait(
        &self,
        event: HostEvent,
        pause: Duration,
        stop: &mut oneshot::Receiver<Farewell>,
    ) -> bool {
        let _ = self.events.send(event).await;
        tokio::select! {
            _ = stop => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    fn starts_it(&self) -> bool {
        matches!(self.keeper, Keeper::Agent(_))
    }

    /// A host, and what it says where that is known already.
    async fn start_or_find(&mut self) -> Result<(Process, Option<HostStatus>), String> {
        match &mut self.keeper {
            Keeper::Service(service) => {
                let (process, status) = service.find(&self.client).await?;
                Ok((process, Some(status)))
            }
            Keeper::Agent(listeners) => {
                let listeners = match listeners {
                    Some(listeners) => listeners,
                    none => {
                        let listening = listen(&self.options);
                        none.insert(listening.map_err(|error| crate::failure::chain(&error))?)
                    }
                };
                Ok((launch_host(&self.options, listeners)?, None))
            }
        }
    }

    /// Stays with one host until it ends or the agent does.
    async fn attend(
        &mut self,
        process: &mut Process,
        status: Option<HostStatus>,
        stop: &mut oneshot::Receiver<Farewell>,
    ) -> Over {
        let adopted = status.is_some();
        let status = match status {
            Some(status) => status,
            None => tokio::select! {
                farewell = &mut *stop => return Over::Stopped(farewell.unwrap_or(Farewell::Leave)),
                ending = process.ended() => return Over::Died {
                    what: format!("the host did not start: {}; see host.log", ending.what),
                    named: Vec::new(),
                    fate: Fate::Orderly,
                },
                status = self.client.status(START) => match status {
                    Ok(status) => status,
                    Err(error) => {
                        process.signal(Signal::KILL);
                        process.ended().await;
                        let what = format!("the host did not answer after its start: {error}");
                        return Over::Died { what, named: Vec::new(), fate: Fate::Orderly };
                    }
                },
            },
        };
        let http = status.http.clone();
        if let Err(error) = self.write_down(process, &http) {
            tracing::warn!(%error, "cannot write into the run directory; it is tried again");
        }
        let _ = self.events.send(HostEvent::Up { status, adopted }).await;
        self.listen_to(process, &http, stop).await
    }

    async fn listen_to(
        &self,
        process: &mut Process,
        http: &str,
        stop: &mut oneshot::Receiver<Farewell>,
    ) -> Over {
        let mut since = 0;
        let mut misses = 0;
        let mut named = Vec::new();
        let mut log_check = Duration::ZERO;
        loop {
            tokio::select! {
                // What the host says before it ends is taken before its end.
                biased;
                events = self.client.events(since, EVENTS) => match events {
                    Ok(events) => {
                        misses = 0;
                        since = events.last;
                        // The host answers every half minute at least: no timer of our own is needed.
                        let now = crate::clock::since_boot();
                        if now >= log_check + LOG_CHECK {
                            log_check = now;
                            self.trim_log();
                        }
                        if let Err(error) = self.write_down(process, http) {
                            tracing::debug!(%error, "still cannot write into the run directory");
                        }
                        for event in events.events {
                            if event.fatal {
                                named.push(event.package.clone());
                            }
                            let _ = self.events.send(HostEvent::Noticed(event)).await;
                        }
                    }
                    Err(error) => {
                        misses += 1;
                        tracing::debug!(%error, misses, "the host does not tell its events");
                        let answers = tokio::select! {
                            ending = process.ended() => return self.died(ending, named).await,
                            answers = self.answers_still() => answers && misses < MISSES,
                        };
                        if !answers {
                            process.signal(Signal::KILL);
                            let ending = process.ended().await;
                            let what = "it did not answer any more, and was killed".to_owned();
                            return self.died(process::Ending { what, ..ending }, named).await;
                        }
                    }
                },
                farewell = &mut *stop => return Over::Stopped(farewell.unwrap_or(Farewell::Leave)),
                ending = process.ended() => return self.died(ending, named).await,
            }
        }
    }

    /// Whether a host that has missed a question answers a short one: one that hangs is not waited for
    /// as long as one that has nothing to tell.
    async fn answers_still(&self) -> bool {
        for _ in 1..MISSES {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if self.client.status(HUNG).await.is_ok() {
                return true;
            }
        }
        false
    }

    fn trim_log(&self) {
        if let Err(error) = log::trim(&self.options.data.join("host.log")) {
            tracing::warn!(%error, "cannot cut the host's log");
        }
    }

    /// A host that could not stop a model says which, and once more in a file: the event may not
    /// have arrived.
    async fn died(&self, mut ending: process::Ending, mut named: Vec<PackageRef>) -> Over {
        if let Keeper::Service(service) = &self.keeper {
            ending = service.how(ending).await;
        }
        let record = self.options.data.join("host/fatal.json");
        if ending.code == Some(CANNOT_STOP) && named.is_empty() {
            named.extend(named_in(&record));
        }
        let _ = std::fs::remove_file(record);
        Over::Died { what: ending.what, named, fate: ending.fate }
    }

    /// Says in the run directory which process serves and where, where that is not said there yet: a host
    /// writes itself down before it starts, but a full disk may have kept it, or this agent, from it.
    fn write_down(&self, process: &Process, http: &str) -> std::io::Result<()> {
        let file = |name| self.options.run_file(name);
        let trace = process.id().filter(|_| self.starts_it()).and_then(Trace::of);
        if let Some(trace) = trace.filter(|trace| Trace::read(&file("host.json")) != Some(*trace)) {
            trace.write(&file("host.json"))?;
        }
        match bounded::read(&file("http"), bounded::NOTE) {
            Ok(said) if said == http.as_bytes() => Ok(()),
            _ => write_run_file(&file("http"), http),
        }
    }
}

/// Whom a host named in its last words. It is the host that has written them.
fn named_in(record: &Path) -> Option<PackageRef> {
    let text = bounded::read(record, bounded::NOTE).ok()?;
    serde_json::from_slice::<Event>(&text).ok().map(|event| event.package)
}

/// Starts the host with these listeners.
fn launch_host(options: &Options, listeners: &Listeners) -> Result<Process, String> {
    let launch = Launch {
        session: true,
        die_with: (!options.outlives).then(std::process::id),
        listeners: true,
        trace: Some(options.run_file("host.json")),
        command: options.command(),
        ..Launch::default()
    };
    let cannot = |error: std::io::Error| format!("cannot start {}: {error}", options.host.binary.display());
    let http = listeners.http.try_clone().map_err(cannot)?;
    let control = listeners.control.try_clone().map_err(cannot)?;
    let log = log::open(&options.data.join("host.log")).map_err(cannot)?;
    tokio::process::Command::from(launch.by(&options.launcher))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(http)))
        .stdout(Stdio::from(std::os::fd::OwnedFd::from(control)))
        .stderr(log)
        .spawn()
        .map(Process::Child)
        .map_err(cannot)
}

/// Has the host drain and end; kills it where it does not. One that cannot be asked gets a signal at once.
pub(super) async fn end(client: Option<&Client>, options: &Options, process: &mut Process) {
    let asked = match client {
        Some(client) => client.shutdown(Duration::from_secs(5)).await.is_ok(),
        None => false,
    };
    if !asked {
        process.signal(Signal::TERM);
    }
    for signal in [Signal::TERM, Signal::KILL] {
        if tokio::time::timeout(Duration::from_secs(10), process.ended()).await.is_ok() {
            break;
        }
        process.signal(signal);
    }
    // Whoever comes after it finds its address free.
    let _ = tokio::time::timeout(Duration::from_secs(10), process.ended()).await;
    let _ = std::fs::remove_file(options.run_file("host.json"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_heard_and_a_flood_is_not() {
        let place = tempfile::tempdir().unwrap();
        let record = place.path().join("fatal.json");
        assert_eq!(named_in(&record), None);
        let package = PackageRef { name: "p".parse().unwrap(), digest: selvedge_package::Digest::of(b"") };
        let event = Event { number: 1, package: package.clone(), what: "stuck".to_owned(), fatal: true };
        std::fs::write(&record, serde_json::to_vec(&event).unwrap()).unwrap();
        assert_eq!(named_in(&record), Some(package));
        std::fs::File::create(&record).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(named_in(&record), None);
    }
}
