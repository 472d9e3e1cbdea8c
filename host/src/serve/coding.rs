//! Compressed bodies, both ways: gzip and deflate.
//!
//! What a request unpacks to is bounded by what it may be when it comes unpacked, and taken out of the
//! memory that all requests share as it grows. Compressing and unpacking happen on threads that may block.

use std::io::{self, Read, Write};
use std::time::Instant;

use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use tokio::sync::SemaphorePermit;

use super::body::{Bounds, Budget, Reserved};
use super::failure::Failure;
use super::gate::Leave;
use crate::clock;
use crate::threads;

/// Answers below this are sent as they are.
const WORTH_IT: usize = 1024;

/// Bytes unpacked at a time.
const STEP: usize = 64 << 10;

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, as HTTP means it; taken without its frame too, as some clients send it.
    Deflate,
}

impl Coding {
    const ALL: [Self; 2] = [Self::Gzip, Self::Deflate];

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// The coding of this name.
    pub fn named(name: &str) -> Option<Self> {
        let is = |coding: &Self| name.eq_ignore_ascii_case(coding.name());
        let old = name.eq_ignore_ascii_case("x-gzip").then_some(Self::Gzip);
        old.or_else(|| Self::ALL.into_iter().find(is))
    }

    /// The coding of a request's body; `None`: it comes as it is.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let mut given = headers.get_all(header::CONTENT_ENCODING).iter();
        let (Some(value), None) = (given.next(), given.next()) else {
            return if headers.contains_key(header::CONTENT_ENCODING) { Err(unknown()) } else { Ok(None) };
        };
        let name = value.to_str().map_err(|_| unknown())?.trim();
        match Self::named(name) {
            None if name.is_empty() || name.eq_ignore_ascii_case("identity") => Ok(None),
            None => Err(unknown()),
            found => Ok(found),
        }
    }
}

/// How a client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Packed so, where that is worth it.
    coding: Option<Coding>,
    /// As it is, where it is not.
    plain: bool,
}

impl Wanted {
    /// As Accept-Encoding says: of the codings that it names the one that it likes best, gzip where it likes
    /// both. `*` stands for what it does not name, and alone asks for nothing. As it is where it likes that
    /// better, and otherwise where packing is not worth it, unless it excludes that.
    pub fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
        let (mut named, mut identity, mut others) = ([None; 2], None, None);
        for item in lines.flat_map(|line| line.split(',')) {
            let mut parts = item.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = weight(parts);
            match Coding::named(name) {
                Some(Coding::Gzip) => named[0] = weight,
                Some(Coding::Deflate) => named[1] = weight,
                None if name.eq_ignore_ascii_case("identity") => identity = weight,
                None if name == "*" => others = weight,
                None => {}
            }
        }
        // What is not named is not wanted, but for the answer as it is.
        let plain = identity.or(others).is_none_or(|weight| weight > 0);
        let liked = |at: usize| named[at].or(others.filter(|_| !plain)).filter(|weight| *weight > 0);
        let best = match (liked(0), liked(1)) {
            (gzip, deflate) if gzip >= deflate => gzip.map(|weight| (Coding::Gzip, weight)),
            (_, deflate) => deflate.map(|weight| (Coding::Deflate, weight)),
        };
        let coding = best.filter(|(_, weight)| !plain || identity.is_none_or(|plain| *weight >= plain));
        match coding {
            None if !plain => Err(Failure::NotAcceptable),
            coding => Ok(Self { coding: coding.map(|(coding, _)| coding), plain }),
        }
    }
}

/// A weight of RFC 9110 in thousandths; 1 where there is none, and `None` where it is none.
fn weight<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<u16> {
    let is = |part: &&str| part.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("q="));
    let Some(text) = parts.find(is).map(|part| &part[2..]) else { return Some(1000) };
    let weight: f32 = text.parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?;
    Some((weight * 1000.0) as u16)
}

fn unknown() -> Failure {
    Failure::MediaType(
        "the body's Content-Encoding is none that this server takes: send it with `gzip`, with `deflate` or \
         without one"
            .to_owned(),
    )
}

