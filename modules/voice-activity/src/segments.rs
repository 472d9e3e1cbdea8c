//! From the model's probabilities to segments of speech, as the Python package's `get_speech_timestamps` does it with
//! its defaults, but as the windows come.
//!
//! Speech begins where the model is sure of it, and ends where it has been sure of none for a tenth of a second. That
//! is more than twice as much as each segment gets at its ends, so that a segment can be told as soon as it ends: the
//! next one changes nothing about it.

/// Speech from here on,
const SPEECH: f64 = 0.5;
/// none below this.
const SILENCE: f64 = SPEECH - 0.15;
/// Shorter speech is none, in milliseconds.
const LEAST_SPEECH: u64 = 250;
/// Shorter silence is speech.
const LEAST_SILENCE: u64 = 100;
/// What a segment gets at each end.
const PADDING: u64 = 30;

/// Speech, in samples: from one to before the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    pub start: u64,
    pub end: u64,
}

pub struct Segments {
    least_speech: u64,
    least_silence: u64,
    padding: u64,
    /// First sample of the next window.
    at: u64,
    speech_since: Option<u64>,
    silence_since: Option<u64>,
}

impl Segments {
    /// None so far, of so many samples a second.
    pub fn new(rate: u32) -> Self {
        let samples = |milliseconds: u64| u64::from(rate) * milliseconds / 1000;
        Self {
            least_speech: samples(LEAST_SPEECH),
            least_silence: samples(LEAST_SILENCE),
            padding: samples(PADDING),
            at: 0,
            speech_since: None,
            silence_since: None,
        }
    }

    /// One more window, of so many samples; gives the segment that ended before it.
    pub fn window(&mut self, samples: u64, probability: f32) -> Option<Segment> {
        let (probability, at) = (f64::from(probability), self.at);
        self.at += samples;
        if probability >= SPEECH {
            self.silence_since = None;
            self.speech_since.get_or_insert(at);
            return None;
        }
        if probability >= SILENCE || self.speech_since.is_none() {
            return None;
        }
        let silence = *self.silence_since.get_or_insert(at);
        if at - silence < self.least_silence {
            return None;
        }
        self.silence_since = None;
        self.speech_since.take().and_then(|start| self.segment(start, silence, at))
    }

    /// The audio ends after so many samples; gives the segment that ends with it.
    pub fn end(&mut self, samples: u64) -> Option<Segment> {
        self.speech_since.take().and_then(|start| self.segment(start, samples, samples))
    }

    fn segment(&self, start: u64, end: u64, most: u64) -> Option<Segment> {
        let long = end.saturating_sub(start) > self.least_speech;
        let padded =
            Segment { start: start.saturating_sub(self.padding), end: (end + self.padding).min(most) };
        long.then_some(padded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities of windows of 512 samples, of which `samples` are there.
    fn check(windows: &[(usize, f32)], samples: u64, expected: &[(u64, u64)]) {
        let mut segments = Segments::new(16_000);
        let mut found = Vec::new();
        for (count, probability) in windows {
            for _ in 0..*count {
                found.extend(segments.window(512, *probability));
            }
        }
        found.extend(segments.end(samples));
        let found: Vec<_> = found.into_iter().map(|segment| (segment.start, segment.end)).collect();
        assert_eq!(found, expected, "{windows:?}");
    }

    #[test]
    fn speech_ends_with_a_tenth_of_a_second_of_silence() {
        check(&[(10, 0.9), (3, 0.1), (10, 0.9)], 23 * 512, &[(0, 23 * 512)]);
        check(
            &[(10, 0.9), (5, 0.1), (10, 0.9)],
            25 * 512,
            &[(0, 10 * 512 + 480), (15 * 512 - 480, 25 * 512)],
        );
        check(&[(2, 0.1), (10, 0.5), (20, 0.0)], 32 * 512, &[(2 * 512 - 480, 12 * 512 + 480)]);
    }

    #[test]
    fn what_is_between_keeps_what_there_is() {
        check(&[(10, 0.9), (20, 0.4)], 30 * 512, &[(0, 30 * 512)]);
        check(&[(30, 0.4)], 30 * 512, &[]);
        // Silence that was told is not forgotten by what is between.
        check(&[(10, 0.9), (1, 0.1), (5, 0.4), (1, 0.1)], 17 * 512, &[(0, 10 * 512 + 480)]);
    }

    #[test]
    fn what_is_short_is_no_speech() {
        check(&[(7, 0.9), (9, 0.1)], 16 * 512, &[]);
        check(&[(8, 0.9), (9, 0.1)], 17 * 512, &[(0, 8 * 512 + 480)]);
        check(&[(3, 0.1), (2, 0.9)], 5 * 512 - 1, &[]);
        check(&[], 0, &[]);
    }
}
