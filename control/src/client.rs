//! Asking a program over its private Unix socket: HTTP/1.1 with JSON, one connection a question.
//!
//! A connection is never kept: the other side may be restarted between any two questions. Every
//! question has a deadline, given by the caller, and an answer has a largest size; what is larger,
//! later or not the expected JSON is an error, never a wait.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::messages::{
    ControlError, Events, HostStatus, ListenersTo, Load, Loaded, PackageRef, Reason, path,
};

/// Largest answer that is read, in bytes: a host that floods its agent gets no further.
pub const LARGEST_ANSWER: usize = 1024 * 1024;

/// Longest path that a Unix socket's address holds, less one for safety.
const LONGEST_ADDRESS: usize = 100;

/// Why a question got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("cannot connect to {}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// No whole answer within the deadline.
    #[error("no answer from {} to {path} within {after:?}", socket.display())]
    Late {
        /// The socket.
        socket: PathBuf,
        /// What was asked.
        path: String,
        /// The deadline that passed.
        after: Duration,
    },
    /// The connection broke, or what came was not HTTP.
    #[error("the exchange with {} about {path} broke off", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What was asked.
        path: String,
        /// What was wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The other side says no.
    #[error("{path} was refused: {}", error.error)]
    Refused {
        /// What was asked.
        path: String,
        /// The answer.
        error: ControlError,
    },
    /// The answer is not the expected JSON.
    #[error("the answer from {} to {path} cannot be read", socket.display())]
    Unreadable {
        /// The socket.
        socket: PathBuf,
        /// What was asked.
        path: String,
        /// What was wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// The reason code, where the other side answered at all.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { error, .. } => Some(error.reason),
            _ => None,
        }
    }

    /// Whether nobody listens: the program is not there, as opposed to slow or unwilling.
    pub fn nobody_listens(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if matches!(
            source.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
        ))
    }
}

/// A client of one socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the socket at this path; nothing is opened yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the host is and has loaded.
    pub async fn status(&self, deadline: Duration) -> Result<HostStatus, ClientError> {
        self.get(path::STATUS, deadline).await
    }

    /// Opens a package beside what is served and runs its acceptance cases.
    pub async fn load(&self, load: &Load, deadline: Duration) -> Result<Loaded, ClientError> {
        self.post(path::LOAD, load, deadline).await
    }

    /// Routes the package's name to this release.
    pub async fn activate(
        &self,
        package: &PackageRef,
        deadline: Duration,
    ) -> Result<HostStatus, ClientError> {
        self.post(path::ACTIVATE, package, deadline).await
    }

    /// Drains and drops a package.
    pub async fn unload(&self, package: &PackageRef, deadline: Duration) -> Result<HostStatus, ClientError> {
        self.post(path::UNLOAD, package, deadline).await
    }

    /// Says that everything that is to be served is.
    pub async fn ready(&self, deadline: Duration) -> Result<HostStatus, ClientError> {
        self.post(path::READY, &serde_json::json!({}), deadline).await
    }

    /// Events newer than `since`; the host holds the answer back for up to 30 s, so the deadline
    /// must be longer.
    pub async fn events(&self, since: u64, deadline: Duration) -> Result<Events, ClientError> {
        self.get(&format!("{}?since={since}", path::EVENTS), deadline).await
    }

    /// Has the host send copies of its listeners to a Unix socket.
    pub async fn send_listeners(&self, to: &ListenersTo, deadline: Duration) -> Result<(), ClientError> {
        let body = serde_json::to_vec(to).map_err(|source| self.broken(path::LISTENERS, source))?;
        self.exchange(Method::POST, path::LISTENERS, body.into(), deadline).await.map(drop)
    }

    /// Asks the host to drain and to end.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), ClientError> {
        self.exchange(Method::POST, path::SHUTDOWN, Bytes::new(), deadline).await.map(drop)
    }

    /// Any question without a body, answered with JSON.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, deadline: Duration) -> Result<T, ClientError> {
        let body = self.exchange(Method::GET, path, Bytes::new(), deadline).await?;
        self.read(path, &body)
    }

    /// Any question with a JSON body, answered with JSON.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        deadline: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|source| self.broken(path, source))?;
        let body = self.exchange(Method::POST, path, body.into(), deadline).await?;
        self.read(path, &body)
    }

    fn read<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|source| ClientError::Unreadable {
            socket: self.socket.clone(),
            path: path.to_owned(),
            source,
        })
    }

    fn broken(&self, path: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), path: path.to_owned(), source: source.into() }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, ClientError> {
        tokio::time::timeout(deadline, self.exchange_unhurried(method, path, body)).await.unwrap_or_else(
            |_| {
                Err(ClientError::Late { socket: self.socket.clone(), path: path.to_owned(), after: deadline })
            },
        )
    }

    async fn exchange_unhurried(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        let stream = self
            .connect()
            .await
            .map_err(|source| ClientError::Connect { socket: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(64 * 1024)
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|source| self.broken(path, source))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONNECTION, "close")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|source| self.broken(path, source))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(|source| self.broken(path, source))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER)
                .collect()
                .await
                .map_err(|source| self.broken(path, source))?
                .to_bytes();
            Ok((status, body))
        };
        // The connection only moves while it is polled, and may end an instant before the last of
        // the answer has been taken out of it.
        let (status, body) = {
            tokio::pin!(answer);
            tokio::pin!(connection);
            let mut open = true;
            loop {
                tokio::select! {
                    answer = &mut answer => break answer?,
                    _ = &mut connection, if open => open = false,
                }
            }
        };
        if status.is_success() {
            return Ok(body);
        }
        let error = serde_json::from_slice(&body).unwrap_or_else(|_| ControlError {
            error: format!("HTTP status {status}"),
            reason: if status == StatusCode::BAD_REQUEST { Reason::BadRequest } else { Reason::Internal },
        });
        Err(ClientError::Refused { path: path.to_owned(), error })
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        let address = Address::of(&self.socket)?;
        UnixStream::connect(address.path()).await
    }
}

