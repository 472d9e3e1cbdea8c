//! MQTT's framing, as far as a fixture must know it: whole packets, and what a PUBLISH says.

use std::io::{self, Read};

/// What a PUBLISH carries.
pub struct Publish<'a> {
    /// Its quality of service.
    pub qos: u8,
    /// Its topic.
    pub topic: &'a str,
    /// Its payload.
    pub payload: &'a [u8],
}

/// The next whole packet.
pub fn next(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; 1];
    from.read_exact(&mut packet)?;
    let (mut length, mut shift) = (0_usize, 0);
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        packet.push(byte[0]);
        length |= usize::from(byte[0] & 0x7f) << shift;
        shift += 7;
        if byte[0] & 0x80 == 0 || shift > 21 {
            break;
        }
    }
    let body = packet.len();
    packet.resize(body + length, 0);
    from.read_exact(&mut packet[body..])?;
    Ok(packet)
}

/// What it says, if it is a PUBLISH of MQTT 5.
pub fn publish(packet: &[u8]) -> Option<Publish<'_>> {
    let header = *packet.first()?;
    if header >> 4 != 3 {
        return None;
    }
    let qos = header >> 1 & 3;
    let (_, body) = number(packet.get(1..)?)?;
    let (length, body) = body.split_first_chunk::<2>()?;
    let (topic, body) = body.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let body = if qos > 0 { body.get(2..)? } else { body };
    let (properties, body) = number(body)?;
    Some(Publish { qos, topic: std::str::from_utf8(topic).ok()?, payload: body.get(properties..)? })
}

/// A variable byte integer and what follows it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (mut value, mut shift) = (0, 0);
    for (at, byte) in bytes.iter().enumerate().take(4) {
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_is_read_and_anything_else_is_not() {
        // QoS 1, topic `a/b`, packet id 7, two bytes of properties, payload `xyz`.
        let packet = [&[0x32, 13, 0, 3][..], b"a/b", &[0, 7, 2, 1, 1], b"xyz"].concat();
        let mut from = &[&packet[..], &[0xc0, 0]].concat()[..];
        assert_eq!(next(&mut from).unwrap(), packet);
        let said = publish(&packet).unwrap();
        assert_eq!((said.qos, said.topic, said.payload), (1, "a/b", &b"xyz"[..]));
        assert!(publish(&next(&mut from).unwrap()).is_none());
        assert!(next(&mut from).is_err());
        for cut in 0..packet.len() - 3 {
            assert!(publish(&packet[..cut]).is_none());
        }
    }
}
