//! How a request becomes bytes, and bytes its answer: a file or folder a version of HTTP. There is HTTP/1; 2 and 3 belong here.

mod h1;

pub use h1::Wire;
pub(crate) use h1::{CONTINUE_PATIENCE_US, bytes_of};
