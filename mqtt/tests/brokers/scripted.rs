//! A broker that does exactly what a test tells it to: as much of MQTT 5 as our client speaks.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::soon;

pub struct Scripted {
    listener: Option<TcpListener>,
    port: u16,
    tls: Option<TlsAcceptor>,
}

/// A client's connection before anything is read from it.
pub struct Raw(TcpStream);

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// One client's connection.
pub struct Peer {
    stream: Box<dyn Stream>,
    pub clean_start: bool,
    pub will: bool,
}

/// What a client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Publish {
        topic: String,
        payload: Vec<u8>,
        qos: u8,
        pkid: u16,
        dup: bool,
        /// Its message expiry interval in seconds.
        expiry: Option<u32>,
    },
    Subscribe {
        pkid: u16,
        filters: Vec<String>,
    },
    PubAck {
        pkid: u16,
    },
    Ping,
    Disconnect,
    /// It closed the connection.
    Gone,
}

/// Properties of a CONNACK.
#[derive(Default)]
pub struct Limits {
    pub maximum_packet: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub keep_alive: Option<u16>,
}

impl Scripted {
    /// `receive_buffer`: how many bytes the system takes for a broker that does not read.
    pub fn start(receive_buffer: Option<u32>) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        Self::listen(socket, 16, None)
    }

    /// Over TLS. One connection that is not taken fills its queue: no other is answered then.
    pub fn start_tls(config: ServerConfig) -> Self {
        Self::listen(TcpSocket::new_v4().unwrap(), 0, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn listen(socket: TcpSocket, queue: u32, tls: Option<TlsAcceptor>) -> Self {
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(queue).unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener: Some(listener), port, tls }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses connections from now on; those that are there go on.
    pub fn close(&mut self) {
        self.listener = None;
    }

    /// Takes connections again at the same port.
    pub fn open(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, self.port).into()).unwrap();
        self.listener = Some(socket.listen(16).unwrap());
    }

    /// The next connection, whatever it is for.
    pub async fn take(&self) -> Raw {
        let listener = self.listener.as_ref().expect("it was not closed");
        Raw(soon("a client", listener.accept()).await.unwrap().0)
    }

    /// The next connection on which anything is said, of which nothing has been read.
    pub async fn hello(&self) -> Raw {
        loop {
            let raw = self.take().await;
            if soon("a word or the end", raw.0.peek(&mut [0])).await.unwrap() > 0 {
                return raw;
            }
        }
    }

    /// TLS on a connection.
    pub async fn handshake(&self, raw: Raw) -> std::io::Result<Peer> {
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.accept(raw.0).await?),
            None => Box::new(raw.0),
        };
        Ok(Peer { stream, clean_start: false, will: false })
    }

    /// The next connection, of which the CONNECT has been read.
    pub async fn accept(&self) -> Peer {
        let raw = match self.tls {
            Some(_) => self.hello().await,
            None => self.take().await,
        };
        let mut peer = self.handshake(raw).await.unwrap();
        let (kind, body) = peer.packet().await.expect("a CONNECT");
        assert_eq!(kind, 0x10, "CONNECT");
        assert_eq!(&body[..7], b"\0\x04MQTT\x05");
        peer.clean_start = body[7] & 2 != 0;
        peer.will = body[7] & 4 != 0;
        peer
    }

    /// The next connection, accepted and subscribed.
    pub async fn welcome(&self, session_present: bool, limits: Limits) -> Peer {
        let mut peer = self.accept().await;
        peer.connack(session_present, limits).await;
        peer.subscribed().await;
        peer
    }
}

impl Raw {
    /// Whether it ends in time and nothing was said on it.
    pub async fn ends_in_silence(&mut self, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, self.0.read(&mut [0])).await, Ok(Ok(0)))
    }

    /// Reads to its end; `false` if it does not come in time.
    pub async fn ends(&mut self, within: Duration) -> bool {
        let read = async { while self.0.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0) {} };
        tokio::time::timeout(within, read).await.is_ok()
    }
}