/// Unpacks a request's body within its bounds.
pub async fn unpack(
    coding: Coding,
    packed: Bytes,
    reserved: Reserved,
    job: Job,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure> {
    let budget = budget.clone();
    let unpacking = threads::aside(move || unpack_here(coding, &packed, reserved, &job, &budget));
    unpacking.await.map_err(|_| Failure::Panic)?
}

/// Within what a body is unpacked.
#[derive(Debug)]
pub struct Job {
    /// What it may be.
    pub bounds: Bounds,
    /// Nobody waits for it after this.
    pub until: Instant,
    /// Keeps others out meanwhile.
    pub leave: Option<Leave>,
    /// As that does, where it is not known whose it is.
    pub permit: Option<SemaphorePermit<'static>>,
}

fn unpack_here(
    coding: Coding,
    packed: &[u8],
    mut reserved: Reserved,
    job: &Job,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure> {
    let bounds = job.bounds;
    let mut decoder = match coding {
        Coding::Gzip => Decoder::Gzip(MultiGzDecoder::new(packed)),
        Coding::Deflate if has_frame(packed) => Decoder::Zlib(ZlibDecoder::new(packed)),
        Coding::Deflate => Decoder::Bare(DeflateDecoder::new(packed)),
    };
    let wrong = |why: String| Failure::Coding { coding: coding.name(), why };
    let began = clock::now();
    let skipped = bounds.skipped();
    let mut whole = vec![0; skipped];
    loop {
        let before = whole.len();
        let step = (bounds.limit + 1 - (before - skipped)).min(STEP);
        reserved.grow(budget, packed.len() + before + step)?;
        let read = (&mut decoder).take(step as u64).read_to_end(&mut whole);
        let read = read.map_err(|error| wrong(error.to_string()))?;
        if clock::now() >= job.until {
            return Err(Failure::Late(job.until.saturating_duration_since(began)));
        }
        if whole.len() - skipped > bounds.limit {
            return Err(Failure::TooLarge { limit: bounds.limit });
        }
        if read < step {
            match decoder.left() {
                0 => {}
                left => return Err(wrong(format!("{left} bytes follow its end"))),
            }
            return Ok((Bytes::from(whole).slice(skipped..), reserved));
        }
    }
}

enum Decoder<'a> {
    Gzip(MultiGzDecoder<&'a [u8]>),
    Zlib(ZlibDecoder<&'a [u8]>),
    Bare(DeflateDecoder<&'a [u8]>),
}

impl Decoder<'_> {
    /// Bytes behind its end.
    fn left(self) -> usize {
        match self {
            Self::Gzip(decoder) => decoder.into_inner().len(),
            Self::Zlib(decoder) => decoder.into_inner().len(),
            Self::Bare(decoder) => decoder.into_inner().len(),
        }
    }
}

impl Read for Decoder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zlib(decoder) => decoder.read(buffer),
            Self::Bare(decoder) => decoder.read(buffer),
        }
    }
}

/// Whether deflated bytes begin as RFC 1950 says.
fn has_frame(packed: &[u8]) -> bool {
    match packed {
        [method, flags, ..] => {
            method & 0xf == 8 && (u16::from(*method) << 8 | u16::from(*flags)).is_multiple_of(31)
        }
        _ => true,
    }
}

/// Packs an answer where that is wanted and worth it; says how it was packed.
pub async fn pack(wanted: Wanted, pieces: Vec<Bytes>) -> Result<(Vec<Bytes>, Option<HeaderValue>), Failure> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let worth_it = length >= WORTH_IT || !wanted.plain;
    let Some(coding) = wanted.coding.filter(|_| worth_it) else { return Ok((pieces, None)) };
    let packed = threads::aside(move || pack_here(coding, &pieces)).await;
    let packed = packed.map_err(|_| Failure::Panic)?.map_err(|_| Failure::Panic)?;
    Ok((vec![packed.into()], Some(HeaderValue::from_static(coding.name()))))
}

