//! Parses JSON lines, and lines of `key=value`: one object per line. The keys that servers and proxies use are known
//! (nginx's variables, Apache, Caddy, Traefik, Envoy, lograge, Elastic's names). `request.uri` is `uri` inside
//! `request`; of a list the first value counts.
//!
//! A duration counts only if its unit is known. The unit may be in its key (`duration_ms`) or its text (`"26ms"`). It
//! may also follow from the program that wrote the line (lograge's `duration` is in ms, Caddy's in s), or the user
//! states it ([`Json::units`]). Any other duration is ignored and counted.

use std::sync::LazyLock;

use super::pattern::{Field, Mismatch};
use super::value;
use crate::entry::{LogEntry, Role, Span};
use crate::time::{TimeForm, Timestamp};

/// Deeper values are only skipped.
const MOST_DEPTH: usize = 32;
/// Longer paths of keys are unknown.
const MOST_PATH_BYTES: usize = 96;

/// How the keys and values of a line are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Shape {
    #[default]
    Json,
    Logfmt,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Json => "json",
            Shape::Logfmt => "logfmt",
        }
    }

    /// Whether a line begins like one of this shape.
    pub(super) fn begins(self, line: &[u8]) -> bool {
        match self {
            Shape::Json => line.starts_with(b"{"),
            Shape::Logfmt => super::logfmt::begins(line),
        }
    }
}

/// The user's additions to the known keys of JSON lines or logfmt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Json {
    pub shape: Shape,
    /// Keys of durations, with their units in ns.
    pub units: Vec<(String, u64)>,
    /// Keys, with their meanings.
    pub keys: Vec<(String, Field)>,
}

/// Units of durations, in ns.
pub(crate) const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// What a line lacks: the field of a [`Mismatch`].
const NO_JSON: usize = 0;
const NO_TIME: usize = 1;
const NO_TARGET: usize = 2;
const UNREADABLE_TIME: usize = 3;
const NO_METHOD: usize = 4;

/// Describes what a line lacks.
pub(super) fn explain(shape: Shape, misfit: Mismatch) -> String {
    let (at, name) = (misfit.at + 1, shape.name());
    match misfit.field {
        NO_TIME => format!(
            "it has no time: none of time, ts, timestamp, @timestamp, date, time_local, time_iso8601, msec, start_time \
             (--format {name},time=KEY says which key it is)"
        ),
        NO_TARGET => format!(
            "it has no request: none of request, request_uri, uri, url, path, request.uri, url.original (--format \
             {name},path=KEY says which key it is)"
        ),
        NO_METHOD => "it has a path, but neither a method nor a status: it is not of a request".into(),
        UNREADABLE_TIME => format!("what stands at byte {at} is no time that is understood"),
        _ if shape == Shape::Logfmt => format!("key=value expected at byte {at}"),
        _ => format!("no whole JSON object: it stops being one at byte {at}"),
    }
}

/// The meaning of NAME in `--format json,NAME=KEY`.
pub(super) fn role(name: &str) -> Option<Field> {
    Some(match name {
        "client" => Field::Text(Role::Client),
        "user" => Field::Text(Role::User),
        "method" => Field::Text(Role::Method),
        "path" => Field::Text(Role::Target),
        "query" => Field::Text(Role::Query),
        "protocol" => Field::Text(Role::Protocol),
        "host" => Field::Text(Role::Host),
        "referer" => Field::Text(Role::Referer),
        "agent" => Field::Text(Role::Agent),
        "cookies" => Field::Text(Role::Cookies),
        "request" => Field::RequestLine,
        "status" => Field::Status,
        "bytes" => Field::Bytes,
        "time" => Field::Time(TimeForm::Iso),
        _ => return None,
    })
}

