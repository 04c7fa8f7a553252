//! Formats of fields with text between them: LogFormat, log_format, HAProxy's.
//!
//! A line matches a format whole, or it is rejected with the first position that does not match. Each field has a type,
//! and a value of another type ends the reading. Without that, a line of another format would be read with its fields
//! shifted.
//!
//! A field ends where the text after it begins; in quotes, at a quote that the log did not escape. If the rest does not
//! match then (servers of the nineties escaped nothing), later ends are tried. The number of tries is bounded, so that
//! no line takes long. Only a value that may contain the separator is extended: text in quotes, a list (`0.010,
//! 0.036`), a request line, or a header before a field whose type differs from any word.

use crate::entry::{LogEntry, Role, Span};
use crate::format::value;
use crate::time::{PartialTime, TimeForm};

/// The meaning of a format's field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A word that is not used here; it may still identify users.
    Other,
    /// Like `Other`, with blanks: a header, a cookie.
    Free,
    /// An unused whole number.
    Digits,
    /// An unused duration of HAProxy: whole, `-1` or `+3002`.
    Elapsed,
    /// nginx's list of whole numbers, one per upstream server: `0, 1173`.
    Numbers,
    /// Such a list of statuses.
    Statuses,
    /// Such a list of addresses.
    Peers,
    /// HAProxy's captured headers, `{a|b}`, which are absent if none is captured.
    Captured,
    Text(Role),
    /// The name of a host, not an address.
    HostName,
    /// The identd name, nearly always `-`.
    Ident,
    /// X-Forwarded-For: a list of addresses. The first is the client if the format has no other.
    Forwarded,
    /// `GET /path HTTP/1.1`
    RequestLine,
    Status,
    Bytes,
    Time(TimeForm),
    /// A duration, in units of this many µs.
    Took(DurationKind, u32, Notation),
}

/// How a duration is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// A whole number; HAProxy also writes `-1` (none) and `+3002` (not over yet).
    Whole,
    /// A number, with or without decimals.
    Any,
    /// nginx's seconds, which always have decimals, one per upstream server: `0.010, 0.036 : -`.
    List,
}

/// What a duration measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationKind {
    Server,
    Upstream,
    Queue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The text before the field.
    pub before: Vec<u8>,
    pub field: Field,
    /// Its name in the format.
    pub name: String,
}

/// Fields with text between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub pieces: Vec<Piece>,
    /// The text after the last field.
    pub tail: Vec<u8>,
    /// More text may follow, and is ignored.
    pub open: bool,
    /// The time is that of the end of a request, not of its beginning.
    pub stamped_at_end: bool,
}

/// Most ends of fields to try for one line.
const MOST_ATTEMPTS: u32 = 300;

/// Where a line stopped matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub at: usize,
    /// The index of the field that did not match; the number of fields for the tail.
    pub field: usize,
}

/// The state of reading a line.
struct LineMatch<'a> {
    line: &'a [u8],
    entry: &'a mut LogEntry,
    attempts: u32,
    misfit: Mismatch,
}

impl Pattern {
    /// # Errors
    /// Two fields have nothing between them, or the format has no time or no request.
    pub(crate) fn check(&self) -> Result<(), String> {
        for pair in self.pieces.windows(2) {
            if pair[1].before.is_empty() && !matches!(pair[0].field, Field::Time(_)) {
                return Err(format!("nothing stands between {} and {}", pair[0].name, pair[1].name));
            }
        }
        let has = |want: fn(&Field) -> bool| self.pieces.iter().any(|p| want(&p.field));
        if !has(|f| matches!(f, Field::Time(form) if !matches!(form, TimeForm::Fraction(_)))) {
            return Err("it has no time (%t, $time_local, $time_iso8601 or $msec)".into());
        }
        let forms = self.pieces.iter().filter_map(|p| match &p.field {
            Field::Time(form) => Some(form),
            _ => None,
        });
        if let Some(missing) = TimeForm::missing(forms) {
            return Err(format!("its time has no {missing}"));
        }
        if !has(|f| matches!(f, Field::RequestLine | Field::Text(Role::Target))) {
            return Err("it has no request (%r, %U, $request or $uri)".into());
        }
        Ok(())
    }

