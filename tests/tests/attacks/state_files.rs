//! What the device keeps, damaged while the agent does not run: torn, zeroed, cut, put back.

use std::path::PathBuf;

use selvedge_tests::wait;
use serde_json::json;

use crate::field::Field;
use crate::row::Gain::{Choice, Nothing};
use crate::world::identity;

/// Release 2 answers, and was taken after `old`: what the database was then.
fn field() -> (Field, Vec<u8>) {
    let mut field = Field::start();
    field.stop_agent();
    let old = std::fs::read(database(&field)).unwrap();
    field.start_agent();
    field.wait_connected();
    let second = identity("identity", 2, json!({}));
    field.world.release(&second);
    field.runs(&[&second]);
    (field, old)
}

fn database(field: &Field) -> PathBuf {
    field.data().join("agent.redb")
}

/// The file is damaged between two runs: the agent either refuses to run, or runs on what it was. It
/// never forgets what it had accepted. With the sound file it goes on.
fn damaged(field: &mut Field, path: PathBuf, damage: impl FnOnce(&[u8]) -> Vec<u8>) {
    field.takes_next();
    field.stop_agent();
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(&path, damage(&sound)).unwrap();
    let mark = field.agent_log().len();
    field.start_agent();
    let runs = wait::until("the agent to run, or to refuse", || {
        if !field.agent.as_mut().unwrap().runs() {
            return Ok(None);
        }
        let status = field.status();
        if status["connected"] == true { Ok(Some(status["state"]["desired"].clone())) } else { Err(()) }
    });
    if runs.is_some() {
        field.stop_agent();
    }
    let said = field.agent_log()[mark..].to_owned();
    std::fs::write(&path, &sound).unwrap();
    field.start_agent();
    field.wait_connected();
    let before = field.world.sequence;
    field.takes_next();
    assert_eq!(field.committed("identity"), Some(2));
    match runs {
        Some(desired) => assert_eq!(desired, before, "it forgot what it had accepted"),
        None => assert!(said.contains("selvedge-agent: "), "it does not say why it ends:\n{said}"),
    }
}

#[test]
fn damaged_between_runs() {
    let (mut field, old) = field();
    let path = database(&field);
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 6] = [
        ("zeroed", |sound| vec![0; sound.len()]),
        ("its first page zeroed", |sound| {
            let mut bytes = sound.to_vec();
            bytes[..4096].fill(0);
            bytes
        }),
        ("its second half zeroed", |sound| {
            let mut bytes = sound.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle..].fill(0);
            bytes
        }),
        ("cut to a half", |sound| sound[..sound.len() / 2].to_vec()),
        ("cut to nothing", |_| Vec::new()),
        ("with a changed byte in each page", |sound| {
            let mut bytes = sound.to_vec();
            bytes.iter_mut().step_by(4096).for_each(|byte| *byte ^= 0x10);
            bytes
        }),
    ];
    for (name, damage) in damages {
        field.row("state files", &format!("the database {name}"), Nothing, |field| {
            damaged(field, path.clone(), damage);
        });
    }
    field.row("state files", "the database torn: one half of now, one of before", Nothing, |field| {
        damaged(field, path.clone(), |sound| {
            let mut bytes = sound.to_vec();
            let middle = bytes.len().min(old.len()) / 2;
            bytes[middle..old.len().min(sound.len())]
                .copy_from_slice(&old[middle..old.len().min(sound.len())]);
            bytes
        });
    });
    let key = field.data().join("device.key");
    let damages: [(&str, Damage); 3] = [
        ("zeroed", |sound| vec![0; sound.len()]),
        ("cut to a half", |sound| sound[..sound.len() / 2].to_vec()),
        ("cut to nothing", |_| Vec::new()),
    ];
    for (name, damage) in damages {
        field.row("state files", &format!("the device's key {name}"), Nothing, |field| {
            damaged(field, key.clone(), damage);
        });
    }
    field.done();
}

#[test]
fn put_back_whole() {
    let (mut field, old) = field();
    let gain = Choice("to put the device back to what was valid then, until the registry is heard");
    field.row("state files", "the whole database put back to an earlier day", gain, |field| {
        field.stop_agent();
        std::fs::write(database(field), &old).unwrap();
        field.start_agent();
        field.wait_connected();
        // The registry hears from the birth how far back the device is, and signs the newest again.
        field.takes_next();
        let second = field.world.assignments[0].release;
        wait::until("the newest release to be committed again", || match field.committed("identity") {
            Some(release) if release == second => Ok(()),
            other => Err(other),
        });
    });
    field.done();
}
