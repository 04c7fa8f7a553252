//! One second of one phase: the unit in which threads hand over results and the store writes them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::Micros;
use crate::counts::Counts;
use crate::histogram::{DecodeError, Histogram, Kind};

/// Times of one answer or timeout of a class. The load appends these sixteen bytes instead of keeping histograms of a
/// hundred classes; the receiver adds them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u16, u16, u32, u32, u32)", into = "(u16, u16, u32, u32, u32)")]
pub struct ClassAnswer {
    pub class: u16,
    /// 0 if the request timed out; only `response_us` is then set.
    pub status: u16,
    pub response_us: u32,
    pub service_us: u32,
    pub first_byte_us: u32,
}

impl ClassAnswer {
    /// Makes an answer. Times above 71 minutes become `u32::MAX`.
    #[must_use]
    #[inline]
    pub fn new(class: u16, status: u16, response: Micros, service: Micros, first_byte: Micros) -> ClassAnswer {
        let fit = |us: Micros| u32::try_from(us).unwrap_or(u32::MAX);
        ClassAnswer {
            class,
            status,
            response_us: fit(response),
            service_us: fit(service),
            first_byte_us: fit(first_byte),
        }
    }
}

impl From<(u16, u16, u32, u32, u32)> for ClassAnswer {
    fn from((class, status, response_us, service_us, first_byte_us): (u16, u16, u32, u32, u32)) -> ClassAnswer {
        ClassAnswer { class, status, response_us, service_us, first_byte_us }
    }
}

impl From<ClassAnswer> for (u16, u16, u32, u32, u32) {
    fn from(a: ClassAnswer) -> Self {
        (a.class, a.status, a.response_us, a.service_us, a.first_byte_us)
    }
}

/// One part ([`Kind::PARTS`]) of an answer's time, with its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u16, u8, u32)", into = "(u16, u8, u32)")]
pub struct ClassPart {
    pub class: u16,
    /// The [`Kind`] as a number.
    pub kind: u8,
    pub us: u32,
}

impl From<(u16, u8, u32)> for ClassPart {
    fn from((class, kind, us): (u16, u8, u32)) -> ClassPart {
        ClassPart { class, kind, us }
    }
}

impl From<ClassPart> for (u16, u8, u32) {
    fn from(p: ClassPart) -> Self {
        (p.class, p.kind, p.us)
    }
}

/// An answer whose request carried an id, by which its line in the server's log is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentifiedAnswer {
    pub id: u64,
    pub class: u16,
}

/// Most slow requests that are kept of a phase.
const MOST_TRACED: usize = 10;

/// The id of a trace, as W3C Trace Context has it: 128 bits, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<TraceId> for String {
    fn from(id: TraceId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for TraceId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<TraceId, Self::Error> {
        u128::from_str_radix(&text, 16).map(TraceId)
    }
}

/// A request that began a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRequest {
    pub trace: TraceId,
    pub class: u16,
    /// 0 if it timed out.
    pub status: u16,
    /// Second of the phase in which it ended.
    pub second: u32,
    pub response_us: Micros,
}

/// A second by request class (see [`Classes`](crate::class::Classes)). Empty if there is only one class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ByClass {
    /// Counts by class index. Requests of an open loop that were never sent get their class at the end of the run.
    pub counts: Vec<Counts>,
    pub answers: Vec<ClassAnswer>,
    /// Parts of the answers' time, if the server reports them.
    pub parts: Vec<ClassPart>,
}

