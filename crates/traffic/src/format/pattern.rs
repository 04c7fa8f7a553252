//! Formats that are fields with text between them: LogFormat, log_format, HAProxy's.
//!
//! A field ends where the text after it begins; in quotes, at the quote that the log did not escape. Where what follows does
//! not fit then (servers of the nineties escaped nothing), later ends are tried, so many in all that no line can take long.

use crate::entry::{Entry, Role, Span};
use crate::format::value;
use crate::time::TimeForm;

/// What a field of a format says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// Nothing that is needed here; it may still tell users apart.
    Other,
    /// The same, of digits alone.
    Digits,
    Text(Role),
    /// `GET /path HTTP/1.1`
    RequestLine,
    Status,
    Bytes,
    Time(TimeForm),
    /// How long something took, in units of so many µs.
    Took(Took, u32),
}

/// What took a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    Server,
    Upstream,
    Queue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Stands before the field.
    pub before: Vec<u8>,
    pub field: Field,
    /// As the format names it.
    pub name: String,
}

/// Fields with text between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub pieces: Vec<Piece>,
    /// After the last field.
    pub tail: Vec<u8>,
    /// More may follow, and says nothing.
    pub open: bool,
    /// The time is that of the end of a request, and not of its beginning.
    pub stamped_at_end: bool,
}

/// So many ends of fields are tried for one line.
const MOST_ATTEMPTS: u32 = 300;

/// A line that does not fit: where it stopped doing so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub at: usize,
    /// The place of the field that did not fit; the number of fields for the tail.
    pub field: usize,
}

/// What is known of a line while it is read.
struct Reading<'a> {
    line: &'a [u8],
    entry: &'a mut Entry,
    attempts: u32,
    misfit: Misfit,
}

