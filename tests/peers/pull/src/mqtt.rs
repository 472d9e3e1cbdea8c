//! Blocks by bare rumqttc at QoS 0: pulled in windows, as the agent does, and nothing else that it does, but
//! for keeping them where that is asked for.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rumqttc::NetworkOptions;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnectProperties, Packet};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};

use crate::keep::Keeper;

const NEED: &str = "peer/need";
const BLOCK: &str = "peer/block";
/// Number of the block, before its bytes.
pub const HEADER: usize = 4;
/// After so much silence what is missing is asked for again.
const SILENCE: Duration = Duration::from_secs(1);

fn connect(broker: &str, id: &str) -> anyhow::Result<(AsyncClient, EventLoop)> {
    let (host, port) = broker.rsplit_once(':').context("the broker is HOST:PORT")?;
    let mut options = MqttOptions::new(id, host, port.parse()?);
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    options.set_network_options(network);
    let mut properties = ConnectProperties::new();
    properties.max_packet_size = Some(128 * 1024);
    options.set_connect_properties(properties);
    Ok(AsyncClient::new(options, 256))
}

/// Waits for the next message, or for nothing more than that the subscription stands.
async fn next(poll: &mut EventLoop) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        match poll.poll().await? {
            Event::Incoming(Packet::Publish(publish)) => return Ok(Some(publish.payload.into())),
            Event::Incoming(Packet::SubAck(_)) => return Ok(None),
            _ => {}
        }
    }
}

/// Answers `first, count` with so many blocks, for ever.
pub async fn serve(broker: &str, file: &Path, block: usize) -> anyhow::Result<()> {
    let (client, mut poll) = connect(broker, "peer-serve")?;
    let file = File::open(file)?;
    let size = usize::try_from(file.metadata()?.len())?;
    client.subscribe(NEED, QoS::AtMostOnce).await?;
    let (ask, mut asked) = tokio::sync::mpsc::unbounded_channel::<(usize, usize)>();
    tokio::spawn(async move {
        while let Some((first, count)) = asked.recv().await {
            for number in first..first + count {
                let Some(left) = size.checked_sub(number * block).filter(|&left| left > 0) else { break };
                let mut payload = vec![0; HEADER + left.min(block)];
                payload[..HEADER].copy_from_slice(&u32::try_from(number)?.to_le_bytes());
                file.read_exact_at(&mut payload[HEADER..], (number * block) as u64)?;
                client.publish(BLOCK, QoS::AtMostOnce, false, payload).await?;
            }
        }
        anyhow::Ok(())
    });
    loop {
        match next(&mut poll).await? {
            None => println!("ready"),
            Some(payload) => {
                let [first, count] = [0, 4].map(|at| number(&payload, at));
                ask.send((first?, count?))?;
            }
        }
    }
}

/// Pulls all blocks of a blob of `bytes` bytes; the seconds that it took, until they are kept if they are to be.
pub async fn pull(
    broker: &str,
    bytes: usize,
    block: usize,
    window: usize,
    keeper: Option<Keeper>,
) -> anyhow::Result<f64> {
    let (client, mut poll) = connect(broker, "peer-pull")?;
    client.subscribe(BLOCK, QoS::AtMostOnce).await?;
    if next(&mut poll).await?.is_some() {
        bail!("a block that nobody asked for");
    }
    let (total, window) = (bytes.div_ceil(block), (window / block).max(2));
    let mut have = vec![false; total];
    let (mut got, mut in_flight, mut next_block, mut sum) = (0, 0, 0, 0_u64);
    let start = Instant::now();
    while got < total {
        if in_flight <= window / 2 && next_block < total {
            let count = (window - in_flight).min(total - next_block);
            ask(&client, next_block, count)?;
            next_block += count;
            in_flight += count;
        }
        let payload = match tokio::time::timeout(SILENCE, next(&mut poll)).await {
            Ok(payload) => payload?.context("subscribed twice")?,
            Err(_) => {
                // Lost on the way: a broker drops QoS 0 that finds no room.
                let missing: Vec<usize> = (0..next_block).filter(|&number| !have[number]).collect();
                in_flight = missing.len();
                for number in missing {
                    ask(&client, number, 1)?;
                }
                continue;
            }
        };
        let number = number(&payload, 0)?;
        if !std::mem::replace(have.get_mut(number).context("a block beyond the end")?, true) {
            got += 1;
            in_flight = in_flight.saturating_sub(1);
            // Somebody looks at each byte's neighbourhood: it really came.
            sum += u64::from(*payload.last().context("an empty block")?);
            if let Some(keeper) = &keeper {
                keeper.take(number, payload)?;
            }
        }
    }
    if let Some(keeper) = keeper {
        keeper.finish()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(sum > 0, "only zeros came");
    Ok(seconds)
}

fn ask(client: &AsyncClient, first: usize, count: usize) -> anyhow::Result<()> {
    let mut payload = u32::try_from(first)?.to_le_bytes().to_vec();
    payload.extend(u32::try_from(count)?.to_le_bytes());
    Ok(client.try_publish(NEED, QoS::AtMostOnce, false, payload)?)
}

fn number(payload: &[u8], at: usize) -> anyhow::Result<usize> {
    let bytes = payload.get(at..at + 4).context("a message that is too short")?;
    Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
}
