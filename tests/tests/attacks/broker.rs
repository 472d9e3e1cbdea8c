//! A stolen broker: everything that it can say, hold back, change or repeat.

use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{ByteString, Enrolled};
use selvedge_protocol::remote::{Ask, Command, Endpoint, InferRequest};
use selvedge_protocol::signed::Purpose;
use selvedge_protocol::topic::Kind;
use selvedge_tests::wait;
use serde_json::json;

use crate::field::{Field, INPUT};
use crate::forge::{self, Key};
use crate::registry::{ack, sealed};
use crate::row::Gain::{Delay, Nothing};
use crate::world::identity;

fn command(id: &str, nonce: &[u8]) -> Body {
    let ask = Ask::Logs { after: None, lines: 5 };
    Body::Command(Command { id: id.to_owned(), within_ms: 60_000, nonce: nonce.to_vec(), ask })
}

fn question(id: &str, nonce: &[u8]) -> Body {
    Body::InferRequest(InferRequest {
        id: id.to_owned(),
        within_ms: 60_000,
        nonce: nonce.to_vec(),
        model: "identity".to_owned(),
        version: None,
        endpoint: Endpoint::Infer,
        content_type: None,
        body: INPUT.as_bytes().to_vec(),
        header_length: None,
    })
}

impl Field {
    /// Asks as the registry does; the device answers.
    fn is_asked(&mut self, kind: Kind, body: impl Fn(&str, &[u8]) -> Body, id: &str) -> Body {
        let nonce = self.births().pop().unwrap().nonce;
        let key = self.world.director.targets_keys[0].clone();
        let answers = if kind == Kind::Command { Kind::CommandResult } else { Kind::InferAnswer };
        let before = self.registry.heard(answers).len();
        let said = sealed(&key, Purpose::Question, &self.world.device, body(id, &nonce));
        self.registry.say(kind, said.clone());
        wait::until("an answer", || match self.registry.heard(answers).len() {
            now if now > before => Ok(()),
            now => Err(now),
        });
        said
    }

    /// These are said, and none is answered: the honest question after them is.
    fn ignores(&mut self, kind: Kind, said: Vec<Body>, honest: impl Fn(&str, &[u8]) -> Body, id: &str) {
        let answers = if kind == Kind::Command { Kind::CommandResult } else { Kind::InferAnswer };
        let before = self.registry.heard(answers).len();
        said.into_iter().for_each(|body| self.registry.say(kind, body));
        self.is_asked(kind, honest, id);
        assert_eq!(self.registry.heard(answers).len(), before + 1, "a forged question was answered");
    }

    /// None of these acknowledgements, of the very rows that wait, lets the device forget one of them.
    pub fn keeps_its_reports(&mut self, id: &str, forge: impl FnOnce(Vec<(u64, u64)>) -> Vec<Vec<u8>>) {
        let waiting = |field: &Self| field.status()["reports_waiting"].as_u64().unwrap_or(0);
        self.registry.shared.lock().unwrap().silence.acks = true;
        self.registry.shared.lock().unwrap().reports.clear();
        self.takes_next();
        let rows: Vec<(u64, u64)> = wait::until("a report", || {
            let shared = self.registry.shared.lock().unwrap();
            let rows: Vec<_> = shared.reports.iter().map(|report| (report.epoch, report.sequence)).collect();
            if rows.is_empty() { Err(()) } else { Ok(rows) }
        });
        let before = waiting(self);
        for forged in forge(rows) {
            self.registry.say(Kind::Ack, Body::Ack(ByteString(forged)));
        }
        // Messages are taken one after the other: this one is answered when those have been looked at.
        self.ignores(Kind::Command, Vec::new(), command, id);
        assert!(before > 0 && waiting(self) >= before, "a forged acknowledgement made it forget its reports");
        self.registry.shared.lock().unwrap().silence.acks = false;
        self.takes_next();
        wait::until("the reports to be acknowledged", || match waiting(self) {
            0 => Ok(()),
            some => Err(some),
        });
    }

    /// What somebody without the Director's key can make of a question.
    fn forgeries(&self, body: impl Fn(&str, &[u8]) -> Body) -> Vec<Body> {
        let nonce = self.births().pop().unwrap().nonce;
        let (right, wrong) = (self.world.director.targets_keys[0].clone(), forge::keys(1).remove(0));
        let (us, them) = (&self.world.device, "edge-2".parse().unwrap());
        let seal = |key: &Key, purpose, device, body| sealed(key, purpose, device, body);
        vec![
            body("open", &nonce),
            seal(&wrong, Purpose::Question, us, body("other-key", &nonce)),
            // What was recorded of other times, purposes and devices.
            seal(&right, Purpose::Question, us, body("old-nonce", &[7; 16])),
            seal(&right, Purpose::Question, us, body("no-nonce", &[])),
            seal(&right, Purpose::Ack, us, body("as-an-ack", &nonce)),
            seal(&right, Purpose::Question, &them, body("for-another", &nonce)),
        ]
    }
}

