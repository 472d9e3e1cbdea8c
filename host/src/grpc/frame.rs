//! Messages in the body of a call: five bytes of head (packed or not, and the length), then the message.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Semaphore;

use super::request::raw_begins;
use super::status::{self, Code};
use super::timeout;
use crate::clock;
use crate::serve::body::{Bounds, Budget, Reserved};
use crate::serve::coding::{self, Coding, Job};
use crate::serve::failure::Failure;
use crate::serve::pieces::Pieces;

/// Bytes in front of a message.
const HEAD: usize = 5;

/// Most bytes that an announced length may ask for before they come.
const AT_ONCE: usize = 1 << 20;

/// Messages that are unpacked side by side: whose they are, and what its package allows, is known afterwards only.
static UNPACKING: Semaphore = Semaphore::const_new(4);

/// Longest time that a message may take to come, once it has begun.
pub const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// The messages of a call, as they come.
pub struct Messages {
    frames: BodyDataStream,
    /// What has come and was not taken.
    rest: Bytes,
    /// How messages are packed that say that they are.
    coding: Option<Coding>,
    /// The time that its client gives the call.
    given: Option<Duration>,
}

impl Messages {
    /// Of a call's body, packed as its head says.
    pub fn of(headers: &HeaderMap, body: Body) -> Result<Self, Failure> {
        let coding = match headers.get("grpc-encoding").map(|value| value.to_str().unwrap_or_default()) {
            None | Some("identity") => None,
            Some(name) => Some(Coding::named(name).ok_or(Failure::NotOffered(
                "messages packed so (grpc-encoding) are not taken here: gzip, deflate or identity",
            ))?),
        };
        let given = timeout::of(headers)?;
        Ok(Self { frames: body.into_data_stream(), rest: Bytes::new(), coding, given })
    }

    /// Waits until something of a message is here; `false`: there are no more.
    pub async fn begins(&mut self) -> Result<bool, Failure> {
        while self.rest.is_empty() {
            match self.frames.next().await {
                None => return Ok(false),
                Some(frame) => self.rest = frame.map_err(|error| Failure::Broken(error.to_string()))?,
            }
        }
        Ok(true)
    }

    /// The next message, of at most `limit` bytes, unpacked too; `None`: there are no more.
    pub async fn next(
        &mut self,
        limit: usize,
        budget: &Budget,
    ) -> Result<Option<(Bytes, Reserved)>, Failure> {
        let (message, packed, reserved) =
            match tokio::time::timeout(MESSAGE_TIME, self.whole(limit, budget)).await {
                Ok(whole) => match whole? {
                    Some(message) => message,
                    None => return Ok(None),
                },
                Err(_) => return Err(Failure::Slow(MESSAGE_TIME.as_millis())),
            };
        if !packed {
            return Ok(Some((message, reserved)));
        }
        let Some(coding) = self.coding else {
            return Err(Failure::Unnamed);
        };
        let bounds = Bounds { limit, time: MESSAGE_TIME, aligned: 0 };
        // Nobody waits for its answer after this.
        let time = self.given.map_or(MESSAGE_TIME, |given| given.min(MESSAGE_TIME));
        let until = clock::now() + time;
        let waiting = tokio::time::timeout(time, UNPACKING.acquire()).await;
        // The semaphore is never closed.
        let permit = waiting.map_err(|_| Failure::Late(time))?.ok();
        // Whose it is, is inside. Held until it is unpacked, be its client gone.
        let job = Job { bounds, until, leave: None, permit };
        coding::unpack(coding, message, reserved, job, budget).await.map(Some)
    }

