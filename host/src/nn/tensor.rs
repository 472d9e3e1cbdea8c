//! Its tensors: extents of 32 bits, seven element types, and the memory of ours.

use selvedge_package::tensor::Datatype;
use wasmtime::component::Resource;

use super::bindings::selvedge::model::nn_tensors;
use super::bindings::wasi::nn::tensor::{self, TensorType};
use crate::sandbox::held::{Footprint, Held};
use crate::sandbox::imports::{Code, Error};
use crate::sandbox::state::{LimitMet, State};
use crate::tensor::{Buffer, Data, Tensor, TensorError};

/// A tensor of this interface. What a guest made may be none: that is seen where it is used.
#[derive(Debug, Clone)]
pub struct NnTensor {
    dimensions: Box<[u32]>,
    element: TensorType,
    data: Buffer,
    /// Whether its `[1]` stands for no extents at all.
    scalar: bool,
}

/// What is behind a handle of one.
pub type Behind = Held<NnTensor>;

/// Why a tensor of ours is none of this interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has no name for the elements.
    #[error("wasi:nn has no tensors of {0}")]
    Datatype(Datatype),
    /// It has no numbers for the extents.
    #[error("an extent of {0} does not fit 32 bits")]
    Extent(u64),
}

fn datatype(element: TensorType) -> Datatype {
    match element {
        TensorType::Fp16 => Datatype::Fp16,
        TensorType::Fp32 => Datatype::Fp32,
        TensorType::Fp64 => Datatype::Fp64,
        TensorType::Bf16 => Datatype::Bf16,
        TensorType::U8 => Datatype::Uint8,
        TensorType::I32 => Datatype::Int32,
        TensorType::I64 => Datatype::Int64,
    }
}

