//! Web servers that fail, lie, crawl or lead astray: the blob goes on another way, with what was right of it.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_package::Digest;

use super::Patience;
use super::address::Address;
use super::pace::Pace;
use super::tests::{Bench, CALM, HASTE, bytes};
use super::trouble::Rests;
use super::web::Manner;
use crate::clock;

#[tokio::test]
async fn a_connection_that_breaks_off_is_made_again_as_long_as_something_comes() {
    let (mut bench, web) = Bench::with_web();
    let large = bytes(1_000_000);
    bench.publish(&large);
    web.set(Manner::Cut(200_000));
    bench.start(bench.partial(&large));
    bench.comes(&large).await;
    assert!(web.given() < 1_000_000 + 6 * 16_384 + 6 * 65_536, "{} bytes", web.given());
    // A server that never gets as far as a block does not do.
    let other = bytes(500_000);
    bench.publish(&other);
    web.set(Manner::Cut(10_000));
    bench.start(bench.partial(&other));
    bench.falls("broke off").await;
}

#[tokio::test]
async fn what_is_read_for_nothing_is_not_waited_for_without_end() {
    let (mut bench, web) = Bench::with_web();
    bench.patience(HASTE);
    web.set(Manner::WholeTrickle);
    let blob = bytes(700_000);
    bench.publish(&blob);
    let mut partial = bench.partial(&blob);
    partial.put(0, &blob[..65_536]).unwrap();
    bench.start(partial);
    let kept = bench.falls("nothing came").await;
    assert_eq!(kept.bytes(), 65_536);
}

#[tokio::test]
async fn a_bad_server_gives_the_blob_back_with_what_was_right_and_rests() {
    let length = "HTTP/1.1 206 x\r\nContent-Length: 400000\r\n";
    for (manner, why) in [
        (Manner::Status(500), "answers 500"),
        (Manner::Status(404), "answers 404"),
        (Manner::Status(416), "answers 416"),
        (Manner::Spoiled, "not what was signed"),
        (Manner::Silent, "nothing came"),
        (Manner::Trickle, "nothing came"),
        (Manner::Endless, "broke off"),
        (Manner::Elsewhere("/x".to_owned()), "redirects more than 3 times"),
        (Manner::Elsewhere("ftp://127.0.0.1".to_owned()), "redirects to what is no address"),
        (Manner::Head(length.to_owned() + "Content-Range: bytes 1-400000/400001"), "400001 bytes there"),
        (
            Manner::Head(
                length.to_owned() + "Content-Encoding: gzip\r\nContent-Range: bytes 0-399999/400000",
            ),
            "packed",
        ),
        (Manner::Head("HTTP/1.1 200 x\r\nContent-Length: 99".to_owned()), "has 99 bytes there"),
        (Manner::Head("SSH-2.0-OpenSSH".to_owned()), "broke off"),
    ] {
        let (mut bench, web) = Bench::with_web();
        if why == "nothing came" {
            bench.patience(HASTE);
        }
        let blob = bytes(400_000);
        let digest = bench.publish(&blob);
        web.set(manner.clone());
        bench.start(bench.partial(&blob));
        let kept = bench.falls(why).await;
        assert!(kept.bytes() == 0, "{manner:?}: {} bytes were kept", kept.bytes());
        assert!(!bench.sources.contains(&digest), "{manner:?}");
        assert!(!bench.sources.carries(&digest, clock::since_boot()), "{manner:?} does not rest");
        assert!(bench.sources.wake_at().is_some(), "{manner:?} is never asked again");
        // When it has rested it is asked again, and has become better.
        web.set(Manner::Good);
        let later = clock::since_boot() + Duration::from_secs(7 * 3600);
        assert!(bench.sources.over(later) && bench.sources.carries(&digest, later));
        bench.sources.rests = Rests::default();
        bench.patience(CALM);
        bench.start(kept);
        bench.comes(&blob).await;
    }
}

/// 16 KiB every fifth of a second is something each time, and less than another way would bring.
#[tokio::test]
async fn a_slow_server_is_left_alone_where_there_is_another_way_and_only_there() {
    let (mut bench, web) = Bench::with_web();
    bench.patience(Patience { pace: HASTE.pace, ..CALM });
    web.set(Manner::Paced(Duration::from_millis(200)));
    let blob = bytes(400_000);
    let digest = bench.publish(&blob);
    bench.start(bench.partial(&blob));
    bench.comes(&blob).await;
    bench.sources.rivalled(true);
    let other = bytes(400_001);
    bench.publish(&other);
    bench.start(bench.partial(&other));
    bench.falls("bytes a second").await;
    // For every blob, and not for good.
    bench.sources.wanted(BTreeMap::from([(digest, bench.origins.clone())]));
    let now = clock::since_boot();
    assert!(!bench.sources.carries(&digest, now));
    assert!(bench.sources.carries(&digest, now + Duration::from_secs(80)));
}

#[tokio::test]
async fn the_next_source_takes_over_where_the_first_fails() {
    let (mut bench, bad) = Bench::with_web();
    let good = bench.web();
    bench.origins.push(good.source().parse().unwrap());
    let blob = bytes(900_000);
    bench.publish(&blob);
    bad.set(Manner::Status(503));
    bench.start(bench.partial(&blob));
    bench.comes(&blob).await;
    assert_eq!((bad.given(), good.given()), (0, 900_000));
    assert_eq!(bench.told.len(), 1, "{:?}", bench.told);
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_at_once_for_every_blob() {
    let (mut bench, _web) = Bench::with_web();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    bench.origins = vec![format!("http://{free}/{{digest}}").parse().unwrap()];
    let blob = bytes(100);
    bench.start(bench.partial(&blob));
    bench.falls("no connection").await;
    bench.sources.wanted(BTreeMap::from([(Digest::of(b"other"), bench.origins.clone())]));
    assert!(!bench.sources.carries(&Digest::of(b"other"), clock::since_boot()));
}

#[tokio::test]
async fn a_connection_is_cut_in_the_middle_and_little_is_sent_twice() {
    let (mut bench, web) = Bench::with_web();
    web.set(Manner::Paced(Duration::from_millis(10)));
    let blob = bytes(2_000_000);
    let digest = bench.publish(&blob);
    bench.start(bench.partial(&blob));
    for bytes in [300_000, 900_000, 1_500_000] {
        bench.until(digest, bytes).await;
        web.cut();
    }
    bench.comes(&blob).await;
    // A cut that comes when all is on its way already ends nothing.
    assert!((2..=4).contains(&web.connections().0), "{:?}", web.connections());
    assert!(web.given() < 2_400_000, "{} bytes", web.given());
}

#[tokio::test]
async fn a_redirection_does_not_lead_to_what_is_for_this_machine_only() {
    let (bench, web) = Bench::with_web();
    let shared = bench.sources.shared.clone().unwrap();
    let here = Address::parse(&format!("http://{}/x", web.address)).unwrap();
    let mut waiting = Pace::default().waiting();
    let connection = shared.open(&here, &mut waiting).await.unwrap();
    assert!(connection.near && connection.serves(&here));
    let from_afar = here.redirected(b"/x", false).unwrap();
    assert!(!connection.serves(&from_afar));
    let refused = shared.open(&from_afar, &mut waiting).await.unwrap_err();
    assert!(refused.to_string().contains("no address that may be asked"), "{refused}");
}
