//! How a device proves that it has the token of its enrolment without showing it to whoever carries the
//! request: HMAC-SHA256 (RFC 2104), keyed with the SHA-256 of the token, over the device's name and the
//! public key that it wants registered. The other side keeps that SHA-256 and never the token.

use aws_lc_rs::hmac;
use selvedge_package::{DeviceId, Digest};

use crate::message::Enrol;

impl Enrol {
    /// A request for this key, with a proof of the token unless that is empty.
    pub fn new(device: &DeviceId, token: &str, public_key: Vec<u8>, csr: Vec<u8>) -> Self {
        let proof = match token {
            "" => Vec::new(),
            token => {
                let key = key(&Digest::of(token.as_bytes()));
                hmac::sign(&key, &bound_to(device, &public_key)).as_ref().to_vec()
            }
        };
        Self { proof, public_key, csr }
    }

    /// Whether it proves the token with this SHA-256, for this device and the key that it brings.
    pub fn proves(&self, device: &DeviceId, token: &Digest) -> bool {
        // In constant time.
        hmac::verify(&key(token), &bound_to(device, &self.public_key), &self.proof).is_ok()
    }
}

fn key(token: &Digest) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes())
}

fn bound_to(device: &DeviceId, public_key: &[u8]) -> Vec<u8> {
    let mut bytes = format!("selvedge/v1/token/{device}/").into_bytes();
    bytes.extend_from_slice(public_key);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_token_device_and_key_alone() {
        let (device, other): (DeviceId, DeviceId) = ("edge-1".parse().unwrap(), "edge-2".parse().unwrap());
        let (token, another) = (Digest::of(b"secret"), Digest::of(b"other"));
        let request = Enrol::new(&device, "secret", vec![1; 32], vec![7]);
        assert!(request.proves(&device, &token));
        assert!(!request.proves(&other, &token));
        assert!(!request.proves(&device, &another));
        // Somebody on the way puts his own key in.
        assert!(!Enrol { public_key: vec![2; 32], ..request.clone() }.proves(&device, &token));
        for proof in [Vec::new(), request.proof[1..].to_vec(), vec![0; 100_000]] {
            assert!(!Enrol { proof, ..request.clone() }.proves(&device, &token));
        }
        let none = Enrol::new(&device, "", vec![1; 32], Vec::new());
        assert!(none.proof.is_empty() && !none.proves(&device, &Digest::of(b"")));
    }
}
