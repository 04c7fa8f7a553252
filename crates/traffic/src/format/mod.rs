//! Formats of access logs: as in their servers' configuration, by name, or recognised.

mod apache;
mod envelope;
mod haproxy;
mod json;
mod logfmt;
mod nginx;
mod pattern;
mod squid;
pub(crate) mod value;

use std::str::FromStr;
use std::sync::Arc;

use self::envelope::Envelope;
use self::json::{Json, Shape};
use self::pattern::{Field, Mismatch, Pattern};
use crate::entry::LogEntry;
use crate::time::TimeForm;

/// A format of access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    name: String,
    how: LineParser,
    /// What its lines are wrapped in.
    envelope: Option<Envelope>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LineParser {
    Pattern(Pattern),
    Json(Json),
    Haproxy(Pattern),
}

/// The result of reading a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOutcome {
    Request,
    /// Not a request by design: a blank line, a comment, TCP in a log of HAProxy.
    Nothing,
    /// The line does not match the format.
    Rejected(ReadError),
}

/// Where a line stops matching its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadError {
    misfit: Mismatch,
    /// Its envelope is already missing.
    is_unwrapped: bool,
}

impl ReadError {
    /// The position in the line, from 0.
    #[must_use]
    pub fn at(&self) -> usize {
        self.misfit.at
    }
}

const COMMON: &str = r#"%h %l %u %t "%r" %>s %b"#;
const COMBINED: &str = r#"%h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
const VHOST_COMBINED: &str = r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
/// The host before a common or combined line, without its port.
const VHOST_FIRST: &str = r#"%v %h %l %u %t "%r" %>s %b"#;
const VHOST_FIRST_COMBINED: &str = r#"%v %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
/// The addresses in X-Forwarded-For, before a combined line.
const FORWARDED_COMBINED: &str = r#"%{X-Forwarded-For}i %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#;
const EPA: &str = r#"%h [%{sec}t] "%r" %>s %b"#;
/// The default of ingress-nginx (log-format-upstream), now and before it had an alternative upstream.
const INGRESS_NGINX: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id"#;
const OLD_INGRESS_NGINX: &str = r#"$remote_addr - [$the_real_ip] - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status"#;

/// Most lines by which a format is recognised.
pub const SAMPLE_LINES: usize = 200;

