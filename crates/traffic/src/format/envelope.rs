//! Prefixes and wrappers of log lines that another program has passed on: syslog, a container's log, a prefix on a
//! terminal. The log's own line begins after it.

use crate::entry::{LogEntry, Span};
use crate::format::value;
use crate::time::{TimeForm, Timestamp};

/// What lines are wrapped in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// RFC 3164 and 5424, as sent and as rsyslog and journald write it: `<134>May 13 10:00:00 web1 nginx[7]: `.
    Syslog,
    /// Kubernetes' container runtimes: `2026-05-13T10:00:00.1Z stdout F `.
    Cri,
    /// An object with the line in one text: `{"log":"…","stream":"stdout","time":"…"}` of Docker, `MESSAGE` of
    /// journald, `message` of log shippers.
    Json,
    /// `web-1  | ` of docker compose.
    Compose,
    /// `[pod/web-7/nginx] ` of kubectl.
    Pod,
    /// A time: `docker logs -t`.
    Stamped,
    /// Ruby's logger: `I, [2026-05-13T10:00:00.1 #7]  INFO -- : `.
    Ruby,
}

/// Keys of the text that holds the line.
const MESSAGES: [&[u8]; 3] = [b"log", b"MESSAGE", b"message"];

impl Envelope {
    pub(crate) const ALL: [Envelope; 7] = [
        Envelope::Syslog,
        Envelope::Cri,
        Envelope::Json,
        Envelope::Compose,
        Envelope::Pod,
        Envelope::Ruby,
        Envelope::Stamped,
    ];

    /// The text after a format's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Envelope::Syslog => "behind syslog's head",
            Envelope::Cri => "behind a container's time",
            Envelope::Json => "inside JSON",
            Envelope::Compose => "behind docker compose's name",
            Envelope::Pod => "behind a pod's name",
            Envelope::Stamped => "behind a time",
            Envelope::Ruby => "behind Ruby's logger",
        }
    }

    /// Describes, for people, what a line has to begin with.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Envelope::Syslog => "syslog's head (time, host, program)",
            Envelope::Cri => "a time, stdout or stderr, and F",
            Envelope::Json => "a JSON object with a log, MESSAGE or message",
            Envelope::Compose => "a container's name and |",
            Envelope::Pod => "a pod's name in brackets",
            Envelope::Stamped => "a time",
            Envelope::Ruby => "a letter, a time and a process in brackets",
        }
    }

    /// Finds where the log's own line begins in the entry's line; a wrapped line replaces it. Also returns the
    /// envelope's own time, if that has a date.
    ///
    /// # Errors
    /// The position where the envelope does not match.
    pub(crate) fn open(self, entry: &mut LogEntry) -> Result<(usize, Option<Timestamp>), usize> {
        let line = entry.line.as_slice();
        match self {
            Envelope::Syslog => syslog(line),
            Envelope::Cri => cri(line),
            Envelope::Compose => compose(line).map(|at| (at, None)),
            Envelope::Pod => pod(line).map(|at| (at, None)),
            Envelope::Stamped => stamped(line),
            Envelope::Ruby => ruby(line),
            Envelope::Json => {
                let (mut span, stamp) = json(line)?;
                value::unescape(&mut entry.line, &mut span);
                entry.line.truncate(span.end as usize);
                entry.line.drain(..span.start as usize);
                while entry.line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
                    entry.line.pop();
                }
                Ok((0, stamp))
            }
        }
    }
}

/// Skips blanks.
fn past_blanks(line: &[u8], at: usize) -> usize {
    at + line.get(at..).unwrap_or_default().iter().take_while(|b| **b == b' ').count()
}

/// Reads the word at a position, which a blank has to follow; returns where the next begins.
fn word(line: &[u8], at: usize) -> Result<(&[u8], usize), usize> {
    let rest = line.get(at..).ok_or(at)?;
    let length = memchr::memchr(b' ', rest).filter(|n| *n > 0).ok_or(at)?;
    Ok((&rest[..length], at + length + 1))
}

/// Reads a time of ISO 8601 with its zone; returns where it ends.
fn iso(line: &[u8], at: usize) -> Result<(Timestamp, usize), usize> {
    let stamp = line.get(at..).and_then(|text| TimeForm::Iso.read(text)).ok_or(at)?;
    Ok((stamp, at + stamp.length))
}

fn blank(line: &[u8], at: usize) -> Result<usize, usize> {
    if line.get(at) == Some(&b' ') { Ok(at + 1) } else { Err(at) }
}