    /// Finds the fields in the entry's line, from a position on.
    pub(crate) fn read(&self, entry: &mut LogEntry, at: usize) -> Result<(), Mismatch> {
        let line = std::mem::take(&mut entry.line);
        entry.fields.clear();
        entry.stamps.clear();
        entry.fields.resize(self.pieces.len(), Span::default());
        let mut reading = LineMatch { line: &line, entry, attempts: MOST_ATTEMPTS, misfit: Mismatch { at, field: 0 } };
        let fits = self.from(0, at, &mut reading);
        let misfit = reading.misfit;
        entry.line = line;
        if !fits {
            return Err(misfit);
        }
        // All values are final now, and none is from a failed attempt.
        self.take(entry).map_err(|field| Mismatch { at: entry.fields[field].start as usize, field })
    }

    /// Whether the rest of the line, from a position on, matches the rest of the pieces.
    fn from(&self, index: usize, at: usize, r: &mut LineMatch) -> bool {
        let line = r.line;
        if at > r.misfit.at {
            r.misfit = Mismatch { at, field: index };
        }
        let Some(piece) = self.pieces.get(index) else {
            let rest = &line[at..];
            let ends = |rest: &[u8]| rest.is_empty() || (self.open && rest[0] == b' ');
            return begins(rest, &self.tail) && ends(&rest[self.tail.len()..]);
        };
        if piece.field == Field::Captured {
            return self.captured(index, at, r);
        }
        if !begins(&line[at..], &piece.before) {
            return false;
        }
        let start = at + piece.before.len();
        // Blanks that pad a value to a width, as Squid's, do not belong to it.
        let padding = match piece.before.last() {
            Some(b' ') => line[start..].iter().take_while(|b| **b == b' ').count(),
            _ => 0,
        };
        if self.value(index, start + padding, r) {
            return true;
        }
        // Or the value is empty: nginx writes empty variables so.
        padding > 0 && r.attempts > 0 && self.value(index, start, r)
    }

    /// Like `from`, from where the value of a piece begins.
    fn value(&self, index: usize, start: usize, r: &mut LineMatch) -> bool {
        let piece = &self.pieces[index];
        let text = &r.line[start..];
        if let Field::Time(form) = &piece.field {
            let Some(mut stamp) = form.read(text) else { return false };
            if self.has_fraction_after(index) {
                stamp.length = memchr::memchr(b'.', &text[..stamp.length]).unwrap_or(stamp.length);
            }
            r.entry.fields[index] = Span::new(start, start + stamp.length);
            // Discard the stamps of earlier attempts from here on.
            r.entry.stamps.retain(|(place, _)| *place < index);
            if !self.has_fraction_after(index) {
                r.entry.stamps.push((index, stamp));
            }
            return self.from(index + 1, start + stamp.length, r);
        }
        let after = self.after(index, text);
        let quoted = piece.before.last() == Some(&b'"') && after.first() == Some(&b'"');
        let separator = (!quoted).then(|| after.first().or(piece.before.last()).copied()).flatten();
        let mut from = 0;
        loop {
            let found = if after.is_empty() {
                let end = if self.open { memchr::memchr(b' ', text) } else { None };
                Some(end.unwrap_or(text.len()))
            } else if quoted {
                closing_quote(text, from)
            } else {
                next(text, from, after)
            };
            let Some(length) = found else { return false };
            if piece.field.may_be(&text[..length], separator) {
                r.entry.fields[index] = Span::new(start, start + length);
                if self.from(index + 1, start + length, r) {
                    return true;
                }
            }
            if after.is_empty() || r.attempts == 0 || !(quoted || self.may_be_longer(index)) {
                return false;
            }
            r.attempts -= 1;
            from = length + 1;
        }
    }

