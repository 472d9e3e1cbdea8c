//! Extents of a tensor, and how many elements they make.

use super::TensorError;

/// Most dimensions that a tensor may have.
pub const MAX_RANK: usize = 64;

/// Bytes of the largest element.
const LARGEST: usize = 8;

/// Extents, inline up to rank 4.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape(Extents);

#[derive(Clone, PartialEq, Eq)]
enum Extents {
    Few(u8, [u64; 4]),
    Many(Box<[u64]>),
}

impl Shape {
    /// Their product; refused where it cannot be addressed, and where it could not be but for an extent of zero:
    /// whoever multiplies them in another order would overflow (numpy has the same rule).
    pub(crate) fn elements(&self) -> Result<usize, TensorError> {
        if self.len() > MAX_RANK {
            return Err(TensorError::Rank(self.len()));
        }
        let product = self
            .iter()
            .filter(|&&extent| extent != 0)
            .try_fold(1_usize, |product, &extent| product.checked_mul(usize::try_from(extent).ok()?))
            .filter(|product| {
                product.checked_mul(LARGEST).is_some_and(|bytes| isize::try_from(bytes).is_ok())
            })
            .ok_or_else(|| TensorError::Overflow(self.to_vec()))?;
        Ok(if self.contains(&0) { 0 } else { product })
    }
}

impl std::ops::Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match &self.0 {
            Extents::Few(rank, extents) => &extents[..usize::from(*rank)],
            Extents::Many(extents) => extents,
        }
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl From<&[u64]> for Shape {
    fn from(extents: &[u64]) -> Self {
        if extents.len() <= 4 {
            let mut few = [0; 4];
            few[..extents.len()].copy_from_slice(extents);
            Self(Extents::Few(extents.len() as u8, few))
        } else {
            Self(Extents::Many(extents.into()))
        }
    }
}

impl From<Vec<u64>> for Shape {
    fn from(extents: Vec<u64>) -> Self {
        Self::from(&extents[..])
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(extents: [u64; N]) -> Self {
        Self::from(&extents[..])
    }
}
