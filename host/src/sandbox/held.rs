//! A tensor behind a handle, and the request that it belongs to.
//!
//! A module may keep a handle for as long as its instance lives, and an instance serves one caller after
//! another. So what came with a request, or was made during it, ends with it: the handle stays, and there
//! is nothing behind it. Tensors that `init` made belong to the instance and stay; so do those that a module made
//! where the instance belongs to a sequence, but not what came with a request.

use crate::tensor::Tensor;

/// The number of a request; [`Self::INIT`] stands for the time before the first, and for the whole life of the
/// instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request(u64);

impl Request {
    /// Before the first request.
    pub const INIT: Self = Self(0);

    /// The one after it.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1).max(1))
    }
}

/// What a value costs in memory.
pub trait Footprint {
    /// Bytes, about.
    fn footprint(&self) -> usize;
}

impl Footprint for Tensor {
    fn footprint(&self) -> usize {
        self.footprint()
    }
}

/// What is behind a module's handle of a tensor: one of ours, or one of `wasi:nn`.
#[derive(Debug)]
pub struct Held<T = Tensor> {
    tensor: Option<T>,
    request: Request,
}

/// The request that the tensor belongs to is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tensor belongs to an earlier request: only those that `init` makes may be kept, and in a sequence those that \
     the module made"
)]
pub struct Expired;

impl<T: Footprint> Held<T> {
    /// A tensor of `request`.
    pub fn new(tensor: T, request: Request) -> Self {
        Self { tensor: Some(tensor), request }
    }

    /// The tensor.
    pub fn get(&self) -> Result<&T, Expired> {
        self.tensor.as_ref().ok_or(Expired)
    }

    /// What it belongs to.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Takes the tensor out to be changed: [`Self::give_back`] follows.
    pub fn lend(&mut self) -> Result<T, Expired> {
        self.tensor.take().ok_or(Expired)
    }

    /// Puts it back.
    pub fn give_back(&mut self, tensor: T) {
        self.tensor = Some(tensor);
    }

    /// The tensor alone, and whether it belonged to a request.
    pub fn into_inner(self) -> (Result<T, Expired>, bool) {
        (self.tensor.ok_or(Expired), self.request != Request::INIT)
    }

    /// Takes the tensor away, if it belongs to a request; says what it cost.
    pub fn expire(&mut self) -> usize {
        let taken = if self.request == Request::INIT { None } else { self.tensor.take() };
        taken.map_or(0, |tensor| tensor.footprint())
    }
}
