//! Reproducible random numbers for tests.

use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

pub fn uniform(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

pub fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0
}
