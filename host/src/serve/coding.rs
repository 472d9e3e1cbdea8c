//! Compressed bodies, both ways: gzip and deflate.
//!
//! What a request unpacks to is bounded by what it may be when it comes unpacked, and taken out of the
//! memory that all requests share as it grows. Compressing and unpacking happen on threads that may block.

use std::io::{self, Read, Write};

use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};

use super::body::{Bounds, Budget, Reserved};
use super::failure::Failure;

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

    /// The coding that a client wants its answer in: of those that it names the one that it likes best,
    /// gzip where it likes both. `None`: it has to come as it is.
    pub fn wanted(headers: &HeaderMap) -> Option<Self> {
        let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
        let mut best = None;
        for item in lines.flat_map(|line| line.split(',')) {
            let mut parts = item.split(';').map(str::trim);
            let Some(coding) = parts.next().and_then(Self::named) else { continue };
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok());
            let Some(weight) = weight.filter(|weight: &f32| *weight > 0.0) else { continue };
            let better = best.is_none_or(|(found, most)| {
                weight > most || weight == most && found == Self::Deflate && coding == Self::Gzip
            });
            if better {
                best = Some((coding, weight));
            }
        }
        best.map(|(coding, _)| coding)
    }
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
    bounds: Bounds,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure> {
    let budget = budget.clone();
    let unpacking =
        tokio::task::spawn_blocking(move || unpack_here(coding, &packed, reserved, bounds, &budget));
    unpacking.await.map_err(|_| Failure::Panic)?
}

fn unpack_here(
    coding: Coding,
    packed: &[u8],
    mut reserved: Reserved,
    bounds: Bounds,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure> {
    let (mut gzip, mut zlib, mut bare);
    let decoder: &mut dyn Read = match coding {
        Coding::Gzip => {
            gzip = MultiGzDecoder::new(packed);
            &mut gzip
        }
        Coding::Deflate if has_frame(packed) => {
            zlib = ZlibDecoder::new(packed);
            &mut zlib
        }
        Coding::Deflate => {
            bare = DeflateDecoder::new(packed);
            &mut bare
        }
    };
    let skipped = bounds.skipped();
    let mut whole = vec![0; skipped];
    loop {
        let before = whole.len();
        let step = (bounds.limit + 1 - (before - skipped)).min(STEP);
        reserved.grow(budget, packed.len() + before + step)?;
        let read = (&mut *decoder).take(step as u64).read_to_end(&mut whole);
        let read = read.map_err(|error| Failure::Coding { coding: coding.name(), why: error.to_string() })?;
        if whole.len() - skipped > bounds.limit {
            return Err(Failure::TooLarge { limit: bounds.limit });
        }
        if read < step {
            return Ok((Bytes::from(whole).slice(skipped..), reserved));
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
pub async fn pack(
    wanted: Option<Coding>,
    pieces: Vec<Bytes>,
) -> Result<(Vec<Bytes>, Option<HeaderValue>), Failure> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let Some(coding) = wanted.filter(|_| length >= WORTH_IT) else { return Ok((pieces, None)) };
    let packed = tokio::task::spawn_blocking(move || pack_here(coding, &pieces)).await;
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
    use std::time::Duration;

    fn bounds(limit: usize) -> Bounds {
        Bounds { limit, time: Duration::from_secs(1), aligned: 3 }
    }

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        pack_here(coding, &[Bytes::copy_from_slice(text)]).unwrap()
    }

    async fn check(coding: Coding, body: &[u8], limit: usize) -> Result<Bytes, u16> {
        let budget = Budget::new(1);
        let reserved = budget.reserve(1).unwrap();
        unpack(coding, Bytes::copy_from_slice(body), reserved, bounds(limit), &budget)
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
        }
    }

    #[test]
    fn a_client_gets_what_it_names() {
        let check = |accept: &str, wanted: Option<Coding>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, accept.parse().unwrap());
            assert_eq!(Coding::wanted(&headers), wanted, "{accept}");
        };
        assert_eq!(Coding::wanted(&HeaderMap::new()), None);
        check("", None);
        check("identity", None);
        check("*", None);
        check("br, zstd", None);
        check("gzip", Some(Coding::Gzip));
        check("X-GZIP", Some(Coding::Gzip));
        check("deflate", Some(Coding::Deflate));
        check("deflate, gzip, br", Some(Coding::Gzip));
        check("gzip;q=0.5, deflate;q=0.8", Some(Coding::Deflate));
        check("gzip; q=0, deflate;q=0.001", Some(Coding::Deflate));
        check("gzip;q=0", None);
        check("gzip;q=x", None);
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