impl Format {
    /// Its name: `combined`, `json`, or the text that it was parsed from.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of(name: &str, how: LineParser) -> Format {
        Format { name: name.into(), how, envelope: None }
    }

    fn known(name: &str) -> Option<Format> {
        let apache = |text: &str| apache::read(text).ok();
        let nginx = |text: &str| nginx::read(text).ok();
        let pattern = match name {
            "common" => apache(COMMON)?,
            "combined" => apache(COMBINED)?,
            "vhost_combined" => apache(VHOST_COMBINED)?,
            "host and common" => named_host(apache(VHOST_FIRST)?),
            "host and combined" => named_host(apache(VHOST_FIRST_COMBINED)?),
            "forwarded combined" => apache(FORWARDED_COMBINED)?,
            "ingress-nginx" => nginx(INGRESS_NGINX)?,
            "ingress-nginx (old)" => nginx(OLD_INGRESS_NGINX)?,
            "squid" => squid::native().ok()?,
            "epa" => {
                let mut pattern = apache(EPA)?;
                pattern.pieces[1].field = Field::Time(TimeForm::Epa);
                pattern
            }
            "json" => return Some(Format::of(name, LineParser::Json(Json::default()))),
            "logfmt" => {
                return Some(Format::of(name, LineParser::Json(Json { shape: Shape::Logfmt, ..Json::default() })));
            }
            "haproxy" => return haproxy::pattern().ok().map(|pattern| Format::of(name, LineParser::Haproxy(pattern))),
            _ => return None,
        };
        Some(Format::of(name, LineParser::Pattern(pattern)))
    }

    /// JSON or logfmt with the user's additions: `json,duration:ms,client=ip`.
    fn json(text: &str, shape: Shape) -> Result<Format, String> {
        let mut json = Json { shape, ..Json::default() };
        for item in text.split(',').skip(1).map(str::trim) {
            let wrong = || {
                format!(
                    "'{item}' in the format '{text}': write KEY:UNIT (s, ms, us, ns) for a duration, or client=KEY, \
                         time=KEY, path=KEY, request=KEY, method=KEY, status=KEY, bytes=KEY and so on"
                )
            };
            if let Some((name, key)) = item.split_once('=') {
                json.keys.push((key.into(), json::role(name).filter(|_| !key.is_empty()).ok_or_else(wrong)?));
            } else {
                let (key, unit) = item.rsplit_once(':').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
                let (_, ns) = json::UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
                json.units.push((key.into(), *ns));
            }
        }
        Ok(Format::of(text, LineParser::Json(json)))
    }

    /// This format for lines in an envelope.
    fn within(&self, envelope: Envelope) -> Format {
        let name = format!("{} {}", self.name, envelope.name());
        Format { name, how: self.how.clone(), envelope: Some(envelope) }
    }

    /// This format, chosen by the user, for the lines of a file: in an envelope, if they match only there.
    #[must_use]
    pub fn fitted<'a>(self: &Arc<Format>, lines: impl Iterator<Item = &'a [u8]>) -> Arc<Format> {
        best(vec![Arc::clone(self)], lines).unwrap_or_else(|_| Arc::clone(self))
    }

    /// This format with anything after its fields: fields that a site has added.
    fn open(mut self) -> Format {
        if let LineParser::Pattern(pattern) = &mut self.how {
            pattern.open = true;
            self.name.push_str(" and more");
        }
        self
    }

    /// Parses the line that the entry holds.
    pub fn read(self: &Arc<Format>, entry: &mut LogEntry) -> LineOutcome {
        if matches!(entry.line.first(), None | Some(b'#')) {
            return LineOutcome::Nothing;
        }
        let (at, outer) = match self.envelope.map(|envelope| envelope.open(entry)) {
            None => (0, None),
            Some(Ok(inside)) => inside,
            Some(Err(at)) => {
                return LineOutcome::Rejected(ReadError { misfit: Mismatch { at, field: 0 }, is_unwrapped: true });
            }
        };
        let read = match &self.how {
            LineParser::Pattern(pattern) => pattern.read(entry, at).map(|()| true),
            LineParser::Json(known) => json::read(known, entry, at, outer).map(|()| true),
            LineParser::Haproxy(pattern) => haproxy::read(pattern, entry, at),
        };
        match read {
            Ok(true) => {
                if entry.format.as_ref().is_none_or(|f| !Arc::ptr_eq(f, self)) {
                    entry.format = Some(Arc::clone(self));
                }
                LineOutcome::Request
            }
            Ok(false) => LineOutcome::Nothing,
            Err(misfit) => LineOutcome::Rejected(ReadError { misfit, is_unwrapped: false }),
        }
    }

    /// Explains why a line was rejected: the field that did not match, its position, and what was expected.
    #[must_use]
    pub fn explain(&self, misread: ReadError) -> String {
        let ReadError { misfit, is_unwrapped } = misread;
        if let Some(envelope) = self.envelope.filter(|_| is_unwrapped) {
            return format!("{} expected at byte {}", envelope.describe(), misfit.at + 1);
        }
        match &self.how {
            LineParser::Json(json) => json::explain(json.shape, misfit),
            LineParser::Pattern(pattern) | LineParser::Haproxy(pattern) => pattern.explain(misfit),
        }
    }

    /// The index of the field that has one cookie.
    pub(crate) fn cookie_field(&self, name: &str) -> Option<usize> {
        let (LineParser::Pattern(pattern) | LineParser::Haproxy(pattern)) = &self.how else { return None };
        let (apache, nginx) = (format!("%{{{name}}}C"), format!("$cookie_{name}"));
        pattern.pieces.iter().position(|p| p.name == apache || p.name == nginx)
    }

    /// Whether a line may have an id of its request. Known formats have it in a field of no other use.
    #[must_use]
    pub fn may_have_id(&self) -> bool {
        match &self.how {
            LineParser::Pattern(pattern) => {
                pattern.open || pattern.pieces.iter().any(|p| matches!(p.field, Field::Other | Field::Free))
            }
            LineParser::Json(_) | LineParser::Haproxy(_) => true,
        }
    }

    /// Whether lines have the server's time.
    #[must_use]
    pub fn has_server_time(&self) -> bool {
        match &self.how {
            LineParser::Pattern(pattern) | LineParser::Haproxy(pattern) => {
                pattern.pieces.iter().any(|p| matches!(p.field, Field::Took(..)))
            }
            LineParser::Json(_) => true,
        }
    }
}

impl FromStr for Format {
    type Err = String;

    /// Parses a name (`common`, `combined`, `vhost_combined`, `nginx`, `ingress-nginx`, `json`, `logfmt`, `haproxy`,
    /// `squid`, `epa`), or `json` or `logfmt` with units and keys (`json,duration:ms,client=ip`). Also parses the text
    /// of a LogFormat, a log_format, a log-format or Squid's logformat, or the whole directive as in the configuration.
    fn from_str(text: &str) -> Result<Format, String> {
        let text = text.trim();
        if text == "nginx" {
            return Ok(Format { name: "nginx".into(), ..Format::known("combined").ok_or("no such format")? });
        }
        if let Some(known) = Format::known(text) {
            return Ok(known);
        }
        for (name, shape) in [("json,", Shape::Json), ("logfmt,", Shape::Logfmt)] {
            if text.starts_with(name) {
                return Format::json(text, shape);
            }
        }
        let format = format_of(text);
        let pattern = match (format.contains('%'), format.contains('$')) {
            (false, false) => {
                return Err(format!(
                    "'{text}' is no format; write common, combined, vhost_combined, nginx, ingress-nginx, json, logfmt, haproxy, squid, epa, \
                     json,KEY:UNIT, a LogFormat (%h …), a log_format ($remote_addr …), a log-format of HAProxy (%ci …) or a logformat \
                     of Squid (%>a …)"
                ));
            }
            (true, _) if squid::is_format(&format) => squid::read_format(&format),
            (true, _) if haproxy::is_format(&format) => haproxy::read_format(&format),
            (true, _) if !format.contains("$remote_addr") && !format.contains("$request") => apache::read(&format),
            _ => nginx::read(&format),
        };
        let pattern = pattern.map_err(|e| format!("the format '{text}': {e}"))?;
        pattern.check().map_err(|e| format!("the format '{text}': {e}"))?;
        Ok(Format::of(text, LineParser::Pattern(pattern)))
    }
}

