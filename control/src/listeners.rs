//! Two listeners from the host to its agent, over a Unix socket of the agent's own (`SCM_RIGHTS`).
//!
//! An agent that finds a host of an earlier one has no listeners: if that host ended, callers would be
//! refused until others were made. With a copy of them nobody is, whichever of the two ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// What the descriptors travel with: a message needs at least a byte.
const WORD: &[u8] = b"http, control";

/// Sends the listener of inference and the one of the control socket, in this order. Never waits.
pub fn send(socket: impl AsFd, http: BorrowedFd<'_>, control: BorrowedFd<'_>) -> io::Result<()> {
    let listeners = [http, control];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&listeners)) {
        return Err(io::Error::other("two descriptors do not fit into a message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(WORD)], &mut ancillary, flags)?;
    Ok(())
}

/// Takes what [`send`] sent, if it is there. Both are listening sockets then; more is not known.
pub fn receive(socket: impl AsFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut word = [0; WORD.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut word)], &mut ancillary, flags)?;
    // Every descriptor that came is owned from here on, and closed where it is not wanted.
    let mut came: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            came.extend(descriptors);
        }
    }
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let [http, control] = <[OwnedFd; 2]>::try_from(came).map_err(|_| wrong("not two descriptors"))?;
    for listener in [&http, &control] {
        if !rustix::net::sockopt::socket_acceptconn(listener)? {
            return Err(wrong("a descriptor that does not listen"));
        }
    }
    Ok((http, control))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn both_arrive_in_order_and_listen_on() {
        let place = std::env::temp_dir().join(format!("selvedge-listeners-{}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = http.local_addr().unwrap();
        let control = UnixListener::bind(&place).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, http.as_fd(), control.as_fd()).unwrap();
        let (had, _control) = receive(&theirs).unwrap();
        drop((http, control));
        let had = TcpListener::from(had);
        let _caller = TcpStream::connect(address).unwrap();
        assert!(had.accept().is_ok());
        assert!(UnixStream::connect(&place).is_ok());
        std::fs::remove_file(&place).unwrap();
    }

    #[test]
    fn anything_else_is_refused_and_nothing_is_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&ours, ours.as_fd(), theirs.as_fd()).unwrap();
        assert!(receive(&theirs).unwrap_err().to_string().contains("does not listen"));
        std::io::Write::write_all(&mut &ours, b"a word").unwrap();
        assert!(receive(&theirs).unwrap_err().to_string().contains("not two"));
        drop(ours);
        assert!(receive(&theirs).is_err());
    }
}