impl NnTensor {
    /// The same memory as a tensor of this interface. A scalar has the extents `[1]`, as its text has it.
    pub fn of(tensor: &Tensor) -> Result<Self, Unfit> {
        let element = match tensor.datatype() {
            Datatype::Fp16 => TensorType::Fp16,
            Datatype::Fp32 => TensorType::Fp32,
            Datatype::Fp64 => TensorType::Fp64,
            Datatype::Bf16 => TensorType::Bf16,
            Datatype::Uint8 => TensorType::U8,
            Datatype::Int32 => TensorType::I32,
            Datatype::Int64 => TensorType::I64,
            other => return Err(Unfit::Datatype(other)),
        };
        let Data::Fixed(data) = tensor.data() else { return Err(Unfit::Datatype(tensor.datatype())) };
        let dimensions = match tensor.shape() {
            [] => Box::from([1]),
            shape => shape
                .iter()
                .map(|&extent| u32::try_from(extent).map_err(|_| Unfit::Extent(extent)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self { dimensions, element, data: data.clone(), scalar: tensor.shape().is_empty() })
    }

    /// The same memory as a tensor of ours, if the data has the length that the extents say. Where `rank` dimensions
    /// are wanted, `[1]` is a single value with as many as that.
    pub fn to_tensor(&self, rank: Option<usize>) -> Result<Tensor, TensorError> {
        let shape = match &*self.dimensions {
            [1] if rank.map_or(self.scalar, |rank| rank == 0) => Vec::new(),
            dimensions => dimensions.iter().map(|&extent| u64::from(extent)).collect(),
        };
        Tensor::fixed(datatype(self.element), shape, self.data.clone())
    }
}

impl Footprint for NnTensor {
    fn footprint(&self) -> usize {
        self.data.len() + size_of_val(&*self.dimensions)
    }
}

impl tensor::Host for State {}

impl tensor::HostTensor for State {
    fn new(
        &mut self,
        dimensions: Vec<u32>,
        element: TensorType,
        data: Vec<u8>,
    ) -> wasmtime::Result<Resource<Behind>> {
        let (dimensions, data) = (dimensions.into(), data.into());
        let tensor = NnTensor { dimensions, element, data, scalar: false };
        // Nothing but an end can be given here.
        self.made(tensor).map_err(|limit| LimitMet(limit.message).into())
    }

    fn dimensions(&mut self, tensor: Resource<Behind>) -> wasmtime::Result<Vec<u32>> {
        Ok(self.table.get(&tensor)?.get()?.dimensions.to_vec())
    }

    fn ty(&mut self, tensor: Resource<Behind>) -> wasmtime::Result<TensorType> {
        Ok(self.table.get(&tensor)?.get()?.element)
    }

    fn data(&mut self, tensor: Resource<Behind>) -> wasmtime::Result<Vec<u8>> {
        Ok(self.table.get(&tensor)?.get()?.data.to_vec())
    }

    fn drop(&mut self, tensor: Resource<Behind>) -> wasmtime::Result<()> {
        self.release(tensor).map(drop)
    }
}

impl nn_tensors::Host for State {
    fn to_nn(&mut self, tensor: Resource<Held>) -> wasmtime::Result<Result<Resource<Behind>, Error>> {
        let held = self.table.get(&tensor)?;
        let request = held.request();
        let tensor = held.get().map_err(Error::from).and_then(|tensor| {
            NnTensor::of(tensor).map_err(|why| Error { code: Code::InvalidInput, message: why.to_string() })
        });
        Ok(tensor.and_then(|tensor| self.hold(tensor, request)))
    }

    fn from_nn(&mut self, tensor: Resource<Behind>) -> wasmtime::Result<Result<Resource<Held>, Error>> {
        let held = self.table.get(&tensor)?;
        let request = held.request();
        let tensor = held.get().map_err(Error::from).and_then(|tensor| Ok(tensor.to_tensor(None)?));
        Ok(tensor.and_then(|tensor| self.hold(tensor, request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(datatype: Datatype, shape: &[u64], expected: Result<&[u32], Unfit>) {
        let count = shape.iter().product::<u64>() as usize;
        let tensor = Tensor::fixed(datatype, shape, vec![1; count * datatype.size().unwrap()]).unwrap();
        let nn = NnTensor::of(&tensor);
        assert_eq!(nn.as_ref().map(|nn| &*nn.dimensions), expected.as_ref().map(|dimensions| *dimensions));
        let Ok(nn) = nn else { return };
        let again = nn.to_tensor(None).unwrap();
        assert_eq!((again.datatype(), again.shape()), (datatype, shape));
        assert_eq!(again.as_fixed().unwrap().as_ptr(), tensor.as_fixed().unwrap().as_ptr(), "copied");
    }

    #[test]
    fn tensors_cross_both_ways_in_the_same_memory() {
        for datatype in [
            Datatype::Fp16,
            Datatype::Bf16,
            Datatype::Fp32,
            Datatype::Fp64,
            Datatype::Uint8,
            Datatype::Int32,
            Datatype::Int64,
        ] {
            check(datatype, &[2, 3], Ok(&[2, 3]));
            check(datatype, &[], Ok(&[1]));
            check(datatype, &[0, 7], Ok(&[0, 7]));
        }
        check(Datatype::Int8, &[2], Err(Unfit::Datatype(Datatype::Int8)));
        check(Datatype::Bool, &[2], Err(Unfit::Datatype(Datatype::Bool)));
        check(Datatype::Uint8, &[1 << 32, 0], Err(Unfit::Extent(1 << 32)));
        assert_eq!(NnTensor::of(&Tensor::single("x")).unwrap_err(), Unfit::Datatype(Datatype::Bytes));
    }

    #[test]
    fn data_that_is_no_tensor_is_seen_where_it_is_used() {
        let of = |dimensions: &[u32], bytes: usize| NnTensor {
            dimensions: dimensions.into(),
            element: TensorType::Fp32,
            data: vec![0; bytes].into(),
            scalar: false,
        };
        assert!(of(&[2, 2], 16).to_tensor(None).is_ok());
        assert!(of(&[1], 4).to_tensor(Some(0)).is_ok_and(|tensor| tensor.shape().is_empty()));
        assert!(of(&[1], 4).to_tensor(Some(1)).is_ok_and(|tensor| tensor.shape() == [1]));
        assert!(of(&[1], 4).to_tensor(None).is_ok_and(|tensor| tensor.shape() == [1]));
        for (dimensions, bytes) in [(&[2, 2][..], 15), (&[u32::MAX; 4], 16), (&[1; 65], 4), (&[], 0)] {
            assert!(of(dimensions, bytes).to_tensor(None).is_err(), "{dimensions:?}");
        }
        assert_eq!(of(&[1; 1000], 4).footprint(), 4004);
    }
}