    /// The only message of a call that has one.
    pub async fn only(&mut self, limit: usize, budget: &Budget) -> Result<(Bytes, Reserved), Failure> {
        let missing = || Failure::NotOffered("this call takes one message, and there is no message in it");
        let message = self.next(limit, budget).await?.ok_or_else(missing)?;
        match tokio::time::timeout(MESSAGE_TIME, self.begins()).await {
            Ok(Ok(false)) => Ok(message),
            Ok(Ok(true)) => Err(Failure::NotOffered("this call takes one message, and more came")),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Slow(MESSAGE_TIME.as_millis())),
        }
    }

    async fn whole(
        &mut self,
        limit: usize,
        budget: &Budget,
    ) -> Result<Option<(Bytes, bool, Reserved)>, Failure> {
        let mut head = [0; HEAD];
        let mut have = 0;
        while have < HEAD {
            if !self.begins().await? {
                return if have == 0 { Ok(None) } else { Err(cut_off()) };
            }
            let part = self.rest.split_to(self.rest.len().min(HEAD - have));
            head[have..have + part.len()].copy_from_slice(&part);
            have += part.len();
        }
        let [packed, length @ ..] = head;
        if packed > 1 {
            return Err(Failure::Broken("what comes is no message of gRPC".to_owned()));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > limit {
            return Err(Failure::TooLarge { limit });
        }
        // What a client announces is not reserved before it comes.
        let mut reserved = budget.reserve(self.rest.len().min(length).max(1))?;
        if self.rest.len() >= length {
            // A message of one frame is used as it came.
            return Ok(Some((self.rest.split_to(length), packed == 1, reserved)));
        }
        let skipped = if packed == 1 {
            0
        } else {
            Bounds { limit, time: MESSAGE_TIME, aligned: raw_begins(&self.rest).unwrap_or(0) }.skipped()
        };
        let mut whole = Vec::with_capacity(skipped + length.min(AT_ONCE));
        whole.resize(skipped, 0);
        while whole.len() < skipped + length {
            if !self.begins().await? {
                return Err(cut_off());
            }
            let part = self.rest.split_to(self.rest.len().min(skipped + length - whole.len()));
            reserved.grow(budget, whole.len() + part.len())?;
            whole.extend_from_slice(&part);
        }
        Ok(Some((Bytes::from(whole).slice(skipped..), packed == 1, reserved)))
    }
}

fn cut_off() -> Failure {
    Failure::Broken("it ends in the middle of a message".to_owned())
}

/// Puts the head of a message in front of its pieces.
pub fn framed(mut pieces: Vec<Bytes>) -> Result<Vec<Bytes>, Failure> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let length = u32::try_from(length).map_err(|_| Failure::Unanswerable)?;
    let mut head = vec![0];
    head.extend(length.to_be_bytes());
    if let Some(first) = pieces.first_mut() {
        // The first one has what stands before elements, and is short.
        head.extend_from_slice(first);
        *first = head.into();
    } else {
        pieces.push(head.into());
    }
    Ok(pieces)
}

/// The answer of a call that has one message, of which these are the pieces with its head.
pub fn answer(pieces: Vec<Bytes>) -> Response {
    response(Body::new(Pieces::new(pieces).followed_by(status::trailers(Code::Ok, ""))))
}

