//! Inputs for a model that nobody gave any: the same for the same names, types and shapes, anywhere.
//!
//! An extent that may vary is 1. Elements come from splitmix64, started from the FNV-1a hash of the
//! input's name; element `n` of the sequence gives element `n` of the tensor:
//! - FP32, FP64, FP16, BF16: uniform in [-1, 1), from the upper 24 bits;
//! - integers: 0 or 1 (small, so that an index or a length stays in range);
//! - BOOL: the lowest bit; BYTES: `a`, `b` or `c`.

use half::{bf16, f16};
use selvedge_package::tensor::{Datatype, TensorSpec};

use crate::tensor::{NamedTensor, Strings, Tensor};

/// Bytes of all inputs together.
const MOST_BYTES: usize = 256 << 20;

/// One tensor for each input.
pub fn inputs(specs: &[TensorSpec]) -> Result<Vec<NamedTensor>, String> {
    let mut left = MOST_BYTES;
    specs
        .iter()
        .map(|spec| {
            let tensor = input(spec, &mut left).map_err(|why| format!("its input `{}`: {why}", spec.name))?;
            Ok(NamedTensor::new(spec.name.clone(), tensor))
        })
        .collect()
}

fn input(spec: &TensorSpec, left: &mut usize) -> Result<Tensor, String> {
    let shape: Vec<u64> = spec.shape.iter().map(|&extent| u64::try_from(extent).unwrap_or(1)).collect();
    let count = shape
        .iter()
        .try_fold(1_usize, |count, &extent| count.checked_mul(usize::try_from(extent).ok()?))
        .filter(|count| count.saturating_mul(spec.datatype.size().unwrap_or(32)) <= *left)
        .ok_or_else(|| format!("shape {shape:?} is too large for a recorded case"))?;
    *left -= count * spec.datatype.size().unwrap_or(32);
    let random = Random(hash(&spec.name)).take(count);
    let real = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let data: Vec<u8> = match spec.datatype {
        Datatype::Bytes => {
            let strings = Strings::from_iter(random.map(|bits| ["a", "b", "c"][(bits % 3) as usize]));
            return Tensor::bytes(shape, strings).map_err(|error| error.to_string());
        }
        Datatype::Fp16 => random.flat_map(|bits| f16::from_f32(real(bits)).to_le_bytes()).collect(),
        Datatype::Bf16 => random.flat_map(|bits| bf16::from_f32(real(bits)).to_le_bytes()).collect(),
        Datatype::Fp32 => random.flat_map(|bits| real(bits).to_le_bytes()).collect(),
        Datatype::Fp64 => random.flat_map(|bits| f64::from(real(bits)).to_le_bytes()).collect(),
        datatype => {
            let size = datatype.size().unwrap_or(1);
            random.flat_map(|bits| (bits & 1).to_le_bytes().into_iter().take(size)).collect()
        }
    };
    Tensor::fixed(spec.datatype, shape, data).map_err(|error| error.to_string())
}

fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// splitmix64.
struct Random(u64);

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(bits ^ (bits >> 31))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec::new(name, datatype, shape)
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // Published test vector for the seed 1234567.
        let first: Vec<u64> = Random(1_234_567).take(3).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn every_type_gets_inputs_in_range_and_the_same_ones_again() {
        let types = [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16",
            "FP32", "FP64", "BYTES",
        ];
        for name in types {
            let datatype: Datatype = serde_json::from_value(name.into()).unwrap();
            let specs = [spec("x", datatype, &[-1, 3, 2])];
            let (once, again) = (inputs(&specs).unwrap(), inputs(&specs).unwrap());
            assert_eq!(once[0].tensor.shape(), [1, 3, 2]);
            assert_eq!(once[0].tensor.as_fixed(), again[0].tensor.as_fixed());
        }
        let reals = inputs(&[spec("x", Datatype::Fp32, &[1000])]).unwrap();
        let reals: Vec<f32> = reals[0]
            .tensor
            .as_fixed()
            .unwrap()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        assert!(reals.iter().all(|real| (-1.0..1.0).contains(real)));
        assert!(reals.iter().sum::<f32>().abs() < 100.0);
    }

    #[test]
    fn inputs_too_large_to_record_are_refused() {
        assert!(inputs(&[spec("x", Datatype::Fp32, &[1 << 40])]).is_err());
        assert!(inputs(&[spec("x", Datatype::Uint8, &[i64::MAX, i64::MAX])]).is_err());
        assert!(inputs(&[spec("x", Datatype::Uint8, &[0, 3])]).unwrap()[0].tensor.elements() == 0);
    }
}