/// Keys with their meanings. Of several with the same meaning the first in a line counts, of times the finest.
const KEYS: &[(&str, Field)] = &[
    ("remote_addr", Field::Text(Role::Client)),
    ("remote_ip", Field::Text(Role::Client)),
    ("remoteip", Field::Text(Role::Client)),
    ("clientip", Field::Text(Role::Client)),
    ("client_ip", Field::Text(Role::Client)),
    ("client", Field::Text(Role::Client)),
    ("clienthost", Field::Text(Role::Client)),
    ("client.ip", Field::Text(Role::Client)),
    ("source.ip", Field::Text(Role::Client)),
    ("source.address", Field::Text(Role::Client)),
    ("client.address", Field::Text(Role::Client)),
    ("remotehost", Field::Text(Role::Client)),
    ("ip", Field::Text(Role::Client)),
    ("request.remote_ip", Field::Text(Role::Client)),
    ("request.client_ip", Field::Text(Role::Client)),
    ("remote_user", Field::Text(Role::User)),
    ("user", Field::Text(Role::User)),
    ("user_id", Field::Text(Role::User)),
    ("user.name", Field::Text(Role::User)),
    ("clientusername", Field::Text(Role::User)),
    ("method", Field::Text(Role::Method)),
    ("request_method", Field::Text(Role::Method)),
    ("requestmethod", Field::Text(Role::Method)),
    ("http_method", Field::Text(Role::Method)),
    ("verb", Field::Text(Role::Method)),
    ("http.request.method", Field::Text(Role::Method)),
    ("request.method", Field::Text(Role::Method)),
    ("request_uri", Field::Text(Role::Target)),
    ("uri", Field::Text(Role::Target)),
    ("url", Field::Text(Role::Target)),
    ("path", Field::Text(Role::Target)),
    ("target", Field::Text(Role::Target)),
    ("requestpath", Field::Text(Role::Target)),
    ("request_path", Field::Text(Role::Target)),
    ("url.original", Field::Text(Role::Target)),
    ("url.path", Field::Text(Role::Target)),
    ("request.uri", Field::Text(Role::Target)),
    ("request.url", Field::Text(Role::Target)),
    ("args", Field::Text(Role::Query)),
    ("query", Field::Text(Role::Query)),
    ("query_string", Field::Text(Role::Query)),
    ("url.query", Field::Text(Role::Query)),
    ("request", Field::RequestLine),
    ("request_line", Field::RequestLine),
    ("server_protocol", Field::Text(Role::Protocol)),
    ("protocol", Field::Text(Role::Protocol)),
    ("requestprotocol", Field::Text(Role::Protocol)),
    ("request.proto", Field::Text(Role::Protocol)),
    ("http_host", Field::Text(Role::Host)),
    ("host", Field::Text(Role::Host)),
    ("server_name", Field::Text(Role::Host)),
    ("vhost", Field::Text(Role::Host)),
    ("requesthost", Field::Text(Role::Host)),
    ("request.host", Field::Text(Role::Host)),
    ("url.domain", Field::Text(Role::Host)),
    ("http_referer", Field::Text(Role::Referer)),
    ("http_referrer", Field::Text(Role::Referer)),
    ("referer", Field::Text(Role::Referer)),
    ("referrer", Field::Text(Role::Referer)),
    ("http.request.referrer", Field::Text(Role::Referer)),
    ("request.headers.referer", Field::Text(Role::Referer)),
    ("http_user_agent", Field::Text(Role::Agent)),
    ("user_agent", Field::Text(Role::Agent)),
    ("useragent", Field::Text(Role::Agent)),
    ("agent", Field::Text(Role::Agent)),
    ("user_agent.original", Field::Text(Role::Agent)),
    ("request.headers.user-agent", Field::Text(Role::Agent)),
    ("http_cookie", Field::Text(Role::Cookies)),
    ("cookie", Field::Text(Role::Cookies)),
    ("request.headers.cookie", Field::Text(Role::Cookies)),
    ("location", Field::Text(Role::Location)),
    ("sent_http_location", Field::Text(Role::Location)),
    ("upstream_http_location", Field::Text(Role::Location)),
    ("resp_headers.location", Field::Text(Role::Location)),
    ("redirect_url", Field::Text(Role::Location)),
    ("status", Field::Status),
    ("status_code", Field::Status),
    ("response_code", Field::Status),
    ("response", Field::Status),
    ("code", Field::Status),
    ("downstreamstatus", Field::Status),
    ("http.response.status_code", Field::Status),
    ("bytes", Field::Bytes),
    ("body_bytes_sent", Field::Bytes),
    ("bytes_sent", Field::Bytes),
    ("bytes_out", Field::Bytes),
    ("size", Field::Bytes),
    ("downstreamcontentsize", Field::Bytes),
    ("http.response.body.bytes", Field::Bytes),
    // Heroku's router, Docker's registry.
    ("fwd", Field::Forwarded),
    ("http.request.remoteaddr", Field::Text(Role::Client)),
    ("http.request.uri", Field::Text(Role::Target)),
    ("http.request.host", Field::Text(Role::Host)),
    ("http.request.referer", Field::Text(Role::Referer)),
    ("http.request.useragent", Field::Text(Role::Agent)),
    ("http.response.status", Field::Status),
    ("http.response.written", Field::Bytes),
    // Envoy, pino, Google's load balancers.
    ("downstream_remote_address", Field::Text(Role::Client)),
    ("req.remoteaddress", Field::Text(Role::Client)),
    ("httprequest.remoteip", Field::Text(Role::Client)),
    ("x_forwarded_for", Field::Forwarded),
    ("http_x_forwarded_for", Field::Forwarded),
    ("req.method", Field::Text(Role::Method)),
    ("httprequest.requestmethod", Field::Text(Role::Method)),
    ("req.url", Field::Text(Role::Target)),
    ("httprequest.requesturl", Field::Text(Role::Target)),
    ("authority", Field::Text(Role::Host)),
    ("req.headers.host", Field::Text(Role::Host)),
    ("req.headers.user-agent", Field::Text(Role::Agent)),
    ("httprequest.useragent", Field::Text(Role::Agent)),
    ("res.statuscode", Field::Status),
    ("httprequest.status", Field::Status),
    ("httprequest.responsesize", Field::Bytes),
    ("start_time", Field::Time(TimeForm::Iso)),
    ("time", Field::Time(TimeForm::Iso)),
    ("ts", Field::Time(TimeForm::Iso)),
    ("t", Field::Time(TimeForm::Iso)),
    ("timestamp", Field::Time(TimeForm::Iso)),
    ("@timestamp", Field::Time(TimeForm::Iso)),
    ("datetime", Field::Time(TimeForm::Iso)),
    ("date", Field::Time(TimeForm::Iso)),
    ("time_local", Field::Time(TimeForm::Iso)),
    ("time_iso8601", Field::Time(TimeForm::Iso)),
    ("msec", Field::Time(TimeForm::Iso)),
    ("startutc", Field::Time(TimeForm::Iso)),
];

