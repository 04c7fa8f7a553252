//! Histograms of one or two digits, for use by the thousand.

use lastdrop_model::documents::LogSpread;

/// A histogram with this many digits; it allocates memory with its first value.
#[derive(Debug, Clone, Default)]
pub(crate) struct CoarseHistogram<const DIGITS: u8>(Option<hdrhistogram::Histogram<u32>>);

impl<const DIGITS: u8> CoarseHistogram<DIGITS> {
    pub(crate) fn record(&mut self, us: u64) {
        if self.0.is_none() {
            self.0 = hdrhistogram::Histogram::new(DIGITS).ok();
        }
        if let Some(h) = &mut self.0
            && h.record(us).is_err()
        {
            h.saturating_record(us);
        }
    }

    pub(crate) fn add(&mut self, other: &CoarseHistogram<DIGITS>) {
        match (&mut self.0, &other.0) {
            // Both resize themselves, so this cannot fail.
            (Some(h), Some(other)) => drop(h.add(other)),
            (own @ None, other) => own.clone_from(other),
            (Some(_), None) => {}
        }
    }

    pub(crate) fn spread(&self) -> Option<LogSpread> {
        let h = self.0.as_ref().filter(|h| !h.is_empty())?;
        let quantile = |q| h.value_at_quantile(q).min(h.max());
        Some(LogSpread {
            count: h.len(),
            min: h.min(),
            mean: (h.mean() * 10.0).round() / 10.0,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p95: quantile(0.95),
            p99: quantile(0.99),
            max: h.max(),
        })
    }
}