/// A Unix socket's path, made short enough for the system's 108 bytes by way of its open directory.
#[derive(Debug)]
pub struct Address {
    path: PathBuf,
    _directory: Option<std::fs::File>,
}

impl Address {
    /// The address of this path. Holds its directory open where the path is too long by itself.
    pub fn of(socket: &Path) -> std::io::Result<Self> {
        if socket.as_os_str().len() <= LONGEST_ADDRESS {
            return Ok(Self { path: socket.to_owned(), _directory: None });
        }
        let wrong =
            || std::io::Error::new(std::io::ErrorKind::InvalidInput, "a socket's path needs a file name");
        let name = socket.file_name().ok_or_else(wrong)?;
        let directory = std::fs::File::open(socket.parent().ok_or_else(wrong)?)?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }

    /// The path to bind or connect to, good while this value lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    const SOON: Duration = Duration::from_secs(10);

    /// A directory of its own for each test, removed with it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("selvedge-client-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Answers one connection with these bytes, after the request's head has come.
    fn answering(socket: &Path, answer: Vec<u8>) -> tokio::task::JoinHandle<Vec<u8>> {
        let address = Address::of(socket).unwrap();
        let listener = UnixListener::bind(address.path()).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.windows(4).any(|w| w == b"\r\n\r\n") {
                stream.read_buf(&mut asked).await.unwrap();
            }
            let _ = stream.write_all(&answer).await;
            asked
        })
    }

    fn http(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[tokio::test]
    async fn a_status_is_read() {
        let place = Place::new("status");
        let socket = place.0.join("s");
        let host = answering(
            &socket,
            http(
                "200 OK",
                r#"{"pid":7,"version":"1","onnxruntime":"1.32","http":"127.0.0.1:1","packages":[]}"#,
            ),
        );
        let status = Client::new(&socket).status(SOON).await.unwrap();
        assert_eq!(status.pid, 7);
        assert!(host.await.unwrap().starts_with(b"GET /v1/status HTTP/1.1\r\n"));
    }

    #[tokio::test]
    async fn a_path_longer_than_an_address_is_reached() {
        let place = Place::new("long");
        let deep = place.0.join("d".repeat(120));
        std::fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("control.sock");
        let host = answering(&socket, http("202 Accepted", ""));
        Client::new(&socket).shutdown(SOON).await.unwrap();
        host.await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_keeps_its_reason() {
        let place = Place::new("refused");
        let socket = place.0.join("s");
        answering(&socket, http("422 Unprocessable Entity", r#"{"error":"no model","reason":"bad-model"}"#));
        let error = Client::new(&socket).status(SOON).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::BadModel));
        assert_eq!(error.to_string(), "/v1/status was refused: no model");
    }

    #[tokio::test]
    async fn nobody_there_is_told_apart_from_garbage() {
        let place = Place::new("garbage");
        let nobody = Client::new(place.0.join("none")).status(SOON).await.unwrap_err();
        assert!(nobody.nobody_listens());

        for (n, answer) in [
            b"\x00\x01garbage\r\n\r\n".to_vec(),
            http("200 OK", "[[[["),
            b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort".to_vec(),
            b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\nno".to_vec(),
            http("200 OK", &" ".repeat(LARGEST_ANSWER + 1)),
        ]
        .into_iter()
        .enumerate()
        {
            let socket = place.0.join(format!("s{n}"));
            answering(&socket, answer);
            let error = Client::new(&socket).status(SOON).await.unwrap_err();
            assert!(!error.nobody_listens(), "{error}");
        }
    }

    #[tokio::test]
    async fn a_silent_host_is_late_and_no_hang() {
        let place = Place::new("silent");
        let socket = place.0.join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = Client::new(&socket).status(Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(error, ClientError::Late { .. }), "{error}");
    }
}
