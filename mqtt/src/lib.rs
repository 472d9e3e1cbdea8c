//! Our wrapper round rumqttc 0.25, MQTT 5: the only crate that links it.
//!
//! `connection` holds one connection after another to a broker and works round what rumqttc does
//! wrong, `hints` is what it is told meanwhile; `outbox` keeps what could not be sent yet, `lifetime` for how
//! long, `cargo` what gives way to all the rest; `inbox` what was received; `backoff` spreads reconnects;
//! `second` looks for a second way to the broker while a connection is silent, as `silence` says when;
//! `setup` is what rumqttc is told, `contained` keeps its panics in;
//! `tls` says whom to believe and who we are, `refusal` why a
//! connection failed. A message is never sent that the broker's limit or our own
//! forbids, queues are bounded, nothing here blocks a caller, and plaintext goes to loopback only.
//!
//! What the wrapper does about rumqttc's faults and about brokers that misbehave, where, and the test
//! that fails without it (in `tests/`; `m` is `misbehaving_broker`):
//! - the largest packet is 10 KiB by default: set, and checked before queueing (`outbox`;
//!   `with_mosquitto::messages_of_a_block_and_more_go_both_ways`);
//! - a broker that takes less, such as 16 KiB: its limit holds both ways (`connection`, `outbox`;
//!   `limits::a_limit_of_16_kib_is_told_and_nothing_larger_is_sent`,
//!   `with_mosquitto::the_brokers_packet_limit_is_obeyed`);
//! - an oversize packet of a kept session reconnects for ever: dropped and reported (`connection`,
//!   `outbox`; `m::an_oversize_publish_of_a_kept_session_is_dropped_and_named`);
//! - a packet-id collision with a lost session blocks for ever: state is rebuilt for every
//!   connection and what collided is queued again (`connection`;
//!   `m::a_collision_and_then_a_lost_session_block_nothing`);
//! - a receive maximum that shrinks below the last packet id breaks every later publish: the same
//!   (`m::a_receive_maximum_that_shrinks_blocks_nothing`);
//! - `poll` hangs when the peer stops reading: a timeout of 1.6 × keep-alive (`connection`;
//!   `m::a_peer_that_stops_reading_is_left`);
//! - a broker that never acknowledges blocks publishing for ever: a timeout too (`connection`;
//!   `m::a_broker_that_never_acknowledges_is_left`);
//! - subscriptions and queued messages are lost with the session: made and queued again
//!   (`connection`, `outbox`; `m::a_session_that_is_gone_loses_no_message_and_no_subscription`);
//! - messages come twice, late and out of order: given on as they come, acknowledged when taken and
//!   only on their own connection (`inbox`; `repetition`); whoever takes them compares counters;
//! - nothing paces what is published: queues are bounded both ways, QoS 0 is dropped where it finds
//!   no room, QoS 1 slows the broker down (`inbox`; `m::a_flood_of_qos_0_is_bounded`,
//!   `m::more_than_was_allowed_is_not_kept`); blocks are pulled (`selvedge_protocol::block`);
//! - it sends in the order of publishing, whatever waits: it is handed two messages at a time, and blocks
//!   only when nothing else waits, before a socket with a small buffer (`outbox`, `cargo`, `connection`;
//!   `limits::nothing_waits_behind_more_than_a_few_blocks`);
//! - publishing from the task that polls deadlocks: handles only ever `try` (`outbox`; its own tests);
//! - 14 MiB of in-flight slots: 16 slots (`connection`;
//!   `limits::sixteen_messages_are_on_their_way_at_most`);
//! - five seconds for a flush (rumqttc's other API) make a slow link impossible: 1.6 × keep-alive, as
//!   above (`connection`; `limits::a_link_that_stands_still_for_seconds_is_given_time`);
//! - topic aliases deliver empty topics: off, and refused (`m::a_topic_alias_is_refused`); what is no
//!   MQTT ends the connection (`m::garbage_ends_the_connection_and_not_the_client`); nodelay: on;
//! - a server's keep-alive of 0 makes pings a storm, a long one hides a dead link: clamped
//!   (`connection`; `m::a_servers_keep_alive_of_zero_makes_no_storm_of_pings`);
//! - a ping that is not answered is noticed at the next one only: within half a minute
//!   (`connection`; `m::a_ping_that_is_not_answered_ends_the_connection`,
//!   `m::a_link_that_is_doubted_is_pinged_at_once`);
//! - a panic in it ends the connection, not the program (`connection`; its own test).

mod address;
mod backoff;
mod cargo;
mod client;
mod connection;
mod contained;
mod hints;
mod inbox;
mod lifetime;
mod options;
mod outbox;
mod refusal;
mod second;
mod setup;
mod silence;
mod tls;

pub use address::{AddressError, BrokerAddress};
pub use client::{Client, Handle, StartError};
pub use inbox::{Inbox, Incoming};
pub use options::{Options, QueueLimit, Session, Will};
pub use outbox::PublishError;
pub use refusal::Reason;
pub use selvedge_protocol::topic::Qos;
pub use tls::{ClientCredential, Tls, TlsError, TlsTime, anonymous_client};
