//! Web servers that do well enough, and that must not be taken for slow ones where there is another way.

use std::time::Duration;

use super::Patience;
use super::address::Address;
use super::pace::Pace;
use super::tests::{Bench, CALM, HASTE, bytes};
use super::web::Manner;

#[tokio::test]
async fn waiting_for_room_is_not_held_against_a_server() {
    let (mut bench, web) = Bench::with_web();
    bench.patience(Patience { pace: HASTE.pace, ..CALM });
    bench.sources.rivalled(true);
    let shared = bench.sources.shared.clone().unwrap();
    let address = Address::parse(&format!("http://{}/x", web.address)).unwrap();
    let mut waiting = Pace::default().waiting();
    let one = shared.open(&address, &mut waiting).await.unwrap();
    let two = shared.open(&address, &mut waiting).await.unwrap();
    let blob = bytes(400_000);
    bench.publish(&blob);
    bench.start(bench.partial(&blob));
    // As long as others hold both, for longer than a source is judged.
    tokio::time::sleep(HASTE.pace * 3 / 2).await;
    assert!(web.heads().is_empty());
    drop((one, two));
    bench.comes(&blob).await;
    assert!(bench.told.is_empty(), "{:?}", bench.told);
}

/// Each of two blobs gets less than the lowest rate, both together more.
#[tokio::test]
async fn a_server_that_gives_two_blobs_at_once_is_judged_by_both() {
    let (mut bench, web) = Bench::with_web();
    bench.patience(Patience { pace: HASTE.pace, ..CALM });
    web.set(Manner::Paced(Duration::from_millis(180)));
    bench.sources.rivalled(true);
    let blobs = [bytes(250_000), bytes(250_001)];
    for blob in &blobs {
        bench.publish(blob);
        bench.start(bench.partial(blob));
    }
    bench.all_come(&blobs).await;
    assert!(bench.told.is_empty(), "{:?}", bench.told);
}
