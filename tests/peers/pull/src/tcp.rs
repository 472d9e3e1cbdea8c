//! One TCP download: what the link and the kernel's congestion control give to whoever asks for no more.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Sends `bytes` bytes to everyone who connects, for ever, and says by which congestion control.
pub fn serve(address: &str, bytes: usize) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream?;
        println!("{}", rustix::net::sockopt::tcp_congestion(&stream)?);
        let block = vec![0x5a; 16 * 1024];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(block.len());
            // Whoever hangs up has seen enough.
            if stream.write_all(&block[..now]).is_err() {
                break;
            }
            left -= now;
        }
    }
    Ok(())
}

/// Takes `bytes` bytes; the seconds from the connection's start to the last of them.
pub fn get(address: &str, bytes: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut got = 0;
    while got < bytes {
        match stream.read(&mut buffer)? {
            0 => anyhow::bail!("it ended after {got} of {bytes} bytes"),
            read => got += read,
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