/// Counts, statuses and latencies of one second. Slices of several threads or seconds add up without loss.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "SliceJson")]
pub struct Slice {
    /// Index of the phase in the plan.
    pub phase: u16,
    /// Whole seconds since the start of the phase.
    pub second: u32,
    pub counts: Counts,
    /// Answers by status code, indexed by the code (0 to 999).
    pub status: Vec<u64>,
    /// One histogram per [`Kind`], indexed by it.
    pub latencies: [Histogram; Kind::COUNT],
    pub by_class: ByClass,
    /// The slowest requests that began a trace, slowest first.
    pub slowest: Vec<TracedRequest>,
    /// Answers to requests that carry ids, for joining with a log; never serialised.
    pub identified: Vec<IdentifiedAnswer>,
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
            by_class: ByClass::default(),
            slowest: Vec::new(),
            identified: Vec::new(),
        }
    }

    /// Applies a change to the counts of the second and to those of a class.
    #[inline]
    pub fn count(&mut self, class: u16, change: impl Fn(&mut Counts)) {
        change(&mut self.counts);
        if let Some(counts) = self.by_class.counts.get_mut(usize::from(class)) {
            change(counts);
        }
    }

    /// Counts a request as sent. Its class counts it as due only now, because the class was not known before.
    #[inline]
    pub fn count_sent(&mut self, class: u16) {
        self.counts.sent += 1;
        if let Some(counts) = self.by_class.counts.get_mut(usize::from(class)) {
            counts.due += 1;
            counts.sent += 1;
        }
    }

    /// Records a part of an answer's time, in total and for its class.
    #[inline]
    pub fn record_part(&mut self, class: u16, kind: Kind, us: Micros) {
        self.record(kind, us);
        if !self.by_class.counts.is_empty() {
            let us = u32::try_from(us).unwrap_or(u32::MAX);
            self.by_class.parts.push(ClassPart { class, kind: kind as u8, us });
        }
    }

    /// Records an answer or a timeout of a class.
    #[inline]
    pub fn record_class(&mut self, answer: ClassAnswer) {
        if !self.by_class.counts.is_empty() {
            self.by_class.answers.push(answer);
        }
    }

    /// Keeps a request that began a trace, if it is one of the slowest.
    #[inline]
    pub fn note_traced(&mut self, request: TracedRequest) {
        let at = self.slowest.partition_point(|other| other.response_us >= request.response_us);
        if at < MOST_TRACED {
            self.slowest.truncate(MOST_TRACED - 1);
            self.slowest.insert(at, request);
        }
    }

    #[inline]
    pub fn record(&mut self, kind: Kind, us: u64) {
        self.latencies[kind as usize].record(us);
    }

    pub fn add(&mut self, other: &Slice) {
        self.add_unclassed(other);
        let classes = &mut self.by_class;
        if classes.counts.len() < other.by_class.counts.len() {
            classes.counts.resize(other.by_class.counts.len(), Counts::default());
        }
        for (a, b) in classes.counts.iter_mut().zip(&other.by_class.counts) {
            a.add(b);
        }
        classes.answers.extend_from_slice(&other.by_class.answers);
        classes.parts.extend_from_slice(&other.by_class.parts);
        self.identified.extend_from_slice(&other.identified);
    }

    /// Adds everything except the numbers by class.
    pub fn add_unclassed(&mut self, other: &Slice) {
        self.counts.add(&other.counts);
        for (a, b) in self.status.iter_mut().zip(&other.status) {
            *a += b;
        }
        for (a, b) in self.latencies.iter_mut().zip(&other.latencies) {
            if b.count() > 0 {
                a.add(b);
            }
        }
        other.slowest.iter().for_each(|request| self.note_traced(*request));
    }

    /// Empties the slice for another second and keeps its memory.
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
        self.by_class.counts.fill(Counts::default());
        self.by_class.answers.clear();
        self.by_class.parts.clear();
        self.slowest.clear();
        self.identified.clear();
    }
}

/// The JSON form of a slice: empty entries are left out, histograms are HDR V2 in base64.
#[derive(Serialize, Deserialize)]
struct SliceJson {
    phase: u16,
    second: u32,
    counts: Counts,
    status: Vec<(usize, u64)>,
    latencies: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_empty")]
    by_class: ByClass,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    slowest: Vec<TracedRequest>,
}

fn is_empty(by_class: &ByClass) -> bool {
    by_class.counts.is_empty()
}

impl Serialize for Slice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = |kind: Kind| Some(&self.latencies[kind as usize]).filter(|h| h.count() > 0);
        let written = SliceJson {
            phase: self.phase,
            second: self.second,
            counts: self.counts,
            status: self.status.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect(),
            latencies: Kind::ALL
                .into_iter()
                .filter_map(|kind| Some((kind.name().into(), of(kind)?.encode_base64())))
                .collect(),
            by_class: self.by_class.clone(),
            slowest: self.slowest.clone(),
        };
        written.serialize(serializer)
    }
}

impl TryFrom<SliceJson> for Slice {
    type Error = DecodeError;

    fn try_from(written: SliceJson) -> Result<Slice, DecodeError> {
        let mut slice = Slice::new(written.phase, written.second);
        slice.counts = written.counts;
        slice.by_class = written.by_class;
        written.slowest.into_iter().for_each(|request| slice.note_traced(request));
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
