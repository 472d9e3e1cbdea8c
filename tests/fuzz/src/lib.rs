//! What the fuzz targets share: a registry and its people whose keys the harness holds, so that what the
//! fuzzer writes into metadata is properly signed and reaches what lies behind the signatures.

pub mod world;
