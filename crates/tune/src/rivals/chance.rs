//! Random search.

use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::space::{Point, Space};
use crate::strategy::{History, Strategy};

#[derive(Debug)]
pub struct RandomSearch {
    rng: Xoshiro256PlusPlus,
}

impl RandomSearch {
    #[must_use]
    pub fn new(seed: u64) -> RandomSearch {
        RandomSearch { rng: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }
}

impl Strategy for RandomSearch {
    fn name(&self) -> &'static str {
        "random"
    }

    fn next(&mut self, space: &Space, history: &History) -> Option<Point> {
        if history.trials.is_empty() {
            return Some(space.start());
        }
        let another = (0..100).map(|_| space.any(&mut self.rng)).find(|p| !history.was_tried(p));
        another.or_else(|| Some(space.any(&mut self.rng)))
    }
}
