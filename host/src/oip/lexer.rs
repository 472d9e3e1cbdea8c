//! Reads JSON piece by piece out of a text that lies in memory, without building a tree.
//!
//! Numbers come out as their digits, so that the caller parses them straight into the element type
//! and decides what fits. One deviation from RFC 8259, for the clients that exist: the bare words
//! `NaN`, `Infinity` and `-Infinity` are numbers. Nesting is limited, strings with lone surrogates
//! are refused, and nothing recurses on what the text says.

use std::borrow::Cow;

/// Deepest nesting that [`Lexer::skip`] goes through: a nested tensor of the highest rank, inside
/// of the objects of a request.
pub const MAX_DEPTH: usize = crate::tensor::MAX_RANK + 8;

/// A place in the text that is not what it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}, at byte {at}")]
pub struct JsonError {
    /// Offset into the text, in bytes.
    pub at: usize,
    /// What is wrong there.
    pub problem: String,
}

impl JsonError {
    /// As the error of an element of a tensor, by its place, row-major.
    #[cold]
    pub fn of_element(self, index: usize) -> Self {
        Self { at: self.at, problem: format!("element {index}: {}", self.problem) }
    }
}

/// A number as it stands in the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number<'a> {
    /// Digits, perhaps with a minus sign.
    Integer(&'a str),
    /// Has a fraction or an exponent.
    Decimal(&'a str),
    /// `NaN`, `Infinity` or `-Infinity`.
    NotFinite(f64),
}

/// A position in a JSON text.
#[derive(Debug, Clone)]
pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    /// At the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// At the start of `body`, which has to be UTF-8.
    pub fn from_body(body: &'a [u8]) -> Result<Self, JsonError> {
        match std::str::from_utf8(body) {
            Ok(text) => Ok(Self::new(text)),
            Err(error) => Err(JsonError { at: error.valid_up_to(), problem: "not UTF-8".to_owned() }),
        }
    }

    /// Where it stands.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Back, or on, to a place that [`Self::at`] gave.
    pub fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Bytes from here to the end.
    pub fn left(&self) -> usize {
        self.text.len() - self.at
    }

    /// An error at this place.
    pub fn error(&self, problem: impl Into<String>) -> JsonError {
        JsonError { at: self.at, problem: problem.into() }
    }

    fn expected(&self, what: &str) -> JsonError {
        match self.text[self.at..].chars().next() {
            Some(found) => self.error(format!("expected {what}, found `{}`", found.escape_debug())),
            None => self.error(format!("expected {what}, found the end")),
        }
    }

    /// The next byte that is no white space, not taken.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Takes `byte` if it comes next.
    #[inline]
    pub fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes `byte`, which has to come next.
    pub fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.eat(byte) { Ok(()) } else { Err(self.expected(&format!("`{}`", char::from(byte)))) }
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Result<(), JsonError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end")) }
    }

    /// After a value of an array or object: whether another follows (`,`) or it ends with `close`.
    #[inline]
    pub fn more(&mut self, close: u8) -> Result<bool, JsonError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.expected(&format!("`,` or `{}`", char::from(close)))),
        }
    }

    /// An object: calls `field` with each key, in order, standing before its value.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut field: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.eat(b'{') {
            return Err(self.expected("an object").into());
        }
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            field(self, key)?;
            if !self.more(b'}')? {
                return Ok(());
            }
        }
    }

    /// An array: calls `element` with each index, standing before its value.
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut element: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.eat(b'[') {
            return Err(self.expected("an array").into());
        }
        if self.eat(b']') {
            return Ok(());
        }
        for index in 0.. {
            element(self, index)?;
            if !self.more(b']')? {
                break;
            }
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> bool {
        let rest = &self.text.as_bytes()[self.at..];
        let found = rest.starts_with(word.as_bytes())
            && !rest.get(word.len()).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        if found {
            self.at += word.len();
        }
        found
    }

    /// `true` or `false`.
    pub fn boolean(&mut self) -> Result<bool, JsonError> {
        self.peek();
        if self.word("true") {
            Ok(true)
        } else if self.word("false") {
            Ok(false)
        } else {
            Err(self.expected("true or false"))
        }
    }

    /// A number, of any size.
    pub fn number(&mut self) -> Result<Number<'a>, JsonError> {
        let first = self.peek();
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut at = start + usize::from(first == Some(b'-'));
        match bytes.get(at) {
            Some(b'0') => at += 1,
            Some(b'1'..=b'9') => at = digits(bytes, at),
            Some(b'I') | Some(b'N') => return self.not_finite(),
            _ => return Err(self.expected("a number")),
        }
        let mut decimal = false;
        if bytes.get(at) == Some(&b'.') {
            decimal = true;
            at = self.fraction(at + 1)?;
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            decimal = true;
            at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            at = self.fraction(at)?;
        }
        self.at = at;
        let token = &self.text[start..at];
        Ok(if decimal { Number::Decimal(token) } else { Number::Integer(token) })
    }

    /// Goes past values that `read` knows, with commas between them, and gives each to `take`: at most so many. It is
    /// told a place of the text and tells the value's end. How many there were, after the last of which it stands.
    #[inline(always)]
    pub fn run<T>(
        &mut self,
        most: u64,
        read: impl Fn(&[u8], usize) -> Option<(T, usize)>,
        mut take: impl FnMut(T),
    ) -> u64 {
        self.peek();
        let (bytes, mut next, mut found) = (self.text.as_bytes(), self.at, 0);
        while found < most
            && let Some((value, end)) = read(bytes, next)
        {
            take(value);
            found += 1;
            self.at = end;
            if bytes.get(end) != Some(&b',') {
                break;
            }
            next = end + 1;
            while bytes.get(next).is_some_and(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')) {
                next += 1;
            }
        }
        found
    }

    /// At least one digit.
    fn fraction(&mut self, start: usize) -> Result<usize, JsonError> {
        let end = digits(self.text.as_bytes(), start);
        if end == start {
            self.at = start;
            return Err(self.expected("a digit"));
        }
        Ok(end)
    }

    fn not_finite(&mut self) -> Result<Number<'a>, JsonError> {
        for (word, value) in NOT_FINITE {
            if self.word(word) {
                return Ok(Number::NotFinite(value));
            }
        }
        Err(self.expected("a number"))
    }

    /// A string, borrowed where it holds no escapes.
    pub fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        if !self.eat(b'"') {
            return Err(self.expected("a string"));
        }
        let start = self.at;
        match self.plain()? {
            b'"' => Ok(Cow::Borrowed(&self.text[start..self.at - 1])),
            _ => {
                let mut owned = self.text[start..self.at - 1].to_owned();
                self.escaped(&mut owned)?;
                Ok(Cow::Owned(owned))
            }
        }
    }

    /// Goes past the next quote or backslash and gives which it was.
    fn plain(&mut self) -> Result<u8, JsonError> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' | b'\\' => {
                    self.at += 1;
                    return Ok(byte);
                }
                0..0x20 => return Err(self.error("a control character in a string has to be escaped")),
                _ => self.at += 1,
            }
        }
        Err(self.error("a string without its end"))
    }

    /// The rest of a string, standing after a backslash.
    fn escaped(&mut self, text: &mut String) -> Result<(), JsonError> {
        loop {
            let byte = self.text.as_bytes().get(self.at).copied();
            text.push(match byte {
                Some(b @ (b'"' | b'\\' | b'/')) => char::from(b),
                Some(b'b') => '\u{8}',
                Some(b'f') => '\u{c}',
                Some(b'n') => '\n',
                Some(b'r') => '\r',
                Some(b't') => '\t',
                Some(b'u') => self.unicode()?,
                _ => return Err(self.expected("an escape that JSON knows")),
            });
            self.at += 1;
            let start = self.at;
            let end = self.plain()?;
            text.push_str(&self.text[start..self.at - 1]);
            if end == b'"' {
                return Ok(());
            }
        }
    }

    /// Standing at the `u` of an escape; ends at its last digit.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let first = self.hex()?;
        let code = match first {
            0xd800..0xdc00 if self.text.as_bytes()[self.at + 1..].starts_with(b"\\u") => {
                self.at += 2;
                match self.hex()? {
                    low @ 0xdc00..0xe000 => 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00),
                    _ => first,
                }
            }
            _ => first,
        };
        char::from_u32(code).ok_or_else(|| self.error("half of a surrogate pair is no character"))
    }

    fn hex(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            self.at += 1;
            let digit = self.text.as_bytes().get(self.at).and_then(|&b| char::from(b).to_digit(16));
            match digit {
                Some(digit) => code = code << 4 | digit,
                None => return Err(self.error("expected four hexadecimal digits")),
            }
        }
        Ok(code)
    }

    /// Goes past one value of any kind, checking that it is JSON.
    pub fn skip(&mut self) -> Result<(), JsonError> {
        // What closes each open array or object.
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.peek() {
                Some(byte @ (b'[' | b'{')) => {
                    self.at += 1;
                    let close = if byte == b'[' { b']' } else { b'}' };
                    if !self.eat(close) {
                        open.push(close);
                        if open.len() > MAX_DEPTH {
                            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
                        }
                        if close == b'}' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => drop(self.string()?),
                Some(b't' | b'f') => drop(self.boolean()?),
                Some(b'n') => {
                    if !self.word("null") {
                        return Err(self.expected("a value"));
                    }
                }
                Some(b'-' | b'0'..=b'9' | b'N' | b'I') => drop(self.number()?),
                _ => return Err(self.expected("a value")),
            }
            // A value is complete: what it stands in may be complete too.
            loop {
                let Some(&close) = open.last() else { return Ok(()) };
                if self.more(close)? {
                    if close == b'}' {
                        self.key()?;
                    }
                    break;
                }
                open.pop();
            }
        }
    }

    /// Goes past one value that is read later, from here to where this ends. An array of numbers is not looked at.
    pub fn put_off(&mut self) -> Result<(), JsonError> {
        let rest = self.peek().map(|_| &self.text.as_bytes()[self.at..]);
        if let Some([b'[', inside @ ..]) = rest
            && let Some(place) = memchr::memchr3(b']', b'[', b'"', inside)
            && inside[place] == b']'
        {
            self.at += place + 2;
            return Ok(());
        }
        self.skip()
    }

    fn key(&mut self) -> Result<(), JsonError> {
        self.string()?;
        self.expect(b':')
    }
}

