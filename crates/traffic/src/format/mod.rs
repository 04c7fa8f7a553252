//! Formats of access logs: as their servers' configuration has them, by name, or recognised.

mod apache;
mod haproxy;
mod json;
mod nginx;
mod pattern;
pub(crate) mod value;

use std::str::FromStr;
use std::sync::Arc;

use self::pattern::{Misfit, Pattern};
use crate::entry::Entry;

/// How lines are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    name: String,
    how: How,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    Pattern(Pattern),
    Json,
    Haproxy(Pattern),
}

/// What became of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Request,
    /// It is none, and should be none: a blank line, a comment, TCP in a log of HAProxy.
    Nothing,
    /// It is no line of the format; why.
    Rejected(Misread),
}

/// Where a line stops being one of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misread(Misfit);

const COMMON: &str = r#"%h %l %u %t "%r" %>s %b"#;
const COMBINED: &str = r#"%h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
const VHOST_COMBINED: &str = r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
const EPA: &str = r#"%h [%{day}t] "%r" %>s %b"#;

/// Lines by which a format is recognised, at most.
pub const SAMPLE_LINES: usize = 200;

impl Format {
    /// What it is called: `combined`, `json`, or the text that it was made of.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of(name: &str, pattern: Pattern) -> Format {
        Format { name: name.into(), how: How::Pattern(pattern) }
    }

    fn known(name: &str) -> Option<Format> {
        let apache = |text: &str| apache::read(text).ok().map(|pattern| Format::of(name, pattern));
        match name {
            "common" => apache(COMMON),
            "combined" => apache(COMBINED),
            "vhost_combined" => {
                let mut format = apache(VHOST_COMBINED)?;
                if let How::Pattern(pattern) = &mut format.how {
                    pattern.pieces[1].field = pattern::Field::Digits;
                }
                Some(format)
            }
            "epa" => {
                let mut format = apache(&EPA.replace("[%{day}t]", "[%{sec}t]"))?;
                if let How::Pattern(pattern) = &mut format.how {
                    pattern.pieces[1].field = pattern::Field::Time(crate::time::TimeForm::Epa);
                }
                Some(format)
            }
            "json" => Some(Format { name: name.into(), how: How::Json }),
            "haproxy" => Some(Format { name: name.into(), how: How::Haproxy(haproxy::pattern()) }),
            _ => None,
        }
    }

    /// The same, with anything after what it has: fields that a site has added.
    fn open(mut self) -> Format {
        if let How::Pattern(pattern) = &mut self.how {
            pattern.open = true;
            self.name.push_str(" and more");
        }
        self
    }

    /// Reads the line that the entry has.
    pub fn read(self: &Arc<Format>, entry: &mut Entry) -> Outcome {
        if matches!(entry.line.first(), None | Some(b'#')) {
            return Outcome::Nothing;
        }
        let read = match &self.how {
            How::Pattern(pattern) => pattern.read(entry, 0).map(|()| true),
            How::Json => json::read(entry).map(|()| true),
            How::Haproxy(pattern) => haproxy::read(pattern, entry),
        };
        match read {
            Ok(true) => {
                if entry.format.as_ref().is_none_or(|f| !Arc::ptr_eq(f, self)) {
                    entry.format = Some(Arc::clone(self));
                }
                Outcome::Request
            }
            Ok(false) => Outcome::Nothing,
            Err(misfit) => Outcome::Rejected(Misread(misfit)),
        }
    }

    /// Says why a line was rejected.
    #[must_use]
    pub fn explain(&self, misread: Misread) -> String {
        let Misread(Misfit { at, field }) = misread;
        match &self.how {
            How::Json => format!("no JSON object with a time and a request, from byte {}", at + 1),
            How::Pattern(pattern) | How::Haproxy(pattern) => {
                let name = pattern.pieces.get(field).map_or("the end of the line", |p| &p.name);
                format!("{name} expected at byte {}", at + 1)
            }
        }
    }

    /// The place, from 0, of the field that has one cookie.
    pub(crate) fn cookie_field(&self, name: &str) -> Option<usize> {
        let (How::Pattern(pattern) | How::Haproxy(pattern)) = &self.how else { return None };
        let (apache, nginx) = (format!("%{{{name}}}C"), format!("$cookie_{name}"));
        pattern.pieces.iter().position(|p| p.name == apache || p.name == nginx)
    }

    /// May a line have an id of its request? Known ones have it in a field that says nothing else.
    #[must_use]
    pub fn may_have_id(&self) -> bool {
        match &self.how {
            How::Pattern(pattern) => {
                pattern.open || pattern.pieces.iter().any(|p| p.field == pattern::Field::Other && p.name != "%l")
            }
            How::Json | How::Haproxy(_) => true,
        }
    }

    /// Does a line have the time that the server took?
    #[must_use]
    pub fn has_server_time(&self) -> bool {
        match &self.how {
            How::Pattern(pattern) | How::Haproxy(pattern) => {
                pattern.pieces.iter().any(|p| matches!(p.field, pattern::Field::Took(..)))
            }
            How::Json => true,
        }
    }
}

