//! Safe access to files that other users of the machine may have tampered with.
//!
//! Three questions are answered before reading or writing; each has a module:
//!
//! * May lastdrop obey this file? [`TrustedFile`]: only root and the user who runs lastdrop can have written it.
//! * Where does this name lead? [`Folder`]: a folder that is held open, so that nobody can replace it by a link between
//!   a check and a write.
//! * Does this input end? [`input`]: regular files, and pipes with a writer; no devices, and no endless waiting.
//!
//! Every check is made on the descriptor that is used afterwards, never on a name.

mod folder;
pub mod input;
pub mod owner;
mod step;
mod trusted;

pub use folder::Folder;
pub use step::step;
pub use trusted::{FileError, TrustedFile, check_folder};