/// A line has about a dozen keys, and most have a length that few known keys have.
static BY_LENGTH: LazyLock<Vec<Vec<&(&str, Field)>>> = LazyLock::new(|| {
    let of = |length| KEYS.iter().filter(|key| key.0.len() == length).collect();
    (0..=MOST_PATH_BYTES).map(of).collect()
});

/// Keys of the time at which a request began, not ended.
const BEGINNINGS: [&[u8]; 2] = [b"startutc", b"start_time"];

/// The program that wrote a line, recognised by other keys of the line. It decides the unit of a duration whose key
/// does not.
mod writer {
    /// Of Rails: `controller` and `action`.
    pub const LOGRAGE: u8 = 3;
    pub const CONTROLLER: u8 = 1;
    pub const ACTION: u8 = 2;
    /// `response_flags`.
    pub const ENVOY: u8 = 4;
    /// `req.method` or `req.url`.
    pub const PINO: u8 = 8;
    /// `request.headers` and similar keys.
    pub const CADDY: u8 = 16;
    /// Variables under their nginx names.
    pub const NGINX: u8 = 32;
}

/// The writer that a key indicates.
fn speaks_for(path: &[u8]) -> u8 {
    let is = |key: &str| path.eq_ignore_ascii_case(key.as_bytes());
    match path.len() {
        10 if is("controller") => writer::CONTROLLER,
        6 if is("action") => writer::ACTION,
        14 if is("response_flags") => writer::ENVOY,
        10 if is("req.method") => writer::PINO,
        7 if is("req.url") => writer::PINO,
        13 if is("request.proto") => writer::CADDY,
        17 if is("request.remote_ip") => writer::CADDY,
        15 if is("body_bytes_sent") || is("http_user_agent") => writer::NGINX,
        10 if is("time_local") => writer::NGINX,
        12 if is("time_iso8601") => writer::NGINX,
        11 if is("remote_addr") => writer::NGINX,
        _ => 0,
    }
}

/// Names of a duration, without the separators of their words.
const DURATIONS: [&str; 18] = [
    "duration",
    "latency",
    "elapsed",
    "elapsedtime",
    "responsetime",
    "responselatency",
    "requesttime",
    "requestduration",
    "responseduration",
    "processingtime",
    "timetaken",
    "totaltime",
    "took",
    "rt",
    "upstreamresponsetime",
    "upstreamtime",
    "upstreamduration",
    "upstreamservicetime",
];

