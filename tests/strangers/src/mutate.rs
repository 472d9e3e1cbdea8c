//! Changed inputs for the ordinary tests: the same ones each time, from a number. libFuzzer, which sees what
//! an input reaches, finds more; this finds what a change of the code has broken.

use selvedge_host::protobuf;

/// Numbers that look random and are the same each time (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a number.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`; 0 where that is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64).max(1)) as usize
    }

    fn word(&mut self, of: &'static str) -> &'static [u8] {
        let place = self.below(of.split_whitespace().count());
        of.split_whitespace().nth(place).unwrap_or_default().as_bytes()
    }
}

/// Longest input.
const LONGEST: usize = 8 << 10;

/// What readers of JSON look for.
const WORDS: &str = r#"{ } [ ] [] {} , : " \ \u0000 \ud800 \udc00 null true false NaN -Infinity "NaN" e308 e-45 .5 E+1
    "inputs": "outputs": "data": "shape":[0] "name":"x" "id":"" "parameters":{ "datatype":"BYTES" "datatype":"BOOL"
    "datatype":"FP16" "datatype":"BF16" "datatype":"UINT64" "binary_data_size":4 "binary_data":true
    "binary_data_output":1 "encoding":"base64" "shared_memory_region":0 "timeout":1 "package": "digest":"#;

/// Numbers at the ends of something.
const NUMBERS: &str = "0 -0 -1 1 255 256 -129 32768 65504 65520 4294967296 9223372036854775808 18446744073709551616 1e400 \
    3.4028236e38 0.30000000000000004 5e-324 0.00000000000000000000001 9007199254740993 16777217 2049 257 0.12345678901234567 \
    1.000000059604644775390625 0.9007199254740993";

/// Fields of messages, empty or as long as can be.
const FIELDS: [&[u8]; 6] = [
    b"\x2a\x00",
    b"\x3a\x00",
    b"\x1a\x01\x02",
    b"\x22\x09\x0a\x01a\x12\x04\x1a\x02bc",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02",
];

/// Lengths and counts at the ends of something.
const LENGTHS: [u32; 10] = [0, 1, 4, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];

/// One of `from`, changed in a few places.
pub fn changed(random: &mut Random, from: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = from[random.below(from.len())].clone();
    // Mostly one: what is changed in several places is refused for the first of them.
    for _ in 0..=random.below(2) * random.below(5) {
        change(random, &mut bytes, from);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, from: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    let most = 1 << random.below(9);
    let end = at + random.below((bytes.len() - at).min(most) + 1);
    match random.below(13) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let part = bytes[at..end].to_vec();
            insert(bytes, at, &part.repeat(1 + random.below(3)));
        }
        3 => insert(bytes, at, random.word(WORDS)),
        4 => {
            bytes.splice(at..end, random.word(WORDS).iter().copied());
        }
        5 => {
            // The rest of another one.
            let other = &from[random.below(from.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        6 => {
            let other = &from[random.below(from.len())];
            let start = random.below(other.len() + 1);
            let part = &other[start..start + random.below((other.len() - start).min(64) + 1)];
            insert(bytes, at, part);
        }
        7 => number(random, bytes, at),
        8 => {
            let length = LENGTHS[random.below(LENGTHS.len())].to_le_bytes();
            let length = &length[..[1, 2, 4][random.below(3)]];
            if let Some(place) = bytes.get_mut(at..at + length.len()) {
                place.copy_from_slice(length);
            }
        }
        9 => insert(bytes, at, FIELDS[random.below(FIELDS.len())]),
        10 => varint(random, bytes, at),
        // Twice as often as anything else.
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte =
                    if random.below(2) == 0 { *byte ^ (1 << random.below(8)) } else { random.next() as u8 };
            }
        }
    }
}

/// Puts another number in the place of the first one from `at` on.
fn number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let Some(start) = bytes[at..].iter().position(is_part).map(|found| at + found) else { return };
    let length = bytes[start..].iter().take_while(|byte| is_part(byte)).count();
    bytes.splice(start..start + length, random.word(NUMBERS).iter().copied());
}

/// Makes the number of a message that begins at `at` a little larger or smaller.
fn varint(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let mut rest = &bytes[at..];
    let Ok(value) = protobuf::varint(&mut rest) else { return };
    let end = bytes.len() - rest.len();
    let step = 1_u64 << [0, 0, 1, 7, 8, 15, 31][random.below(7)];
    let other = if random.below(2) == 0 { value.wrapping_add(step) } else { value.wrapping_sub(step) };
    let mut message = protobuf::Message::default();
    message.chosen_number(1, other);
    // Behind the byte that says which field it is.
    bytes.splice(at..end, message.into_bytes().drain(1..));
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    bytes.splice(at..at, part.iter().copied());
}
