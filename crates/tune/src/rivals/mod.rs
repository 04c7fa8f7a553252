//! Other search methods to compare with: the search that ships must at least beat chance.

mod chance;
mod coordinate;
mod one_factor;
mod parzen;

pub use chance::RandomSearch;
pub use coordinate::CoordinateSearch;
pub use one_factor::OneFactorSearch;
pub use parzen::ParzenSearch;