impl Peer {
    pub async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn connack(&mut self, session_present: bool, limits: Limits) {
        let mut properties = Vec::new();
        if let Some(limit) = limits.receive_maximum {
            properties.push(33);
            properties.extend(limit.to_be_bytes());
        }
        if let Some(limit) = limits.maximum_packet {
            properties.push(39);
            properties.extend(limit.to_be_bytes());
        }
        if let Some(seconds) = limits.keep_alive {
            properties.push(19);
            properties.extend(seconds.to_be_bytes());
        }
        let mut packet = vec![0x20, 3 + properties.len() as u8, session_present.into(), 0];
        packet.push(properties.len() as u8);
        packet.extend(properties);
        self.raw(&packet).await;
    }

    /// Answers the SUBSCRIBE that comes next.
    pub async fn subscribed(&mut self) {
        let Sent::Subscribe { pkid, filters } = self.read().await else { panic!("a SUBSCRIBE") };
        self.suback(pkid, &vec![1; filters.len()]).await;
    }

    pub async fn suback(&mut self, pkid: u16, codes: &[u8]) {
        let [high, low] = pkid.to_be_bytes();
        let mut packet = vec![0x90, 3 + codes.len() as u8, high, low, 0];
        packet.extend(codes);
        self.raw(&packet).await;
    }

    pub async fn puback(&mut self, pkid: u16) {
        let [high, low] = pkid.to_be_bytes();
        self.raw(&[0x40, 2, high, low]).await;
    }

    pub async fn publish(&mut self, topic: &str, qos: u8, pkid: u16, payload: &[u8]) {
        let mut body = (topic.len() as u16).to_be_bytes().to_vec();
        body.extend(topic.as_bytes());
        if qos > 0 {
            body.extend(pkid.to_be_bytes());
        }
        body.push(0);
        body.extend(payload);
        let mut packet = vec![0x30 | (qos << 1)];
        let mut rest = body.len();
        loop {
            let byte = (rest % 128) as u8;
            rest /= 128;
            packet.push(if rest > 0 { byte | 128 } else { byte });
            if rest == 0 {
                break;
            }
        }
        packet.extend(body);
        self.raw(&packet).await;
    }

    /// The next packet that is no ping; pings are answered.
    pub async fn read(&mut self) -> Sent {
        soon("a packet", async {
            loop {
                match self.next().await {
                    Sent::Ping => self.raw(&[0xd0, 0]).await,
                    other => return other,
                }
            }
        })
        .await
    }

    /// The next publish; everything else is passed over.
    pub async fn published(&mut self) -> (Vec<u8>, u16) {
        soon("a PUBLISH", async {
            loop {
                match self.read().await {
                    Sent::Publish { payload, pkid, .. } => return (payload, pkid),
                    Sent::Gone => panic!("the client went away"),
                    _ => {}
                }
            }
        })
        .await
    }

    /// The next packet, whatever it is.
    pub async fn next(&mut self) -> Sent {
        let Some((kind, body)) = self.packet().await else { return Sent::Gone };
        let number = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        match kind >> 4 {
            3 => {
                let qos = (kind >> 1) & 3;
                let end = 2 + number(0) as usize;
                let after = if qos > 0 { end + 2 } else { end };
                let expiry = match body[after] {
                    0 => None,
                    5 if body[after + 1] == 2 => {
                        Some(u32::from_be_bytes(body[after + 2..after + 6].try_into().unwrap()))
                    }
                    _ => panic!("no other properties: {:?}", &body[after..]),
                };
                let from = after + 1 + usize::from(body[after]);
                Sent::Publish {
                    topic: String::from_utf8(body[2..end].to_vec()).unwrap(),
                    payload: body[from..].to_vec(),
                    qos,
                    pkid: if qos > 0 { number(end) } else { 0 },
                    dup: kind & 8 != 0,
                    expiry,
                }
            }
            4 => Sent::PubAck { pkid: number(0) },
            8 => {
                let mut filters = Vec::new();
                let mut at = 3;
                while at < body.len() {
                    let end = at + 2 + number(at) as usize;
                    filters.push(String::from_utf8(body[at + 2..end].to_vec()).unwrap());
                    at = end + 1;
                }
                Sent::Subscribe { pkid: number(0), filters }
            }
            12 => Sent::Ping,
            14 => Sent::Disconnect,
            other => panic!("packet type {other}"),
        }
    }

    async fn packet(&mut self) -> Option<(u8, Vec<u8>)> {
        let kind = self.stream.read_u8().await.ok()?;
        let (mut length, mut shift) = (0usize, 0);
        loop {
            let byte = self.stream.read_u8().await.ok()?;
            length |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte & 128 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some((kind, body))
    }
}
