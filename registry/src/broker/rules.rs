//! Who may use which topic: the same rules as Mosquitto gets from `pki mosquitto`.
//!
//! A name is the common name of a certificate that the front has verified. The broker inside believes
//! nobody else: a connection that did not come through the front is refused, whatever it says.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use mqtt5::Result;
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;

use crate::pki::{REGISTRY, reserved};

/// Everything of this protocol.
const PREFIX: &str = "sv/v1/";

/// A client's own id is its name; the registry may have several clients, all with ids that no device can
/// have: a second client with the same id would throw it out.
pub(super) fn may_connect(name: &str, client_id: &str) -> bool {
    match name {
        REGISTRY => true,
        device => client_id == device && !reserved(device),
    }
}

/// Whether `name` may publish to `topic`.
pub(super) fn may_publish(name: &str, topic: &str) -> bool {
    match name {
        REGISTRY => topic.starts_with(PREFIX),
        device => below(topic, device, "up"),
    }
}

/// Whether `name` may subscribe to `filter`.
pub(super) fn may_subscribe(name: &str, filter: &str) -> bool {
    match name {
        REGISTRY => shared(filter).starts_with(PREFIX),
        device => below(filter, device, "dn"),
    }
}

fn below(topic: &str, device: &str, direction: &str) -> bool {
    topic
        .strip_prefix("sv/v1/d/")
        .and_then(|rest| rest.strip_prefix(device))
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(|rest| rest.strip_prefix(direction))
        .is_some_and(|rest| rest.starts_with('/'))
}

/// The filter inside a shared subscription.
fn shared(filter: &str) -> &str {
    let inner = filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
    inner.map_or(filter, |(_, filter)| filter)
}

/// The connections of the front: which name each has.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_address: Mutex<HashMap<SocketAddr, Arc<str>>>,
}

/// A connection's name, for as long as this lives.
pub(super) struct Named {
    names: Arc<Names>,
    address: SocketAddr,
}

impl Names {
    /// Connections from `address`, which is a socket of the front, are `name`.
    pub fn enter(self: &Arc<Self>, address: SocketAddr, name: Arc<str>) -> Named {
        self.lock().insert(address, name);
        Named { names: Arc::clone(self), address }
    }

    fn of(&self, address: SocketAddr) -> Option<Arc<str>> {
        self.lock().get(&address).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Arc<str>>> {
        // A map is whole after each of the statements above.
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.names.lock().remove(&self.address);
    }
}

/// What the broker inside asks.
pub(super) struct Rules(pub Arc<Names>);

impl AuthProvider for Rules {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        client: SocketAddr,
    ) -> Pin<Box<dyn Future<Output = Result<AuthResult>> + Send + 'a>> {
        let result = match self.0.of(client) {
            Some(name) if may_connect(&name, &connect.client_id) => AuthResult::success_with_user(&*name),
            Some(_) => AuthResult::fail(ReasonCode::ClientIdentifierNotValid),
            None => AuthResult::fail(ReasonCode::NotAuthorized),
        };
        Box::pin(ready(Ok(result)))
    }

    fn authorize_publish<'a>(
        &'a self,
        _client_id: &str,
        name: Option<&'a str>,
        topic: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(ready(name.is_some_and(|name| may_publish(name, topic))))
    }

    fn authorize_subscribe<'a>(
        &'a self,
        _client_id: &str,
        name: Option<&'a str>,
        filter: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(ready(name.is_some_and(|name| may_subscribe(name, filter))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_speaks_and_hears_under_its_own_name_alone() {
        for (topic, good) in [
            ("sv/v1/d/a/up/birth", true),
            ("sv/v1/d/a/dn/want", false),
            ("sv/v1/d/b/up/birth", false),
            ("sv/v1/d/a2/up/birth", false),
            ("sv/v1/d/a", false),
            ("sv/v1/d/a/up", false),
            ("sv/v1/d/a/upper/x", false),
            ("sv/v1/x", false),
            ("x", false),
        ] {
            assert_eq!(may_publish("a", topic), good, "{topic}");
        }
        for (filter, good) in [
            ("sv/v1/d/a/dn/#", true),
            ("sv/v1/d/a/dn/want", true),
            ("sv/v1/d/a/dn/+", true),
            ("sv/v1/d/a/up/#", false),
            ("sv/v1/d/b/dn/#", false),
            ("sv/v1/d/+/dn/#", false),
            ("sv/v1/d/a/#", false),
            ("sv/v1/#", false),
            ("#", false),
            ("$share/x/sv/v1/d/b/dn/#", false),
            ("$share/x/sv/v1/d/a/dn/#", false),
        ] {
            assert_eq!(may_subscribe("a", filter), good, "{filter}");
        }
        assert!(may_connect("a", "a") && !may_connect("a", "b") && !may_connect("a", ""));
        let registrys = "selvedge-registry-7";
        assert!(!may_connect(registrys, registrys), "it would throw the registry out");
    }

    #[test]
    fn the_registry_may_do_everything_of_this_protocol_and_nothing_else() {
        for (topic, good) in
            [("sv/v1/d/a/dn/want", true), ("sv/v1/d/+/up/#", true), ("$share/g/sv/v1/d/+/up/#", true)]
        {
            assert_eq!(may_subscribe(REGISTRY, topic), good, "{topic}");
        }
        assert!(may_publish(REGISTRY, "sv/v1/d/a/dn/want"));
        for strange in ["#", "x", "$SYS/#", "sv/v2/x", "$share/g/#", "sv/v1"] {
            assert!(!may_subscribe(REGISTRY, strange) && !may_publish(REGISTRY, strange), "{strange}");
        }
        assert!(may_connect(REGISTRY, "selvedge-registry-7"));
    }

    #[tokio::test]
    async fn a_connection_that_is_not_of_the_front_is_refused() {
        let names = Arc::new(Names::default());
        let rules = Rules(Arc::clone(&names));
        let address: SocketAddr = "127.0.0.1:4000".parse().unwrap();
        let connect = ConnectPacket::new(mqtt5::ConnectOptions::new("a").protocol_options);
        let ask = async || rules.authenticate(&connect, address).await.unwrap().authenticated;
        assert!(!ask().await);
        let named = names.enter(address, "a".into());
        assert!(ask().await);
        drop(named);
        assert!(!ask().await);
        let _other = names.enter(address, "b".into());
        assert!(!ask().await, "a client id that is not its name");
    }
}
