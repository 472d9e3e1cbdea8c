//! Bad links between agents and their broker: every blob arrives right, little is sent twice, and
//! nothing corrupt is ever to be seen. Seeds are printed; `SELVEDGE_LINK_SEED` sets them.

#![allow(clippy::unwrap_used)]

mod blobs;
mod device;
mod five_hundred;
mod half_open;
mod under_tls;
