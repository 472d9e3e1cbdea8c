//! What a push says to a broker that speaks TLS: whom it believes, and who it is.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use selvedge_mqtt::{BrokerAddress, ClientCredential, Tls, TlsTime};
use serde_json::{Value, json};

use crate::clock;
use crate::commands::push::{OfflineTls, Tls as Args};
use crate::context::read_small;
use crate::failure::Failure;

/// Largest PEM file, in bytes.
const LARGEST: u64 = 256 << 10;

/// The TLS of a broker's address: none where it is spoken to in plain text.
pub fn of(broker: &BrokerAddress, args: &Args) -> Result<Option<Tls>, Failure> {
    if !broker.is_tls() {
        return match args.broker_ca {
            None => Ok(None),
            Some(_) => Err(Failure::usage(
                format!("{broker} is spoken to in plain text, without certificates"),
                "write the address like mqtts://HOST:8883",
            )),
        };
    }
    let Some(ca) = &args.broker_ca else {
        return Err(Failure::usage(
            format!("nothing says who has signed the certificate of {broker}"),
            "say --broker-ca FILE (a registry shows its own under /v1/pki/ca)",
        ));
    };
    let pem = |path: &Path| read_small(path, LARGEST).map(String::into_bytes);
    let client = match (&args.broker_cert, &args.broker_key) {
        (Some(chain), Some(key)) => Some(ClientCredential { chain: pem(chain)?, key: pem(key)? }),
        _ => None,
    };
    Ok(Some(Tls {
        ca: pem(ca)?,
        name: args.broker_name.clone(),
        client,
        now: Arc::new(|| TlsTime { at: SystemTime::from(clock::now()), synchronised: true }),
    }))
}

/// What an enrolment file says of a broker that speaks TLS: its authority, and the device's own
/// certificate and key.
pub fn offline(
    broker: &BrokerAddress,
    given: &OfflineTls<'_>,
) -> Result<(Option<String>, Option<Value>), Failure> {
    match (broker.is_tls(), given.broker_ca) {
        (false, None) => Ok((None, None)),
        (false, Some(_)) => Err(Failure::usage(
            format!("{broker} is spoken to in plain text, without certificates"),
            "write the address like mqtts://HOST:8883",
        )),
        (true, None) => Err(Failure::usage(
            format!("nothing says who has signed the certificate of {broker}"),
            "say --broker-ca FILE, and --device-cert and --device-tls-key where the broker asks devices for one",
        )),
        (true, Some(ca)) => {
            let credential = match given.credential {
                Some((certificate, key)) => Some(json!({
                    "certificate": read_small(certificate, LARGEST)?, "key": read_small(key, LARGEST)?,
                })),
                None => None,
            };
            Ok((Some(read_small(ca, LARGEST)?), credential))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn an_address_and_its_certificates_belong_together() {
        let (plain, tls): (BrokerAddress, BrokerAddress) =
            ("mqtt://127.0.0.1:1883".parse().unwrap(), "mqtts://broker:8883".parse().unwrap());
        let none = Args::default();
        let with = Args { broker_ca: Some("none.pem".into()), ..Args::default() };
        let exit = |broker, args| of(broker, args).map(|tls| tls.is_some()).map_err(|failure| failure.exit());
        assert_eq!(exit(&plain, &none), Ok(false));
        assert_eq!(exit(&plain, &with), Err(Exit::Usage));
        assert_eq!(exit(&tls, &none), Err(Exit::Usage));
        assert_eq!(exit(&tls, &with), Err(Exit::NotFound));
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, "x").unwrap();
        assert_eq!(exit(&tls, &Args { broker_ca: Some(ca.clone()), ..Args::default() }), Ok(true));

        let file = |broker, given| offline(broker, &given).map_err(|failure| failure.exit());
        let none = OfflineTls::default();
        assert_eq!(file(&plain, none), Ok((None, None)));
        assert_eq!(file(&tls, none), Err(Exit::Usage));
        let with = OfflineTls { broker_ca: Some(&ca), credential: Some((&ca, &ca)) };
        assert_eq!(file(&plain, with), Err(Exit::Usage));
        let credential = Some(json!({"certificate": "x", "key": "x"}));
        assert_eq!(file(&tls, with), Ok((Some("x".to_owned()), credential)));
    }
}
