//! One request of a log: the line's bytes, and where in them each value is.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use crate::format::Format;
use crate::time::Timestamp;

/// A part of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Lines are shorter than 4 GB (see `lines::MOST_LINE_BYTES`).
    #[must_use]
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    #[must_use]
    pub fn of(self, line: &[u8]) -> &[u8] {
        line.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The meaning of a text in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Role {
    Client,
    User,
    Method,
    Target,
    Query,
    Protocol,
    Host,
    Referer,
    Agent,
    /// The whole Cookie header.
    Cookies,
    /// The Location field of the answer.
    Location,
}

pub const ROLES: usize = 11;

/// One request of a log. Texts are as the client sent them, with the log's escapes decoded. Values that the log lacks,
/// or writes as `-`, are `None`.
#[derive(Debug, Clone, Default)]
pub struct LogEntry {
    pub(crate) line: Vec<u8>,
    pub(crate) roles: [Span; ROLES],
    /// The fields of the format, in order.
    pub(crate) fields: Vec<Span>,
    /// Fields that are times, as parsed.
    pub(crate) stamps: Vec<(usize, Timestamp)>,
    pub(crate) format: Option<Arc<Format>>,
    /// The key of a duration that was ignored because its unit is unknown.
    pub(crate) unitless: Vec<u8>,
    /// When the request arrived: µs since 1970 (UTC). If the log has the time of its end and its duration, the duration
    /// is subtracted.
    pub time_us: i64,
    /// Resolution of the log's time in µs: 1,000,000 in most logs.
    pub resolution_us: u32,
    /// 0 if the log has none, or the client was gone.
    pub status: u16,
    /// Bytes of the answer; the format decides whether with its head.
    pub bytes: Option<u64>,
    /// The server's own time for the request.
    pub server_us: Option<u64>,
    /// The part of it that a backend took (of several tries the sum).
    pub upstream_us: Option<u64>,
    /// The part of it that the request waited for a free slot at the backend.
    pub queue_us: Option<u64>,
    /// Index of the file, from 0.
    pub file: u32,
    /// Its line in the file, from 1.
    pub number: u64,
    /// When it was read, later requests had already been returned: it is out of order by more than the window.
    pub late: bool,
}

impl LogEntry {
    /// The line, with its escapes decoded.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    fn role(&self, role: Role) -> Option<&[u8]> {
        Some(self.roles[role as usize].of(&self.line)).filter(|text| !matches!(*text, b"" | b"-"))
    }

    /// The client's address in the log; a name if the server resolved it.
    #[must_use]
    pub fn client(&self) -> Option<&[u8]> {
        self.role(Role::Client)
    }

    #[must_use]
    pub fn user(&self) -> Option<&[u8]> {
        self.role(Role::User)
    }

    #[must_use]
    pub fn method(&self) -> Option<&[u8]> {
        self.role(Role::Method)
    }

    /// Path and query, or a whole URL, as the client sent it: any bytes.
    #[must_use]
    pub fn target(&self) -> Option<Cow<'_, [u8]>> {
        let target = self.role(Role::Target)?;
        match self.role(Role::Query) {
            Some(query) if !target.contains(&b'?') => {
                let mut whole = target.to_vec();
                if !query.starts_with(b"?") {
                    whole.push(b'?');
                }
                whole.extend_from_slice(query);
                Some(whole.into())
            }
            _ => Some(target.into()),
        }
    }

    /// The target without a query that the log has in a separate field: all that a class needs, without a copy.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        self.role(Role::Target)
    }

    pub(crate) fn query(&self) -> Option<&[u8]> {
        self.role(Role::Query)
    }

    /// `HTTP/1.1`
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.role(Role::Protocol)
    }

    #[must_use]
    pub fn host(&self) -> Option<&[u8]> {
        self.role(Role::Host)
    }

    #[must_use]
    pub fn referer(&self) -> Option<&[u8]> {
        self.role(Role::Referer)
    }

    /// The target of the answer's redirect.
    #[must_use]
    pub fn location(&self) -> Option<&[u8]> {
        self.role(Role::Location)
    }

    #[must_use]
    pub fn agent(&self) -> Option<&[u8]> {
        self.role(Role::Agent)
    }

    /// A cookie that the client sent: from the whole Cookie header, or from the format's field for it.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        if let Some(cookies) = self.role(Role::Cookies) {
            let of = |pair: &'_ [u8]| pair.iter().position(|b| *b == b'=').filter(|at| &pair[..*at] == name.as_bytes());
            let pairs = cookies.split(|b| *b == b';').map(<[u8]>::trim_ascii);
            return pairs.filter_map(|pair| of(pair).map(|at| &pair[at + 1..])).find(|value| !value.is_empty());
        }
        let at = self.format.as_ref()?.cookie_field(name)?;
        self.field(at + 1)
    }

    /// A field of the format by its number, from 1.
    #[must_use]
    pub fn field(&self, n: usize) -> Option<&[u8]> {
        let span = self.fields.get(n.checked_sub(1)?)?;
        Some(span.of(&self.line)).filter(|text| !matches!(*text, b"" | b"-"))
    }

    /// The rest of the line after a text, wherever that is.
    #[must_use]
    pub fn behind(&self, text: &[u8]) -> Option<&[u8]> {
        memchr::memmem::find(&self.line, text).map(|at| &self.line[at + text.len()..])
    }

    /// The value that identifies a session.
    #[must_use]
    pub fn key(&self, key: &SessionKey) -> Option<&[u8]> {
        match key {
            SessionKey::Address => self.client(),
            SessionKey::Cookie(name) => self.cookie(name),
            SessionKey::Field(n) => self.field(*n),
        }
    }

    /// Notes the resolution of a time; the finer of several counts.
    pub(crate) fn note_resolution(&mut self, resolution_us: u32) {
        if self.resolution_us == 0 || resolution_us < self.resolution_us {
            self.resolution_us = resolution_us;
        }
    }

    /// Clears the entry but keeps its memory.
    pub(crate) fn reset(&mut self) {
        let line = std::mem::take(&mut self.line);
        let fields = std::mem::take(&mut self.fields);
        let stamps = std::mem::take(&mut self.stamps);
        let format = self.format.take();
        let unitless = std::mem::take(&mut self.unitless);
        *self = LogEntry { line, fields, stamps, format, unitless, ..LogEntry::default() };
        self.unitless.clear();
        self.line.clear();
        self.fields.clear();
        self.stamps.clear();
    }

    /// Bytes of memory in use.
    pub(crate) fn weight(&self) -> usize {
        size_of::<LogEntry>()
            + self.line.capacity()
            + self.unitless.capacity()
            + self.fields.capacity() * size_of::<Span>()
            + self.stamps.capacity() * size_of::<(usize, Timestamp)>()
    }
}

/// What identifies a user's requests: `address`, `cookie:NAME`, `field:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKey {
    Address,
    Cookie(String),
    /// From 1.
    Field(usize),
}

impl FromStr for SessionKey {
    type Err = String;

    fn from_str(text: &str) -> Result<SessionKey, String> {
        let wrong = || format!("'{text}' tells no users apart; write address, cookie:NAME or field:N");
        match text.split_once(':') {
            None if text == "address" => Ok(SessionKey::Address),
            Some(("cookie", name)) if !name.is_empty() => Ok(SessionKey::Cookie(name.into())),
            Some(("field", n)) => n.parse().ok().filter(|n| *n > 0).map(SessionKey::Field).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}
