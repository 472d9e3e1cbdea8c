//! Our wrapper round rumqttc 0.25, MQTT 5: the only crate that links it.
//!
//! `connection` holds one connection after another to a broker and works round what rumqttc does
//! wrong; `outbox` keeps what could not be sent yet, `lifetime` for how long, `inbox` what was
//! received; `backoff` spreads reconnects. A message is never sent that the broker's limit or our own forbids, queues are
//! bounded, nothing here blocks a caller, and plaintext goes to loopback only.
//!
//! What the wrapper does about rumqttc, one line each, with the file that does it:
//! - the largest packet is 10 KiB by default: set, and checked before queueing (`outbox`);
//! - an oversize packet of a kept session reconnects for ever: dropped and reported (`connection`);
//! - a packet-id collision with a lost session blocks for ever: state is rebuilt for every
//!   connection and what collided is queued again (`connection`);
//! - a receive maximum that shrinks below the last packet id breaks every later publish: the same;
//! - `poll` hangs when the peer stops reading: a timeout of 1.6 × keep-alive (`connection`);
//! - a broker that never acknowledges blocks publishing for ever: a timeout too (`connection`);
//! - subscriptions and queued messages are lost with the session: made and queued again
//!   (`connection`, `outbox`);
//! - publishing from the task that polls deadlocks: handles only ever `try` (`outbox`);
//! - 14 MiB of in-flight slots: 16 slots; topic aliases: off; nodelay: on; a server's keep-alive of
//!   0 makes pings a storm, a long one hides a dead link: clamped (`connection`);
//! - a panic in it ends the connection, not the program (`connection`).

mod address;
mod backoff;
mod client;
mod connection;
mod inbox;
mod lifetime;
mod options;
mod outbox;

pub use address::{AddressError, BrokerAddress};
pub use client::{Client, Handle, StartError};
pub use inbox::{Inbox, Incoming};
pub use options::{Options, QueueLimit, Session, Will};
pub use outbox::PublishError;
pub use selvedge_protocol::topic::Qos;
