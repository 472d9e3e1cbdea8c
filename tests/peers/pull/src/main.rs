//! What delivery is measured against: the least that moves a blob, with no check, no disk, no state.
//!
//! `peer-pull serve HOST:PORT FILE BLOCK` answers requests for blocks with bare rumqttc at QoS 0, and
//! `peer-pull pull HOST:PORT BYTES BLOCK WINDOW` asks it for all of them, WINDOW bytes in flight.
//! `peer-pull tcp-serve HOST:PORT BYTES` and `peer-pull tcp-get HOST:PORT BYTES` are one TCP download.
//! Whoever serves says `ready`; whoever gets says how many seconds it took, from its request to the
//! last byte.
#![allow(clippy::disallowed_methods)]

mod keep;
mod mqtt;
mod tcp;

use anyhow::bail;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", broker, file, block] => mqtt::serve(broker, file.as_ref(), block.parse()?).await,
        ["pull", broker, bytes, block, window] => {
            say(mqtt::pull(broker, bytes.parse()?, block.parse()?, window.parse()?, None).await?)
        }
        ["pull", broker, bytes, block, window, file, digest] => {
            let keeper = keep::Keeper::start(file.as_ref(), block.parse()?, mqtt::HEADER, digest)?;
            say(mqtt::pull(broker, bytes.parse()?, block.parse()?, window.parse()?, Some(keeper)).await?)
        }
        ["tcp-serve", address, bytes] => tcp::serve(address, bytes.parse()?),
        ["tcp-get", address, bytes] => say(tcp::get(address, bytes.parse()?)?),
        _ => bail!("usage: peer-pull serve|pull|tcp-serve|tcp-get …; see the head of its source"),
    }
}

fn say(seconds: f64) -> anyhow::Result<()> {
    println!("{seconds}");
    Ok(())
}
