//! The two sockets: inherited from the agent or systemd (`LISTEN_FDS`, told apart by
//! `LISTEN_FDNAMES`), or bound here. An address that others can reach is refused: nothing here
//! authenticates.

use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first inherited descriptor.
const FIRST: RawFd = 3;

/// Clients that the system lets wait for being accepted; it may have a lower limit of its own. Past it
/// it drops what they send, and they try again after whole seconds.
const BACKLOG: i32 = 1024;

/// Most descriptors that are looked through.
const MOST: usize = 64;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The variables contradict themselves.
    #[error("LISTEN_FDS and LISTEN_FDNAMES cannot be followed: {0}")]
    Inherited(String),
    /// An inherited descriptor is not what its name says.
    #[error("the inherited descriptor {fd} (`{name}`) is no listening socket of its kind")]
    Descriptor {
        /// Its number.
        fd: RawFd,
        /// Its name.
        name: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Everybody could ask.
    #[error(
        "{0} can be reached from other machines, and nothing there would ask for a password: give a loopback address such as 127.0.0.1:8080"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be had.
    #[error("could not listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The path cannot be had.
    #[error("could not listen on the control socket `{path}`")]
    Unix {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Another host is there.
    #[error("another host answers on the control socket `{0}`: end it first")]
    InUse(PathBuf),
    /// Nobody could load a package.
    #[error(
        "nothing could be loaded: give --packages DIR, --control PATH, or a socket as `control` in LISTEN_FDNAMES"
    )]
    NoControl,
}

/// Where the inherited sockets are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Places {
    /// The inference endpoint.
    pub http: Option<RawFd>,
    /// The control socket.
    pub control: Option<RawFd>,
}

/// Reads the three variables as `sd_listen_fds_with_names` does: they count only for the process
/// that `LISTEN_PID` names, if it names one. Other names than `http` and `control` are left alone.
pub fn places(
    pid: Option<&str>,
    fds: Option<&str>,
    names: Option<&str>,
    own_pid: u32,
) -> Result<Places, ListenError> {
    let wrong = |text: &str| Err(ListenError::Inherited(text.to_owned()));
    let Some(fds) = fds else { return Ok(Places::default()) };
    if pid.is_some_and(|pid| pid != own_pid.to_string()) {
        return Ok(Places::default());
    }
    let count = match fds.parse::<usize>() {
        Ok(count) if count <= MOST => count,
        _ => return wrong("LISTEN_FDS is no number up to 64"),
    };
    if count == 0 {
        return Ok(Places::default());
    }
    let Some(names) = names else { return wrong("LISTEN_FDNAMES is missing") };
    let names: Vec<&str> = names.split(':').collect();
    if names.len() != count {
        return wrong("LISTEN_FDNAMES has not as many names as LISTEN_FDS says");
    }
    let mut places = Places::default();
    for (fd, name) in (FIRST..).zip(names) {
        let place = match name {
            "http" => &mut places.http,
            "control" => &mut places.control,
            _ => continue,
        };
        if place.replace(fd).is_some() {
            return wrong("a name comes twice");
        }
    }
    Ok(places)
}

/// Both listeners, ready to be used within tokio.
pub struct Listeners {
    /// The inference endpoint.
    pub http: tokio::net::TcpListener,
    /// The control socket, if there is one.
    pub control: Option<tokio::net::UnixListener>,
}

/// Both listeners, not in use yet.
pub struct Opened {
    http: std::net::TcpListener,
    control: Option<std::os::unix::net::UnixListener>,
}

impl Opened {
    /// Ready to be used: call within tokio.
    pub fn listeners(self) -> std::io::Result<Listeners> {
        Ok(Listeners {
            http: tokio::net::TcpListener::from_std(self.http)?,
            control: self.control.map(tokio::net::UnixListener::from_std).transpose()?,
        })
    }
}

/// Takes what is inherited and binds the rest. Call once. Needs no thread, so that it comes before the
/// process shuts itself in. Without a control socket only one that has packages of its own can serve any.
pub fn open(
    places: Places,
    listen: SocketAddr,
    control: Option<&Path>,
    own: bool,
) -> Result<Opened, ListenError> {
    let http = match places.http {
        Some(fd) => inherited_tcp(fd)?,
        None => bind_tcp(listen)?,
    };
    let control = match (places.control, control) {
        (Some(fd), _) => Some(inherited_unix(fd)?),
        (None, Some(path)) => Some(bind_unix(path)?),
        (None, None) if own => None,
        (None, None) => return Err(ListenError::NoControl),
    };
    // Both listen already, inherited or not: this sets how many may wait.
    rustix::net::listen(&http, BACKLOG)
        .map_err(|source| ListenError::Tcp { address: listen, source: source.into() })?;
    Ok(Opened { http, control })
}

