//! What a package is and how it is verified. Pure: no clock, no file, no socket, no runtime.
//!
//! `manifest` says what a package asks for, `oci` the outer shape that is signed, `bundle` joins
//! the two and checks files against digests, `chunks` is the signed index that transfer and
//! storage verify by, `origin` where blobs lie besides the registry, `archive` the single-file form, and
//! `trust` decides whether a device may run it at all.

pub mod archive;
pub mod bundle;
pub mod chunks;
pub mod digest;
pub mod draft;
pub mod limits;
pub mod manifest;
pub mod name;
pub mod nearest;
pub mod oci;
pub mod origin;
pub mod rules;
pub mod tensor;
pub mod trust;

pub use bundle::{Bundle, BundleError};
pub use digest::Digest;
pub use manifest::Manifest;
pub use name::{DeviceId, FilePath, NameError, PackageName};
pub use origin::Origin;
