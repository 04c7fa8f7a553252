//! The percentile spectrum of HdrHistogram's tools: five lines for each halving of the distance to 100 %.

use std::fmt::Write as _;

use lastdrop_analyze::samples::Samples;

/// Lines for each halving of the distance to 100 %.
const TICKS: f64 = 5.0;
/// Size of wrk2's histogram: values up to a day, with three digits.
const BUCKETS: u32 = 27;
const SUB_BUCKETS: u64 = 2048;

/// The spectrum, with times in milliseconds.
pub fn spectrum(samples: &Samples) -> String {
    let mut out = format!("{:>12} {:>12} {:>12} {:>12}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let total = samples.count();
    let (mut counted, mut value, mut percent) = (0, 0, 0.0);
    let mut line = |value: u64, percent: f64, counted: u64| {
        let share = percent / 100.0;
        let inverted =
            if percent >= 100.0 { format!("{:>12}", "inf") } else { format!("{:12.2}", 1.0 / (1.0 - share)) };
        let _ = writeln!(out, "{:12.3} {share:12.6} {counted:12} {inverted}", value as f64 / 1000.0);
    };
    for (largest, n) in samples.recorded() {
        (counted, value) = (counted + n, largest);
        while percent <= 100.0 * counted as f64 / total as f64 {
            line(value, percent, counted);
            let halvings = (100.0 / (100.0 - percent)).log2().floor() + 1.0;
            percent += 100.0 / (TICKS * halvings.exp2());
            if counted == total {
                break;
            }
        }
    }
    line(value, 100.0, counted);
    let ms = |us: f64| us / 1000.0;
    let _ = write!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {total:12}]\n\
         #[Buckets = {BUCKETS:12}, SubBuckets     = {SUB_BUCKETS:12}]\n",
        ms(samples.mean()),
        ms(samples.deviation()),
        ms(smallest_alike(samples.max()) as f64),
    );
    out
}

/// The smallest value in the same bucket of such a histogram.
fn smallest_alike(us: u64) -> u64 {
    let digits = (us.max(1).ilog2() + 1).saturating_sub(SUB_BUCKETS.ilog2());
    us >> digits << digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_closer_towards_the_end() {
        let mut samples = Samples::default();
        (1..=1000).for_each(|ms| samples.record(ms * 10));
        let text = spectrum(&samples);
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["0.010", "0.000000", "1", "1.00"]);
        assert_eq!(rows[1][1..], ["0.100000", "100", "1.11"]);
        assert_eq!((rows[5][1], rows[6][1], rows[11][1]), ("0.500000", "0.550000", "0.775000"));
        let last = rows.iter().rposition(|r| r.last() == Some(&"inf")).expect("a last one");
        assert_eq!((rows[last][1], rows[last][2]), ("1.000000", "1000"));
        assert!(rows[last + 3].contains(&"2048]"), "{text}");
        assert!(spectrum(&Samples::default()).contains("0.000     1.000000            0          inf"));
        assert_eq!((smallest_alike(17_631), smallest_alike(100)), (17_616, 100));
    }
}
