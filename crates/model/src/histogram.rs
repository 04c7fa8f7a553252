//! Latency histograms: HDR with three significant digits, in microseconds, mergeable without loss.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// What a latency measures. A request has up to seven kinds, five more if the server reports its own time; a page has
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// due → done: the time that a user waits.
    Response,
    /// sent → done: includes the connect if the request needed one.
    Service,
    /// The part of due → sent in which no connection was free.
    Blocked,
    /// The rest of due → sent: delay of the generator itself.
    Lateness,
    /// connect() → established.
    Connect,
    /// TLS handshake.
    Tls,
    /// sent → first byte of the answer.
    FirstByte,
    /// A page: due → its last embedded part is complete.
    Page,
    /// Network round trip, as the kernel measures it for the connection (`TCP_INFO`).
    Link,
    /// Request written plus half a round trip → the server began.
    Queue,
    /// The server began → it answered, as the server reports.
    Server,
    /// The part of that in which it waited for an upstream, as the server reports.
    Upstream,
    /// First byte → done.
    Transfer,
}

impl Kind {
    pub const COUNT: usize = 13;

    /// The kinds that split a response's time, each measured separately.
    pub const PARTS: [Kind; 5] = [Kind::Link, Kind::Queue, Kind::Server, Kind::Upstream, Kind::Transfer];

    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Response,
        Kind::Service,
        Kind::Blocked,
        Kind::Lateness,
        Kind::Connect,
        Kind::Tls,
        Kind::FirstByte,
        Kind::Page,
        Kind::Link,
        Kind::Queue,
        Kind::Server,
        Kind::Upstream,
        Kind::Transfer,
    ];

    /// Returns the name in JSON and in the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Response => "response",
            Kind::Service => "service",
            Kind::Blocked => "blocked",
            Kind::Lateness => "lateness",
            Kind::Connect => "connect",
            Kind::Tls => "tls",
            Kind::FirstByte => "first_byte",
            Kind::Page => "page",
            Kind::Link => "link",
            Kind::Queue => "queue",
            Kind::Server => "server",
            Kind::Upstream => "upstream",
            Kind::Transfer => "transfer",
        }
    }
}

/// The percentiles of every report: JSON name and quantile.
pub const PERCENTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999)];

/// A histogram of microseconds. It allocates nothing until the first value; then it grows with the largest value, not
/// with the number of values.
#[derive(Clone, Default)]
pub struct Histogram(Option<hdrhistogram::Histogram<u64>>);

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram(count {}, max {} µs)", self.count(), self.max())
    }
}

/// The error for a stored histogram that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("a stored histogram cannot be read: {0}")]
pub struct DecodeError(String);

/// Initial range of a histogram, µs. It doubles as needed.
const FIRST_RANGE_US: u64 = 1 << 14;

fn empty() -> hdrhistogram::Histogram<u64> {
    let mut inner = hdrhistogram::Histogram::new_with_bounds(1, FIRST_RANGE_US, 3)
        .expect("bounds and precision are constants that the crate accepts");
    inner.auto(true);
    inner
}

