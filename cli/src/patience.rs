//! Asking a registry again that is away for a while: told once, with growing pauses, and told when
//! it is back. It decides nothing about when to give up.

use std::time::Duration;

use crate::failure::Failure;

/// The first pause.
const FIRST: Duration = Duration::from_millis(300);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// How long the registry has been away.
#[derive(Debug, Default)]
pub struct Patience {
    last: Option<Duration>,
}

impl Patience {
    /// Whether a failure passes when the registry, or what is between, is there again.
    pub fn is_for(failure: &Failure) -> bool {
        match failure {
            Failure::Unreachable { .. } => true,
            Failure::Answered { status, .. } => matches!(status, 408 | 429 | 500..=504),
            _ => false,
        }
    }

    /// What ends a wait for `what` when the time is over and the registry does not answer: it is the
    /// time that is over, whatever the last answer was.
    pub fn over(failure: &Failure, what: String, allowed: Duration) -> Failure {
        Failure::TimedOut {
            what: format!("{what} ({})", failure.chain()),
            allowed,
            advice: "what was asked for goes on without the registry's answer; start it, and wait again"
                .to_owned(),
        }
    }

    /// It did not answer: how long to wait now, and whether this is the first time in a row.
    pub fn lost(&mut self) -> (Duration, bool) {
        let pause = self.last.map_or(FIRST, |last| (last * 2).min(LONGEST));
        (pause, self.last.replace(pause).is_none())
    }

    /// It answered: whether it had been away.
    pub fn found(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew() {
        let mut patience = Patience::default();
        assert!(!patience.found());
        assert_eq!(patience.lost(), (FIRST, true));
        assert_eq!(patience.lost(), (FIRST * 2, false));
        for _ in 0..10 {
            patience.lost();
        }
        assert_eq!(patience.lost(), (LONGEST, false));
        assert!(patience.found() && !patience.found());
        assert_eq!(patience.lost(), (FIRST, true));
    }

    #[test]
    fn a_refusal_does_not_pass() {
        let answered = |status| Failure::Answered {
            who: "the registry",
            doing: String::new(),
            status,
            reason: String::new(),
            error: String::new(),
        };
        assert!(Patience::is_for(&answered(503)) && Patience::is_for(&answered(504)));
        assert!(!Patience::is_for(&answered(401)) && !Patience::is_for(&answered(404)));
        assert!(!Patience::is_for(&Failure::Interrupted));
    }
}
