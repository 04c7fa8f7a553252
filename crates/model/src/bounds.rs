//! Bounds of every number that a user can give: by an option, in a plan file, or by a flag of a personality.
//!
//! An option, a key of a plan and [`crate::Plan::check`] read the same row of one table, so that none of them accepts
//! what another refuses. The upper bound of a row is what a run can do, or what its arithmetic can hold, not what is
//! sensible. `docs/bounds.md` shows the table; a test keeps the two equal.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Deserialize;

use crate::units::{parse_bytes, parse_duration};

/// Unit of a bounded number, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A whole number.
    Count,
    Number,
    /// `2.5` or `2.5%`.
    Percent,
    /// Bounds in seconds; written as `500ms`, `30s` or `2m`.
    Time,
    /// Bounds in bytes; written as `64k` or `2G`.
    Size,
}

/// The smallest and the largest allowed value of a number. Both are below 2^53, so that `f64` holds them exactly.
#[derive(Debug, PartialEq)]
pub struct Bound {
    /// The name that begins a message: "users", "the rate".
    pub name: &'static str,
    pub unit: Unit,
    pub least: f64,
    pub most: f64,
    pub what: &'static str,
}

/// The error for a value that is not a number, or is out of bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundError {
    pub bound: &'static Bound,
    /// The value as the user wrote it.
    pub value: String,
}

impl fmt::Display for BoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.bound;
        let kind = if b.unit == Unit::Count { " a whole number" } else { "" };
        write!(f, "{} must be{kind} from {} to {}, not '{}'", b.name, b.show(b.least), b.show(b.most), self.value)?;
        match b.unit {
            Unit::Time => f.write_str("; write it as 500ms, 30s or 2m"),
            Unit::Size => f.write_str("; write it as 64k, 400M or 2G"),
            Unit::Count | Unit::Number | Unit::Percent => Ok(()),
        }
    }
}

impl std::error::Error for BoundError {}

impl Bound {
    /// Reads a value as people write it.
    ///
    /// # Errors
    /// When it is not a number, or out of bounds.
    pub fn read<T: BoundedNumber>(&'static self, text: &str) -> Result<T, BoundError> {
        T::read(text.trim(), self).ok_or_else(|| self.error(text.trim()))
    }

    /// Checks a number: seconds of a time, bytes of a size.
    ///
    /// # Errors
    /// When it is out of bounds, or not a number.
    pub fn check(&'static self, value: f64) -> Result<(), BoundError> {
        if self.holds(value) { Ok(()) } else { Err(self.error(&self.show(value))) }
    }

    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    #[must_use]
    pub fn error(&'static self, value: &str) -> BoundError {
        BoundError { bound: self, value: value.chars().take(60).collect() }
    }

    /// Returns the JSON schema of the value in a plan file.
    #[must_use]
    pub fn schema(&self) -> schemars::Schema {
        let (least, most) = (self.least, self.most);
        match self.unit {
            Unit::Count => {
                schemars::json_schema!({"type": "integer", "minimum": least as i64, "maximum": most as i64})
            }
            Unit::Number => schemars::json_schema!({"type": "number", "minimum": least, "maximum": most}),
            Unit::Time | Unit::Size | Unit::Percent => schemars::json_schema!({"type": "string"}),
        }
    }

