//! The same under TLS over Mosquitto with certificates: a long, thin cable that is cut again and again,
//! and one that is unplugged for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_tests::broker::Broker;
use selvedge_tests::link::cable::{Cable, Weather};
use selvedge_tests::link::seed;
use selvedge_tests::stack::Stack;
use selvedge_tests::{counts, wait};

use crate::blobs;
use crate::device::{Device, release_files};

#[test]
fn a_cable_that_is_cut_again_and_again_delivers() {
    let seed = seed();
    let stack = Stack::without_agent_over(Broker::MosquittoTls(""));
    let bad = Weather {
        delay: Duration::from_millis(40),
        rate: 1_500_000,
        cut_every: 700_000,
        away: Duration::from_millis(500),
        silent_every: 0,
    };
    let cable = Cable::to(stack.broker_address(), bad, seed);
    let device = Device::start(&stack, "device", &cable.address);
    release_files(&stack, "parcel", 1, 12, 1_000_000, seed);
    let over = AtomicBool::new(false);
    let data = [device.data.clone()];
    let (kept, _) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| blobs::watch(&data, &over));
        stack.selvedge().run(&["deploy", "parcel@r1", "--target", "device"]);
        // A plug that is out for longer than anyone waits for an answer.
        wait::until("a part of it", || {
            let status = device.status();
            let bytes = &status["state"]["packages"][0]["pending"]["bytes"];
            if bytes.as_u64() > Some(1_000_000) { Ok(()) } else { Err(status) }
        });
        cable.unplug();
        std::thread::sleep(Duration::from_secs(5));
        cable.plug_in();
        let came = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait::until("all of it", || device.has("parcel", 1));
        }));
        over.store(true, Ordering::SeqCst);
        came.unwrap_or_else(|why| std::panic::resume_unwind(why));
        watching.join().expect("nothing corrupt was to be seen")
    });
    let (cuts, _) = cable.faults();
    counts::say(&format!("links: {kept} blobs right under TLS after {cuts} cuts"));
    assert!(cuts > 3, "only {cuts} cuts");
}
