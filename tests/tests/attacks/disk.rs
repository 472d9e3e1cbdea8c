//! A disk that becomes full in the middle of an acceptance, after every number of writes.

use selvedge_tests::wait;
use serde_json::json;

use crate::field::Field;
use crate::row::Gain::{Delay, Nothing};
use crate::world::identity;

#[test]
fn full_in_the_middle_of_acceptance() {
    let mut field = Field::start();
    field.row("full disk", "after each of the first 24 writes of an acceptance", Delay, |field| {
        let mut met = 0;
        for writes in 0..24 {
            let (mark, before) = (field.agent_log().len(), field.world.sequence);
            field.kernel.set_full_after(writes);
            let bundle = field.world.next();
            field.offer(&bundle);
            let accepted = wait::until("the offer to be taken, or the disk to be full", || {
                let desired = field.status()["state"]["desired"].as_u64();
                if desired == Some(field.world.sequence) {
                    return Ok(true);
                }
                if field.agent_log()[mark..].contains("waiting for room") { Ok(false) } else { Err(desired) }
            });
            if !accepted {
                met += 1;
                // What failed may be the report of it: whole or not at all either way.
                let desired = field.status()["state"]["desired"].as_u64();
                assert!(
                    [Some(before), Some(before + 1)].contains(&desired),
                    "half an acceptance: {desired:?}"
                );
            }
            // There is room again: found by itself after a pause, and by a restart at once.
            field.kernel.set_room();
            if !accepted {
                field.restart_agent();
            }
            field.takes(&bundle);
        }
        assert!(met > 3, "the disk was full {met} times only");
    });
    field.row("full disk", "while a release is fetched and tried", Delay, |field| {
        let second = identity("identity", 2, json!({}));
        field.world.release(&second);
        field.publish_bytes(&second);
        field.kernel.set_full_after(12);
        let bundle = field.world.assign(vec![second.assigned()]);
        field.offer(&bundle);
        wait::until("the disk to be full", || {
            if field.agent_log().contains("the disk is full")
                || field.agent_log().contains("waiting for room")
            {
                Ok(())
            } else {
                Err(field.status())
            }
        });
        assert_eq!(field.committed("identity"), Some(1));
        field.kernel.set_room();
        field.restart_agent();
        field.runs(&[&second]);
    });
    field.row("full disk", "an old state is offered when there is room again", Nothing, |field| {
        let old = field.world.bundle();
        field.takes_next();
        field.kernel.set_full_after(0);
        field.offer(&old);
        field.kernel.set_room();
        field.takes_next();
        assert_eq!(field.committed("identity"), Some(2));
    });
    field.done();
}