    /// Formats a value as a user would write it.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        // Use the largest unit in which the value is a whole number.
        let scaled = |units: &[(f64, &str)]| {
            let whole = |size: f64| value >= size && (value / size).fract() == 0.0;
            units.iter().find(|(size, _)| whole(*size)).map(|(size, unit)| format!("{}{unit}", value / size))
        };
        match self.unit {
            Unit::Count | Unit::Number => format!("{value}"),
            Unit::Percent => format!("{value}%"),
            Unit::Time => {
                let micros = scaled(&[(86_400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"), (0.001, "ms")]);
                micros.unwrap_or_else(|| if value == 0.0 { "0s".into() } else { format!("{}us", value * 1e6) })
            }
            Unit::Size => {
                let units = [40, 30, 20, 10].map(|bits| f64::from(bits).exp2()).into_iter().zip(["T", "G", "M", "k"]);
                scaled(&units.collect::<Vec<_>>()).unwrap_or_else(|| format!("{value}"))
            }
        }
    }
}

/// A type that can hold a bounded number.
pub trait BoundedNumber: Copy {
    /// Returns `None` if the text is not such a number, or is out of bounds.
    fn read(text: &str, bound: &Bound) -> Option<Self>;
}

impl BoundedNumber for f64 {
    fn read(text: &str, bound: &Bound) -> Option<f64> {
        let digits = if bound.unit == Unit::Percent { text.trim_end_matches('%').trim_end() } else { text };
        digits.parse().ok().filter(|n| bound.holds(*n))
    }
}

impl BoundedNumber for u64 {
    fn read(text: &str, bound: &Bound) -> Option<u64> {
        let n = if bound.unit == Unit::Size { parse_bytes(text).ok()? } else { text.parse().ok()? };
        bound.holds(n as f64).then_some(n)
    }
}

impl BoundedNumber for u32 {
    fn read(text: &str, bound: &Bound) -> Option<u32> {
        u64::read(text, bound)?.try_into().ok()
    }
}

impl BoundedNumber for i64 {
    fn read(text: &str, bound: &Bound) -> Option<i64> {
        u64::read(text, bound)?.try_into().ok()
    }
}

impl BoundedNumber for usize {
    fn read(text: &str, bound: &Bound) -> Option<usize> {
        u64::read(text, bound)?.try_into().ok()
    }
}

impl BoundedNumber for Duration {
    fn read(text: &str, bound: &Bound) -> Option<Duration> {
        parse_duration(text).ok().filter(|d| bound.holds(d.as_secs_f64()))
    }
}

/// A row of the table as a type, by which a key of a file is read.
pub trait BoundRow {
    type Value: BoundedNumber;
    const BOUND: &'static Bound;
}

/// A value from a file that is within the bounds of its row.
pub struct BoundedValue<R: BoundRow>(pub R::Value, PhantomData<R>);

impl<R: BoundRow> Clone for BoundedValue<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: BoundRow> Copy for BoundedValue<R> {}

impl<R: BoundRow<Value: fmt::Debug>> fmt::Debug for BoundedValue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, R: BoundRow> Deserialize<'de> for BoundedValue<R> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read_within(R::BOUND, deserializer).map(|value| BoundedValue(value, PhantomData))
    }
}

/// Reads a value from a file and checks its bounds.
///
/// # Errors
/// When it is not a number, or out of bounds.
pub fn read_within<'de, T: BoundedNumber, D: serde::Deserializer<'de>>(
    bound: &'static Bound,
    deserializer: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum RawValue {
        Whole(i64),
        Number(f64),
        Text(String),
    }
    let as_text = matches!(bound.unit, Unit::Time | Unit::Size | Unit::Percent);
    let wrong = |value: &str| serde::de::Error::custom(bound.error(value));
    let text = match RawValue::deserialize(deserializer).map_err(|_| wrong("something else"))? {
        RawValue::Whole(n) => n.to_string(),
        RawValue::Number(n) => n.to_string(),
        RawValue::Text(text) if as_text => text,
        RawValue::Text(text) => return Err(wrong(&text)),
    };
    bound.read(&text).map_err(serde::de::Error::custom)
}

impl<R: BoundRow> schemars::JsonSchema for BoundedValue<R> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        R::BOUND.name.into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        R::BOUND.schema()
    }
}

macro_rules! table {
    ($($constant:ident $row:ident: $value:ty = $unit:ident $name:literal $least:literal to $most:expr, $what:literal;)*) => {
        $(
            #[doc = $what]
            pub const $constant: &Bound =
                &Bound { name: $name, unit: Unit::$unit, least: $least as f64, most: $most as f64, what: $what };

            impl BoundRow for row::$row {
                type Value = $value;
                const BOUND: &'static Bound = $constant;
            }
        )*

        /// The rows of the table as types.
        pub mod row {
            $(
                #[derive(Debug, Clone, Copy)]
                pub struct $row;
            )*
        }

        /// The whole table.
        pub const ALL: &[&Bound] = &[$($constant),*];
    };
}

/// A leap year in seconds. Sums of times up to this bound cannot overflow.
const YEAR: u64 = 366 * 86_400;
const GIB: u64 = 1 << 30;

