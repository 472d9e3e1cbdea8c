//! Keeping a device where it is: valid metadata for ever, expired metadata, an old nonce.

use crate::field::Field;
use crate::row::Gain::{Delay, Nothing};
use crate::world::World;

const DAY: i64 = 24 * 3600;

#[test]
fn freeze() {
    let mut field = Field::start();
    field.row("freeze", "the same valid state again and again", Delay, |field| {
        let held = field.world.bundle();
        for _ in 0..20 {
            field.offer(&held);
        }
        field.takes_next();
    });
    type Expired = (&'static str, fn(&mut World));
    let roles: [Expired; 7] = [
        ("Image timestamp", |world| world.image.lives[3] = -1),
        ("Image snapshot", |world| world.image.lives[2] = -1),
        ("Image targets", |world| {
            world.image.lives[1] = -1;
            world.image.publish();
        }),
        ("Image root", |world| {
            world.image.lives[0] = -1;
            world.image.rotate();
        }),
        ("Director timestamp", |world| world.director.lives[3] = -1),
        ("Director snapshot", |world| world.director.lives[2] = -1),
        ("Director targets", |world| world.director.lives[1] = -1),
    ];
    for (name, expire) in roles {
        field.row("freeze", &format!("an {name} that has expired"), Nothing, |field| {
            let mut evil = field.world.clone();
            expire(&mut evil);
            let bundle = evil.next();
            if name == "Image root" {
                // A root is kept as soon as it is verified, and the next one may be longer lived.
                field.world.image.roots = evil.image.roots.clone();
                field.world.image.rotate();
            }
            field.refuses(&bundle, &["expired"]);
        });
    }
    field.row("freeze", "nothing new until all that the device holds has expired", Delay, |field| {
        let held = field.world.bundle();
        let mark = field.agent_log().len();
        field.kernel.set_shift(800 * DAY);
        field.offer(&held);
        selvedge_tests::wait::until("the refusal", || {
            if field.agent_log()[mark..].contains("expired") { Ok(()) } else { Err(()) }
        });
        // What runs goes on, through a restart of the agent too.
        field.restart_agent();
        assert_eq!(field.committed("identity"), Some(1));
        field.kernel.set_shift(0);
        field.takes_next();
    });
    field.row("freeze", "a state that was signed before the device's last start", Delay, |field| {
        let old_nonce = field.births().pop().unwrap().nonce;
        let births = field.births().len();
        field.restart_agent();
        selvedge_tests::wait::until("the birth of this start", || {
            let now = field.births();
            if now.len() > births && now.last().unwrap().nonce != old_nonce { Ok(()) } else { Err(now.len()) }
        });
        field.world.nonce = old_nonce;
        field.takes_next();
        assert_eq!(field.status()["state"]["fresh"], false, "it is taken, and said to be of unknown age");
        field.world.nonce = field.births().pop().unwrap().nonce;
        field.takes_next();
        assert_eq!(field.status()["state"]["fresh"], true);
    });
    field.done();
}
