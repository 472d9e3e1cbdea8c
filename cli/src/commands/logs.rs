//! `selvedge logs`: the newest log lines of a device's agent and host, asked through the broker; with
//! `--follow`, what comes after them, over restarts of the agent and of whatever is between.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use selvedge_package::DeviceId;
use selvedge_protocol::remote::{LogLine, LogLines};
use serde_json::{Value, json};

use crate::client::Registry;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::{Output, printable, unread};
use crate::paint::Tone;
use crate::patience::Patience;

/// The registry waits 30 s for the device; a little more is for the way there.
const WAIT: Duration = Duration::from_secs(40);
/// Most lines that the registry lets one question ask for.
const MOST: u32 = 1000;
/// Pause after an answer with lines: every question is two messages over the device's link.
const SOON: Duration = Duration::from_secs(1);
/// Pause after one without.
const LATER: Duration = Duration::from_secs(3);

/// Show a device's log.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge logs edge-1
  selvedge logs edge-1 -n 20 --source host
  selvedge logs edge-1 -f
  selvedge logs edge-1 --json | jq -r 'select(.level == \"error\") | .text'

The device keeps its newest lines in memory; they begin anew with its agent. Times are of the
device's clock. --json gives a line of JSON for each.")]
pub struct Args {
    /// The device
    #[arg(value_name = "TARGET")]
    pub name: DeviceId,
    /// How many lines, the newest; fewer where the device has no more or they are too long for a message
    #[arg(short = 'n', long, visible_alias = "tail", value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    pub lines: u32,
    /// Go on with what comes, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Only lines of the agent or of the host
    #[arg(long, value_name = "WHO")]
    pub source: Option<Source>,
}

/// Who wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// The agent.
    Agent,
    /// The host.
    Host,
}

/// Shows lines, and goes on where that was asked.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    // An unknown target is told with the nearest known one.
    registry.target(&args.name).await?;
    let show = Show { out: around.out, source: args.source };
    let first = match ask(&registry, args, None).await {
        Ok(lines) => Some(lines),
        Err(failure) if args.follow && waits(&failure) => {
            around.out.note(format!("{}; waiting for it", failure.chain()));
            None
        }
        Err(failure) => return Err(failure),
    };
    let mut place = Place::default();
    let mut away = first.is_none();
    if let Some(lines) = first {
        let (news, _) = place.take(lines);
        show.lines(&news);
    }
    if !args.follow {
        return Ok(());
    }
    let (mut patience, mut pause) = (Patience::default(), SOON);
    while !unread() {
        tokio::time::sleep(pause).await;
        let lines = match ask(&registry, args, place.after()).await {
            Ok(lines) => lines,
            Err(failure) if waits(&failure) => {
                (pause, _) = patience.lost();
                if !std::mem::replace(&mut away, true) {
                    around.out.note(format!("{}; asking again", failure.chain()));
                }
                continue;
            }
            Err(failure) => return Err(failure),
        };
        patience.found();
        if std::mem::take(&mut away) {
            around.out.note(format!("{} answers again", args.name));
        }
        pause = if lines.lines.is_empty() { LATER } else { SOON };
        let (news, note) = place.take(lines);
        match note {
            Some(Break::Restarted) => {
                around.out.note(format!("--- the agent of {} was started again ---", args.name));
                // What was asked for was after a number of its earlier life.
                pause = Duration::ZERO;
            }
            Some(Break::Missing(count)) => {
                around.out.note(format!("--- {count} lines were not kept ---"));
            }
            None => {}
        }
        show.lines(&news);
    }
    Ok(())
}

/// Whether `--follow` waits it out: registry, broker or device may be there again.
fn waits(failure: &Failure) -> bool {
    Patience::is_for(failure) && !matches!(failure, Failure::Answered { reason, .. } if reason == "refused")
}

async fn ask(registry: &Registry, args: &Args, after: Option<u64>) -> Result<LogLines, Failure> {
    let lines = if after.is_some() { MOST } else { args.lines };
    let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
    let path = registry.in_workspace(&format!("/targets/{}/logs?lines={lines}{after}", args.name));
    let doing = format!("show the log of {}", args.name);
    let value: Value = registry.call_within(WAIT, &doing, Method::GET, &path, None).await?;
    registry.read(&value)
}

/// How far a log was read.
#[derive(Debug, Default)]
struct Place {
    epoch: Option<u64>,
    last: u64,
}

