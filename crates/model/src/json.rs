//! The one way in which documents are read.

use serde::Deserialize;

/// Reads a JSON text.
///
/// Every document goes through this function: the compiler writes the code of all types anew for each way of reading (from
/// text, from bytes, from a `Value`).
///
/// # Errors
/// When the text is no JSON, or not that of this type; it says where.
pub fn read_json<'a, T: Deserialize<'a>>(text: &'a (impl AsRef<[u8]> + ?Sized)) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_ref())
}
