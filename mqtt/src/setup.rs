//! What rumqttc is told for a connection.

use std::sync::Arc;
use std::time::Duration;

use rumqttc::v5::MqttOptions;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnectProperties, Filter, LastWill, LastWillProperties, Subscribe};
use rumqttc::{NetworkOptions, TlsConfiguration, Transport};
use rustls::ClientConfig;
use selvedge_protocol::topic::Qos;

use crate::options::{Options, Session};

/// QoS 1 messages on their way to the broker, at most.
pub(crate) const IN_FLIGHT: u16 = 16;
/// QoS 1 messages on their way from the broker, at most.
pub(crate) const RECEIVE_MAXIMUM: u16 = 32;
/// Requests inside rumqttc, which sends them in this order; the outbox holds the rest.
pub(crate) const HANDED_OVER: usize = 2;
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the broker keeps a session for a second connection that takes its place.
const FOR_A_SECOND: Duration = Duration::from_secs(60);
/// How long it keeps the will to itself: a second connection is no loss to speak of.
const WILL_DELAY: Duration = Duration::from_secs(5);

/// How a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// By itself.
    Anew,
    /// In the place of one that is open still: its session goes on.
    InPlace,
}

pub(crate) fn subscribe(options: &Options) -> Subscribe {
    let filters = options.subscriptions.iter().map(|(filter, qos)| Filter::new(filter, level(*qos)));
    Subscribe::new_many(filters, None)
}

fn level(qos: Qos) -> QoS {
    match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
    }
}

pub(crate) fn mqtt_options(options: &Options, tls: Option<&Arc<ClientConfig>>, start: Start) -> MqttOptions {
    let mut mqtt = MqttOptions::new(&options.client_id, options.broker.host(), options.broker.port());
    if let Some(tls) = tls {
        mqtt.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(tls.clone())));
    }
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    network.set_tcp_send_buffer_size(options.send_buffer);
    mqtt.set_network_options(network);
    mqtt.set_keep_alive(options.keep_alive);
    mqtt.set_connection_timeout(CONNECT_TIMEOUT.as_secs());
    mqtt.set_outgoing_inflight_upper_limit(IN_FLIGHT);
    mqtt.set_manual_acks(true);
    let mut properties = ConnectProperties::new();
    properties.max_packet_size = Some(options.maximum_packet);
    properties.receive_maximum = Some(RECEIVE_MAXIMUM);
    match options.session {
        Session::Clean => {
            mqtt.set_clean_start(start == Start::Anew);
            if options.second {
                properties.session_expiry_interval = Some(FOR_A_SECOND.as_secs() as u32);
            }
        }
        Session::Kept(expiry) => {
            mqtt.set_clean_start(false);
            properties.session_expiry_interval = Some(u32::try_from(expiry.as_secs()).unwrap_or(u32::MAX));
        }
    }
    mqtt.set_connect_properties(properties);
    if let Some(will) = &options.will {
        let payload = will.payload.clone();
        let properties = options.second.then(|| LastWillProperties {
            delay_interval: Some(WILL_DELAY.as_secs() as u32),
            payload_format_indicator: None,
            message_expiry_interval: None,
            content_type: None,
            response_topic: None,
            correlation_data: None,
            user_properties: Vec::new(),
        });
        mqtt.set_last_will(LastWill::new(&will.topic, payload, level(will.qos), false, properties));
    }
    mqtt
}
