//! Where raw contents begin in a message that is still coming.

use crate::protobuf::{Fault, Fields};

/// Where the first raw contents begin in a message of which `begun` is here, if their end is not: that
/// place shall lie at an address for elements of any type.
pub fn raw_begins(begun: &[u8]) -> Option<usize> {
    let mut fields = Fields::new(begun);
    match fields.find_map(Result::err)? {
        Fault::PastTheEnd(7) => Some(fields.at()),
        _ => None,
    }
}