impl Histogram {
    #[must_use]
    pub fn new() -> Self {
        Histogram(None)
    }

    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, us: u64) {
        let inner = self.0.get_or_insert_with(empty);
        // With auto-resizing, an error means that no resize can hold the value: count it at the top of the range.
        if inner.record(us).is_err() {
            inner.saturating_record(us);
        }
    }

    /// Counts the same latency `n` times.
    pub fn record_many(&mut self, us: u64, n: u64) {
        if n > 0 {
            let inner = self.0.get_or_insert_with(empty);
            if inner.record_n(us, n).is_err() {
                inner.saturating_record_n(us, n);
            }
        }
    }

    pub fn add(&mut self, other: &Histogram) {
        let Some(theirs) = &other.0 else { return };
        if self.0.get_or_insert_with(empty).add(theirs).is_err() {
            // Cannot happen with auto-resizing; if it does, do not lose values silently.
            for v in theirs.iter_recorded() {
                for _ in 0..v.count_at_value() {
                    self.record(v.value_iterated_to());
                }
            }
        }
    }

    /// Removes all values and keeps the memory.
    pub fn clear(&mut self) {
        if let Some(inner) = &mut self.0 {
            inner.reset();
        }
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, hdrhistogram::Histogram::len)
    }

    /// Returns the inner histogram if it has any value.
    fn counted(&self) -> Option<&hdrhistogram::Histogram<u64>> {
        self.0.as_ref().filter(|inner| !inner.is_empty())
    }

    #[must_use]
    pub fn min(&self) -> u64 {
        self.counted().map_or(0, hdrhistogram::Histogram::min)
    }

    #[must_use]
    pub fn max(&self) -> u64 {
        self.counted().map_or(0, hdrhistogram::Histogram::max)
    }

    #[must_use]
    pub fn mean(&self) -> f64 {
        self.counted().map_or(0.0, hdrhistogram::Histogram::mean)
    }

    /// Returns the sum of all values in microseconds, each taken as the middle of its bucket.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.counted().map_or(0.0, |inner| {
            inner
                .iter_recorded()
                .map(|v| inner.median_equivalent(v.value_iterated_to()) as f64 * v.count_at_value() as f64)
                .sum()
        })
    }

    /// Counts the values above `us`, to the precision of the buckets.
    #[must_use]
    pub fn count_above(&self, us: u64) -> u64 {
        let Some(inner) = self.counted().filter(|inner| inner.max() > us) else { return 0 };
        inner.count_between(inner.next_non_equivalent(us), inner.max())
    }

    /// Returns the value at quantile `q` (0 to 1), in microseconds; 0 when empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        self.counted().map_or(0, |inner| inner.value_at_quantile(q).min(inner.max()))
    }

    /// Encodes the histogram in the compressed HDR V2 format, which other HDR tools read.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut write = |inner: &hdrhistogram::Histogram<u64>| {
            V2DeflateSerializer::new()
                .serialize(inner, &mut bytes)
                .expect("writing to memory; counts of one run fit the format")
        };
        match &self.0 {
            Some(inner) => write(inner),
            None => write(&empty()),
        };
        bytes
    }

    /// Returns each recorded bucket: its largest value in microseconds, and its count.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().flat_map(|inner| inner.iter_recorded()).map(|v| (v.value_iterated_to(), v.count_at_value()))
    }

    /// Returns [`Histogram::encode`] in base64, for JSON.
    #[must_use]
    pub fn encode_base64(&self) -> String {
        BASE64.encode(self.encode())
    }

    /// Reads what [`Histogram::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a compressed HDR V2 histogram.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut inner = Deserializer::new()
            .deserialize(&mut std::io::Cursor::new(bytes))
            .map_err(|e| DecodeError(e.to_string()))?;
        inner.auto(true);
        Ok(Histogram(Some(inner)))
    }

    /// Reads what [`Histogram::encode_base64`] wrote.
    ///
    /// # Errors
    /// When the text is not a compressed HDR V2 histogram in base64.
    pub fn decode_base64(text: &str) -> Result<Self, DecodeError> {
        Histogram::decode(&BASE64.decode(text).map_err(|e| DecodeError(e.to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_being_written_and_read() {
        let mut h = Histogram::new();
        for v in [0, 1, 80, 1_500, 3_000_000, 90_000_000] {
            h.record(v);
        }
        let back = Histogram::decode(&h.encode()).expect("own output");
        assert_eq!(back.count(), 6);
        assert_eq!(back.max(), h.max());
        assert_eq!(back.quantile(0.5), h.quantile(0.5));
    }

    #[test]
    fn torn_bytes_are_an_error_and_never_a_panic() {
        let mut h = Histogram::new();
        h.record(1234);
        let bytes = h.encode();
        for end in 0..bytes.len() {
            let _ = Histogram::decode(&bytes[..end]);
        }
        assert!(Histogram::decode(&bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn one_that_counted_nothing_is_written_and_read_too() {
        let empty = Histogram::new();
        let back = Histogram::decode(&empty.encode()).expect("own output");
        assert_eq!((back.count(), back.max(), back.min(), back.quantile(0.5)), (0, 0, 0, 0));
        assert_eq!((empty.max(), empty.recorded().count()), (0, 0));
    }

    #[test]
    fn merging_loses_nothing_when_ranges_differ() {
        let (mut a, mut b) = (Histogram::new(), Histogram::new());
        a.record(5);
        b.record(50_000_000);
        a.add(&b);
        assert_eq!(a.count(), 2);
        assert!(a.max() >= 49_000_000);
    }
}
