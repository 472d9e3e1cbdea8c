//! Messages on the wire: envelopes in CBOR and JSON, sealed ones, blocks and topics. What is read and can
//! be written reads back as the same bytes.
#![no_main]

use std::cell::LazyCell;

use libfuzzer_sys::fuzz_target;
use selvedge_package::DeviceId;
use selvedge_protocol::block::Frame;
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::message::ByteString;
use selvedge_protocol::sealed;
use selvedge_protocol::signed::{PrivateKey, Purpose, payload, sign};
use selvedge_protocol::topic::Topic;

thread_local! {
    static KEY: LazyCell<(PrivateKey, DeviceId)> =
        LazyCell::new(|| (PrivateKey::generate().unwrap().0, "edge-1".parse().unwrap()));
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(envelope) = Envelope::decode(bytes)
        && let Ok(written) = envelope.encode()
    {
        let again = Envelope::decode(&written).unwrap();
        assert_eq!(again.encode().unwrap(), written);
    }
    let _ = Frame::decode(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Topic::parse(text);
    }
    let _ = payload(bytes);
    KEY.with(|key| {
        let (key, device) = &**key;
        let raw = Body::Signed(ByteString(bytes.to_vec()));
        assert!(sealed::open(&[key.public()], Purpose::Answer, device, &raw).is_err(), "nobody signed it");
        let Ok(signed) = sign(key, Purpose::Enrol, device, bytes.to_vec()) else {
            return;
        };
        let sealed = Body::Signed(ByteString(signed));
        let opened = sealed::open(&[key.public()], Purpose::Enrol, device, &sealed);
        assert_eq!(opened.is_ok(), Envelope::decode(bytes).is_ok());
        assert!(sealed::open(&[key.public()], Purpose::Question, device, &sealed).is_err());
        let _ = sealed::open_by_its_own(Purpose::Enrol, device, &sealed, |body| match body {
            Body::Enrol(_) => Some(key.public()),
            _ => None,
        });
    });
});