fn pack_here(coding: Coding, pieces: &[Bytes]) -> io::Result<Vec<u8>> {
    // The wire is short: what costs least is what is wanted.
    let level = Compression::fast();
    match coding {
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            pieces.iter().try_for_each(|piece| encoder.write_all(piece))?;
            encoder.finish()
        }
        Coding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            pieces.iter().try_for_each(|piece| encoder.write_all(piece))?;
            encoder.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::gate::Gate;
    use selvedge_package::manifest::Module;
    use std::sync::Arc;
    use std::time::Duration;

    fn bounds(limit: usize) -> Bounds {
        Bounds { limit, time: Duration::from_secs(1), aligned: 3 }
    }

    async fn job(limit: usize, until: Instant) -> Job {
        let gate = Gate::new(&Module::default(), &Arc::default());
        let leave = gate.ready(clock::now() + Duration::from_secs(60)).await.unwrap();
        Job { bounds: bounds(limit), until, leave: Some(leave), permit: None }
    }

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        pack_here(coding, &[Bytes::copy_from_slice(text)]).unwrap()
    }

    async fn check(coding: Coding, body: &[u8], limit: usize) -> Result<Bytes, u16> {
        let budget = Budget::new(1);
        let reserved = budget.reserve(1).unwrap();
        let until = clock::now() + Duration::from_secs(60);
        unpack(coding, Bytes::copy_from_slice(body), reserved, job(limit, until).await, &budget)
            .await
            .map(|(bytes, _)| bytes)
            .map_err(|failure| failure.status().as_u16())
    }

    #[tokio::test]
    async fn what_is_packed_comes_out_again() {
        for coding in Coding::ALL {
            for text in [&b""[..], b"a", &[7; 100_000]] {
                let limit = text.len();
                let whole = check(coding, &packed(coding, text), limit).await.unwrap();
                assert!(whole == text && (text.len() < 3 || whole[3..].as_ptr().addr().is_multiple_of(8)));
            }
        }
        let bare = packed(Coding::Deflate, b"without its frame");
        let bare = &bare[2..bare.len() - 4];
        assert_eq!(check(Coding::Deflate, bare, 100).await.unwrap(), b"without its frame".as_slice());
        let two = [packed(Coding::Gzip, b"ab"), packed(Coding::Gzip, b"c")].concat();
        assert_eq!(check(Coding::Gzip, &two, 100).await.unwrap(), b"abc".as_slice());
    }

    #[tokio::test]
    async fn a_body_that_is_small_only_while_it_is_packed_is_refused() {
        for coding in Coding::ALL {
            let bomb = packed(coding, &vec![0; 2 << 20]);
            assert!(bomb.len() < 100_000);
            assert_eq!(check(coding, &bomb, (2 << 20) - 1).await, Err(503), "more than the budget");
            assert_eq!(check(coding, &bomb, 500_000).await, Err(413));
            assert_eq!(check(coding, &packed(coding, &[0; 101]), 100).await, Err(413));
        }
    }

    #[tokio::test]
    async fn what_takes_too_long_is_given_up() {
        let (budget, now) = (Budget::new(4), clock::now());
        let bomb = Bytes::from(packed(Coding::Gzip, &vec![0; 2 << 20]));
        let reserved = budget.reserve(1).unwrap();
        let failure =
            unpack(Coding::Gzip, bomb, reserved, job(3 << 20, now).await, &budget).await.unwrap_err();
        assert_eq!(failure.status(), 504);
        assert!(budget.reserve(4 << 20).is_ok(), "everything was given back");
    }

    #[tokio::test]
    async fn what_is_cut_or_changed_is_refused() {
        for coding in Coding::ALL {
            let good = packed(coding, b"some text, some text, some text");
            for cut in 0..good.len() {
                assert_eq!(check(coding, &good[..cut], 1000).await, Err(400), "{coding:?} cut at {cut}");
            }
            let mut changed = good.clone();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(check(coding, &changed, 1000).await, Err(400));
            assert_eq!(check(coding, b"{\"inputs\":[]}", 1000).await, Err(400));
            for more in [&b"x"[..], b"\0", &good[..good.len() - 1]] {
                assert_eq!(check(coding, &[&good, more].concat(), 1000).await, Err(400), "{coding:?}");
            }
        }
        let bare = packed(Coding::Deflate, b"without its frame");
        assert_eq!(check(Coding::Deflate, &bare[2..], 1000).await, Err(400), "four bytes follow");
    }

    #[test]
    fn a_client_gets_what_it_names() {
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, accept.parse().unwrap());
            Wanted::of(&headers)
        };
        let check = |accept: &str, coding: Option<Coding>, plain: bool| {
            assert_eq!(of(accept).unwrap(), Wanted { coding, plain }, "{accept}");
        };
        let (gzip, deflate) = (Some(Coding::Gzip), Some(Coding::Deflate));
        assert_eq!(Wanted::of(&HeaderMap::new()).unwrap(), Wanted { coding: None, plain: true });
        for nothing in
            ["", "identity", "*", "br, zstd", "gzip;q=0", "gzip;q=x", "gzip;q=2", "gzip;Q=0", "*;q=0.5"]
        {
            check(nothing, None, true);
        }
        check("gzip", gzip, true);
        check("X-GZIP", gzip, true);
        check("deflate", deflate, true);
        check("deflate, gzip, br", gzip, true);
        check("gzip;q=0.5, deflate;q=0.8", deflate, true);
        check("gzip; q=0, deflate;q=0.001", deflate, true);
        check("gzip;Q=0.5, deflate ; Q=0.8", deflate, true);
        check("gzip;q=0.5, identity", None, true);
        check("gzip;q=0.5, identity;q=0.2", gzip, true);
        check("gzip, identity;q=0", gzip, false);
        check("gzip;q=0.1, *;q=0", gzip, false);
        check("*, identity;q=0", gzip, false);
        check("*;q=0.5, identity;q=0, gzip;q=0", deflate, false);
        check("*;q=0, identity", None, true);
        for no_way in ["identity;q=0", "*;q=0", "gzip;q=0, *;q=0", "br, identity;q=0", "identity;Q=0.0"] {
            assert_eq!(of(no_way).unwrap_err().status(), 406, "{no_way}");
        }
    }

    #[test]
    fn a_coding_that_is_not_known_is_not_guessed_at() {
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_bytes(value).unwrap());
            }
            Coding::of(&headers).map_err(|failure| failure.status().as_u16())
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[b"identity"]), Ok(None));
        assert_eq!(of(&[b"GZIP"]), Ok(Some(Coding::Gzip)));
        assert_eq!(of(&[b"deflate"]), Ok(Some(Coding::Deflate)));
        for other in [&[&b"br"[..]][..], &[b"gzip, gzip"], &[b"gzip", b"gzip"], &[b"\xa0"]] {
            assert_eq!(of(other), Err(415), "{other:?}");
        }
    }
}
