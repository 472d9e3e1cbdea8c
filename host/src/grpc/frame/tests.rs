//! Messages as they come, cut, packed and wrong.

use super::*;
use crate::protobuf::Message;
use crate::threads;
use axum::http::HeaderName;
use futures_util::stream;
use std::sync::{Arc, Barrier};

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
    let headers = HeaderMap::from_iter([(HeaderName::from_static("grpc-encoding"), "br".parse().unwrap())]);
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

#[tokio::test]
async fn a_place_to_unpack_is_kept_until_that_is_done_and_waited_for_within_the_calls_time() {
    // All threads on which that is done are kept busy.
    let go = Arc::new(Barrier::new(threads::MOST_ASIDE + 1));
    let blocking: Vec<_> = (0..threads::MOST_ASIDE)
        .map(|_| {
            let go = Arc::clone(&go);
            threads::aside(move || {
                go.wait();
            })
        })
        .collect();
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
    assert_eq!(UNPACKING.available_permits(), before - 1, "its client is gone, and it waits to be done");
    let others = UNPACKING.acquire_many(before as u32 - 1).await.unwrap();
    let mut messages = Messages::of(&headers, packed(b"abc")).unwrap();
    let late = messages.next(64, &budget).await;
    assert!(matches!(late, Err(Failure::Late(_))));
    drop(
        tokio::task::spawn_blocking(move || {
            go.wait();
        })
        .await,
    );
    for blocking in blocking {
        blocking.await.unwrap();
    }
    drop(UNPACKING.acquire().await);
    drop(others);
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