fn descriptor(fd: RawFd, name: &'static str) -> Result<OwnedFd, ListenError> {
    let wrong = |source| ListenError::Descriptor { fd, name, source };
    // SAFETY: the one who started this process says, by LISTEN_FDS, that the descriptor is open and
    // ours; `listeners` runs once, so that nothing else owns it. Should it not be open, the call
    // below says so and nothing has been read or written.
    #[allow(unsafe_code)]
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    match rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC) {
        Ok(()) => {}
        Err(error) => {
            std::mem::forget(owned);
            return Err(wrong(error.into()));
        }
    }
    match rustix::net::sockopt::socket_acceptconn(&owned) {
        Ok(true) => Ok(owned),
        Ok(false) => Err(wrong(std::io::ErrorKind::InvalidInput.into())),
        Err(error) => Err(wrong(error.into())),
    }
}

fn inherited_tcp(fd: RawFd) -> Result<std::net::TcpListener, ListenError> {
    let wrong = |source| ListenError::Descriptor { fd, name: "http", source };
    let listener = std::net::TcpListener::from(descriptor(fd, "http")?);
    // Fails for a socket of another family.
    let address = listener.local_addr().map_err(wrong)?;
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

fn inherited_unix(fd: RawFd) -> Result<std::os::unix::net::UnixListener, ListenError> {
    let wrong = |source| ListenError::Descriptor { fd, name: "control", source };
    let listener = std::os::unix::net::UnixListener::from(descriptor(fd, "control")?);
    listener.local_addr().map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

fn bind_tcp(address: SocketAddr) -> Result<std::net::TcpListener, ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let wrong = |source| ListenError::Tcp { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

fn bind_unix(path: &Path) -> Result<std::os::unix::net::UnixListener, ListenError> {
    let wrong = |source| ListenError::Unix { path: path.to_owned(), source };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(ListenError::InUse(path.to_owned()));
    }
    let is_socket = |path: &Path| {
        use std::os::unix::fs::FileTypeExt;
        path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
    };
    if is_socket(path) {
        // Left by one that was killed.
        std::fs::remove_file(path).map_err(wrong)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(wrong)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_are_found_by_name() {
        let check = |pid: Option<&str>, fds: Option<&str>, names: Option<&str>, expected| {
            let found = places(pid, fds, names, 7).ok().map(|places| (places.http, places.control));
            assert_eq!(found, expected, "{pid:?} {fds:?} {names:?}");
        };
        check(None, Some("2"), Some("http:control"), Some((Some(3), Some(4))));
        check(Some("7"), Some("2"), Some("control:http"), Some((Some(4), Some(3))));
        check(None, Some("4"), Some("unknown:unknown:http:control"), Some((Some(5), Some(6))));
        check(Some("8"), Some("2"), Some("http:control"), Some((None, None)));
        check(None, None, Some("http"), Some((None, None)));
        check(None, Some("0"), None, Some((None, None)));
        check(None, Some("1"), Some("control"), Some((None, Some(3))));
        check(None, Some("2"), None, None);
        check(None, Some("2"), Some("http"), None);
        check(None, Some("2"), Some("http:http"), None);
        check(None, Some("-1"), Some("http"), None);
        check(None, Some("99999999999"), Some("http"), None);
        check(None, Some("x"), Some("http"), None);
    }

    #[tokio::test]
    async fn an_address_that_others_reach_is_refused() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            assert!(matches!(bind_tcp(address.parse().unwrap()), Err(ListenError::NotLoopback(_))));
        }
        assert!(bind_tcp("127.0.0.1:0".parse().unwrap()).is_ok());
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let first = bind_unix(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(bind_unix(&path), Err(ListenError::InUse(_))));
        drop(first);
        assert!(bind_unix(&path).is_ok());
        let file = directory.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        assert!(matches!(bind_unix(&file), Err(ListenError::Unix { .. })));
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }
}
