//! The experiment so far in columns of one or more seconds, as many as fit on a screen.
//!
//! The picture grows from the left; when it is full, every two columns merge into one. A scrolling picture
//! would change every cell every second, which is too much for a slow connection.

use lastdrop_model::{Kind, Sample, Slice};

/// Latencies are counted in tenths of a decade, from 10 µs to 100 s.
pub(super) const BINS: usize = 70;
const PER_DECADE: f64 = 10.0;
const SHORTEST_US: f64 = 10.0;
/// Largest number of columns that are kept.
const MOST: usize = 512;

/// The bin of a latency.
fn bin(us: u64) -> usize {
    let at = (us as f64 / SHORTEST_US).log10() * PER_DECADE;
    // The value is negative below the first bin; the cast makes it 0.
    (at as usize).min(BINS - 1)
}

/// The lower bound of a bin, microseconds.
pub(super) fn edge(bin: usize) -> f64 {
    SHORTEST_US * 10f64.powf(bin as f64 / PER_DECADE)
}

/// A running mean.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            (self.sum, self.count) = (self.sum + value, self.count + 1);
        }
    }

    fn join(&mut self, other: Mean) {
        (self.sum, self.count) = (self.sum + other.sum, self.count + other.count);
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// One or more seconds.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// Seconds of load in it.
    span_s: f64,
    due: u64,
    answered: u64,
    /// Requests that failed, timed out, or got a status of 400 or more.
    pub bad: u64,
    pub bins: [u32; BINS],
    busy: Mean,
    cpu: Mean,
    queue: Option<u64>,
    pub marked: bool,
    /// A run or a phase begins here.
    pub begins: bool,
}

impl Default for Column {
    fn default() -> Column {
        Column {
            span_s: 0.0,
            due: 0,
            answered: 0,
            bad: 0,
            bins: [0; BINS],
            busy: Mean::default(),
            cpu: Mean::default(),
            queue: None,
            marked: false,
            begins: false,
        }
    }
}

impl Column {
    fn join(&mut self, other: &Column) {
        self.span_s += other.span_s;
        self.due += other.due;
        self.answered += other.answered;
        self.bad += other.bad;
        for (a, b) in self.bins.iter_mut().zip(&other.bins) {
            *a = a.saturating_add(*b);
        }
        self.busy.join(other.busy);
        self.cpu.join(other.cpu);
        self.queue = self.queue.max(other.queue);
        self.marked |= other.marked;
        self.begins |= other.begins;
    }

    fn per_second(&self, count: u64) -> Option<f64> {
        (self.span_s > 0.0).then(|| count as f64 / self.span_s)
    }

    pub fn due_rps(&self) -> Option<f64> {
        self.per_second(self.due)
    }

    pub fn answered_rps(&self) -> Option<f64> {
        self.per_second(self.answered)
    }

    pub fn busy(&self) -> Option<f64> {
        self.busy.value()
    }

    pub fn cpu(&self) -> Option<f64> {
        self.cpu.value()
    }

    pub fn queue(&self) -> Option<f64> {
        self.queue.map(|n| n as f64)
    }
}

/// All columns so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    columns: Vec<Column>,
    /// Seconds per column, as a power of two.
    doublings: u32,
    /// Number of seconds so far.
    pub seconds: usize,
}

impl Timeline {
    /// Returns the column of a second, adding columns if it lies ahead.
    fn at(&mut self, second: usize) -> &mut Column {
        self.seconds = self.seconds.max(second + 1);
        while second >> self.doublings >= MOST {
            self.columns = joined(&self.columns, 2);
            self.doublings += 1;
        }
        let place = second >> self.doublings;
        if self.columns.len() <= place {
            self.columns.resize_with(place + 1, Column::default);
        }
        &mut self.columns[place]
    }

    /// Adds a second of load; requests came due for `span_s` seconds of it. Answers after the last due time
    /// count for latency but not for the rate.
    pub fn add(&mut self, second: usize, slice: &Slice, span_s: f64) {
        let column = self.at(second);
        column.span_s += span_s;
        if span_s > 0.0 {
            column.due += slice.counts.due;
            column.answered += slice.counts.answered;
        }
        let refused: u64 = slice.status.iter().skip(400).sum();
        column.bad += slice.counts.failed.total() + slice.counts.timed_out + refused;
        for (us, n) in slice.latencies[Kind::Response as usize].recorded() {
            let count = &mut column.bins[bin(us)];
            *count = count.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        }
    }

    pub fn look(&mut self, second: usize, look: &Sample) {
        // Samples come about once per second: now and then one second gets none and the next gets two.
        let before = second.saturating_sub(1);
        let missing = self.at(before).cpu.count == 0 && self.at(before).queue.is_none();
        for second in (if missing { before } else { second })..=second {
            let column = self.at(second);
            column.busy.add(look.busy_mean.or(look.busy.map(|n| n as f64)));
            column.cpu.add(look.cpu_cores);
            column.queue = column.queue.max(look.listen.first().map(|l| l.queue));
        }
    }

    pub fn mark(&mut self, second: usize) {
        self.at(second).marked = true;
    }

    pub fn begin(&mut self, second: usize) {
        self.at(second).begins = true;
    }

    /// Returns the picture in at most `width` columns, and the seconds per column.
    pub fn fit(&self, width: usize) -> (Vec<Column>, usize) {
        let mut of = 1;
        while self.columns.len().div_ceil(of) > width.max(1) {
            of *= 2;
        }
        (joined(&self.columns, of), of << self.doublings)
    }
}

fn joined(columns: &[Column], of: usize) -> Vec<Column> {
    let join = |some: &[Column]| {
        let mut all = Column::default();
        some.iter().for_each(|c| all.join(c));
        all
    };
    columns.chunks(of).map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(answered: u64, us: u64) -> Slice {
        let mut slice = Slice::new(0, 0);
        (slice.counts.due, slice.counts.answered) = (answered, answered);
        (0..answered).for_each(|_| slice.record(Kind::Response, us));
        slice
    }

    #[test]
    fn an_hour_fits_into_every_width_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        for at in 0..3600 {
            timeline.add(at, &second(10, 1_000), 1.0);
        }
        for width in [1, 7, 58, 400, 1000] {
            let (columns, seconds) = timeline.fit(width);
            assert!(columns.len() <= width && columns.len() * seconds >= 3600, "{width}");
            assert_eq!(columns.iter().map(|c| c.answered).sum::<u64>(), 36_000);
            assert!(columns.iter().all(|c| c.answered_rps().is_some_and(|r| (r - 10.0).abs() < 1e-9)));
        }
        assert!(timeline.columns.len() <= MOST);
    }

    #[test]
    fn a_latency_is_in_the_bin_that_begins_below_it() {
        for us in [0, 1, 10, 11, 999, 1_001, 54_321, 99_000_000, u64::MAX] {
            let at = bin(us);
            assert!(at == 0 || edge(at) <= us as f64 * 1.0001, "{us}");
            assert!(at == BINS - 1 || edge(at + 1) > us as f64 * 0.9999, "{us}");
        }
    }

    #[test]
    fn part_of_a_second_is_no_lower_rate() {
        let mut timeline = Timeline::default();
        timeline.add(0, &second(50, 100), 0.5);
        assert_eq!(timeline.fit(10).0[0].answered_rps(), Some(100.0));
    }
}
