//! Other ways to search, to be measured against: nobody should ship a search that chance beats.

mod chance;
mod coordinate;
mod one_factor;
mod parzen;

pub use chance::Chance;
pub use coordinate::Coordinate;
pub use one_factor::OneFactor;
pub use parzen::Parzen;
