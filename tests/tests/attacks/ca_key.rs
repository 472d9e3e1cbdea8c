//! The key of the registry's certificate authority is stolen: its thief is the broker, or a device's
//! link, and no more than that. Certificates and a wrong date.

use selvedge_mqtt::{Client, Options};
use serde_json::json;

use crate::field::{DEVICE, Field};
use crate::forge;
use crate::registry::ack;
use crate::row::Gain::{Choice, Delay, Nothing};
use crate::world::{World, identity};

#[test]
fn stolen() {
    // The broker and every certificate here were made with the key alone.
    let mut field = Field::start_certified(World::new(DEVICE), |_| ());
    let gain = Choice("to be the broker: to see and to delay, as every broker can");
    field.row("stolen CA key", "a broker with a certificate by it, and updates of his own", gain, |field| {
        let mut evil = World::new(DEVICE);
        let theirs = identity("identity", 9, json!({}));
        field.publish_bytes(&theirs);
        evil.release(&theirs);
        evil.sequence = 100;
        let bundle = evil.assign(vec![theirs.assigned()]);
        field.refuses(&bundle, &["not trusted"]);
    });
    field.row("stolen CA key", "acknowledgements of his own", Nothing, |field| {
        let device = field.world.device.clone();
        field.keeps_its_reports("honest", |rows| vec![ack(&forge::keys(1)[0], &device, rows)]);
    });
    field.row("stolen CA key", "the device's own name: he takes its place at the broker", Delay, |field| {
        let authority = field.authority.as_ref().unwrap();
        let url = format!("mqtts://{}", field.broker_address);
        let mut options = Options::new(url.parse().unwrap(), DEVICE);
        options.tls = Some(authority.tls(authority.certificate(DEVICE)));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (handle, inbox) = runtime.block_on(async { Client::start(options).unwrap() });
        field.wait_status("the device to be thrown out", |status| status["connected"] == false);
        handle.close();
        drop(inbox);
        drop(handle);
        drop(runtime);
        field.wait_connected();
        let bundle = field.world.next();
        field.takes_in_the_end(&bundle);
    });
    field.done();
}

#[test]
fn certificates_in_1970() {
    let mut field = Field::start_certified(World::new(DEVICE), |kernel| {
        kernel.set_date("1970-01-01T00:01:00Z");
        kernel.set_synchronised(false);
    });
    field.row(
        "clock",
        "1970, not synchronised: the broker's certificate is not yet valid",
        Nothing,
        |field| {
            let second = identity("identity", 2, json!({}));
            field.world.release(&second);
            field.runs(&[&second]);
            field.restart_agent();
            field.takes_next();
        },
    );
    field.done();
}

#[test]
fn certificates_in_2099() {
    let mut field = Field::start_certified(World::new(DEVICE), |_| ());
    field.row("clock", "2099, synchronised: every certificate has expired", Delay, |field| {
        field.kernel.set_date("2099-01-01T00:00:00Z");
        field.stop_agent();
        field.start_agent();
        field.wait_status("the broker's certificate to be refused", |status| {
            status["connected"] == false && !status["trouble"].as_array().is_none_or(Vec::is_empty)
        });
        assert_eq!(field.committed("identity"), Some(1));
        field.kernel.set_shift(0);
        field.restart_agent();
        field.takes_next();
    });
    field.done();
}
