//! From bytes to the samples that the model hears: channels become their mean, and of audio at a multiple of its rate
//! every so manieth sample is taken, as the Python package does it.

pub struct Samples {
    channels: usize,
    step: u32,
    /// Samples to leave out before the next that counts.
    skip: u32,
    /// A frame of which the rest is still to come.
    begun: Vec<u8>,
}

impl Samples {
    /// None so far.
    pub fn new(channels: u16, step: u32) -> Self {
        Self { channels: usize::from(channels), step, skip: 0, begun: Vec::new() }
    }

    /// The samples of some more bytes, which may end anywhere.
    pub fn of(&mut self, bytes: &[u8]) -> Vec<f32> {
        let frame = self.channels * 2;
        let joined;
        let bytes = if self.begun.is_empty() {
            bytes
        } else {
            joined = [&self.begun[..], bytes].concat();
            &joined[..]
        };
        let whole = bytes.len() - bytes.len() % frame;
        let mut samples = Vec::with_capacity(whole / frame / self.step as usize + 1);
        for frame in bytes[..whole].chunks_exact(frame) {
            if self.skip == 0 {
                self.skip = self.step;
                samples.push(mean(frame));
            }
            self.skip -= 1;
        }
        self.begun = bytes[whole..].to_vec();
        samples
    }
}

fn mean(frame: &[u8]) -> f32 {
    let (channels, _) = frame.as_chunks::<2>();
    let sum: f32 = channels.iter().map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32768.0).sum();
    sum / channels.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(samples: &[i16]) -> Vec<u8> {
        samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
    }

    fn check(channels: u16, step: u32, of: &[i16], expected: &[i16]) {
        let bytes = bytes(of);
        let expected: Vec<f32> = expected.iter().map(|sample| f32::from(*sample) / 32768.0).collect();
        // In one piece, and in pieces that end within frames.
        for piece in [bytes.len().max(1), 1, 3] {
            let mut samples = Samples::new(channels, step);
            let found: Vec<f32> = bytes.chunks(piece).flat_map(|piece| samples.of(piece)).collect();
            assert_eq!(found, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn pieces_end_anywhere() {
        check(1, 1, &[0, 1, -1, i16::MAX, i16::MIN], &[0, 1, -1, i16::MAX, i16::MIN]);
        check(1, 1, &[], &[]);
    }

    #[test]
    fn every_so_manieth_counts_from_the_first() {
        check(1, 3, &[1, 2, 3, 4, 5, 6, 7], &[1, 4, 7]);
        check(1, 2, &[1, 2, 3], &[1, 3]);
    }

    #[test]
    fn channels_become_their_mean() {
        check(2, 1, &[100, 200, -100, 100, 7, 7], &[150, 0, 7]);
        check(2, 2, &[100, 200, -100, 100, 7, 7], &[150, 7]);
    }
}
