//! Whatever bytes arrive: every parser answers with a value or an error, never with a panic.

use proptest::prelude::*;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::{Frame, answer, block_frame};
use selvedge_protocol::message::{Need, Want};
use selvedge_protocol::signed::{PrivateKey, Purpose, verify};
use selvedge_protocol::{Body, Envelope, Topic};

fn need() -> impl Strategy<Value = Need> {
    (
        any::<u32>(),
        prop_oneof![any::<u32>(), Just(4096), Just(65_536)],
        prop_oneof![any::<u32>(), 0..40u32],
        prop::collection::vec(any::<u8>(), 0..600),
        any::<u32>(),
    )
        .prop_map(|(transfer, block, first, missing, count)| Need {
            transfer,
            digest: Digest::of(b"x"),
            block,
            first,
            missing,
            count,
        })
}

proptest! {
    #[test]
    fn parsers_survive_noise(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = Envelope::decode(&bytes);
        let _ = Frame::decode(&bytes);
        let _ = Topic::parse(&String::from_utf8_lossy(&bytes));
        let key = PrivateKey::generate().expect("a key").0.public();
        let device: DeviceId = "a".parse().expect("a name");
        prop_assert!(verify(&key, Purpose::Report, &device, &bytes).is_err());
    }

    #[test]
    fn changed_envelopes_survive(at in any::<prop::sample::Index>(), to in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..100)) {
        let sent = Envelope { id: 1, epoch: 2, sequence: 3, at_ms: 4, body: Body::Want(Want::Inline(body)) };
        let mut bytes = sent.encode().expect("it is small");
        prop_assert_eq!(&Envelope::decode(&bytes).expect("what was written"), &sent);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = Envelope::decode(&bytes);
    }

    #[test]
    fn answers_stay_inside_the_blob_and_the_window(need in need(), size in prop_oneof![any::<u64>(), 0..300_000u64]) {
        let Ok(spans) = answer(&need, size) else { return Ok(()) };
        let mut total = 0u64;
        let mut last = None;
        for span in spans {
            prop_assert!(span.offset + u64::from(span.length) <= size);
            prop_assert!(span.length > 0 && span.length <= need.block);
            prop_assert!(last < Some(span.number));
            last = Some(span.number);
            total += u64::from(span.length);
            prop_assert!(block_frame(need.transfer, span.number, &vec![0; span.length as usize]).is_ok());
        }
        prop_assert!(total <= 1024 * 1024);
    }
}
