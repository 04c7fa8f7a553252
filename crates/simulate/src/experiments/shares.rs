//! Shares of experiments in which a claim held, with the bounds that they have to keep to.

use std::collections::BTreeMap;

/// What one experiment has shown.
#[derive(Debug, Clone, Default)]
pub struct ExperimentResult {
    /// For each claim that it could test, whether it held.
    pub held: Vec<(&'static str, bool)>,
    /// What it took, by name.
    pub sizes: Vec<(&'static str, f64)>,
}

/// The bounds of a share. A claim is broken if the share is outside by more than chance.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub name: &'static str,
    pub least: f64,
    pub most: f64,
}

/// Counts of one claim.
#[derive(Debug, Clone, Default)]
pub struct Share {
    pub held: u64,
    pub of: u64,
    /// The first seeds in which it held, and in which it did not.
    pub held_in: Vec<u64>,
    pub failed_in: Vec<u64>,
}

/// Most seeds that are kept of each.
const MOST_KEPT: usize = 20;
/// Standard errors by which a share may be outside of its bounds by chance.
const CHANCE: f64 = 3.0;

/// Shares by claim, and all sizes by name.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    pub claims: BTreeMap<&'static str, Share>,
    pub sizes: BTreeMap<&'static str, Vec<f64>>,
}

impl Shares {
    pub fn add(&mut self, seed: u64, result: &ExperimentResult) {
        for (name, size) in &result.sizes {
            self.sizes.entry(name).or_default().push(*size);
        }
        for (name, held) in &result.held {
            let share = self.claims.entry(name).or_default();
            share.of += 1;
            share.held += u64::from(*held);
            let seeds = if *held { &mut share.held_in } else { &mut share.failed_in };
            if seeds.len() < MOST_KEPT {
                seeds.push(seed);
            }
        }
    }
}

impl Claim {
    /// Returns true if a share is outside of the bounds by more than chance makes it.
    #[must_use]
    pub fn is_broken(&self, share: &Share) -> bool {
        if share.of == 0 {
            return false;
        }
        let of = share.of as f64;
        let value = share.held as f64 / of;
        let error = |bound: f64| CHANCE * (bound * (1.0 - bound) / of).sqrt();
        value < self.least - error(self.least) - 0.5 / of || value > self.most + error(self.most) + 0.5 / of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_broken_only_beyond_chance() {
        let claim = Claim { name: "a", least: 0.93, most: 0.97 };
        let share = |held, of| Share { held, of, ..Share::default() };
        assert!(!claim.is_broken(&share(950, 1000)) && !claim.is_broken(&share(0, 0)));
        assert!(!claim.is_broken(&share(18, 20)) && claim.is_broken(&share(80, 100)));
        assert!(claim.is_broken(&share(890, 1000)) && claim.is_broken(&share(995, 1000)));
    }
}