impl Pattern {
    /// # Errors
    /// For fields that have nothing between them, and for a format that tells neither time nor request.
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
        if !has(|f| matches!(f, Field::RequestLine | Field::Text(Role::Target))) {
            return Err("it has no request (%r, %U, $request or $uri)".into());
        }
        Ok(())
    }

    /// Finds the fields of the line that the entry has, from a place in it on.
    pub(crate) fn read(&self, entry: &mut Entry, at: usize) -> Result<(), Misfit> {
        let line = std::mem::take(&mut entry.line);
        entry.fields.clear();
        entry.stamps.clear();
        entry.fields.resize(self.pieces.len(), Span::default());
        let mut reading = Reading { line: &line, entry, attempts: MOST_ATTEMPTS, misfit: Misfit { at, field: 0 } };
        let fits = self.from(0, at, &mut reading);
        let misfit = reading.misfit;
        entry.line = line;
        if !fits {
            return Err(misfit);
        }
        // All values are known now, and none is of an attempt that failed.
        self.take(entry).map_err(|field| Misfit { at: entry.fields[field].start as usize, field })
    }

    /// Does the rest of the line, from a place in it, fit the rest of the pieces?
    fn from(&self, index: usize, at: usize, r: &mut Reading) -> bool {
        let line = r.line;
        if at > r.misfit.at {
            r.misfit = Misfit { at, field: index };
        }
        let Some(piece) = self.pieces.get(index) else {
            let rest = &line[at..];
            let ends = |rest: &[u8]| rest.is_empty() || (self.open && rest[0] == b' ');
            return rest.strip_prefix(self.tail.as_slice()).is_some_and(ends);
        };
        if !begins(&line[at..], &piece.before) {
            return false;
        }
        let start = at + piece.before.len();
        let text = &line[start..];
        if let Field::Time(form) = &piece.field {
            let Some(mut stamp) = form.read(text) else { return false };
            if self.has_fraction_after(index) {
                stamp.length = memchr::memchr(b'.', &text[..stamp.length]).unwrap_or(stamp.length);
            }
            r.entry.fields[index] = Span::new(start, start + stamp.length);
            // Of earlier attempts nothing counts from here on.
            r.entry.stamps.retain(|(place, _)| *place < index);
            if !self.has_fraction_after(index) {
                r.entry.stamps.push((index, stamp));
            }
            return self.from(index + 1, start + stamp.length, r);
        }
        let after = self.pieces.get(index + 1).map_or(&self.tail, |next| &next.before).as_slice();
        let quoted = piece.before.ends_with(b"\"") && after.starts_with(b"\"");
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
            let value = &text[..length];
            if piece.field.may_be(value) {
                r.entry.fields[index] = Span::new(start, start + length);
                if self.from(index + 1, start + length, r) {
                    return true;
                }
            }
            if after.is_empty() || r.attempts == 0 {
                return false;
            }
            r.attempts -= 1;
            from = length + 1;
        }
    }

    /// Is the part of a second that follows a time a field of its own?
    fn has_fraction_after(&self, index: usize) -> bool {
        let next = self.pieces.get(index + 1);
        next.is_some_and(|p| p.before == b"." && matches!(p.field, Field::Time(TimeForm::Fraction(_))))
    }

    /// Takes the values of the fields; the field that has none that it could have as an error.
    fn take(&self, entry: &mut Entry) -> Result<(), usize> {
        if memchr::memchr(b'\\', &entry.line).is_some() {
            for span in &mut entry.fields {
                value::unescape(&mut entry.line, span);
            }
        }
        let (mut us, mut part_us) = (None, 0);
        for (index, piece) in self.pieces.iter().enumerate() {
            let span = entry.fields[index];
            let text = span.of(&entry.line);
            match &piece.field {
                Field::Other | Field::Digits => {}
                Field::Text(role) => {
                    // The first one counts: %h before %a.
                    if entry.roles[*role as usize] == Span::default() {
                        entry.roles[*role as usize] = span;
                    }
                }
                Field::RequestLine => value::request_line(&entry.line, span, &mut entry.roles),
                Field::Status => entry.status = value::number(text).unwrap_or(0) as u16,
                Field::Bytes => entry.bytes = value::number(text),
                Field::Time(form) => {
                    let known = entry.stamps.iter().find(|(place, _)| *place == index).map(|(_, stamp)| *stamp);
                    let stamp = known.or_else(|| form.read(text)).ok_or(index)?;
                    match form {
                        TimeForm::Fraction(_) => part_us = stamp.us,
                        _ => us = Some(stamp.us),
                    }
                    let finer = entry.resolution_us == 0 || stamp.resolution_us < entry.resolution_us;
                    if finer {
                        entry.resolution_us = stamp.resolution_us;
                    }
                }
                Field::Took(what, unit_us) => {
                    let took = value::times(text, *unit_us);
                    let place = match what {
                        Took::Server => &mut entry.server_us,
                        Took::Upstream => &mut entry.upstream_us,
                        Took::Queue => &mut entry.queue_us,
                    };
                    *place = place.or(took);
                }
            }
        }
        let Some(us) = us else { return Err(self.pieces.len()) };
        entry.time_us = us.saturating_add(part_us);
        if self.stamped_at_end {
            value::begin(entry);
        }
        Ok(())
    }
}

impl Field {
    /// Can a text be a value of it? Only what is quickly told: it decides where a field ends.
    fn may_be(&self, text: &[u8]) -> bool {
        match self {
            Field::Status => matches!(text, b"-" | b"-1") || (text.len() <= 3 && value::number(text).is_some()),
            Field::Digits => text.iter().all(u8::is_ascii_digit),
            Field::Bytes => text == b"-" || value::number(text).is_some(),
            Field::Took(..) => text.iter().all(|b| b.is_ascii_digit() || b".-,: ".contains(b)) && !text.ends_with(b","),
            Field::RequestLine | Field::Text(_) | Field::Other | Field::Time(_) => true,
        }
    }
}

/// `starts_with` for a few bytes, where a call costs more than the comparison.
fn begins(text: &[u8], with: &[u8]) -> bool {
    text.len() >= with.len() && text.iter().zip(with).all(|(a, b)| a == b)
}

/// The first quote from a place on that no backslash escapes.
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

/// Where the next `after` is, from a place on.
fn next(text: &[u8], from: usize, after: &[u8]) -> Option<usize> {
    let text = text.get(from..)?;
    let found = match after {
        [one] => memchr::memchr(*one, text),
        // A few bytes: to prepare a search for them costs more than to look at each of the first.
        [first, rest @ ..] => memchr::memchr_iter(*first, text).find(|at| begins(&text[at + 1..], rest)),
        [] => Some(0),
    };
    found.map(|at| from + at)
}