    /// The text between a piece's field and the next one present in the text.
    fn after(&self, index: usize, text: &[u8]) -> &[u8] {
        let is_there = |p: &&Piece| p.field != Field::Captured || next(text, 0, &p.before).is_some();
        self.pieces[index + 1..].iter().find(is_there).map_or(&self.tail, |next| &next.before)
    }

    /// Matches headers that HAProxy captured, or nothing at all.
    fn captured(&self, index: usize, at: usize, r: &mut LineMatch) -> bool {
        let piece = &self.pieces[index];
        let start = at + piece.before.len();
        if begins(&r.line[at..], &piece.before)
            && r.line.get(start) == Some(&b'{')
            && let Some(length) = memchr::memchr(b'}', &r.line[start..])
        {
            r.entry.fields[index] = Span::new(start, start + length + 1);
            if self.from(index + 1, start + length + 1, r) {
                return true;
            }
        }
        r.entry.fields[index] = Span::default();
        self.from(index + 1, at, r)
    }

    /// Whether an unquoted value may contain the text that follows it.
    fn may_be_longer(&self, index: usize) -> bool {
        match &self.pieces[index].field {
            Field::Numbers | Field::Statuses | Field::Peers | Field::Forwarded | Field::RequestLine => true,
            Field::Took(_, _, notation) => *notation == Notation::List,
            // The address of `$remote_addr:$remote_port`.
            Field::Text(Role::Client) => {
                self.pieces.get(index + 1).is_some_and(|next| next.before.first() == Some(&b':'))
            }
            Field::Text(Role::User) => true,
            Field::Text(Role::Host) => {
                self.pieces.get(index + 1).is_some_and(|next| next.before.first() == Some(&b':'))
            }
            Field::Free
            | Field::Text(Role::Target | Role::Query | Role::Referer | Role::Agent | Role::Cookies | Role::Location) => {
                self.pieces.get(index + 1).is_none_or(|next| next.field.is_told_from_words())
            }
            _ => false,
        }
    }

    /// Whether the fraction of a second after a time is a separate field.
    fn has_fraction_after(&self, index: usize) -> bool {
        let next = self.pieces.get(index + 1);
        next.is_some_and(|p| p.before == b"." && matches!(p.field, Field::Time(TimeForm::Fraction(_))))
    }

