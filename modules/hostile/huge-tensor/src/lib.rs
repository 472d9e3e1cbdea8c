//! Asks for one huge tensor in the way that the input's name says: by its shape (`shape`), as one element
//! of BYTES named a million times (`elements`), or as bytes to be given back (`read`).

use std::mem::ManuallyDrop;

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::tensors::{Datatype, Tensor};

struct HugeTensor;

export!(HugeTensor);

impl Guest for HugeTensor {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        match inputs[0].name.as_str() {
            "shape" => drop(Tensor::create(Datatype::Fp64, &[1 << 40], &[])?),
            "elements" => {
                let mut element = vec![7_u8; 1 << 20];
                let (start, length) = (element.as_mut_ptr(), element.len());
                // SAFETY: only read by the call below, and none of them is ever dropped.
                let again = || unsafe { Vec::from_raw_parts(start, length, length) };
                let elements = ManuallyDrop::new((0..100_000).map(|_| again()).collect::<Vec<_>>());
                drop(Tensor::create_bytes(&[elements.len() as u64], &elements)?);
            }
            _ => {
                let tensor = Tensor::create(Datatype::Uint8, &[1 << 20], &vec![1; 1 << 20])?;
                let mut held = Vec::new();
                loop {
                    held.push(tensor.read(0, 1 << 20)?);
                }
            }
        }
        Ok(Vec::new())
    }
}
