//! Making packages: from a bare model or a directory to an OCI image layout on disk, checked by the
//! host before anyone sees it.

pub mod authoring;
pub mod fetch;
pub mod folder;
pub mod layout;
mod memory;
pub mod oci;
pub mod probe;
pub mod signed;
