//! The host's two listeners. The agent makes them and keeps them open, so that a host that is being
//! restarted keeps its callers waiting instead of refusing them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use selvedge_control::client::Address;

/// Why a listener cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The inference address.
    #[error("cannot serve inference on {address}; give another with --http")]
    Http {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The control socket.
    #[error("cannot listen on {}", path.display())]
    Control {
        /// The socket's path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Both listeners.
#[derive(Debug)]
pub struct Listeners {
    /// Inference.
    pub http: TcpListener,
    /// The control socket.
    pub control: UnixListener,
}

impl Listeners {
    /// Listens. With port 0 the port of `before`, where it is free, else any: callers that know an
    /// address should find it again after a restart.
    pub fn bind(http: SocketAddr, before: Option<SocketAddr>, control: &Path) -> Result<Self, ListenError> {
        let before = before.filter(|before| http.port() == 0 && before.ip() == http.ip());
        let http = before
            .and_then(|address| TcpListener::bind(address).ok())
            .map_or_else(|| TcpListener::bind(http), Ok)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|source| ListenError::Http { address: http, source })?;
        let control = listen_privately(control)?;
        Ok(Self { http, control })
    }
}

/// A Unix listener of mode 0600 in the place of whatever had that name.
pub fn listen_privately(path: &Path) -> Result<UnixListener, ListenError> {
    let listen = || {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let address = Address::of(path)?;
        let listener = UnixListener::bind(address.path())?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| ListenError::Control { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_port_is_taken_again_and_a_taken_one_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let control = place.path().join("c");
        let first = Listeners::bind(any, None, &control).unwrap();
        let address = first.http.local_addr().unwrap();
        let elsewhere = Listeners::bind(any, Some(address), &place.path().join("d")).unwrap();
        assert_ne!(elsewhere.http.local_addr().unwrap(), address);
        let error = Listeners::bind(address, None, &place.path().join("e")).unwrap_err();
        assert!(error.to_string().contains("--http"), "{error}");
        drop(first);
        let again = Listeners::bind(any, Some(address), &control).unwrap();
        assert_eq!(again.http.local_addr().unwrap(), address);
    }
}
