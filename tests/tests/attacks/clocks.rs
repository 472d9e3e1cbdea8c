//! A date that is wrong, whoever made it so: the kernel vouches for it or does not.

use serde_json::json;

use crate::field::{DEVICE, Field};
use crate::kernel::Kernel;
use crate::row::Gain::{Delay, Nothing};
use crate::world::{World, identity};

/// The device is brought up, and kept up to date, at this date.
fn lives(name: &str, kernel: impl FnOnce(&Kernel)) {
    let mut field = Field::start_as(World::new(DEVICE), kernel);
    field.row("clock", &format!("{name}: the device is updated"), Nothing, |field| {
        let second = identity("identity", 2, json!({}));
        field.world.release(&second);
        field.runs(&[&second]);
    });
    field.row(
        "clock",
        &format!("{name}: what has expired is offered, and what is older"),
        Nothing,
        |field| {
            let old = field.world.bundle();
            field.takes_next();
            field.refuses(&old, &["would go back"]);
            for _ in 0..2 {
                let mut evil = field.world.clone();
                evil.director.lives = [730, -1, -1, -1];
                let bundle = evil.next();
                field.refuses(&bundle, &["expired"]);
                field.restart_agent();
            }
        },
    );
    field.done();
}

#[test]
fn in_1970() {
    lives("1970, not synchronised", |kernel| {
        kernel.set_date("1970-01-01T00:01:00Z");
        kernel.set_synchronised(false);
    });
}

#[test]
fn in_1970_and_sure_of_it() {
    lives("1970, synchronised", |kernel| kernel.set_date("1970-01-01T00:01:00Z"));
}

#[test]
fn in_2099() {
    lives("2099, not synchronised", |kernel| {
        kernel.set_date("2099-01-01T00:00:00Z");
        kernel.set_synchronised(false);
    });
}

#[test]
fn lied_to() {
    let mut field = Field::start();
    field.row("clock", "2099, synchronised: the time server is the attacker's", Delay, |field| {
        field.kernel.set_date("2099-01-01T00:00:00Z");
        let bundle = field.world.next();
        let mark = field.agent_log().len();
        field.offer(&bundle);
        selvedge_tests::wait::until("the refusal", || {
            if field.agent_log()[mark..].contains("expired") { Ok(()) } else { Err(()) }
        });
        field.restart_agent();
        assert_eq!(field.committed("identity"), Some(1));
        // With the right date it is as if nothing had been: a clock alone never moves the floor.
        field.kernel.set_shift(0);
        field.takes(&bundle);
    });
    field.row("clock", "stepping between 1970, 2026 and 2099, synchronised and not", Delay, |field| {
        for (step, date) in
            ["1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z"].iter().cycle().take(10).enumerate()
        {
            field.kernel.set_date(date);
            field.kernel.set_synchronised(step % 3 == 0);
            let bundle = field.world.next();
            field.offer(&bundle);
            if step % 4 == 3 {
                field.restart_agent();
            }
            field.kernel.set_shift(0);
            field.kernel.set_synchronised(true);
            field.takes_next();
        }
    });
    field.row("clock", "a minute back and forth all the time", Nothing, |field| {
        for step in 0..20 {
            field.kernel.set_shift(if step % 2 == 0 { -60 } else { 60 });
            field.takes_next();
        }
        field.kernel.set_shift(0);
        field.takes_next();
    });
    field.done();
}
