//! A small web server that serves a directory, well or badly: whole or in ranges, slowly, cut off,
//! spoiled, from elsewhere, or not at all. It counts what it was asked and what it gave.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How it behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// As a web server should.
    Good,
    /// Answers every request with the whole file.
    NoRanges,
    /// Answers with this status.
    Status(u16),
    /// Closes the connection after so many bytes of each body.
    Cut(usize),
    /// Changes one byte in every 10 000 of each body.
    Spoiled,
    /// Gives 16 KiB every so often.
    Paced(Duration),
    /// Gives a byte now and then.
    Trickle,
    /// Answers every request with the whole file, a byte now and then.
    WholeTrickle,
    /// Takes requests and says nothing.
    Silent,
    /// Sends everyone there: this, followed by the path.
    Elsewhere(String),
    /// These lines in place of the head.
    Head(String),
    /// A head without end.
    Endless,
}

/// The server. It lives as long as the process.
#[derive(Debug, Clone)]
pub struct Web {
    /// Where it listens.
    pub address: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    manner: Mutex<Manner>,
    streams: Mutex<Vec<TcpStream>>,
    heads: Mutex<Vec<String>>,
    given: AtomicU64,
    connections: AtomicU64,
    open: AtomicU64,
    most_open: AtomicU64,
}

impl Web {
    /// Serves what lies below `root`.
    pub fn serve(root: &Path) -> Self {
        Self::serve_on(root, "127.0.0.1:0")
    }

    /// As [`Web::serve`], on an address of the caller's.
    pub fn serve_on(root: &Path, address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            manner: Mutex::new(Manner::Good),
            streams: Mutex::default(),
            heads: Mutex::default(),
            given: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            most_open: AtomicU64::new(0),
        });
        let web = Self { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                if let Ok(stream) = stream.try_clone() {
                    hold(&shared.streams).push(stream);
                }
                thread::spawn(move || {
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    let open = shared.open.fetch_add(1, Ordering::SeqCst) + 1;
                    shared.most_open.fetch_max(open, Ordering::SeqCst);
                    let other = stream.try_clone();
                    let _ = shared.connection(stream);
                    // Dropping it closes nothing as long as it is known for being cut.
                    let _ = other.map(|stream| stream.shutdown(Shutdown::Both));
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        web
    }

    /// Where a package's blobs lie on it, as a manifest says it.
    pub fn source(&self) -> String {
        format!("http://{}/blobs/sha256/{{digest}}", self.address)
    }

    /// From now on it behaves so.
    pub fn set(&self, manner: Manner) {
        *hold(&self.shared.manner) = manner;
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        for stream in hold(&self.shared.streams).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The heads of all requests so far.
    pub fn heads(&self) -> Vec<String> {
        hold(&self.shared.heads).clone()
    }

    /// Bytes of bodies that it gave.
    pub fn given(&self) -> u64 {
        self.shared.given.load(Ordering::SeqCst)
    }

    /// Connections that were made, and how many were open at a time.
    pub fn connections(&self) -> (u64, u64) {
        (self.shared.connections.load(Ordering::SeqCst), self.shared.most_open.load(Ordering::SeqCst))
    }
}

impl Shared {
    fn connection(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.by_ref().take(8192).read_line(&mut head)? == 0 {
                    return Ok(());
                }
            }
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let range = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                name.eq_ignore_ascii_case("range").then_some((first.parse().ok()?, last.parse().ok()?))
            });
            hold(&self.heads).push(head);
            let manner = hold(&self.manner).clone();
            self.answer(&mut stream, &path, range, &manner)?;
        }
    }

    fn answer(
        &self,
        stream: &mut TcpStream,
        path: &str,
        range: Option<(usize, usize)>,
        manner: &Manner,
    ) -> std::io::Result<()> {
        let plain = |status: u16| format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
        match manner {
            Manner::Status(status) => return stream.write_all(plain(*status).as_bytes()),
            Manner::Elsewhere(to) => {
                let head = format!("HTTP/1.1 302 x\r\nLocation: {to}{path}\r\nContent-Length: 0\r\n\r\n");
                return stream.write_all(head.as_bytes());
            }
            Manner::Silent => {
                thread::sleep(Duration::from_secs(600));
                return Ok(());
            }
            Manner::Endless => loop {
                stream.write_all(b"HTTP/1.1 200 x\r\nX: ")?;
                stream.write_all(&[b'x'; 10_000])?;
            },
            _ => {}
        }
        let Ok(bytes) = std::fs::read(self.root.join(path.trim_start_matches('/'))) else {
            return stream.write_all(plain(404).as_bytes());
        };
        let whole = bytes.len();
        let part = match (range, manner) {
            (Some((first, last)), Manner::NoRanges | Manner::WholeTrickle) if first <= last => 0..whole,
            (Some((first, last)), _) if first <= last && first < whole => first..(last + 1).min(whole),
            (Some(_), _) => return stream.write_all(plain(416).as_bytes()),
            (None, _) => 0..whole,
        };
        let head = match (manner, part.len() == whole && range.is_none()) {
            (Manner::Head(head), _) => format!("{head}\r\n\r\n"),
            (Manner::NoRanges | Manner::WholeTrickle, _) | (_, true) => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\n\r\n")
            }
            _ => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{whole}\r\n\r\n",
                part.len(),
                part.start,
                part.end - 1
            ),
        };
        stream.write_all(head.as_bytes())?;
        self.body(stream, bytes[part].to_vec(), manner)
    }

    fn body(&self, stream: &mut TcpStream, mut body: Vec<u8>, manner: &Manner) -> std::io::Result<()> {
        match manner {
            Manner::Spoiled => body.chunks_mut(10_000).for_each(|piece| piece[0] ^= 1),
            Manner::Trickle | Manner::WholeTrickle => {
                for byte in body {
                    stream.write_all(&[byte])?;
                    thread::sleep(Duration::from_millis(100));
                }
                return Ok(());
            }
            Manner::Paced(pause) => {
                for piece in body.chunks(16_384) {
                    self.give(stream, piece)?;
                    thread::sleep(*pause);
                }
                return Ok(());
            }
            Manner::Cut(after) if body.len() > *after => {
                self.give(stream, &body[..*after])?;
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            _ => {}
        }
        self.give(stream, &body)
    }

    fn give(&self, stream: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
        for piece in body.chunks(16_384) {
            // Before, or who got the last piece could look before it counts.
            self.given.fetch_add(piece.len() as u64, Ordering::SeqCst);
            stream.write_all(piece)?;
        }
        Ok(())
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
