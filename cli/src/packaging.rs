//! Making packages: from a bare model or a directory to an OCI image layout on disk, checked by the
//! host before anyone sees it.

pub mod authoring;
pub mod layout;
pub mod probe;
