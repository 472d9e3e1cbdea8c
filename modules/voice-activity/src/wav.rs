//! The head of a WAV file: RIFF chunks up to the samples. Other chunks before them are gone past, what follows them is
//! never read.

/// What the head says.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub channels: u16,
    /// Samples a second.
    pub rate: u32,
    /// Every so manieth sample is heard.
    pub step: u32,
    /// Where the samples begin.
    pub samples_at: u64,
    /// How many bytes they are; none where the head does not know, as in a stream.
    pub samples_bytes: Option<u64>,
}

/// Programs that write to a pipe say one of these, or more.
const UNKNOWN: u32 = 0x7fff_0000;
/// More channels than this are no recording.
const CHANNELS: u16 = 8;
/// Uncompressed samples, and the form that says more about its channels.
const PCM: u16 = 1;
const EXTENSIBLE: u16 = 0xfffe;

/// Reads the head, all of which has to be in `bytes`; says in words what is wrong.
pub fn header(bytes: &[u8]) -> Result<Header, String> {
    let is_wav = bytes.len() >= 12 && bytes.starts_with(b"RIFF") && &bytes[8..12] == b"WAVE";
    if !is_wav {
        return Err("`audio` is no WAV file; the first request of a sequence has to have its head".to_owned());
    }
    let mut format = None;
    let mut at = 12;
    while let Some(chunk) = bytes.get(at..at + 8) {
        let size = number(chunk, 4);
        at += 8;
        match &chunk[..4] {
            b"fmt " => format = Some(read_format(bytes.get(at..).unwrap_or_default(), size)?),
            b"data" => {
                let (channels, rate) =
                    format.ok_or("the WAV file has samples before it says what they are")?;
                let known = (1..UNKNOWN).contains(&size);
                let samples_bytes = known.then_some(u64::from(size));
                let step = if rate > 16_000 { rate / 16_000 } else { 1 };
                return Ok(Header { channels, rate, step, samples_at: at as u64, samples_bytes });
            }
            _ => {}
        }
        // Chunks begin at even places.
        at = at.saturating_add(size as usize).saturating_add(size as usize & 1);
    }
    Err(format!("the head of the WAV file does not end within its first {} bytes", bytes.len()))
}

