//! Who may speak on the control socket: the user that this process runs as, and root. The file's
//! mode says the same; this holds for a socket that was inherited with another mode too.

use tokio::net::{UnixListener, UnixStream};

use crate::serve::connection::Listener;

/// A control socket that lets only its own user and root in.
pub struct OwnUser(pub UnixListener);

impl Listener for OwnUser {
    type Stream = UnixStream;

    async fn next(&self) -> std::io::Result<UnixStream> {
        loop {
            let (stream, _) = self.0.accept().await?;
            let uid = stream.peer_cred()?.uid();
            if may_speak(uid, rustix::process::geteuid().as_raw()) {
                return Ok(stream);
            }
            tracing::warn!(uid, "another user tried the control socket");
        }
    }
}

fn may_speak(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

#[cfg(test)]
mod tests {
    use super::may_speak;

    #[test]
    fn only_its_own_user_and_root() {
        assert!(may_speak(1000, 1000));
        assert!(may_speak(0, 1000));
        assert!(!may_speak(1001, 1000));
        assert!(!may_speak(1000, 0));
    }
}
