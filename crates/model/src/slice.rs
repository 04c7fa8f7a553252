//! One second of one phase: the unit in which threads hand over results and the store writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::counts::Counts;
use crate::histogram::{DecodeError, Histogram, Kind};

/// Counts, statuses and latencies of one second. Slices of several threads or seconds add up without loss.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Written")]
pub struct Slice {
    /// Index of the phase in the plan.
    pub phase: u16,
    /// Whole seconds since the start of the phase.
    pub second: u32,
    pub counts: Counts,
    /// Answers by status code, indexed by the code (0 to 999).
    pub status: Vec<u64>,
    /// One histogram a [`Kind`], indexed by it.
    pub latencies: [Histogram; Kind::COUNT],
}

impl Slice {
    #[must_use]
    pub fn new(phase: u16, second: u32) -> Slice {
        Slice {
            phase,
            second,
            counts: Counts::default(),
            status: vec![0; 1000],
            latencies: std::array::from_fn(|_| Histogram::new()),
        }
    }

    #[inline]
    pub fn record(&mut self, kind: Kind, us: u64) {
        self.latencies[kind as usize].record(us);
    }

    pub fn add(&mut self, other: &Slice) {
        self.counts.add(&other.counts);
        for (a, b) in self.status.iter_mut().zip(&other.status) {
            *a += b;
        }
        for (a, b) in self.latencies.iter_mut().zip(&other.latencies) {
            if b.count() > 0 {
                a.add(b);
            }
        }
    }

    /// Empties the slice for another second, keeping its memory.
    pub fn reset(&mut self, phase: u16, second: u32) {
        self.phase = phase;
        self.second = second;
        self.counts = Counts::default();
        self.status.fill(0);
        for h in &mut self.latencies {
            if h.count() > 0 {
                h.clear();
            }
        }
    }
}

/// A slice as it is written down: what was not counted is left out, histograms are HDR V2 in base64.
#[derive(Serialize, Deserialize)]
struct Written {
    phase: u16,
    second: u32,
    counts: Counts,
    status: Vec<(usize, u64)>,
    latencies: BTreeMap<String, String>,
}

impl Serialize for Slice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = |kind: Kind| Some(&self.latencies[kind as usize]).filter(|h| h.count() > 0);
        let written = Written {
            phase: self.phase,
            second: self.second,
            counts: self.counts,
            status: self.status.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect(),
            latencies: Kind::ALL
                .into_iter()
                .filter_map(|kind| Some((kind.name().into(), of(kind)?.encode_base64())))
                .collect(),
        };
        written.serialize(serializer)
    }
}

impl TryFrom<Written> for Slice {
    type Error = DecodeError;

    fn try_from(written: Written) -> Result<Slice, DecodeError> {
        let mut slice = Slice::new(written.phase, written.second);
        slice.counts = written.counts;
        for (code, n) in written.status {
            if let Some(count) = slice.status.get_mut(code) {
                *count = n;
            }
        }
        for kind in Kind::ALL {
            if let Some(text) = written.latencies.get(kind.name()) {
                slice.latencies[kind as usize] = Histogram::decode_base64(text)?;
            }
        }
        Ok(slice)
    }
}
