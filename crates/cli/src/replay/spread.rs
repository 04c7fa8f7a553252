//! Decides when the requests of a log are sent again: at their original intervals, or faster.
//!
//! Most logs have times in whole seconds. The requests of a second did not all come at its beginning, so they are spread
//! evenly over it, in the order of the log.

use lastdrop_load::RecordedRequest;

/// Limit of requests with the same time that are spread together. The rest of a fuller second goes at its end.
const MOST_HELD: usize = 200_000;

/// Gives requests their times.
#[derive(Debug)]
pub struct Spread {
    speed: f64,
    /// Time of the first request, µs since 1970.
    start_us: Option<i64>,
    /// Start and length, µs, of the current second, or of whatever unit the log's times have.
    slot: Option<(i64, u32)>,
    /// Requests of the current second.
    held: Vec<RecordedRequest>,
    /// Due time of the last request.
    last: u64,
}

impl Spread {
    /// `speed` is a factor: 2 is twice as fast as the original.
    pub fn new(speed: f64) -> Spread {
        Spread { speed, start_us: None, slot: None, held: Vec::new(), last: 0 }
    }

    /// Takes a request that came at `time_us`, a multiple of `resolution_us`, and adds to `out` those whose due times are known.
    /// A `late` request (out of order in the log) is due at once.
    pub fn take(
        &mut self,
        mut played: RecordedRequest,
        time_us: i64,
        resolution_us: u32,
        late: bool,
        out: &mut Vec<RecordedRequest>,
    ) {
        if late {
            played.due = self.last;
            return out.push(played);
        }
        let length = resolution_us.max(1);
        let begins = time_us.div_euclid(i64::from(length)) * i64::from(length);
        if self.slot != Some((begins, length)) || self.held.len() >= MOST_HELD {
            self.finish(out);
            self.slot = Some((begins, length));
        }
        self.held.push(played);
    }

    /// Adds all held requests to `out`.
    pub fn finish(&mut self, out: &mut Vec<RecordedRequest>) {
        let Some((begins, length)) = self.slot.take() else { return };
        let n = self.held.len().max(1) as i64;
        for (i, mut played) in std::mem::take(&mut self.held).into_iter().enumerate() {
            played.due = self.due(begins + i as i64 * i64::from(length) / n);
            out.push(played);
        }
    }

    fn due(&mut self, time_us: i64) -> u64 {
        let since = time_us.saturating_sub(*self.start_us.get_or_insert(time_us)).max(0);
        self.last = self.last.max((since as f64 / self.speed).round() as u64);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dues(speed: f64, requests: &[(i64, u32, bool)]) -> Vec<u64> {
        let (mut spread, mut out) = (Spread::new(speed), Vec::new());
        for (time, resolution, late) in requests {
            let played = RecordedRequest {
                due: 0,
                request: 0,
                method: "GET".into(),
                target: "/".into(),
                host: None,
                who: 0,
                number: 1,
                logged: None,
            };
            spread.take(played, *time, *resolution, *late, &mut out);
        }
        spread.finish(&mut out);
        out.iter().map(|p| p.due).collect()
    }

    #[test]
    fn whole_seconds_are_spread_evenly_within_theirs() {
        let second = |n: i64| (n * 1_000_000, 1_000_000, false);
        let seen = dues(1.0, &[second(5), second(5), second(5), second(5), second(7), second(8), second(8)]);
        assert_eq!(seen, [0, 250_000, 500_000, 750_000, 2_000_000, 3_000_000, 3_500_000]);
        // Some logs compute the time as end less duration; it still counts as that second.
        assert_eq!(dues(1.0, &[(5_100_000, 1_000_000, false), (5_900_000, 1_000_000, false)]), [0, 500_000]);
    }

    #[test]
    fn microseconds_stay_what_they_are() {
        assert_eq!(dues(1.0, &[(1_000_003, 1, false), (1_000_010, 1, false), (1_000_010, 1, false)]), [0, 7, 7]);
        assert_eq!(dues(2.0, &[(0, 1, false), (1_000_000, 1, false), (3_000_000, 1, false)]), [0, 500_000, 1_500_000]);
    }

    #[test]
    fn what_is_late_goes_at_once_and_time_never_goes_back() {
        assert_eq!(dues(1.0, &[(0, 1, false), (500, 1, false), (20, 1, true), (900, 1, false)]), [0, 0, 500, 900]);
        assert_eq!(dues(1.0, &[(500, 1, false), (100, 1, false), (700, 1, false)]), [0, 0, 200]);
    }
}
