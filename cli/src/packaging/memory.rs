//! The most memory that a child has had, as the device's agent looks at it: what the kernel says of the
//! process, again and again, since it says nothing any more once it has ended. Other systems than Linux do not
//! say it.

use std::time::Duration;

/// How often it is looked at. The kernel keeps the peak: only what is taken in the last moment is missed.
const SAMPLE: Duration = Duration::from_millis(20);

/// Waits for `end`; what came of it, and the bytes of memory that the process had at most meanwhile.
pub async fn watched<T>(process: Option<u32>, end: impl Future<Output = T>) -> (T, Option<u64>) {
    tokio::pin!(end);
    let mut peak = None;
    loop {
        tokio::select! {
            ended = &mut end => return (ended, peak),
            () = tokio::time::sleep(SAMPLE) => peak = peak.max(process.and_then(peak_of)),
        }
    }
}

fn peak_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Whether so much is more than a package says that it may take; a sentence about it.
pub fn over(peak: Option<u64>, most_mib: u32) -> Option<String> {
    let peak = peak.filter(|peak| most_mib > 0 && *peak > u64::from(most_mib) << 20)?;
    Some(format!(
        "opening the package and running its acceptance cases takes {} MiB of memory; `acceptance.memory-mib` \
         allows {most_mib}",
        peak.div_ceil(1 << 20)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_exceeded_by_what_is_more_than_it() {
        assert_eq!(over(Some(5 << 20), 5), None);
        assert!(over(Some((5 << 20) + 1), 5).unwrap().contains("takes 6 MiB"));
        assert_eq!((over(Some(u64::MAX), 0), over(None, 1)), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_memory_of_a_process_is_seen() {
        let own = Some(std::process::id());
        let ((), peak) = watched(own, tokio::time::sleep(SAMPLE * 100)).await;
        assert!(peak.is_some_and(|peak| peak > 1 << 20), "{peak:?}");
    }
}
