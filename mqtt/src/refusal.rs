//! Why a connection failed, so far as whoever holds it must tell cases apart.

use rumqttc::v5::mqttbytes::v5::ConnectReturnCode;
use rumqttc::v5::{ConnectionError, StateError};
use rustls::AlertDescription as Alert;

/// Why there is no connection. For choosing what to do next; people read the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The broker does not accept who this client is: certificate, name or right to connect. Trying
    /// again with the same certificate is likely to fail again.
    Credential,
    /// The broker could not show that it is the one to speak to. Nothing was sent to it.
    Broker,
    /// No route, nobody there, a link that broke: anything else.
    Link,
}

/// Why, for people and for the program.
pub(crate) fn judge(error: &ConnectionError) -> (String, Reason) {
    if let ConnectionError::ConnectionRefused(code) = error {
        let refused = matches!(
            code,
            ConnectReturnCode::NotAuthorized
                | ConnectReturnCode::BadUserNamePassword
                | ConnectReturnCode::ClientIdentifierNotValid
                | ConnectReturnCode::Banned
                | ConnectReturnCode::BadAuthenticationMethod
        );
        let reason = if refused { Reason::Credential } else { Reason::Link };
        return (format!("the broker refuses the connection: {code:?}"), reason);
    }
    match of_tls(error) {
        Some(rustls::Error::AlertReceived(alert)) if refuses_certificate(*alert) => {
            let why = format!("the broker does not accept this client's certificate: {}", said(*alert));
            (why, Reason::Credential)
        }
        Some(error @ rustls::Error::InvalidCertificate(_)) => {
            (format!("the broker's certificate is not believed: {error}"), Reason::Broker)
        }
        Some(error) => (format!("no TLS with the broker: {error}"), Reason::Link),
        None => (error.to_string(), Reason::Link),
    }
}

/// The cause in TLS, which is wrapped as an I/O error more than once, and once without saying so.
fn of_tls(error: &ConnectionError) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = match error {
        ConnectionError::MqttState(StateError::Deserialization(inner)) => Some(inner),
        error => Some(error),
    };
    for _ in 0..8 {
        let error = cause?;
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        cause = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn refuses_certificate(alert: Alert) -> bool {
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

fn said(alert: Alert) -> &'static str {
    match alert {
        Alert::CertificateRevoked => "it is revoked",
        Alert::CertificateExpired => "it has expired, or is not good yet",
        Alert::CertificateRequired | Alert::NoCertificate => "it wants one and got none",
        Alert::UnknownCA => "it comes from another authority",
        Alert::AccessDenied => "it has no access",
        Alert::UnsupportedCertificate => "it is of a kind that the broker does not take",
        _ => "it is not good",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_refused_certificate_is_told_from_a_broken_link() {
        let alert = |alert| {
            ConnectionError::Io(io::Error::new(
                io::ErrorKind::InvalidData,
                rustls::Error::AlertReceived(alert),
            ))
        };
        // As it comes out of rumqttc when the broker hangs up before it answers.
        let revoked = io::Error::other(rustls::Error::AlertReceived(Alert::CertificateRevoked));
        let wrapped = StateError::Deserialization(rumqttc::v5::mqttbytes::Error::Io(revoked));
        for (error, reason) in [
            (ConnectionError::MqttState(wrapped), Reason::Credential),
            (alert(Alert::CertificateRevoked), Reason::Credential),
            (alert(Alert::CertificateExpired), Reason::Credential),
            (alert(Alert::UnknownCA), Reason::Credential),
            (alert(Alert::InternalError), Reason::Link),
            (ConnectionError::ConnectionRefused(ConnectReturnCode::NotAuthorized), Reason::Credential),
            (ConnectionError::ConnectionRefused(ConnectReturnCode::ServerBusy), Reason::Link),
            (ConnectionError::Io(io::ErrorKind::ConnectionRefused.into()), Reason::Link),
            (
                ConnectionError::Tls(rumqttc::TlsError::Io(io::Error::new(
                    io::ErrorKind::InvalidData,
                    rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer),
                ))),
                Reason::Broker,
            ),
        ] {
            assert_eq!(judge(&error).1, reason, "{error}");
        }
        assert!(judge(&alert(Alert::CertificateRevoked)).0.contains("revoked"));
    }
}