/// Endings of such a name that state the unit, in ns. Longer ones come first.
const ENDS: [(&str, u64); 17] = [
    ("milliseconds", 1_000_000),
    ("microseconds", 1_000),
    ("nanoseconds", 1),
    ("seconds", 1_000_000_000),
    ("millis", 1_000_000),
    ("micros", 1_000),
    ("nanos", 1),
    ("msecs", 1_000_000),
    ("msec", 1_000_000),
    ("usecs", 1_000),
    ("usec", 1_000),
    ("secs", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

/// Whether it is the key of a duration; with its unit in ns, if the key states it.
fn duration(path: &[u8]) -> Option<Option<u64>> {
    // event.duration of Elastic's schema, and Traefik's keys, which begin with capitals.
    if matches!(path, b"event.duration" | b"Duration" | b"OriginDuration") {
        return Some(Some(1));
    }
    let last = path.rsplit(|b| *b == b'.').next().unwrap_or_default();
    if last.len() > 40 || last.len() < 2 {
        return None;
    }
    let mut name = [0u8; 40];
    let mut length = 0;
    for b in last.iter().filter(|b| !b"_- ".contains(b)) {
        name[length] = b.to_ascii_lowercase();
        length += 1;
    }
    let name = &name[..length];
    let is_known = |name: &[u8]| DURATIONS.iter().any(|known| known.as_bytes() == name);
    if is_known(name) {
        // Envoy's name.
        let ms = (name == b"upstreamservicetime").then_some(1_000_000);
        return Some(ms);
    }
    let with_end = |(end, ns): &(&str, u64)| {
        let stem = name.strip_suffix(end.as_bytes())?;
        (is_known(stem) || (stem == b"time" && matches!(*end, "ms" | "us" | "ns"))).then_some(*ns)
    };
    ENDS.iter().find_map(with_end).map(Some)
}

/// A duration whose text states its unit, in µs: `26ms`, `1m2.5s`.
fn with_unit(text: &[u8]) -> Option<u64> {
    let mut rest = std::str::from_utf8(text).ok()?.trim();
    let mut us = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let n: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        us += n * match &rest[..letters] {
            "ns" => 1e-3,
            "us" | "µs" | "μs" => 1.0,
            "ms" => 1e3,
            "s" | "sec" | "secs" => 1e6,
            "m" => 60e6,
            "h" => 3600e6,
            _ => return None,
        };
        rest = &rest[letters..];
    }
    (us.is_finite() && us < 1e15 && !text.is_empty()).then_some(us.round() as u64)
}

/// A duration in units of this many ns, in µs.
fn in_units(text: &[u8], ns: u64) -> Option<u64> {
    let plain = if ns >= 1000 {
        value::times(text, (ns / 1000) as u32)
    } else {
        value::times(text, 1).map(|n| n.saturating_mul(ns) / 1000)
    };
    // 9.2e-05
    let scientific = || {
        let n: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        let us = n * ns as f64 / 1e3;
        (us.is_finite() && (0.0..1e15).contains(&us)).then_some(us.round() as u64)
    };
    plain.or_else(scientific)
}

/// Finds the fields in the entry's line, from a position on. `outer` is the time of the line's envelope.
pub(super) fn read(known: &Json, entry: &mut LogEntry, at: usize, outer: Option<Timestamp>) -> Result<(), Mismatch> {
    let line = std::mem::take(&mut entry.line);
    entry.fields.clear();
    let mut found = LineValues {
        known,
        line: &line,
        entry,
        stamp: None,
        writers: 0,
        unclear: None,
        unreadable: None,
        is_weak: false,
        is_malformed: false,
    };
    let mut take = |path: Option<&[u8]>, span| found.scalar(path, span);
    let start = skip_blanks(&line, at);
    let walked = match known.shape {
        Shape::Json => walk(&line, start, &mut take),
        Shape::Logfmt => super::logfmt::walk(&line, start, &mut take),
    };
    found.settle();
    let (stamp, unreadable, is_malformed) = (found.stamp, found.unreadable, found.is_malformed);
    let whole = walked.map(|at| skip_blanks(&line, at)) == Ok(line.len());
    entry.line = line;
    let misfit = |at, field| Err(Mismatch { at, field });
    match walked {
        Err(at) => return misfit(at, NO_JSON),
        Ok(at) if !whole => return misfit(at, NO_JSON),
        Ok(_) => {}
    }
    let end = entry.line.len();
    let outer = outer.map(|s| ParsedTime { us: s.us, resolution_us: s.resolution_us, is_begin: false });
    let Some(stamp) = stamp.or(outer) else {
        return unreadable.map_or(misfit(end, NO_TIME), |at| misfit(at, UNREADABLE_TIME));
    };
    let has = |role: Role| entry.roles[role as usize] != Span::default();
    let is_request = has(Role::Target) || (is_malformed && entry.status > 0);
    if !is_request {
        return misfit(end, NO_TARGET);
    }
    if !has(Role::Method) && entry.status == 0 {
        return misfit(end, NO_METHOD);
    }
    (entry.time_us, entry.resolution_us) = (stamp.us, stamp.resolution_us);
    if !stamp.is_begin {
        value::begin(entry);
    }
    if memchr::memchr(b'\\', &entry.line).is_some() {
        for span in &mut entry.roles {
            // An unquoted logfmt value begins after `=`, and has no escapes.
            if span.start == 0 || entry.line[span.start as usize - 1] != b'=' {
                value::unescape(&mut entry.line, span);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct ParsedTime {
    us: i64,
    resolution_us: u32,
    is_begin: bool,
}

/// The keys that lead to a value, with points between them.
struct KeyPath {
    bytes: [u8; MOST_PATH_BYTES],
    length: usize,
}

impl KeyPath {
    /// Adds a key; if the path gets too long, it is unknown.
    fn push(&mut self, key: &[u8]) {
        let point = usize::from(self.length > 0);
        let end = self.length + point + key.len();
        if end <= MOST_PATH_BYTES {
            if point == 1 {
                self.bytes[self.length] = b'.';
            }
            self.bytes[self.length + point..end].copy_from_slice(key);
        }
        self.length = end;
    }

    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }
}

fn skip_blanks(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    at + rest.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// Finds the closing quote of a text; `start` is after its opening quote.
pub(super) fn end_of_text(line: &[u8], start: usize) -> Result<usize, usize> {
    let mut at = start;
    loop {
        let rest = line.get(at..).unwrap_or_default();
        at += memchr::memchr2(b'"', b'\\', rest).ok_or(line.len())?;
        if line[at] == b'"' {
            return Ok(at);
        }
        at += 2;
    }
}

/// Passes each value of the object at a position, with the path of its keys (`None` if too long). Returns where the
/// object ends, or the error's position.
fn walk(line: &[u8], at: usize, take: &mut dyn FnMut(Option<&[u8]>, Span)) -> Result<usize, usize> {
    JsonWalker { line, path: KeyPath { bytes: [0; MOST_PATH_BYTES], length: 0 }, take }.value(at, 0)
}

/// Passes the members of an object that are texts or numbers, by their keys.
pub(super) fn members(line: &[u8], mut take: impl FnMut(&[u8], Span)) -> Result<(), usize> {
    let at = skip_blanks(line, 0);
    if line.get(at) != Some(&b'{') {
        return Err(at);
    }
    let end = walk(line, at, &mut |path, span| path.into_iter().for_each(|path| take(path, span)))?;
    if skip_blanks(line, end) == line.len() { Ok(()) } else { Err(end) }
}

struct JsonWalker<'a, 'b> {
    line: &'a [u8],
    path: KeyPath,
    take: &'b mut dyn FnMut(Option<&[u8]>, Span),
}

impl JsonWalker<'_, '_> {
    /// Walks the value at a position. Returns where it ends, or the error's position.
    fn value(&mut self, at: usize, depth: usize) -> Result<usize, usize> {
        if depth > MOST_DEPTH {
            return Err(at);
        }
        match self.line.get(at) {
            Some(b'{') => self.object(at + 1, depth),
            Some(b'[') => self.list(at + 1, depth),
            Some(b'"') if depth > 0 => {
                let end = end_of_text(self.line, at + 1)?;
                (self.take)(self.path.get(), Span::new(at + 1, end));
                Ok(end + 1)
            }
            Some(b) if depth > 0 && (b.is_ascii_alphanumeric() || *b == b'-') => {
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace();
                let length = self.line[at..].iter().position(ends).unwrap_or(self.line.len() - at);
                if &self.line[at..at + length] != b"null" {
                    (self.take)(self.path.get(), Span::new(at, at + length));
                }
                Ok(at + length)
            }
            _ => Err(at),
        }
    }

    fn object(&mut self, at: usize, depth: usize) -> Result<usize, usize> {
        let mut at = skip_blanks(self.line, at);
        if self.line.get(at) == Some(&b'}') {
            return Ok(at + 1);
        }
        loop {
            if self.line.get(at) != Some(&b'"') {
                return Err(at);
            }
            let end = end_of_text(self.line, at + 1)?;
            let outside = self.path.length;
            self.path.push(&self.line[at + 1..end]);
            at = skip_blanks(self.line, end + 1);
            if self.line.get(at) != Some(&b':') {
                return Err(at);
            }
            at = self.value(skip_blanks(self.line, at + 1), depth + 1)?;
            self.path.length = outside;
            at = skip_blanks(self.line, at);
            match self.line.get(at) {
                Some(b',') => at = skip_blanks(self.line, at + 1),
                Some(b'}') => return Ok(at + 1),
                _ => return Err(at),
            }
        }
    }

    fn list(&mut self, at: usize, depth: usize) -> Result<usize, usize> {
        let mut at = skip_blanks(self.line, at);
        if self.line.get(at) == Some(&b']') {
            return Ok(at + 1);
        }
        loop {
            at = self.value(at, depth + 1)?;
            at = skip_blanks(self.line, at);
            match self.line.get(at) {
                Some(b',') => at = skip_blanks(self.line, at + 1),
                Some(b']') => return Ok(at + 1),
                _ => return Err(at),
            }
        }
    }
}

/// A duration whose unit is not known yet: where it is, and whether its key is nginx's.
#[derive(Clone, Copy)]
struct UnitlessDuration {
    value: Span,
    is_nginx_name: bool,
    is_upstream: bool,
}

struct LineValues<'a> {
    known: &'a Json,
    line: &'a [u8],
    entry: &'a mut LogEntry,
    stamp: Option<ParsedTime>,
    writers: u8,
    unclear: Option<UnitlessDuration>,
    /// Position of a time that cannot be parsed.
    unreadable: Option<usize>,
    /// The target is from a key with other meanings too: `path` may be that of a file.
    is_weak: bool,
    /// The line has an invalid request line: the client did not send HTTP.
    is_malformed: bool,
}

impl LineValues<'_> {
    fn scalar(&mut self, path: Option<&[u8]>, span: Span) {
        self.entry.fields.push(span);
        let Some(path) = path else { return };
        self.writers |= speaks_for(path);
        let same = |key: &str| key.as_bytes().eq_ignore_ascii_case(path);
        if let Some((_, ns)) = self.known.units.iter().find(|(key, _)| same(key)) {
            let took = in_units(span.of(self.line), *ns);
            return self.took(path, took);
        }
        if let Some((_, field)) = self.known.keys.iter().find(|(key, _)| same(key)) {
            return self.field(field, path, span, false);
        }
        if let Some((_, field)) = BY_LENGTH.get(path.len()).into_iter().flatten().find(|key| same(key.0)) {
            // The user's keys take precedence over the known ones.
            let said = self.known.keys.iter().any(|(_, known)| known == field);
            if !said {
                self.field(field, path, span, same("path"));
            }
            return;
        }
        if let Some(unit_ns) = duration(path) {
            self.duration(path, span, unit_ns);
        } else if same("service")
            && let Some(us) = with_unit(span.of(self.line))
        {
            // Heroku's router: the time of the backend.
            self.took(path, Some(us));
        }
    }

    fn took(&mut self, path: &[u8], took: Option<u64>) {
        let of_upstream = |part: &[u8]| path.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part));
        let place = if of_upstream(b"upstream") || of_upstream(b"origin") {
            &mut self.entry.upstream_us
        } else {
            &mut self.entry.server_us
        };
        *place = place.or(took);
    }

    fn duration(&mut self, path: &[u8], span: Span, unit_ns: Option<u64>) {
        let text = span.of(self.line);
        if let Some(us) = with_unit(text) {
            return self.took(path, Some(us));
        }
        if let Some(ns) = unit_ns {
            return self.took(path, in_units(text, ns));
        }
        // Zero is zero in every unit, and nginx writes - for none.
        if in_units(text, 1_000_000_000) == Some(0) {
            return self.took(path, Some(0));
        }
        if in_units(text, 1_000_000_000).is_none() {
            return;
        }
        let is_nginx_name = [&b"request_time"[..], b"upstream_response_time"].contains(&path);
        let is_upstream = path.len() > 8 && path[..8].eq_ignore_ascii_case(b"upstream");
        if is_nginx_name && text.contains(&b'.') {
            return self.took(path, in_units(text, 1_000_000_000));
        }
        if self.unclear.is_none() {
            self.unclear = Some(UnitlessDuration { value: span, is_nginx_name, is_upstream });
            self.entry.unitless.clear();
            self.entry.unitless.extend_from_slice(path);
        }
    }

    /// Decides the unit of a duration by the program that wrote the line, if possible.
    fn settle(&mut self) {
        let Some(UnitlessDuration { value, is_nginx_name, is_upstream }) = self.unclear else { return };
        let writes = |writer: u8| self.writers & writer == writer;
        let ns = if is_nginx_name && writes(writer::NGINX) {
            Some(1_000_000_000)
        } else if writes(writer::LOGRAGE) || writes(writer::ENVOY) || writes(writer::PINO) {
            Some(1_000_000)
        } else if writes(writer::CADDY) {
            Some(1_000_000_000)
        } else {
            None
        };
        if let Some(ns) = ns {
            let took = in_units(value.of(self.line), ns);
            let place = if is_upstream { &mut self.entry.upstream_us } else { &mut self.entry.server_us };
            *place = place.or(took);
        }
        if ns.is_some() || (!is_upstream && self.entry.server_us.is_some()) {
            self.entry.unitless.clear();
        }
    }

    fn text(&mut self, role: Role, span: Span) {
        let place = &mut self.entry.roles[role as usize];
        if *place == Span::default() {
            *place = span;
        }
    }

    fn field(&mut self, field: &Field, path: &[u8], span: Span, is_weak: bool) {
        let text = span.of(self.line);
        match field {
            Field::Text(Role::Client) if value::is_client(text) => {
                self.text(Role::Client, value::without_port(self.line, span));
            }
            Field::Text(Role::Client) => {}
            Field::Forwarded => {
                let first = value::first_of_list(self.line, span);
                if value::is_client(first.of(self.line)) {
                    self.text(Role::Client, first);
                }
            }
            Field::Text(Role::Target) => self.target(span, is_weak),
            Field::Text(role) => self.text(*role, span),
            // Logstash's pattern of a combined log puts only the target here.
            Field::RequestLine if !text.contains(&b' ') => {
                if text.first() == Some(&b'/') {
                    self.target(span, false);
                } else {
                    self.is_malformed = true;
                }
            }
            Field::RequestLine => value::request_line(self.line, span, &mut self.entry.roles),
            Field::Status => {
                if let Some(status) = value::number(text).filter(|s| *s < 1000 && self.entry.status == 0) {
                    self.entry.status = status as u16;
                }
            }
            Field::Bytes => self.entry.bytes = self.entry.bytes.or(value::number(text)),
            Field::Time(_) => {
                let is_begin = BEGINNINGS.iter().any(|key| path.eq_ignore_ascii_case(key));
                let better = |w: &ParsedTime| {
                    self.stamp.is_none_or(|s| is_begin || (!s.is_begin && w.resolution_us < s.resolution_us))
                };
                match when(text, is_begin) {
                    Some(when) if better(&when) => self.stamp = Some(when),
                    Some(_) => {}
                    None => self.unreadable = self.unreadable.or(Some(span.start as usize)),
                }
            }
            _ => {}
        }
    }

    fn target(&mut self, span: Span, is_weak: bool) {
        let place = &mut self.entry.roles[Role::Target as usize];
        if *place == Span::default() || (self.is_weak && !is_weak) {
            *place = span;
            self.is_weak = is_weak;
        }
    }
}

/// Parses a time of any form. A number is in seconds, or in a finer unit if it would otherwise be far in the future.
fn when(text: &[u8], is_begin: bool) -> Option<ParsedTime> {
    let whole = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let epoch = match whole {
        0..=11 => TimeForm::Epoch(1_000_000),
        12..=14 => TimeForm::Epoch(1_000),
        15..=17 => TimeForm::Epoch(1),
        // ns: drop the last three digits.
        18..=20 if whole == text.len() => return when(&text[..whole - 3], is_begin),
        _ => return None,
    };
    let stamp = [TimeForm::Iso, TimeForm::Common, epoch].iter().find_map(|form| form.read(text))?;
    Some(ParsedTime { us: stamp.us, resolution_us: stamp.resolution_us, is_begin })
}
