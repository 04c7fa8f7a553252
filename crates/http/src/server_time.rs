//! Reads a server's own time from the fields of an answer: when it began, how long it took, and how much of that it
//! waited for a backend.
//!
//! The sources are `Server-Timing` (W3C), `X-Runtime` and similar fields, and Apache's `%t %D` in any field
//! (`t=1700000000000000 D=1234`). Unreadable values are ignored; nothing is guessed.

/// The times in one answer, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerTime {
    /// When the server began with the request, since 1970 by its clock.
    pub began_unix_us: Option<u64>,
    /// Time from then until it began to answer.
    pub took_us: Option<u64>,
    /// How much of that it waited for a backend.
    pub upstream_us: Option<u64>,
    /// How long the request waited before it began, if the server reports that.
    pub queued_us: Option<u64>,
}

/// The unit of numbers without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    /// Seconds if there is a point (`0.012`), otherwise microseconds (`12345`, like `%D`).
    AsWritten,
}

impl Unit {
    fn us(self, number: &str) -> Option<u64> {
        let value: f64 = number.parse().ok()?;
        let factor = match self {
            Unit::Seconds => 1e6,
            Unit::Milliseconds => 1e3,
            Unit::Microseconds => 1.0,
            Unit::AsWritten if number.contains('.') => 1e6,
            Unit::AsWritten => 1.0,
        };
        let us = value * factor;
        (us.is_finite() && (0.0..MOST_US).contains(&us)).then_some(us.round() as u64)
    }
}

/// A day: no answer takes longer, so such a number means something else.
const MOST_US: f64 = 86_400e6;
/// Longer values are cut.
const LONGEST_VALUE: usize = 4096;

/// Fields that are read if the user names none, and whether they are about the backend.
const KNOWN: [(&str, bool); 10] = [
    ("x-runtime", false),
    ("x-request-duration", false),
    ("x-response-time", false),
    ("x-request-time", false),
    ("x-process-time", false),
    ("x-server-time", false),
    ("x-request-start", false),
    ("x-request-received", false),
    ("x-upstream-time", true),
    ("x-upstream-response-time", true),
];

/// Names in `Server-Timing`: of the total (the first one found counts), of backends, and of waiting.
const WHOLE: [&str; 8] = ["total", "server", "request", "app", "application", "runtime", "process", "processing"];
const BEHIND: [&str; 5] = ["upstream", "origin", "backend", "db", "database"];
const WAITING: [&str; 3] = ["queue", "queued", "wait"];

impl ServerTime {
    /// Reads a field of an answer, if it is one of the known ones.
    pub fn take_known(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("server-timing") {
            self.take_server_timing(value);
        } else if let Some((_, behind)) = KNOWN.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) {
            self.take(value, Unit::AsWritten, *behind);
        }
    }

    /// Reads the value of a field that the user has named: `0.0123`, `12ms`, `t=1700000000000000 D=1234`. Several
    /// numbers (nginx lists its tries) are summed. `Server-Timing` is read as such.
    pub fn take_named(&mut self, name: &str, value: &[u8], unit: Unit) {
        if name.eq_ignore_ascii_case("server-timing") {
            self.take_server_timing(value);
        } else {
            self.take(value, unit, false);
        }
    }

    fn take(&mut self, value: &[u8], unit: Unit, behind: bool) {
        let Some(text) = text(value) else { return };
        let mut sum = None;
        for word in text.split([' ', ',', ';', '\t', ':']).filter(|w| !w.is_empty()) {
            if let Some(at) = word.strip_prefix("t=") {
                self.began_unix_us = self.began_unix_us.or_else(|| moment(at));
            } else if let Some(took) = word.strip_prefix("D=") {
                self.took_us = self.took_us.or_else(|| Unit::Microseconds.us(took));
            } else if let Some(us) = with_unit(word, unit) {
                sum = Some(sum.unwrap_or(0) + us);
            }
        }
        let place = if behind { &mut self.upstream_us } else { &mut self.took_us };
        *place = place.or(sum);
    }

    fn take_server_timing(&mut self, value: &[u8]) {
        let Some(text) = text(value) else { return };
        let mut whole: Option<(usize, u64)> = None;
        for metric in text.split(',') {
            let mut parts = metric.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let duration = parts.find_map(|p| {
                let (key, value) = p.split_once('=')?;
                let is = key.trim().eq_ignore_ascii_case("dur");
                is.then(|| Unit::Milliseconds.us(value.trim().trim_matches('"')))?
            });
            let Some(us) = duration else { continue };
            let is = |known: &&str| name.eq_ignore_ascii_case(known);
            if let Some(rank) = WHOLE.iter().position(&is) {
                whole = Some(whole.map_or((rank, us), |best| if rank < best.0 { (rank, us) } else { best }));
            } else if BEHIND.iter().any(&is) {
                self.upstream_us = Some(self.upstream_us.unwrap_or(0) + us);
            } else if WAITING.iter().any(&is) {
                self.queued_us = Some(self.queued_us.unwrap_or(0) + us);
            }
        }
        if let Some((_, us)) = whole {
            self.took_us = Some(us);
        }
    }
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.get(..value.len().min(LONGEST_VALUE))?).ok()
}

