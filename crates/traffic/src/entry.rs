//! One request of a log: the line's own bytes, and where in them what is.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use crate::format::Format;
use crate::time::Stamp;

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

/// What a part of a line says, where it is text.
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

/// One request of a log. Texts are as the client sent them, with the log's escapes undone; what the log does not say, or says as
/// `-`, is None.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    pub(crate) line: Vec<u8>,
    pub(crate) roles: [Span; ROLES],
    /// Each field of the format, in its order.
    pub(crate) fields: Vec<Span>,
    /// Fields that are times, as they were read.
    pub(crate) stamps: Vec<(usize, Stamp)>,
    pub(crate) format: Option<Arc<Format>>,
    /// The key of a duration that is left out, because nothing says its unit.
    pub(crate) unitless: Vec<u8>,
    /// When the request came: µs since 1970 (UTC). Where the log has the time of its end and how long it took, that is taken off.
    pub time_us: i64,
    /// What the log's time is a multiple of, µs: 1,000,000 in most logs.
    pub resolution_us: u32,
    /// 0 where the log has none, or the client was gone.
    pub status: u16,
    /// Bytes of the answer, with or without its head, as the format has it.
    pub bytes: Option<u64>,
    /// How long the server took, by itself.
    pub server_us: Option<u64>,
    /// Of that, the time of the server behind it (of several tries the sum).
    pub upstream_us: Option<u64>,
    /// Of that, the wait for a free place at the server behind it.
    pub queue_us: Option<u64>,
    /// Which of the files, from 0.
    pub file: u32,
    /// Its line there, from 1.
    pub number: u64,
    /// It is older than what had been given out when it was read, by more than the window.
    pub late: bool,
}

impl Entry {
    /// The line, with its escapes undone.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    fn role(&self, role: Role) -> Option<&[u8]> {
        Some(self.roles[role as usize].of(&self.line)).filter(|text| !matches!(*text, b"" | b"-"))
    }

    /// The address that the request came from, as the log has it; a name where the server looked names up.
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

    /// The same without a query that the log has by itself: all that a class needs, and never a copy.
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

    /// Where the answer redirected to.
    #[must_use]
    pub fn location(&self) -> Option<&[u8]> {
        self.role(Role::Location)
    }

    #[must_use]
    pub fn agent(&self) -> Option<&[u8]> {
        self.role(Role::Agent)
    }

    /// A cookie that the client sent: from the whole Cookie header, or from a field that the format has for this one.
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

    /// A field of the format by its place, from 1.
    #[must_use]
    pub fn field(&self, n: usize) -> Option<&[u8]> {
        let span = self.fields.get(n.checked_sub(1)?)?;
        Some(span.of(&self.line)).filter(|text| !matches!(*text, b"" | b"-"))
    }

    /// What comes behind a text, wherever in the line that is.
    #[must_use]
    pub fn behind(&self, text: &[u8]) -> Option<&[u8]> {
        memchr::memmem::find(&self.line, text).map(|at| &self.line[at + text.len()..])
    }

    /// What a session is known by.
    #[must_use]
    pub fn key(&self, key: &Key) -> Option<&[u8]> {
        match key {
            Key::Address => self.client(),
            Key::Cookie(name) => self.cookie(name),
            Key::Field(n) => self.field(*n),
        }
    }

    /// The time is a multiple of this, or of what is known already where that is finer.
    pub(crate) fn note_resolution(&mut self, resolution_us: u32) {
        if self.resolution_us == 0 || resolution_us < self.resolution_us {
            self.resolution_us = resolution_us;
        }
    }

    /// Forgets everything but the memory that it has.
    pub(crate) fn reset(&mut self) {
        let line = std::mem::take(&mut self.line);
        let fields = std::mem::take(&mut self.fields);
        let stamps = std::mem::take(&mut self.stamps);
        let format = self.format.take();
        let unitless = std::mem::take(&mut self.unitless);
        *self = Entry { line, fields, stamps, format, unitless, ..Entry::default() };
        self.unitless.clear();
        self.line.clear();
        self.fields.clear();
        self.stamps.clear();
    }

    /// Bytes of memory that it holds on to.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Entry>()
            + self.line.capacity()
            + self.unitless.capacity()
            + self.fields.capacity() * size_of::<Span>()
            + self.stamps.capacity() * size_of::<(usize, Stamp)>()
    }
}

/// What makes requests those of one user: `address`, `cookie:NAME`, `field:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Address,
    Cookie(String),
    /// From 1.
    Field(usize),
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        let wrong = || format!("'{text}' tells no users apart; write address, cookie:NAME or field:N");
        match text.split_once(':') {
            None if text == "address" => Ok(Key::Address),
            Some(("cookie", name)) if !name.is_empty() => Ok(Key::Cookie(name.into())),
            Some(("field", n)) => n.parse().ok().filter(|n| *n > 0).map(Key::Field).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}
