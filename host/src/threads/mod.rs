//! Threads that compute: what a guest or a model does that is not quick, it does there, and gives way to others.
//!
//! A thread that has once given way does so for good, and so do those that it starts: what is parsed, packed and
//! written for requests has threads of its own, too. Tokio's own for what may block are left to files.

pub mod yielding;

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use self::yielding::{Way, give};

thread_local! {
    static WAY: Cell<Way> = const { Cell::new(Way::Some) };
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How this thread gives way, or one that computes for it would.
pub fn own_way() -> Way {
    WAY.get()
}

/// Processor time of this thread, and of others for it.
pub fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let own = Duration::new(
        time.tv_sec.try_into().unwrap_or_default(),
        time.tv_nsec.try_into().unwrap_or_default(),
    );
    own + ELSEWHERE.get()
}

/// Another thread computed so long for this one.
pub fn worked_elsewhere(time: Duration) {
    ELSEWHERE.set(ELSEWHERE.get() + time);
}

/// Name of these threads, for people who look with `top -H`: the first two compute.
pub const NAMES: [&str; 3] = ["compute", "compute-last", "aside"];

/// Most threads for what is done aside. It waits for nothing but the processor.
pub const MOST_ASIDE: usize = 64;

/// Runs `work` on a thread that computes and gives way as `way` says; it may block there. To be called within tokio.
pub fn compute<T: Send + 'static>(way: Way, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    start(pool(Some(way)), work)
}

/// Runs `work` of a request that takes long, on a thread that serves no connection meanwhile and does not give way. To
/// be called by threads that serve.
pub fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    start(pool(None), work)
}

/// Timers, sockets and tasks of `work` are those of the threads that serve: nobody drives a pool's own.
fn start<T: Send + 'static>(
    pool: Option<&'static Runtime>,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let serving = Handle::current();
    let work = move || {
        let _entered = serving.enter();
        work()
    };
    match pool {
        Some(pool) => pool.spawn_blocking(work),
        // Dearer for the others, and right.
        None => tokio::task::spawn_blocking(work),
    }
}

/// Threads for work that blocks, and nothing else: nobody drives these runtimes. They begin with the first work
/// and end when there has been none for a while.
fn pool(way: Option<Way>) -> Option<&'static Runtime> {
    static POOLS: [OnceLock<Option<Runtime>>; NAMES.len()] = [const { OnceLock::new() }; NAMES.len()];
    let place = way.map_or(NAMES.len() - 1, |way| way as usize);
    let start = || {
        let mut builder = Builder::new_current_thread();
        builder.thread_name(NAMES[place]);
        match way {
            Some(way) => builder.on_thread_start(move || {
                WAY.set(way);
                give(way);
            }),
            None => builder.max_blocking_threads(MOST_ASIDE),
        };
        let started = builder.build();
        started.inspect_err(|error| tracing::error!(%error, "no threads can be had beside tokio's own")).ok()
    };
    POOLS[place].get_or_init(start).as_ref()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::yielding::nice;
    use super::*;

    #[tokio::test]
    async fn those_that_compute_give_way_and_those_that_serve_do_not() {
        let name = || std::thread::current().name().map(str::to_owned);
        let own = nice();
        for (way, named) in [Way::Some, Way::All].into_iter().zip(NAMES) {
            let (nicer, named_as) = compute(way, move || (nice(), name())).await.unwrap();
            assert_eq!(nicer, (own + way.nice()).clamp(0, 19));
            assert_eq!(named_as.as_deref(), Some(named));
        }
        assert_eq!(nice(), own);
        assert_eq!(tokio::task::spawn_blocking(nice).await.unwrap(), own);
    }

    #[tokio::test]
    async fn what_is_done_aside_does_not_give_way_though_who_computes_starts_threads() {
        let began = compute(Way::All, || tokio::task::spawn_blocking(nice)).await.unwrap().await.unwrap();
        assert!(
            began > nice() || nice() == 19,
            "a thread begins where the one stands that starts it: {began}"
        );
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(aside(move || (nice(), name())).await.unwrap(), (nice(), Some("aside".to_owned())));
    }

    #[tokio::test]
    async fn work_has_the_timers_of_whoever_asked() {
        let slept = compute(Way::Some, || {
            Handle::current().block_on(tokio::time::sleep(Duration::from_millis(1)));
            nice()
        });
        assert!(slept.await.unwrap() >= nice());
        let slept = aside(|| tokio::spawn(tokio::time::sleep(Duration::from_millis(1))));
        slept.await.unwrap().await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_the_works_own() {
        assert!(compute(Way::All, || panic!("asked for")).await.unwrap_err().is_panic());
        assert_eq!(compute(Way::All, || 7).await.unwrap(), 7);
    }
}