/// How the numbers that JSON has not are written, bare or as strings.
pub const NOT_FINITE: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

fn digits(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_off_ends_where_it_would_if_it_were_read() {
        for good in ["[]", "[1,2.5e3 , -0]", "[[1],[2]]", "[\"a]\", \"[\"]", "{\"a\":[1]}", "7", " [ NaN ] "]
        {
            let text = format!("{good}, [3]");
            let (mut read, mut put_off) = (Lexer::new(&text), Lexer::new(&text));
            read.skip().unwrap();
            put_off.put_off().unwrap();
            assert_eq!(put_off.at(), read.at(), "{text}");
        }
        for bad in ["", "[1", "[\"a", "[[1]", "]"] {
            assert!(Lexer::new(bad).put_off().is_err(), "{bad}");
        }
    }

    fn skips(text: &str) -> Result<(), JsonError> {
        let mut lexer = Lexer::new(text);
        lexer.skip()?;
        lexer.end()
    }

    #[test]
    fn goes_past_what_is_json() {
        for good in [
            "0",
            "-0",
            "1.5e-7",
            " [ ] ",
            "{}",
            "[{},[[]],\"\",true,false,null,NaN,-Infinity]",
            r#"{"a":{"b":[1,2]},"c":""}"#,
        ] {
            assert_eq!(skips(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn says_where_the_text_stops_being_json() {
        let check = |text: &str, at: usize| {
            assert_eq!(skips(text).map_err(|error| error.at), Err(at), "{text}");
        };
        check("", 0);
        check("[", 1);
        check("[1,]", 3);
        check("[1 2]", 3);
        check("[1}", 2);
        check("{\"a\"}", 4);
        check("{\"a\":1,}", 7);
        check("{a:1}", 1);
        check("01", 1);
        check("-", 0);
        check("1.", 2);
        check("1e+", 3);
        check(".5", 0);
        check("+1", 0);
        check("nul", 0);
        check("nulls", 0);
        check("NaNs", 0);
        check("-NaN", 0);
        check("1 1", 2);
        check("\"a", 2);
        check("\"a\n\"", 2);
        check("'a'", 0);
    }

    #[test]
    fn depth_is_limited_without_recursion() {
        for open in ["[", "{\"a\":"] {
            let error = skips(&open.repeat(200_000)).unwrap_err();
            assert!(error.problem.contains("nested deeper than 72"), "{error}");
        }
        assert!(skips(&format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_ok());
    }

    #[test]
    fn reads_strings() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(Lexer::new(text).string().ok().as_deref(), expected, "{text}");
        };
        check(r#""""#, Some(""));
        check(r#""grün""#, Some("grün"));
        check(r#""a\"b\\\/\b\f\n\r\t""#, Some("a\"b\\/\u{8}\u{c}\n\r\t"));
        check(r#""\u0041\u00e9\u0000""#, Some("Aé\0"));
        check(r#""\ud83d\ude00!""#, Some("😀!"));
        check(r#""\ud83d""#, None);
        check(r#""\ud83dx""#, None);
        check(r#""\ud83d\u0041""#, None);
        check(r#""\ude00""#, None);
        check(r#""\x""#, None);
        check(r#""\u12""#, None);
        check(r#""\u12é4""#, None);
        check(r#""\"#, None);
    }

    proptest::proptest! {
        #[test]
        fn reads_every_string_that_serde_json_writes(text: String) {
            let written = serde_json::to_string(&text).unwrap();
            proptest::prop_assert_eq!(&*Lexer::new(&written).string().unwrap(), &text);
        }

        #[test]
        fn takes_what_serde_json_takes(text in "[\\[\\]{}:,\"0-9a-z.eE+\\- ]{0,24}") {
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            proptest::prop_assert_eq!(skips(&text).is_ok(), theirs);
        }

        #[test]
        fn never_panics(text: String) {
            drop(skips(&text));
        }
    }
}
