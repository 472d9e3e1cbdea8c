//! Giving the agent a copy of the two listeners: an agent that adopts this host keeps them open, so
//! that nobody is refused when this process ends and another one takes its place.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use selvedge_control::client::Address;
use selvedge_control::{ListenersTo, Reason, listeners};
use tokio::net::UnixStream;

use super::refused::Refused;

/// Longest wait for whoever asked to take them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Copies of both, until this process stops to accept.
#[derive(Debug, Default)]
pub struct Copies(Mutex<Option<(OwnedFd, OwnedFd)>>);

impl Copies {
    /// Of these two.
    pub fn of(http: impl AsFd, control: impl AsFd) -> std::io::Result<Self> {
        let copies = (http.as_fd().try_clone_to_owned()?, control.as_fd().try_clone_to_owned()?);
        Ok(Self(Mutex::new(Some(copies))))
    }

    /// Lets go of them: what nobody else holds open refuses callers from now on.
    pub fn close(&self) {
        drop(self.lock().take());
    }

    /// Sends them to the socket that the agent names.
    pub async fn send(&self, to: &ListenersTo) -> Result<(), Refused> {
        let failed = |error: std::io::Error| {
            let error = format!("the listeners could not be sent to `{}`: {error}", to.socket.display());
            Refused::new(Reason::BadRequest, error)
        };
        let connected = async {
            let address = Address::of(&to.socket)?;
            UnixStream::connect(address.path()).await
        };
        let late = |_| failed(std::io::ErrorKind::TimedOut.into());
        let stream = tokio::time::timeout(PATIENCE, connected).await.map_err(late)?.map_err(failed)?;
        match &*self.lock() {
            Some((http, control)) => listeners::send(&stream, http.as_fd(), control.as_fd()).map_err(failed),
            None => Err(Refused::new(Reason::Internal, "this host is ending")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(OwnedFd, OwnedFd)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