/// A pattern that begins with the name of a host. An address there may also be the client's, so it does not match.
fn named_host(mut pattern: Pattern) -> Pattern {
    pattern.pieces[0].field = Field::HostName;
    pattern
}

/// Extracts the format from a directive: `LogFormat "…" name`, `log_format name escape=json '…' '…';`, `log-format
/// "…"`, Squid's `logformat name …`. Any other text is the format itself.
fn format_of(text: &str) -> String {
    if let Some(rest) = text.strip_prefix("log-format").filter(|rest| rest.starts_with(char::is_whitespace)) {
        let rest = rest.trim();
        let inside = rest.strip_prefix('"').and_then(|r| r.strip_suffix('"'));
        return inside.or(rest.strip_prefix('\'').and_then(|r| r.strip_suffix('\''))).unwrap_or(rest).to_string();
    }
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
        // Squid puts the name first.
        let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        return if first.contains('%') { first } else { after.trim_start() }.to_string();
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

/// Formats to try. Of several that match, the first has the most information.
const CLOSED: [&str; 12] = [
    "json",
    "logfmt",
    "haproxy",
    "ingress-nginx",
    "ingress-nginx (old)",
    "squid",
    "vhost_combined",
    "combined",
    "forwarded combined",
    "common",
    "host and combined",
    "host and common",
];
/// Formats to try with more fields after their own.
const OPEN: [&str; 6] =
    ["vhost_combined", "combined", "forwarded combined", "common", "host and combined", "host and common"];

/// The format that unrecognised lines come nearest to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFormat {
    /// The format that matches the first line furthest, and the first position that does not.
    pub nearest: Option<String>,
}

/// Recognises the format of most of the lines.
///
/// # Errors
/// It is that of less than half of them.
pub fn recognise<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Result<Arc<Format>, UnknownFormat> {
    let closed = CLOSED.into_iter().filter_map(Format::known);
    let open = OPEN.into_iter().filter_map(|name| Format::known(name).map(Format::open));
    best(closed.chain(open).chain(Format::known("epa")).map(Arc::new).collect(), lines)
}

/// Finds which of some formats most of the lines have, bare or in an envelope.
fn best<'a>(formats: Vec<Arc<Format>>, lines: impl Iterator<Item = &'a [u8]>) -> Result<Arc<Format>, UnknownFormat> {
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    let lines: Vec<&[u8]> = lines.take(SAMPLE_LINES).collect();
    let mut entry = LogEntry::default();
    let load = |entry: &mut LogEntry, line: &[u8]| {
        entry.reset();
        entry.line.extend_from_slice(line);
    };
    let mut wrapped = |envelope: &Envelope| {
        let mut is_in = |line: &&&[u8]| {
            load(&mut entry, line);
            envelope.open(&mut entry).is_ok()
        };
        lines.iter().filter(|line| is_in(line)).count() * 2 >= lines.len()
    };
    let envelopes: Vec<Envelope> = Envelope::ALL.into_iter().filter(|envelope| wrapped(envelope)).collect();
    let mut candidates = formats.clone();
    for envelope in envelopes {
        candidates.extend(formats.iter().map(|format| Arc::new(format.within(envelope))));
    }
    let (mut best, mut fits) = (None, 0);
    let mut nearest: Option<(usize, String)> = None;
    for format in candidates {
        let mut count = 0;
        for (index, line) in lines.iter().enumerate() {
            load(&mut entry, line);
            match format.read(&mut entry) {
                LineOutcome::Request => count += 1,
                LineOutcome::Rejected(misread) if index == 0 => {
                    let at = misread.at();
                    let is_nearer = |best: usize| at > best || (at == best && format.name() == "combined");
                    // A line that is not an object is not damaged JSON, and one that begins without a key is not
                    // logfmt.
                    let may_be = match &format.how {
                        LineParser::Json(json) => {
                            misread.at() > 0 && json.shape.begins(line) || format.envelope.is_some()
                        }
                        LineParser::Pattern(_) | LineParser::Haproxy(_) => true,
                    };
                    if may_be && nearest.as_ref().is_none_or(|(best, _)| is_nearer(*best)) {
                        nearest = Some((at, format!("{}: {}", format.name(), format.explain(misread))));
                    }
                }
                _ => {}
            }
        }
        // The first of several has the most information.
        if count > fits {
            (best, fits) = (Some(format), count);
        }
    }
    best.filter(|_| fits * 2 >= lines.len()).ok_or(UnknownFormat { nearest: nearest.map(|(_, nearest)| nearest) })
}

#[cfg(test)]
mod tests;