impl FromStr for Format {
    type Err = String;

    /// A name (`common`, `combined`, `vhost_combined`, `nginx`, `json`, `haproxy`, `epa`), the text of a LogFormat or log_format, or the
    /// whole directive as the configuration has it.
    fn from_str(text: &str) -> Result<Format, String> {
        let text = text.trim();
        if text == "nginx" {
            return Ok(Format { name: "nginx".into(), ..Format::known("combined").ok_or("no such format")? });
        }
        if let Some(known) = Format::known(text) {
            return Ok(known);
        }
        let format = format_of(text);
        let pattern = match (format.contains('%'), format.contains('$')) {
            (false, false) => {
                return Err(format!(
                    "'{text}' is no format; write common, combined, vhost_combined, nginx, json, haproxy, epa, a LogFormat (%h …) or a \
                     log_format ($remote_addr …)"
                ));
            }
            (true, _) if !format.contains("$remote_addr") && !format.contains("$request") => apache::read(&format),
            _ => nginx::read(&format),
        };
        let pattern = pattern.map_err(|e| format!("the format '{text}': {e}"))?;
        pattern.check().map_err(|e| format!("the format '{text}': {e}"))?;
        Ok(Format::of(text, pattern))
    }
}

/// The format in a directive: `LogFormat "…" name`, `log_format name escape=json '…' '…';`. Other text is the format.
fn format_of(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("logformat").filter(|rest| rest.starts_with(char::is_whitespace)) {
        let rest = text[text.len() - rest.len()..].trim();
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut end = 0;
            let bytes = quoted.as_bytes();
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            return quoted.get(..end).unwrap_or(quoted).to_string();
        }
        return rest.split_whitespace().next().unwrap_or_default().to_string();
    }
    if let Some(rest) = text.strip_prefix("log_format").filter(|rest| rest.starts_with(char::is_whitespace)) {
        let mut format = String::new();
        let mut rest = rest;
        while let Some(at) = rest.find(['\'', '"']) {
            let quote = &rest[at..=at];
            let inside = &rest[at + 1..];
            let end = inside.find(quote).unwrap_or(inside.len());
            format.push_str(&inside[..end]);
            rest = inside.get(end + 1..).unwrap_or_default();
        }
        return format;
    }
    text.to_string()
}

/// The format that most of the lines have; None where it is less than half of them.
pub fn recognise<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Arc<Format>> {
    let names = ["json", "haproxy", "vhost_combined", "combined", "common"];
    let closed = names.into_iter().filter_map(Format::known);
    let open = names[2..].iter().filter_map(|name| Format::known(name).map(Format::open));
    let mut candidates: Vec<(Arc<Format>, usize)> =
        closed.chain(open).chain(Format::known("epa")).map(|format| (Arc::new(format), 0)).collect();
    let mut entry = Entry::default();
    let mut most = 0;
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).take(SAMPLE_LINES) {
        most += 1;
        for (format, count) in &mut candidates {
            entry.reset();
            entry.line.extend_from_slice(line);
            *count += usize::from(format.read(&mut entry) == Outcome::Request);
        }
    }
    let (mut best, mut fits) = (None, 0);
    for (format, count) in candidates {
        // The first of several is the one that says most.
        if count > fits {
            (best, fits) = (Some(format), count);
        }
    }
    best.filter(|_| fits * 2 >= most)
}

#[cfg(test)]
mod tests;
