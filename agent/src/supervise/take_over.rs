//! The listeners of a host that an earlier agent left: asked for at its adoption, so that whoever calls
//! while it is being restarted, or replaced, waits instead of being refused.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use selvedge_control::{Client, HostStatus, ListenersTo, listeners};
use tokio::io::Interest;

use super::listeners::{Listeners, listen_privately};

/// Has the host send copies of its listeners to a socket in `run`. A host of an earlier version cannot.
pub(super) async fn take_over(
    client: &Client,
    status: &HostStatus,
    run: &Path,
    patience: Duration,
) -> io::Result<Listeners> {
    let socket = run.join("listeners.sock");
    let taken = tokio::time::timeout(patience, asked(client, status, &socket, patience)).await;
    let _ = std::fs::remove_file(&socket);
    taken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn asked(
    client: &Client,
    status: &HostStatus,
    socket: &Path,
    patience: Duration,
) -> io::Result<Listeners> {
    let listener = listen_privately(socket).map_err(io::Error::other)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let to = ListenersTo { socket: socket.to_owned() };
    // It connects and sends before it answers; both are small enough to lie ready.
    client.send_listeners(&to, patience).await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    let (http, control) = stream.async_io(Interest::READABLE, || listeners::receive(&stream)).await?;
    let (http, control) = (TcpListener::from(http), UnixListener::from(control));
    let address = http.local_addr()?;
    if address.to_string() != status.http {
        return Err(io::Error::other(format!(
            "it sent a listener of {address} and serves on {}",
            status.http
        )));
    }
    control.local_addr()?;
    http.set_nonblocking(true)?;
    control.set_nonblocking(true)?;
    Ok(Listeners { http, control })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const STATUS: &str = r#"{"pid":7,"version":"1","onnxruntime":"1","http":"ADDRESS","packages":[]}"#;

    /// A host that answers one request so, after it has done this with the socket that it was told of.
    async fn asked_of(
        patience: Duration,
        answer: &'static str,
        act: impl FnOnce(&Path, &TcpListener) + Send + 'static,
    ) -> io::Result<Listeners> {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control.sock");
        let host = tokio::net::UnixListener::bind(&control).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = http.local_addr().unwrap().to_string();
        let socket = place.path().join("listeners.sock");
        tokio::spawn(async move {
            let (mut stream, _) = host.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"POST /v1/listeners "));
            act(&socket, &http);
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let status = serde_json::from_str(&STATUS.replace("ADDRESS", &address)).unwrap();
        let taken = take_over(&Client::new(&control), &status, place.path(), patience).await;
        assert!(!place.path().join("listeners.sock").exists());
        taken
    }

    const LONG: Duration = Duration::from_secs(60);
    const YES: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}";
    const NO: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}";

    fn send(socket: &Path, http: &TcpListener) {
        let control = tempfile::tempdir().unwrap();
        let control = UnixListener::bind(control.path().join("c")).unwrap();
        let stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        listeners::send(&stream, http.as_fd(), control.as_fd()).unwrap();
    }

    #[tokio::test]
    async fn the_listeners_are_had_and_only_those_that_it_serves_on() {
        asked_of(LONG, YES, send).await.unwrap();
        let another =
            asked_of(LONG, YES, |socket, _| send(socket, &TcpListener::bind("127.0.0.1:0").unwrap())).await;
        assert!(another.unwrap_err().to_string().contains("serves on"));
    }

    #[tokio::test]
    async fn a_host_that_cannot_or_does_not_is_not_waited_for() {
        assert!(asked_of(LONG, NO, |_, _| ()).await.is_err());
        assert_eq!(
            asked_of(Duration::from_secs(2), YES, |_, _| ()).await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
    }
}