    /// Stores the values of the fields; the error is the index of a field with an impossible value.
    fn take(&self, entry: &mut LogEntry) -> Result<(), usize> {
        if memchr::memchr(b'\\', &entry.line).is_some() {
            for span in &mut entry.fields {
                value::unescape(&mut entry.line, span);
            }
        }
        let (mut us, mut part_us) = (None, 0);
        // A time split over several fields, and the index of the last of them.
        let mut moment: Option<(PartialTime, usize)> = None;
        let in_pieces =
            self.pieces.iter().filter(|p| matches!(p.field, Field::Time(TimeForm::Strftime(_)))).count() > 1;
        for (index, piece) in self.pieces.iter().enumerate() {
            let span = entry.fields[index];
            let text = span.of(&entry.line);
            match &piece.field {
                Field::Other
                | Field::Free
                | Field::Digits
                | Field::Elapsed
                | Field::Numbers
                | Field::Statuses
                | Field::Peers
                | Field::Captured
                | Field::Ident => {}
                Field::Text(Role::Client) => {
                    // The first one counts: %h before %a.
                    if entry.roles[Role::Client as usize] == Span::default() {
                        entry.roles[Role::Client as usize] = value::without_port(&entry.line, span);
                    }
                }
                Field::HostName => entry.roles[Role::Host as usize] = span,
                Field::Text(role) => {
                    if entry.roles[*role as usize] == Span::default() {
                        entry.roles[*role as usize] = span;
                    }
                }
                Field::Forwarded => {}
                Field::RequestLine => value::request_line(&entry.line, span, &mut entry.roles),
                Field::Status => entry.status = value::number(text).unwrap_or(0) as u16,
                Field::Bytes => entry.bytes = value::number(text),
                Field::Time(TimeForm::Strftime(items)) if in_pieces => {
                    let (moment, last) = moment.get_or_insert_default();
                    moment.read(text, items).ok_or(index)?;
                    *last = index;
                }
                Field::Time(form) => {
                    let known = entry.stamps.iter().find(|(place, _)| *place == index).map(|(_, stamp)| *stamp);
                    let stamp = known.or_else(|| form.read(text)).ok_or(index)?;
                    match form {
                        TimeForm::Fraction(_) => part_us = stamp.us,
                        _ => us = Some(stamp.us),
                    }
                    entry.note_resolution(stamp.resolution_us);
                }
                Field::Took(what, unit_us, _) => {
                    let took = value::times(text, *unit_us);
                    let place = match what {
                        DurationKind::Server => &mut entry.server_us,
                        DurationKind::Upstream => &mut entry.upstream_us,
                        DurationKind::Queue => &mut entry.queue_us,
                    };
                    *place = place.or(took);
                }
            }
        }
        if let Some((moment, last)) = moment {
            let stamp = moment.stamp(0).ok_or(last)?;
            us = Some(stamp.us);
            entry.note_resolution(stamp.resolution_us);
        }
        if entry.client().is_none()
            && let Some(index) = self.pieces.iter().position(|p| p.field == Field::Forwarded)
        {
            entry.roles[Role::Client as usize] = value::first_of_list(&entry.line, entry.fields[index]);
        }
        let Some(us) = us else { return Err(self.pieces.len()) };
        entry.time_us = us.saturating_add(part_us);
        if self.stamped_at_end {
            value::begin(entry);
        }
        Ok(())
    }

    /// Explains what was expected where a line stopped matching.
    pub(crate) fn explain(&self, misfit: Mismatch) -> String {
        let Mismatch { at, field } = misfit;
        let Some(piece) = self.pieces.get(field) else {
            return match self.tail.as_slice() {
                [] => format!("the end of the line expected at byte {}", at + 1),
                tail => {
                    format!("{:?} and the end of the line expected at byte {}", String::from_utf8_lossy(tail), at + 1)
                }
            };
        };
        let what = piece.field.describe();
        let before = match piece.before.as_slice() {
            [] => String::new(),
            before => format!(" after {:?}", String::from_utf8_lossy(before)),
        };
        format!("{} expected at byte {}: {what}{before}", piece.name, at + 1)
    }
}

impl Field {
    /// Whether a text may be a value of this field. `separator` ends it unless it is in quotes. Only quick checks: the
    /// result decides where a field ends.
    fn may_be(&self, text: &[u8], separator: Option<u8>) -> bool {
        let quoted = separator.is_none();
        let is_word = || !separator.is_some_and(|sep| sep.is_ascii_whitespace() && text.contains(&b' '));
        match self {
            Field::Status => value::is_status(text) || matches!(text, b"-" | b"-1" | b"0"),
            Field::Digits => text == b"-" || value::number(text).is_some(),
            Field::Bytes => text == b"-" || value::number(text).is_some(),
            Field::Took(_, _, Notation::Whole) | Field::Elapsed => {
                matches!(text, b"-" | b"-1") || value::number(text).is_some()
            }
            Field::Took(_, unit_us, Notation::Any) => {
                matches!(text, b"-" | b"-1") || value::time(text, *unit_us).is_some()
            }
            Field::Took(_, _, Notation::List) => (quoted && text.is_empty()) || value::is_list(text, value::is_decimal),
            Field::Numbers => (quoted && text.is_empty()) || value::is_list(text, |t| value::number(t).is_some()),
            Field::Statuses => (quoted && text.is_empty()) || value::is_list(text, value::is_status),
            Field::Peers => (quoted && text.is_empty()) || value::is_list(text, value::is_peer),
            Field::Forwarded => {
                (quoted && text.is_empty()) || value::is_list(text, |t| value::is_client(t) || t == b"unknown")
            }
            Field::Text(Role::Client) => (quoted && text.is_empty()) || value::is_client(text),
            Field::Text(Role::User) => value::is_user(text),
            Field::Ident => text == b"-" || (is_word() && !text.is_empty() && !value::is_address(text)),
            Field::HostName => value::is_client(text) && !value::is_address(text) && text != b"-",
            Field::RequestLine => quoted || text == b"-" || value::is_request_line(text),
            Field::Text(Role::Target) => quoted || value::is_target(text),
            Field::Text(Role::Method | Role::Protocol | Role::Host) => quoted || !text.contains(&b' '),
            Field::Text(_) | Field::Free => true,
            Field::Other => is_word(),
            Field::Time(_) | Field::Captured => true,
        }
    }