#[test]
fn says_anything() {
    let mut field = Field::start();
    field.row("stolen broker", "commands that nobody sealed, or long ago, or for others", Nothing, |field| {
        let forged = field.forgeries(command);
        field.ignores(Kind::Command, forged, command, "honest-1");
    });
    field.row(
        "stolen broker",
        "inference requests that nobody sealed, or long ago, or for others",
        Nothing,
        |field| {
            let forged = field.forgeries(question);
            field.ignores(Kind::InferRequest, forged, question, "honest-2");
        },
    );
    field.row(
        "stolen broker",
        "a command that was recorded, after the agent's next start",
        Nothing,
        |field| {
            let recorded = field.is_asked(Kind::Command, command, "recorded");
            let births = field.births().len();
            field.restart_agent();
            wait::until("the next birth", || if field.births().len() > births { Ok(()) } else { Err(()) });
            field.ignores(Kind::Command, vec![recorded], command, "honest-3");
        },
    );
    field.row("stolen broker", "acknowledgements that the registry did not sign", Nothing, |field| {
        let (device, them) = (field.world.device.clone(), "edge-2".parse().unwrap());
        let right = field.world.director.targets_keys[0].clone();
        let wrong = field.world.image.timestamp_key[0].clone();
        field.keeps_its_reports("honest-4", |rows| {
            vec![
                ack(&forge::keys(1)[0], &device, rows.clone()),
                ack(&right, &them, rows.clone()),
                ack(&wrong, &device, rows),
                b"nothing".to_vec(),
            ]
        });
    });
    field.row("stolen broker", "answers to an enrolment", Nothing, |field| {
        for answer in [
            Enrolled::Refused("revoked-key: you are not known here".to_owned()),
            Enrolled::Certificate(vec![ByteString(vec![0x30; 2000])]),
            Enrolled::Certificate(Vec::new()),
            Enrolled::Accepted,
        ] {
            field.registry.say(Kind::Enrolled, Body::Enrolled(answer));
        }
        field.takes_next();
        assert_eq!(field.status()["enrolled"], true);
    });
    field.row("stolen broker", "2000 messages of noise on every topic", Delay, |field| {
        for round in 0..400_u32 {
            for kind in [Kind::Want, Kind::Block, Kind::Ack, Kind::Command, Kind::Enrolled] {
                field.registry.publish(kind, round.to_le_bytes().repeat(20));
            }
        }
        let bundle = field.world.next();
        field.takes_in_the_end(&bundle);
    });
    field.done();
}

#[test]
fn holds_back_and_changes() {
    let mut field = Field::start();
    let second = identity("identity", 2, json!({}));
    field.world.release(&second);
    field.row("stolen broker", "blocks with other bytes", Delay, |field| {
        let mut spoiled = second.clone();
        for (_, bytes) in &mut spoiled.blobs {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        field.publish_bytes(&spoiled);
        let bundle = field.world.assign(vec![second.assigned()]);
        field.takes(&bundle);
        // Whatever it asks for is wrong: it stays where it is.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(field.committed("identity"), Some(1));
        }
        field.runs(&[&second]);
    });
    field.row("stolen broker", "no blocks at all, then the right ones", Delay, |field| {
        let third = identity("identity", 3, json!({}));
        field.world.release(&third);
        field.registry.shared.lock().unwrap().silence.blocks = true;
        let bundle = field.world.assign(vec![third.assigned()]);
        field.takes(&bundle);
        assert_eq!(field.committed("identity"), Some(2));
        field.registry.shared.lock().unwrap().silence.blocks = false;
        field.runs(&[&third]);
    });
    field.row("stolen broker", "silence", Delay, |field| {
        field.broker.as_mut().unwrap().kill();
        field.wait_status("the device to miss it", |status| status["connected"] == false);
        let address = field.broker_address.clone();
        field.broker = Some(selvedge_tests::broker::Broker::Mosquitto("").start(&address, field.dir.path()));
        field.wait_connected();
        field.registry.wait_connected();
        field.takes_next();
    });
    field.done();
}
