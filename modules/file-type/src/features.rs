//! From the two ends of a file to the model's tokens: a byte is its own token, and one more pads.

use crate::config::Model;

/// White space as magika strips it: Python's `bytes.strip()`, which knows the vertical tab too.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// The tokens of a file, of which `beginning` and `end` are the first and the last block (the same
/// bytes, for a small one). `None`: too few bytes are left to show them to the model.
pub fn tokens(model: &Model, beginning: &[u8], end: &[u8]) -> Option<Vec<i32>> {
    let leading = beginning.iter().take_while(|byte| is_space(**byte)).count();
    let beginning = &beginning[leading..];
    if beginning.len() < model.min_file_size_for_dl {
        return None;
    }
    let trailing = end.iter().rev().take_while(|byte| is_space(**byte)).count();
    let end = &end[..end.len() - trailing];

    let beginning = &beginning[..beginning.len().min(model.beg_size)];
    let end = &end[end.len().saturating_sub(model.end_size)..];
    let mut tokens = vec![model.padding_token; model.beg_size + model.end_size];
    for (token, byte) in tokens.iter_mut().zip(beginning) {
        *token = i32::from(*byte);
    }
    for (token, byte) in tokens.iter_mut().rev().zip(end.iter().rev()) {
        *token = i32::from(*byte);
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::config;

    fn check(content: &[u8], expected: Option<[i32; 8]>) {
        let model = config().model;
        let block = content.len().min(model.block_size);
        let found = tokens(&model, &content[..block], &content[content.len() - block..]);
        assert_eq!(found.as_deref(), expected.as_ref().map(<[i32; 8]>::as_slice), "{content:?}");
    }

    #[test]
    fn pads_the_beginning_behind_and_the_end_before() {
        check(b"ab", Some([97, 98, 256, 256, 256, 256, 97, 98]));
        check(b"abcdefgh", Some([97, 98, 99, 100, 101, 102, 103, 104]));
    }

    #[test]
    fn strips_both_ends_within_a_block() {
        check(b" \t\x0bab\r\n", Some([97, 98, 13, 10, 9, 11, 97, 98]));
        // Of a longer file, white space beyond the block stays unseen.
        check(b"       abc       ", None);
    }

    #[test]
    fn leaves_few_bytes_to_others() {
        check(b"a", None);
        check(b"   \n   ab", None);
    }
}
