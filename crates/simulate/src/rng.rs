//! Random numbers from the seed of a run.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

#[derive(Debug, Clone)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Creates an independent generator.
    pub fn others(&mut self) -> Rng {
        Rng::new(self.0.next_u64())
    }

    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from 0 to `n` - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n.max(1))) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`, with an evenly distributed logarithm: small ones are as frequent as large ones.
    pub fn around(&mut self, low: u64, high: u64) -> u64 {
        let (from, to) = ((low.max(1) as f64).ln(), (high.max(1) as f64 + 1.0).ln());
        let share = self.below(1 << 32) as f64 / (1u64 << 32) as f64;
        ((from + (to - from) * share).exp() as u64).clamp(low, high)
    }

    /// True with a probability of `n` in a thousand.
    pub fn in_thousand(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    /// A number in (0, 1].
    #[inline]
    pub fn share(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed number with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -self.share().ln()
    }

    /// A normally distributed number with mean 0 and standard deviation 1 (Box and Muller, 1958).
    #[inline]
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.share()).cos()
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