fn syslog(line: &[u8]) -> Result<(usize, Option<Timestamp>), usize> {
    let mut at = 0;
    if line.first() == Some(&b'<') {
        let end = line.iter().take(6).position(|b| *b == b'>').ok_or(0usize)?;
        value::number(&line[1..end]).ok_or(1usize)?;
        at = end + 1;
        if line.get(at) == Some(&b'1') && line.get(at + 1) == Some(&b' ') {
            return rfc5424(line, at + 2);
        }
    }
    let stamp = match iso(line, at) {
        Ok((stamp, end)) => {
            at = end;
            Some(stamp)
        }
        Err(_) => {
            at = month_and_time(line, at)?;
            None
        }
    };
    at = past_blanks(line, blank(line, at)?);
    // `web1 nginx[7]: ` or, without a host, `nginx: `.
    for _ in 0..2 {
        let (word, next) = word(line, at)?;
        if let Some(tag) = word.strip_suffix(b":") {
            let is_tag = |b: &u8| b.is_ascii_graphic() && !b"\",:{}".contains(b);
            return if !tag.is_empty() && tag.iter().all(is_tag) {
                Ok((past_blanks(line, next), stamp))
            } else {
                Err(at)
            };
        }
        at = past_blanks(line, next);
    }
    Err(at)
}

/// Reads `May  3 10:00:00`, perhaps after `Wed `, with a fraction or a year after it.
fn month_and_time(line: &[u8], at: usize) -> Result<usize, usize> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];
    let (mut month, mut next) = word(line, at)?;
    if DAYS.contains(&month) {
        (month, next) = word(line, next)?;
    }
    if !MONTHS.contains(&month) {
        return Err(at);
    }
    let (day, next) = word(line, past_blanks(line, next))?;
    value::number(day).filter(|n| (1..=31).contains(n)).ok_or(at)?;
    let rest = line.get(next..).ok_or(next)?;
    let is_clock = |b: &u8| b.is_ascii_digit() || *b == b':' || *b == b'.';
    let length = rest.iter().take_while(|b| is_clock(b)).count();
    if length < 8 || rest[2] != b':' || rest[5] != b':' {
        return Err(next);
    }
    Ok(next + length)
}

/// TIME HOST APP PROCID MSGID and structured data: `-`, or elements in brackets.
fn rfc5424(line: &[u8], at: usize) -> Result<(usize, Option<Timestamp>), usize> {
    let (time, mut at) = word(line, at)?;
    let stamp = TimeForm::Iso.read(time);
    for _ in 0..4 {
        at = word(line, at)?.1;
    }
    if line.get(at) == Some(&b'-') {
        at += 1;
    }
    while line.get(at) == Some(&b'[') {
        let mut in_quotes = false;
        let mut escaped = false;
        let end = line[at..].iter().position(|b| {
            let ends = !in_quotes && *b == b']';
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_quotes = !in_quotes,
                _ => {}
            }
            ends
        });
        at += end.ok_or(at)? + 1;
    }
    at = past_blanks(line, blank(line, at)?);
    let bom = line[at..].starts_with("\u{feff}".as_bytes());
    Ok((if bom { at + 3 } else { at }, stamp))
}

fn cri(line: &[u8]) -> Result<(usize, Option<Timestamp>), usize> {
    let (stamp, at) = iso(line, 0)?;
    let at = blank(line, at)?;
    let (stream, next) = word(line, at)?;
    if !matches!(stream, b"stdout" | b"stderr") {
        return Err(at);
    }
    // P marks a part of a longer line.
    let (tag, end) = word(line, next)?;
    if tag == b"F" { Ok((end, Some(stamp))) } else { Err(next) }
}

fn compose(line: &[u8]) -> Result<usize, usize> {
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"-_.@".contains(b);
    let name = line.iter().take_while(|b| is_name(b)).count();
    let bar = past_blanks(line, name);
    if name == 0 || bar == name || line.get(bar) != Some(&b'|') {
        return Err(name);
    }
    blank(line, bar + 1)
}

fn pod(line: &[u8]) -> Result<usize, usize> {
    if !line.starts_with(b"[pod/") {
        return Err(0);
    }
    let end = memchr::memchr(b']', line).ok_or(0usize)?;
    blank(line, end + 1)
}

fn stamped(line: &[u8]) -> Result<(usize, Option<Timestamp>), usize> {
    let (stamp, at) = iso(line, 0)?;
    Ok((past_blanks(line, blank(line, at)?), Some(stamp)))
}

fn ruby(line: &[u8]) -> Result<(usize, Option<Timestamp>), usize> {
    let head = line.get(..4).ok_or(0usize)?;
    if !head[0].is_ascii_uppercase() || &head[1..] != b", [" {
        return Err(0);
    }
    let (stamp, _) = iso(line, 4)?;
    let end = memchr::memmem::find(line, b" -- ").ok_or(4usize)?;
    let colon = memchr::memmem::find(&line[end..], b": ").ok_or(end)?;
    Ok((end + colon + 2, Some(stamp)))
}

/// Returns the text of the object that is the line, and the object's time.
fn json(line: &[u8]) -> Result<(Span, Option<Timestamp>), usize> {
    let mut message = None;
    let mut stamp = None;
    super::json::members(line, |key, value| {
        if MESSAGES.contains(&key) && line.get((value.start as usize).wrapping_sub(1)) == Some(&b'"') {
            message = message.or(Some(value));
        } else if matches!(key, b"time" | b"@timestamp" | b"timestamp") {
            stamp = stamp.or_else(|| TimeForm::Iso.read(value.of(line)));
        }
    })?;
    message.map(|message| (message, stamp)).ok_or(line.len())
}