/// What parts lines from those before.
#[derive(Debug, PartialEq, Eq)]
enum Break {
    /// The agent was started again.
    Restarted,
    /// So many lines are gone.
    Missing(u64),
}

impl Place {
    /// The number to ask for lines after.
    fn after(&self) -> Option<u64> {
        self.epoch.map(|_| self.last)
    }

    /// Takes an answer: its new lines, and what parts them from those before.
    fn take(&mut self, answer: LogLines) -> (Vec<LogLine>, Option<Break>) {
        if self.epoch.is_some_and(|epoch| epoch != answer.epoch) {
            // The answer is to a number of another life: all of this one is asked for.
            *self = Self { epoch: Some(answer.epoch), last: 0 };
            return (Vec::new(), Some(Break::Restarted));
        }
        let followed = self.epoch.replace(answer.epoch).is_some();
        let news: Vec<LogLine> =
            answer.lines.into_iter().filter(|line| line.number > self.last || !followed).collect();
        let missing = news.first().map_or(0, |line| line.number.saturating_sub(self.last + 1));
        self.last = self.last.max(answer.last).max(news.last().map_or(0, |line| line.number));
        (news, (followed && missing > 0).then_some(Break::Missing(missing)))
    }
}

struct Show {
    out: Output,
    source: Option<Source>,
}

impl Show {
    fn lines(&self, lines: &[LogLine]) {
        for line in lines.iter().filter(|line| self.wants(line)) {
            let at = Timestamp::from_millisecond(line.at_ms)
                .map_or_else(|_| "-".to_owned(), |at| format!("{at:.3}"));
            self.out.record(&json!({
                "at": at, "number": line.number, "source": line.source, "level": line.level, "text": line.text,
            }));
            let tone = match line.level.as_str() {
                "error" => Tone::Bad,
                "warn" => Tone::Odd,
                _ => Tone::Plain,
            };
            let level = self.out.paint().on(tone, &format!("{:5}", plain(&line.level)));
            self.out.painted(format!("{at} {:5} {level} {}", plain(&line.source), plain(&line.text)));
        }
    }

    fn wants(&self, line: &LogLine) -> bool {
        match self.source {
            None => true,
            Some(Source::Agent) => line.source == "agent",
            Some(Source::Host) => line.source == "host",
        }
    }
}

/// One line without anything that steers a terminal.
fn plain(text: &str) -> String {
    printable(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(epoch: u64, last: u64, numbers: impl IntoIterator<Item = u64>) -> LogLines {
        let line = |number| LogLine {
            number,
            at_ms: 0,
            source: "agent".into(),
            level: "info".into(),
            text: String::new(),
        };
        LogLines { last, epoch, lines: numbers.into_iter().map(line).collect() }
    }

    fn taken(place: &mut Place, lines: LogLines) -> (Vec<u64>, Option<Break>) {
        let (lines, parted) = place.take(lines);
        (lines.iter().map(|line| line.number).collect(), parted)
    }

    #[test]
    fn every_line_is_shown_once_and_in_order() {
        let mut place = Place::default();
        assert_eq!(place.after(), None);
        assert_eq!(taken(&mut place, answer(1, 9, 5..=9)), ((5..=9).collect(), None));
        assert_eq!(place.after(), Some(9));
        assert_eq!(taken(&mut place, answer(1, 9, [])), (vec![], None));
        assert_eq!(taken(&mut place, answer(1, 11, 9..=11)), (vec![10, 11], None));
        assert_eq!(taken(&mut place, answer(1, 20, 15..=20)), ((15..=20).collect(), Some(Break::Missing(3))));
    }

    #[test]
    fn another_life_of_the_agent_is_read_from_its_beginning() {
        let mut place = Place::default();
        taken(&mut place, answer(1, 500, [500]));
        // A young agent has nothing after 500; an old one would leave its first 500 lines out.
        assert_eq!(taken(&mut place, answer(2, 700, 501..=700)), (vec![], Some(Break::Restarted)));
        assert_eq!(place.after(), Some(0));
        assert_eq!(taken(&mut place, answer(2, 700, 1..=700)).0.len(), 700);
        assert_eq!(place.after(), Some(700));
        // A log that was empty when it was first read.
        let mut place = Place::default();
        assert_eq!(taken(&mut place, answer(3, 0, [])), (vec![], None));
        assert_eq!(taken(&mut place, answer(3, 2, 1..=2)), (vec![1, 2], None));
    }
}