/// An answer with this body.
pub fn response(body: Body) -> Response {
    let mut response = Response::new(body);
    status::mark(&mut response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Message;
    use axum::http::HeaderName;
    use futures_util::stream;

    fn messages(frames: &[&'static [u8]], coding: Option<&'static str>) -> Messages {
        let frames: Vec<Result<Bytes, std::io::Error>> =
            frames.iter().map(|frame| Ok(Bytes::from_static(frame))).collect();
        let mut headers = HeaderMap::new();
        if let Some(name) = coding {
            headers.insert("grpc-encoding", name.parse().unwrap());
        }
        Messages::of(&headers, Body::from_stream(stream::iter(frames))).unwrap()
    }

    #[tokio::test]
    async fn messages_are_cut_anywhere() {
        let budget = Budget::new(1);
        let whole: &'static [u8] = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x02de";
        for cut in 0..whole.len() {
            for again in cut..whole.len() {
                let mut messages = messages(&[&whole[..cut], &whole[cut..again], b"", &whole[again..]], None);
                for expected in [&b"abc"[..], b"", b"de"] {
                    let (message, _) = messages.next(3, &budget).await.unwrap().unwrap();
                    assert_eq!(message, expected, "{cut} {again}");
                }
                assert!(messages.next(3, &budget).await.unwrap().is_none());
            }
        }
        assert!(budget.reserve(1 << 20).is_ok(), "everything was given back");
    }

    async fn refusal(frames: &[&'static [u8]], coding: Option<&'static str>) -> String {
        match messages(frames, coding).only(10, &Budget::new(1)).await {
            Err(failure) => failure.to_string(),
            Ok(_) => panic!("taken"),
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        let check = async |frames: &[&'static [u8]], coding, says: &str| {
            let refusal = refusal(frames, coding).await;
            assert!(refusal.contains(says), "{refusal}");
        };
        check(&[], None, "no message").await;
        check(&[b"\0\0"], None, "in the middle").await;
        check(&[b"\0\0\0\0\x02a"], None, "in the middle").await;
        check(&[b"\0\0\0\0\x0b"], None, "larger than the 10 bytes").await;
        check(&[b"\0\xff\xff\xff\xff"], None, "larger than the 10 bytes").await;
        check(&[b"\x02\0\0\0\0"], None, "no message of gRPC").await;
        check(&[b"{\"inputs\":[]}"], None, "no message of gRPC").await;
        check(&[b"\x01\0\0\0\x01a"], None, "grpc-encoding does not say how").await;
        check(&[b"\x01\0\0\0\x01a"], Some("gzip"), "not the gzip").await;
        check(&[b"\0\0\0\0\x01a\0"], None, "one message, and more came").await;
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static("grpc-encoding"), "br".parse().unwrap())]);
        assert!(Messages::of(&headers, Body::empty()).is_err());
    }

    #[tokio::test]
    async fn what_a_packed_message_unpacks_to_is_bounded() {
        use std::io::Write as _;
        for (length, taken) in [(10, true), (11, false), (1 << 20, false)] {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(&vec![7; length]).unwrap();
            let packed = packer.finish().unwrap();
            let mut frame = vec![1];
            frame.extend((packed.len() as u32).to_be_bytes());
            frame.extend(packed);
            let body = Body::from(frame);
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static("grpc-encoding"), "gzip".parse().unwrap())]);
            let mut messages = Messages::of(&headers, body).unwrap();
            let result = messages.next(if taken { length.max(64) } else { 10 }, &Budget::new(4)).await;
            match result {
                Ok(message) => assert!(taken && message.unwrap().0 == vec![7; length]),
                Err(failure) => assert!(!taken && matches!(failure, Failure::TooLarge { .. }), "{failure}"),
            }
        }
    }

    fn packed(bytes: &[u8]) -> Body {
        use std::io::Write as _;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        let packed = packer.finish().unwrap();
        Body::from([&[1][..], &(packed.len() as u32).to_be_bytes(), &packed].concat())
    }

    #[test]
    fn a_place_to_unpack_is_kept_until_that_is_done_and_waited_for_within_the_calls_time() {
        // One thread that may block, which does.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let (go, blocked) = std::sync::mpsc::channel::<()>();
            let blocking = tokio::task::spawn_blocking(move || blocked.recv().is_ok());
            let headers = HeaderMap::from_iter(
                [("grpc-encoding", "gzip"), ("grpc-timeout", "50m")]
                    .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())),
            );
            let before = UNPACKING.available_permits();
            let mut messages = Messages::of(&headers, packed(b"abc")).unwrap();
            let budget = Budget::new(1);
            let soon = Duration::from_millis(20);
            assert!(tokio::time::timeout(soon, messages.next(64, &budget)).await.is_err());
            drop(messages);
            assert_eq!(
                UNPACKING.available_permits(),
                before - 1,
                "its client is gone, and it waits to be done"
            );
            let others = UNPACKING.acquire_many(before as u32 - 1).await.unwrap();
            let mut messages = Messages::of(&headers, packed(b"abc")).unwrap();
            let late = messages.next(64, &budget).await;
            assert!(matches!(late, Err(Failure::Late(_))));
            go.send(()).unwrap();
            blocking.await.unwrap();
            drop(UNPACKING.acquire().await);
            drop(others);
        });
    }

    #[tokio::test]
    async fn raw_contents_lie_where_elements_may() {
        for name in 1..40 {
            let mut message = Message::default();
            message.bytes(1, "m".repeat(name)).part(7, [7; 4000]);
            let message = message.into_bytes();
            let begins = message.len() - 4000;
            let framed = framed(vec![message.into()]).unwrap().concat();
            let (first, second) = framed.split_at(200);
            let frames = [first, second].map(|frame| Ok::<_, std::io::Error>(Bytes::copy_from_slice(frame)));
            let body = Body::from_stream(stream::iter(frames));
            let mut messages = Messages::of(&HeaderMap::new(), body).unwrap();
            let (message, _) = messages.next(5000, &Budget::new(1)).await.unwrap().unwrap();
            assert!(message[begins..].as_ptr().addr().is_multiple_of(crate::tensor::ALIGN), "{name}");
        }
    }
}
