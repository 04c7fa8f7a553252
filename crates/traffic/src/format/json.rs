//! JSON lines: an object a line, of which the keys that servers and proxies use are known (nginx's variables, Apache, Caddy,
//! Traefik, Elastic's names). `request.uri` is `uri` inside of `request`; of a list the first value counts.

use std::sync::LazyLock;

use super::pattern::{Field, Misfit, Took};
use super::value;
use crate::entry::{Entry, Role, Span};
use crate::time::TimeForm;

/// Deeper is only skipped.
const MOST_DEPTH: usize = 32;
/// Longer paths of keys name nothing that is known.
const MOST_PATH_BYTES: usize = 96;

/// Keys, and what they say. Of several that say the same the first in a line counts, of times the finest.
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
    ("request_time", Field::Took(Took::Server, 1_000_000)),
    ("duration_s", Field::Took(Took::Server, 1_000_000)),
    ("duration_ms", Field::Took(Took::Server, 1_000)),
    ("latency_ms", Field::Took(Took::Server, 1_000)),
    ("response_time_ms", Field::Took(Took::Server, 1_000)),
    ("elapsed_ms", Field::Took(Took::Server, 1_000)),
    ("duration_us", Field::Took(Took::Server, 1)),
    ("time_us", Field::Took(Took::Server, 1)),
    ("upstream_response_time", Field::Took(Took::Upstream, 1_000_000)),
    // Of Caddy in seconds; Traefik's and Elastic's own are told apart below.
    ("duration", Field::Took(Took::Server, 1_000_000)),
    ("originduration", Field::Took(Took::Upstream, 1)),
    ("event.duration", Field::Took(Took::Server, 1)),
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

/// A line has a dozen keys, and most are of a length that few of ours have.
static BY_LENGTH: LazyLock<Vec<Vec<&(&str, Field)>>> = LazyLock::new(|| {
    let of = |length| KEYS.iter().filter(|key| key.0.len() == length).collect();
    (0..=MOST_PATH_BYTES).map(of).collect()
});

/// Times of these keys are counted in ns.
const IN_NANOSECONDS: [&str; 3] = ["Duration", "OriginDuration", "event.duration"];

/// Finds the fields of the line that the entry has.
pub(super) fn read(entry: &mut Entry) -> Result<(), Misfit> {
    let line = std::mem::take(&mut entry.line);
    entry.fields.clear();
    let mut found = Found { line: &line, entry, path: Path::default(), stamp: None };
    let at = found.value(skip_blanks(&line, 0), 0);
    let stamp = found.stamp;
    let whole = at.map(|at| skip_blanks(&line, at)) == Ok(line.len());
    entry.line = line;
    let misfit = |at| Misfit { at, field: 0 };
    match at {
        Err(at) => return Err(misfit(at)),
        Ok(at) if !whole => return Err(misfit(at)),
        Ok(_) => {}
    }
    let Some(stamp) = stamp else { return Err(misfit(entry.line.len())) };
    if entry.roles[Role::Target as usize] == Span::default() {
        return Err(misfit(entry.line.len()));
    }
    (entry.time_us, entry.resolution_us) = (stamp.us, stamp.resolution_us);
    if !stamp.is_begin {
        value::begin(entry);
    }
    if memchr::memchr(b'\\', &entry.line).is_some() {
        for span in &mut entry.roles {
            value::unescape(&mut entry.line, span);
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct When {
    us: i64,
    resolution_us: u32,
    is_begin: bool,
}

/// The keys that lead to a value, with points between them.
struct Path {
    bytes: [u8; MOST_PATH_BYTES],
    length: usize,
}

impl Default for Path {
    fn default() -> Path {
        Path { bytes: [0; MOST_PATH_BYTES], length: 0 }
    }
}

impl Path {
    /// Adds a key; where it is too long, all of the path is one that nobody knows.
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

struct Found<'a> {
    line: &'a [u8],
    entry: &'a mut Entry,
    path: Path,
    stamp: Option<When>,
}

fn skip_blanks(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    at + rest.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// The end of the text that begins behind a quote: where its closing quote is.
fn end_of_text(line: &[u8], start: usize) -> Result<usize, usize> {
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

impl Found<'_> {
    /// Goes through the value that begins at a place; where it ends, or where it is none.
    fn value(&mut self, at: usize, depth: usize) -> Result<usize, usize> {
        if depth > MOST_DEPTH {
            return Err(at);
        }
        match self.line.get(at) {
            Some(b'{') => self.object(at + 1, depth),
            Some(b'[') => self.list(at + 1, depth),
            Some(b'"') if depth > 0 => {
                let end = end_of_text(self.line, at + 1)?;
                self.scalar(Span::new(at + 1, end));
                Ok(end + 1)
            }
            Some(b) if depth > 0 && (b.is_ascii_alphanumeric() || *b == b'-') => {
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace();
                let length = self.line[at..].iter().position(ends).unwrap_or(self.line.len() - at);
                if &self.line[at..at + length] != b"null" {
                    self.scalar(Span::new(at, at + length));
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

    fn scalar(&mut self, span: Span) {
        self.entry.fields.push(span);
        let Some(path) = self.path.get() else { return };
        let same = |key: &&&(&str, Field)| key.0.as_bytes().eq_ignore_ascii_case(path);
        let Some((_, field)) = BY_LENGTH[path.len()].iter().find(same) else { return };
        let text = span.of(self.line);
        match field {
            Field::Text(role) => {
                let place = &mut self.entry.roles[*role as usize];
                if *place == Span::default() {
                    *place = span;
                }
            }
            Field::RequestLine => value::request_line(self.line, span, &mut self.entry.roles),
            Field::Status => {
                if let Some(status) = value::number(text).filter(|s| *s < 1000 && self.entry.status == 0) {
                    self.entry.status = status as u16;
                }
            }
            Field::Bytes => self.entry.bytes = self.entry.bytes.or(value::number(text)),
            Field::Took(what, unit_us) => {
                let in_ns = IN_NANOSECONDS.iter().any(|key| key.as_bytes() == path);
                let took = if in_ns { value::times(text, 1).map(|ns| ns / 1000) } else { value::times(text, *unit_us) };
                let place = match what {
                    Took::Server => &mut self.entry.server_us,
                    Took::Upstream => &mut self.entry.upstream_us,
                    Took::Queue => &mut self.entry.queue_us,
                };
                *place = place.or(took);
            }
            Field::Time(_) => {
                let is_begin = path.eq_ignore_ascii_case(b"startutc");
                let better = |w: &When| {
                    self.stamp.is_none_or(|s| is_begin || (!s.is_begin && w.resolution_us < s.resolution_us))
                };
                if let Some(when) = when(text, is_begin).filter(better) {
                    self.stamp = Some(when);
                }
            }
            Field::Other | Field::Digits => {}
        }
    }
}

/// A time of any form. A number is in seconds, or of a finer unit where it would lie in a far future.
fn when(text: &[u8], is_begin: bool) -> Option<When> {
    let whole = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let epoch = match whole {
        0..=11 => TimeForm::Epoch(1_000_000),
        12..=14 => TimeForm::Epoch(1_000),
        15..=17 => TimeForm::Epoch(1),
        // ns: the last three digits are none of ours.
        18..=20 if whole == text.len() => return when(&text[..whole - 3], is_begin),
        _ => return None,
    };
    let stamp = [TimeForm::Iso, TimeForm::Common, epoch].iter().find_map(|form| form.read(text))?;
    Some(When { us: stamp.us, resolution_us: stamp.resolution_us, is_begin })
}