/// Channels and rate.
fn read_format(chunk: &[u8], size: u32) -> Result<(u16, u32), String> {
    if size < 16 || chunk.len() < 16 {
        return Err("the WAV file's format is cut short".to_owned());
    }
    let short = |at: usize| u16::from_le_bytes([chunk[at], chunk[at + 1]]);
    let (mut kind, channels, rate, bits) = (short(0), short(2), number(chunk, 4), short(14));
    if kind == EXTENSIBLE && size >= 26 && chunk.len() >= 26 {
        kind = short(24);
    }
    if kind != PCM || bits != 16 {
        return Err(format!(
            "the WAV file has {bits} bits a sample in format {kind}; 16 bits in format {PCM} (PCM) are heard"
        ));
    }
    if channels == 0 || channels > CHANNELS {
        return Err(format!("the WAV file has {channels} channels; 1 to {CHANNELS} are heard"));
    }
    if rate != 8_000 && (rate == 0 || rate % 16_000 != 0) {
        return Err(format!(
            "the WAV file has {rate} samples a second; 8000, 16000 and multiples of 16000 are heard: convert it"
        ));
    }
    Ok((channels, rate))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(name: &[u8; 4], size: u32, content: &[u8]) -> Vec<u8> {
        [&name[..], &size.to_le_bytes(), content].concat()
    }

    fn format(kind: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
        let (frame, second) = (channels * bits / 8, rate * u32::from(channels * bits / 8));
        let mut content = [kind.to_le_bytes(), channels.to_le_bytes()].concat();
        content.extend([rate.to_le_bytes(), second.to_le_bytes()].concat());
        content.extend([frame.to_le_bytes(), bits.to_le_bytes()].concat());
        chunk(b"fmt ", 16, &content)
    }

    fn file(chunks: &[Vec<u8>]) -> Vec<u8> {
        [&b"RIFF\0\0\0\0WAVE"[..], &chunks.concat()].concat()
    }

    fn check(chunks: &[Vec<u8>], expected: Result<Header, &str>) {
        match (header(&file(chunks)), expected) {
            (Err(found), Err(says)) => assert!(found.contains(says), "{found}"),
            (found, Ok(expected)) => assert_eq!(found, Ok(expected)),
            (found, Err(says)) => panic!("{found:?}, not {says}"),
        }
    }

    fn plain(rate: u32, step: u32, samples_bytes: Option<u64>) -> Header {
        Header { channels: 1, rate, step, samples_at: 44, samples_bytes }
    }

    #[test]
    fn the_head_says_what_follows() {
        check(&[format(1, 1, 16_000, 16), chunk(b"data", 4, &[])], Ok(plain(16_000, 1, Some(4))));
        check(&[format(1, 1, 8_000, 16), chunk(b"data", 4, &[])], Ok(plain(8_000, 1, Some(4))));
        check(&[format(1, 1, 48_000, 16), chunk(b"data", 4, &[])], Ok(plain(48_000, 3, Some(4))));
        for unknown in [0, u32::MAX, 0x7fff_ffff, 0x7fff_f000] {
            check(&[format(1, 1, 16_000, 16), chunk(b"data", unknown, &[])], Ok(plain(16_000, 1, None)));
        }
        // Of odd length, and so followed by one byte more.
        let other = chunk(b"LIST", 3, &[1, 2, 3, 0]);
        let header = Header { channels: 2, samples_at: 56, ..plain(16_000, 1, Some(8)) };
        check(&[other, format(1, 2, 16_000, 16), chunk(b"data", 8, &[])], Ok(header));
    }

    #[test]
    fn the_longer_form_is_read_too() {
        let mut extensible = format(EXTENSIBLE, 1, 16_000, 16);
        extensible[4..8].copy_from_slice(&40_u32.to_le_bytes());
        let rest = |kind: u16| [&[22, 0, 16, 0, 4, 0, 0, 0][..], &kind.to_le_bytes(), &[0; 14]].concat();
        let header = Header { samples_at: 68, ..plain(16_000, 1, Some(4)) };
        check(&[[&extensible[..], &rest(1)].concat(), chunk(b"data", 4, &[])], Ok(header));
        check(&[[&extensible[..], &rest(3)].concat(), chunk(b"data", 4, &[])], Err("in format 3"));
    }

    #[test]
    fn what_cannot_be_heard_says_why() {
        let data = || chunk(b"data", 4, &[]);
        assert!(header(b"").unwrap_err().contains("no WAV file"));
        assert!(header(b"RIFF\0\0\0\0AVI ").unwrap_err().contains("no WAV file"));
        check(&[], Err("does not end within its first 12 bytes"));
        check(&[data()], Err("before it says"));
        check(&[format(3, 1, 16_000, 32), data()], Err("32 bits a sample in format 3"));
        check(&[format(1, 1, 16_000, 8), data()], Err("8 bits"));
        check(&[format(1, 0, 16_000, 16), data()], Err("0 channels"));
        check(&[format(1, 9, 16_000, 16), data()], Err("9 channels"));
        for rate in [0, 1, 11_025, 22_050, 44_100] {
            check(&[format(1, 1, rate, 16), data()], Err("samples a second"));
        }
        check(&[chunk(b"fmt ", 8, &[0; 8]), data()], Err("cut short"));
        // A chunk that says it is longer than everything.
        check(&[chunk(b"LIST", u32::MAX, &[]), data()], Err("does not end"));
        check(&[format(1, 1, 16_000, 16)], Err("does not end"));
    }
}