table! {
    USERS Users: u32 = Count "users" 1 to 1_000_000, "people who each wait for their answer before asking again";
    RAMP_USERS RampUsers: u32 = Count "users of a ramp" 0 to 1_000_000, "users at the beginning or the end of a phase";
    RATE Rate: f64 = Number "the rate" 0.000_001 to 10_000_000, "requests (sessions, pages) a second";
    RAMP_RATE RampRate: f64 = Number "the rate of a ramp" 0 to 10_000_000, "the rate at the beginning or the end of a phase";
    SPEED Speed: f64 = Number "the speed" 0.001 to 1_000_000, "replay: how many times as fast";
    STEPS Steps: u32 = Count "steps" 2 to 100_000, "steps of a ramp of the rate";
    BURST Burst: u32 = Count "a burst" 1 to 1_000_000, "requests that arrive together";
    CONNECTIONS Connections: u32 = Count "connections" 1 to 1_000_000, "connections open at once";
    REQUESTS Requests: u64 = Count "requests" 1 to 10_000_000_000_u64, "requests of a phase";
    DURATION Duration: Duration = Time "a duration" 0.000_001 to YEAR, "how long something goes on";
    TIMEOUT Timeout: Duration = Time "a timeout" 0.000_001 to YEAR, "how long an answer is waited for";
    DRAIN Drain: Duration = Time "the drain" 0 to YEAR, "how long what is in flight at the end is waited for";
    PAUSE Pause: Duration = Time "a pause" 0 to YEAR, "think time, a delay";
    INTERVAL Interval: Duration = Time "an interval" 0.001 to YEAR, "time between two looks, checks or name look-ups";
    THREADS Threads: u32 = Count "threads" 1 to 256, "load threads";
    PHASES Phases: u32 = Count "phases" 1 to 10_000, "phases of a plan";
    KEEPALIVE KeepAlive: u32 = Count "requests on a connection" 1 to 1_000_000_000, "keep-alive as a number";
    SEED Seed: u32 = Count "the seed" 0 to u32::MAX, "seed of everything random";
    WEIGHT Weight: f64 = Number "a weight" 0 to 1_000_000_000, "how often a request is chosen beside the others";
    PIPELINE Pipeline: u32 = Count "pipeline" 1 to 1000, "requests in flight on one connection";
    STREAMS StreamBound: u32 = Count "streams" 1 to 10_000, "requests in flight on one HTTP/2 connection";
    WINDOW StreamWindow: u32 = Size "a window" 1 to GIB, "bytes that an HTTP/2 server may send ahead";
    REDIRECTS Redirects: u32 = Count "redirects" 0 to 100, "redirects that are followed, one after the other";
    PAGE_CONNECTIONS PageConnections: u32 = Count "connections to a host" 1 to 100, "connections of a page to each host";
    CHUNK Chunk: u32 = Size "a chunk" 1 to GIB, "size of the chunks that a body is sent in";
    BUFFER Buffer: u32 = Size "a buffer" 1 to GIB, "size of a socket's buffer";
    FAMILY Family: u32 = Count "the family" 4 to 6, "addresses of IPv4 or IPv6";
    BANDWIDTH Bandwidth: u64 = Size "the bandwidth" 1 to 12_500_000_000_u64, "bytes a second of each connection";
    LENGTH Length: u64 = Count "a length" 0 to 1_u64 << 50, "bytes of body that are expected";
    PRECISION Precision: f64 = Percent "the precision" 0.1 to 100, "capacity: by how much the answer may be too low";
    GAIN Gain: f64 = Percent "the gain" 0 to 1000, "tune: the smallest gain worth a change";
    STAIRCASE StaircaseUsers: u32 = Count "users of the staircase" 2 to 100_000, "capacity: most users tried";
    BLOCKS Blocks: u32 = Count "blocks" 4 to 1000, "compare: blocks, at most";
    TRIALS Trials: u32 = Count "trials" 2 to 1000, "tune: trials of the search, at most";
    RACE RaceBlocks: u32 = Count "blocks of the race" 4 to 100, "tune: pairs of blocks, at most";
    ROUNDS Rounds: u32 = Count "rounds" 1 to 1000, "sweep: how often each row is measured";
    QUERY QueryLength: u32 = Count "the length of the query" 0 to 100_000, "sweep: characters of a URL's query";
    TRACED Traced: u64 = Count "traced requests" 1 to 10_000, "trace: requests";
    POOL PoolSize: u64 = Count "a pool size" 1 to 100_000, "size: workers to try";
    PER_WORKER PerWorker: u64 = Count "requests of a worker" 4 to 1_000_000, "size: requests that each worker serves";
    MEMORY Memory: u64 = Size "memory" 1 to 1_u64 << 50, "a limit or a budget of memory";
    SHARE Share: f64 = Percent "the share" 1 to 100, "guard: part of the pool that is replaced at a time";
    DAILY DailyRequests: f64 = Number "requests a day" 1 to 10_000_000_000_u64, "headroom: requests of a day";
    PEAK Peak: f64 = Number "the peak" 1 to 1440, "headroom: the busiest minute, in times of the day's mean";
    ANSWER AnswerSize: u64 = Size "an answer" 1 to 1_u64 << 40, "headroom: bytes of an answer";
    RESERVE Reserve: f64 = Number "the reserve" 1 to 100, "headroom: demand that machines are counted for, in times of the busiest minute";
    LISTED Listed: usize = Count "the list" 1 to 1_000_000, "history: runs";
    WORKERS Workers: i64 = Count "workers" 1 to 2048, "target: processes";
    BACKLOG Backlog: i64 = Count "the backlog" 1 to 1_000_000, "target: connections that may wait";
    EVERY Every: i64 = Count "a number of requests" 0 to 1_000_000_000, "target: every so many requests; 0 is never";
    STRETCH Stretch: f64 = Number "the factor" 0 to 1000, "target: contention, coherency";
    SERVICE Service: Duration = Time "a time" 0 to YEAR, "target: how long something takes";
    BODY BodySize: u64 = Size "a body" 0 to GIB, "target: bytes of an answer";
    PLANTED Planted: u64 = Size "planted memory" 0 to 1_u64 << 40, "target: memory of workers";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_can_do_is_outside_of_every_bound() {
        for bound in ALL {
            let numbers = ["inf", "-inf", "nan", "1e300", "-1", "-0.5", "", "x", "99999999999999999999999"];
            for text in numbers {
                let refused = match bound.unit {
                    Unit::Time => bound.read::<Duration>(text).is_err(),
                    Unit::Size | Unit::Count => bound.read::<u64>(text).is_err(),
                    Unit::Number | Unit::Percent => bound.read::<f64>(text).is_err(),
                };
                assert!(refused, "{}: {text}", bound.name);
            }
            assert!(bound.least < bound.most && bound.most < 2_f64.powi(53), "{}", bound.name);
            assert!(bound.check(f64::NAN).is_err() && bound.check(bound.most * 1.1).is_err(), "{}", bound.name);
            assert!(bound.check(bound.least).is_ok() && bound.check(bound.most).is_ok(), "{}", bound.name);
        }
    }

    #[test]
    fn an_error_says_the_value_and_the_bounds() {
        let error = |e: BoundError| e.to_string();
        assert_eq!(
            error(USERS.read::<u32>("0").expect_err("too few")),
            "users must be a whole number from 1 to 1000000, not '0'"
        );
        assert_eq!(
            error(TIMEOUT.read::<Duration>("0s").expect_err("too short")),
            "a timeout must be from 1us to 366d, not '0s'; write it as 500ms, 30s or 2m"
        );
        assert_eq!(
            error(CHUNK.check(0.0).expect_err("too small")),
            "a chunk must be from 1 to 1G, not '0'; write it as 64k, 400M or 2G"
        );
        assert_eq!(error(SHARE.read::<f64>("200%").expect_err("all")), "the share must be from 1% to 100%, not '200%'");
    }

    #[test]
    fn the_manual_has_the_table() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bounds.md")).expect("there");
        let row = |b: &&Bound| format!("| {} | {} | {} | {} |\n", b.name, b.show(b.least), b.show(b.most), b.what);
        let table: String = ALL.iter().map(row).collect();
        assert!(page.contains(&table), "write it into docs/bounds.md:\n{table}");
    }

    #[test]
    fn values_are_read_in_their_units() {
        assert_eq!(CHUNK.read::<u32>("64k"), Ok(65_536));
        assert_eq!(SHARE.read::<f64>("10%"), Ok(10.0));
        assert_eq!(DURATION.read("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(RATE.read(" 0.5 "), Ok(0.5));
    }
}