    /// Whether its values differ from any word. An unquoted text before it may then contain blanks.
    fn is_told_from_words(&self) -> bool {
        match self {
            Field::Status
            | Field::Digits
            | Field::Bytes
            | Field::Took(..)
            | Field::Elapsed
            | Field::Numbers
            | Field::Statuses
            | Field::RequestLine
            | Field::Time(_)
            | Field::Text(Role::Client | Role::Target) => true,
            Field::Other
            | Field::Free
            | Field::Peers
            | Field::Captured
            | Field::Ident
            | Field::HostName
            | Field::Forwarded
            | Field::Text(_) => false,
        }
    }

    /// Describes, for people, what a value looks like.
    fn describe(&self) -> &'static str {
        match self {
            Field::Other | Field::Text(Role::Host | Role::Method | Role::Protocol) => "a word without blanks",
            Field::Digits => "a whole number",
            Field::Numbers => "whole numbers such as '0, 1173'",
            Field::Statuses => "statuses such as '502, 200'",
            Field::Peers => "addresses such as '10.0.0.1:80, 10.0.0.2:80'",
            Field::Captured => "headers in braces",
            Field::Text(Role::Client) => "an address or a host name",
            Field::HostName => "the name of a host",
            Field::Text(Role::User) | Field::Ident => "'-' or a user's name",
            Field::Forwarded => "addresses such as '203.0.113.7, 10.0.0.1'",
            Field::RequestLine => "a request such as 'GET / HTTP/1.1'",
            Field::Text(Role::Target) => "a path or a URL",
            Field::Text(_) | Field::Free => "a text",
            Field::Status => "a status of three digits",
            Field::Bytes => "a number of bytes, or '-'",
            Field::Time(form) => form.describe(),
            Field::Took(_, _, Notation::Whole) | Field::Elapsed => "a whole number",
            Field::Took(_, _, Notation::Any) => "a number",
            Field::Took(_, _, Notation::List) => "seconds with decimals, such as '0.010' or '0.010, 0.036'",
        }
    }
}

/// Like `starts_with`, for a few bytes, where a call costs more than the comparison.
fn begins(text: &[u8], with: &[u8]) -> bool {
    match with {
        [] => true,
        [one] => text.first() == Some(one),
        [one, two] => text.len() >= 2 && text[0] == *one && text[1] == *two,
        _ => text.starts_with(with),
    }
}

/// Finds the first unescaped quote from a position on.
fn closing_quote(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// Finds the next `after`, from a position on.
fn next(text: &[u8], from: usize, after: &[u8]) -> Option<usize> {
    let text = text.get(from..)?;
    let found = match after {
        [one] => memchr::memchr(*one, text),
        // Only a few bytes: preparing a search costs more than checking each occurrence of the first byte.
        [first, rest @ ..] => memchr::memchr_iter(*first, text).find(|at| begins(&text[at + 1..], rest)),
        [] => Some(0),
    };
    found.map(|at| from + at)
}