fn with_unit(word: &str, unit: Unit) -> Option<u64> {
    let units =
        [("us", Unit::Microseconds), ("µs", Unit::Microseconds), ("ms", Unit::Milliseconds), ("s", Unit::Seconds)];
    let found = units.iter().find_map(|(suffix, unit)| Some((word.strip_suffix(suffix)?, *unit)));
    let (number, unit) = found.unwrap_or((word, unit));
    number.starts_with(|c: char| c.is_ascii_digit()).then(|| unit.us(number))?
}

/// Parses a time since 1970 in seconds, milliseconds or microseconds: their number of digits tells them apart.
fn moment(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    let digits = text.split('.').next().unwrap_or_default().len();
    let us = match digits {
        10 => value * 1e6,
        13 => value * 1e3,
        // Sixteen digits exceed a float's precision, and are whole microseconds already.
        16 => return text.split('.').next()?.parse().ok(),
        _ => return None,
    };
    Some(us.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, value: &str) -> ServerTime {
        let mut said = ServerTime::default();
        said.take_known(name, value.as_bytes());
        said
    }

    #[test]
    fn server_timing_is_read_as_the_standard_has_it() {
        let said =
            known("Server-Timing", "cache;desc=\"hit\", app;dur=47.2;desc=x, db;dur=12, db ; dur=\"3.5\", queue;dur=5");
        assert_eq!(
            said,
            ServerTime {
                took_us: Some(47_200),
                upstream_us: Some(15_500),
                queued_us: Some(5000),
                ..ServerTime::default()
            }
        );
        assert_eq!(known("server-timing", "app;dur=3, total;dur=4").took_us, Some(4000));
        assert_eq!(known("server-timing", "total;dur=4, app;dur=3").took_us, Some(4000));
        for nothing in ["", "app", "app;dur", "app;dur=x", "app;dur=-1", "app;dur=1e99", "other;dur=3", ",,;;=,"] {
            assert_eq!(known("server-timing", nothing), ServerTime::default(), "{nothing}");
        }
    }

    #[test]
    fn fields_of_real_servers_are_read() {
        assert_eq!(known("X-Runtime", "0.012345").took_us, Some(12_345));
        assert_eq!(known("X-Response-Time", "12.5ms").took_us, Some(12_500));
        assert_eq!(known("X-Upstream-Response-Time", "0.010, 0.002 : 0.100").upstream_us, Some(112_000));
        let apache = known("X-Request-Received", "t=1700000000123456 D=2500");
        assert_eq!((apache.began_unix_us, apache.took_us), (Some(1_700_000_000_123_456), Some(2500)));
        assert_eq!(known("X-Request-Start", "t=1700000000.123").began_unix_us, Some(1_700_000_000_123_000));
        assert_eq!(known("X-Request-Start", "t=1700000000123").began_unix_us, Some(1_700_000_000_123_000));
        assert_eq!(known("X-Other", "12"), ServerTime::default());
    }

    #[test]
    fn a_field_that_is_named_has_the_unit_that_is_said() {
        let named = |value: &str, unit| {
            let mut said = ServerTime::default();
            said.take_named("X-Mine", value.as_bytes(), unit);
            said.took_us
        };
        assert_eq!(named("12", Unit::Milliseconds), Some(12_000));
        assert_eq!(named("12", Unit::AsWritten), Some(12));
        assert_eq!(named("12s", Unit::Milliseconds), Some(12_000_000));
        assert_eq!(named("D=5", Unit::Seconds), Some(5));
        assert_eq!(named("soon", Unit::Seconds), None);
    }

    #[test]
    fn hostile_bytes_are_nothing() {
        let mut said = ServerTime::default();
        for value in
            [&b"\xff\xfe"[..], &[b','; 100_000], b"t=99999999999999999999 D=99999999999999999999", b"t=NaN D=inf"]
        {
            said.take_known("server-timing", value);
            said.take_known("x-runtime", value);
        }
        assert_eq!((said.took_us, said.began_unix_us), (None, None));
    }
}
