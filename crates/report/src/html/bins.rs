//! Divides a run into stretches of equal length, at most `MOST` of them however long the run is. A
//! stretch's percentiles come from the merged histograms of its seconds, so they are exact.

use std::collections::BTreeMap;

use lastdrop_model::plan::{Load, Phase};
use lastdrop_model::{Histogram, Run};

/// Largest number of stretches.
const MOST: usize = 720;
/// Rows of the heat map per factor of ten in latency.
pub(super) const ROWS_A_DECADE: f64 = 12.0;

/// One stretch.
#[derive(Debug, Default, Clone)]
pub(super) struct Bin {
    /// Seconds since the run began.
    pub start_s: f64,
    pub span_s: f64,
    /// After the load ended, while requests in flight are awaited.
    pub beyond: bool,
    pub answered: u64,
    pub failed: u64,
    /// `None` without answers.
    pub latency: Option<Latency>,
    /// Answers by row of the heat map: ⌊log10(µs) × 12⌋.
    pub rows: BTreeMap<u16, u64>,
}

/// Latency percentiles, microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Debug, Default)]
pub(super) struct Bins {
    /// Length of a stretch in seconds.
    pub width: u64,
    pub bins: Vec<Bin>,
    /// Start and name of each phase.
    pub phases: Vec<(f64, String)>,
    /// Name and response times of each measured phase that got answers.
    pub measured: Vec<(String, Histogram)>,
    pub end_s: f64,
}

impl Bins {
    pub(super) fn of(run: &Run) -> Bins {
        let end_s: f64 = run.phases.iter().map(|p| p.duration_s).sum();
        // Answers may arrive after the load ended, while requests in flight are awaited.
        let last = run.phases.iter().scan(0.0, |start, p| {
            let begun = *start;
            *start += p.duration_s;
            Some(p.seconds.iter().last().map_or(0, |s| second(begun, s.t) + 1))
        });
        let seconds = last.max().unwrap_or(0).max(end_s.ceil() as u64).max(1);
        let width = seconds.div_ceil(MOST as u64);
        let n = seconds.div_ceil(width) as usize;
        let mut out = Bins {
            width,
            end_s,
            bins: (0..n).map(|i| bin(i as u64 * width, width, end_s)).collect(),
            ..Bins::default()
        };
        let mut histograms: BTreeMap<usize, Histogram> = BTreeMap::new();
        let mut start = 0.0;
        for phase in &run.phases {
            out.phases.push((start, phase.name.clone()));
            let mut all = Histogram::new();
            // The next phase begins while answers of this one still arrive. The stretch that both share stays
            // open until then.
            let common = ((start + phase.duration_s) / width as f64) as usize;
            for s in phase.seconds.iter() {
                let at = ((second(start, s.t) / width) as usize).min(n - 1);
                out.bins[at].answered += s.answered;
                out.bins[at].failed += s.failed;
                let Ok(response) = Histogram::decode_base64(&s.response_hdr) else { continue };
                all.add(&response);
                // Earlier stretches get no more answers.
                if let Some((done, histogram)) = histograms.first_key_value().filter(|(k, _)| **k < common.min(at)) {
                    out.bins[*done].take(histogram);
                    let done = *done;
                    histograms.remove(&done);
                }
                histograms.entry(at).or_default().add(&response);
            }
            if phase.measured && all.count() > 0 {
                out.measured.push((phase.name.clone(), all));
            }
            start += phase.duration_s;
        }
        histograms.iter().for_each(|(at, h)| out.bins[*at].take(h));
        out
    }

    /// Middle of each stretch, seconds since the run began.
    pub(super) fn middles(&self) -> Vec<f64> {
        self.bins.iter().map(|b| b.start_s + b.span_s / 2.0).collect()
    }

    /// Index of the stretch that contains a moment.
    pub(super) fn at(&self, t_s: f64) -> usize {
        ((t_s.max(0.0) / self.width as f64) as usize).min(self.bins.len().saturating_sub(1))
    }
}

