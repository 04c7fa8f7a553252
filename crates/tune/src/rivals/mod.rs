//! Other search methods to compare with: the search that ships must at least beat chance.

mod chance;
mod coordinate;
mod one_factor;
mod parzen;

pub use chance::Chance;
pub use coordinate::Coordinate;
pub use one_factor::OneFactor;
pub use parzen::Parzen;
