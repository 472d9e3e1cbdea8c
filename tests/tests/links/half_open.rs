//! A link on which one side talks to nobody: the agent notices by itself, leaves, and goes on where it
//! was. Nothing on the link says that it is dead.

use selvedge_tests::broker::Broker;
use selvedge_tests::link::cable::{Cable, Way, Weather};
use selvedge_tests::link::seed;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

use crate::device::{Device, release_files};

fn story(way: Way) {
    let seed = seed();
    let stack = Stack::without_agent_over(Broker::EmbeddedTls);
    let slow = Weather { rate: 1_000_000, ..Weather::default() };
    let cable = Cable::to(stack.broker_address(), slow, seed);
    let device = Device::start(&stack, "device", &cable.address);
    release_files(&stack, "parcel", 1, 4, 2_000_000, seed);
    stack.selvedge().run(&["deploy", "parcel@r1", "--target", "device"]);
    wait::until("a part of it", || {
        let status = device.status();
        let bytes = &status["state"]["packages"][0]["pending"]["bytes"];
        if bytes.as_u64() > Some(300_000) { Ok(()) } else { Err(status) }
    });
    cable.silence(way);
    wait::until("all of it", || device.has("parcel", 1));
    assert_eq!(cable.faults(), (0, 1));
}

#[test]
fn a_link_that_carries_nothing_to_the_device_is_left() {
    story(Way::Down);
}

#[test]
fn a_link_that_carries_nothing_from_the_device_is_left() {
    story(Way::Up);
}