impl Bin {
    /// Converts a count to a rate per second; `None` after the load ended.
    pub(super) fn rate(&self, n: u64) -> Option<f64> {
        (!self.beyond).then(|| n as f64 / self.span_s)
    }

    fn take(&mut self, h: &Histogram) {
        if h.count() == 0 {
            return;
        }
        let q = |q: f64| h.quantile(q) as f64;
        let before = self.latency.map_or(0.0, |l| l.max);
        self.latency = Some(Latency { p50: q(0.5), p90: q(0.9), p99: q(0.99), max: (h.max() as f64).max(before) });
        for (us, n) in h.recorded() {
            *self.rows.entry(row(us)).or_default() += n;
        }
    }
}

fn second(phase_start: f64, t: u32) -> u64 {
    (phase_start + f64::from(t)) as u64
}

fn bin(start: u64, width: u64, end_s: f64) -> Bin {
    let start_s = start as f64;
    // The last stretch of the load may be shorter; its rate covers that part only.
    let left = end_s - start_s;
    let span_s = if left > 0.05 && left < width as f64 { left } else { width as f64 };
    // A run shorter than one stretch has no other.
    let (span_s, beyond) = if start == 0 { (end_s.clamp(1e-3, width as f64), false) } else { (span_s, left <= 0.05) };
    Bin { start_s, span_s, beyond, ..Bin::default() }
}

/// The heat map row of a latency.
fn row(us: u64) -> u16 {
    ((us.max(1) as f64).log10() * ROWS_A_DECADE) as u16
}

/// The latency at which a row begins, microseconds.
pub(super) fn row_begins(row: u16) -> f64 {
    10f64.powf(f64::from(row) / ROWS_A_DECADE)
}

/// Requests per second that the plan schedules at a moment of a phase; `None` in a closed loop.
pub(super) fn asked(phase: &Phase, since_s: f64, duration_s: f64) -> Option<f64> {
    let Load::Open { rate_rps, to_rps, steps, .. } = phase.load else { return None };
    let Some(to) = to_rps else { return Some(rate_rps) };
    let way = (since_s / phase.duration.map_or(duration_s, |d| d.as_secs_f64()).max(1e-9)).clamp(0.0, 1.0);
    let way = match steps {
        Some(n) if n > 1 => (way * f64::from(n)).floor().min(f64::from(n) - 1.0) / f64::from(n - 1),
        _ => way,
    };
    Some(rate_rps + (to - rate_rps) * way)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::run_of;
    use super::*;

    #[test]
    fn an_hour_has_no_more_stretches_than_a_plot_has_places() {
        let bins = Bins::of(&run_of(3600, 50));
        assert!(bins.bins.len() <= MOST, "{}", bins.bins.len());
        assert_eq!(bins.bins.iter().map(|b| b.answered).sum::<u64>(), 3600 * 50);
        assert_eq!(bins.bins.iter().flat_map(|b| b.rows.values()).sum::<u64>(), 3600 * 50);
        assert_eq!(bins.measured[0].1.count(), 3600 * 50);
        assert!(bins.bins.iter().all(|b| b.latency.is_some_and(|l| l.p50 <= l.p99 && l.p99 <= l.max)));
    }

    #[test]
    fn a_run_of_a_moment_has_one() {
        let bins = Bins::of(&run_of(1, 3));
        assert_eq!((bins.bins.len(), bins.bins[0].answered), (1, 3));
        assert_eq!(bins.middles().len(), 1);
        assert_eq!(bins.at(99.0), 0);
    }

    #[test]
    fn steps_of_a_rate_reach_its_end() {
        let mut phase = run_of(1, 1).plan.phases[0].clone();
        phase.duration = Some(std::time::Duration::from_secs(10));
        phase.load = Load::Open {
            rate_rps: 100.0,
            to_rps: Some(200.0),
            steps: Some(2),
            arrivals: lastdrop_model::Arrival::Uniform,
            burst: 1,
            connections: 1,
        };
        assert_eq!([0.0, 4.9, 5.1, 10.0].map(|t| asked(&phase, t, 10.0)), [100.0, 100.0, 200.0, 200.0].map(Some));
    }
}
