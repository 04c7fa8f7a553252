//! The usual response to the requests of a class, from a log: the most frequent status, and the sizes of good responses.

use std::collections::BTreeMap;

use lastdrop_model::plan::UsualAnswer;

/// Sizes are counted in buckets of 1/16 of a power of two: 4 % wide, small against the tolerance of factor 4.
const BUCKETS_PER_OCTAVE: f64 = 16.0;

/// Counts the answers of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    status: BTreeMap<u16, u64>,
    /// Good answers by the bucket of their size.
    sizes: BTreeMap<u16, u64>,
}

impl AnswerCounts {
    pub fn count(&mut self, status: u16, bytes: Option<u64>) {
        if status > 0 {
            *self.status.entry(status).or_insert(0) += 1;
        }
        if let Some(bytes) = bytes.filter(|_| (200..300).contains(&status)) {
            let bucket = ((bytes + 1) as f64).log2() * BUCKETS_PER_OCTAVE;
            *self.sizes.entry(bucket as u16).or_insert(0) += 1;
        }
    }

    #[must_use]
    pub fn usual(&self) -> UsualAnswer {
        let status = self.status.iter().max_by_key(|(_, n)| **n).map_or(0, |(status, _)| *status);
        let bytes = (!self.sizes.is_empty()).then(|| (self.size(0.05, 0), self.size(0.95, 1)));
        UsualAnswer { status, bytes }
    }

    /// Returns the lower (0) or upper (1) edge of the bucket at a quantile.
    fn size(&self, quantile: f64, edge: u16) -> u64 {
        let all: u64 = self.sizes.values().sum();
        let wanted = (all as f64 * quantile).ceil().max(1.0) as u64;
        let mut before = 0;
        let bucket = self.sizes.iter().find(|(_, n)| {
            before += **n;
            before >= wanted
        });
        let bucket = bucket.map_or(0, |(bucket, _)| *bucket + edge);
        ((f64::from(bucket) / BUCKETS_PER_OCTAVE).exp2() - 1.0).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_sizes_and_errors_do_not_widen_the_usual_range() {
        let mut counts = AnswerCounts::default();
        (0..100).for_each(|i| counts.count(200, Some(1_000 + i)));
        counts.count(200, Some(50_000_000));
        counts.count(200, Some(0));
        (0..90).for_each(|_| counts.count(302, Some(5)));
        let usual = counts.usual();
        let (p5, p95) = usual.bytes.expect("a hundred sizes");
        assert_eq!(usual.status, 200);
        assert!((950..=1_010).contains(&p5) && (1_090..=1_160).contains(&p95), "{p5} {p95}");
        assert!(usual.is_far(0, 200) && usual.is_far(300, 9_000), "a fifth, and nine times as large");
        assert!(!usual.is_far(0, 300) && !usual.is_far(300, 3_000));
        // Some logs count the head, too.
        assert!(!usual.is_far(260, 10));
    }

    #[test]
    fn a_log_without_sizes_has_no_usual_size_and_empty_answers_have_one() {
        let mut counts = AnswerCounts::default();
        (0..19).for_each(|_| counts.count(200, None));
        assert_eq!(counts.usual(), UsualAnswer { status: 200, bytes: None });
        let mut empty = AnswerCounts::default();
        (0..20).for_each(|_| empty.count(204, Some(0)));
        assert_eq!(empty.usual().bytes, Some((0, 0)));
        assert_eq!(AnswerCounts::default().usual(), UsualAnswer::default());
    }
}
