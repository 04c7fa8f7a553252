//! Requests of a plan: what is sent, where variable parts come from, and what is expected of the answers.
//!
//! A template may contain `{{name}}`: a column of the data file, a value taken from an earlier answer, or one of the
//! built-in `{{user}}`, `{{iteration}}` and `{{random}}`, unless the plan defines that name. `{{{{` sends two braces.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds::{LENGTH, PAUSE};
use crate::url::Url;

/// One request of a mix or a step of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestSpec {
    #[serde(default)]
    pub name: String,
    pub method: String,
    /// Its path and query are a template.
    pub url: Url,
    /// Extra headers, in order; values are templates. A header replaces lastdrop's own one of the same name (Host,
    /// User-Agent, Accept, Connection); an empty value removes it.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// All header lines with their line ends, as another program would write them. lastdrop then adds nothing, neither
    /// `Host` nor the length of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<String>,
    #[serde(default)]
    pub body: Body,
    /// Weight of the request when requests are chosen at random.
    #[serde(default = "one")]
    pub weight: f64,
    #[serde(default)]
    pub auth: Option<Auth>,
    #[serde(default)]
    pub expect: Vec<Expectation>,
    #[serde(default)]
    pub extract: Vec<ExtractSpec>,
    /// Think time after its answer, instead of the plan's.
    #[serde(default)]
    pub think: Option<ThinkTime>,
    /// In a session: sent only in a user's first session, as for a login.
    #[serde(default)]
    pub once: bool,
    /// With several sessions in a plan: the last request of a session. Its connection is closed after the answer.
    #[serde(default)]
    pub last: bool,
    /// The request has no templates: braces are sent unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub literal: bool,
}

fn one() -> f64 {
    1.0
}

impl RequestSpec {
    /// Returns a GET of a URL.
    #[must_use]
    pub fn get(url: Url) -> RequestSpec {
        RequestSpec {
            name: String::new(),
            method: "GET".into(),
            url,
            headers: Vec::new(),
            lines: None,
            body: Body::None,
            weight: 1.0,
            auth: None,
            expect: Vec::new(),
            extract: Vec::new(),
            think: None,
            once: false,
            last: false,
            literal: false,
        }
    }
}

/// Body of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    #[default]
    None,
    /// A template.
    Text(String),
    /// A file, sent unchanged.
    File(PathBuf),
    /// `application/x-www-form-urlencoded`; values are templates.
    Form(Vec<(String, String)>),
    /// `multipart/form-data`.
    Multipart(Vec<FormPart>),
}

/// One field of a multipart form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormPart {
    pub name: String,
    pub content: PartContent,
    /// File name to send; without it, the name of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// Content type; without it, `application/octet-stream` for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

impl FormPart {
    /// Makes a part with a name and a content.
    #[must_use]
    pub fn new(name: &str, content: PartContent) -> FormPart {
        FormPart { name: name.into(), content, file_name: None, content_type: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartContent {
    Text(String),
    File(PathBuf),
}

/// Authentication of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    Basic {
        user: String,
        password: String,
    },
    /// RFC 7616: the first request of a user is answered 401 and sent again with the response to the challenge.
    Digest {
        user: String,
        password: String,
    },
    /// The token is a template.
    Bearer(String),
}

/// A condition on an answer. An answer that does not meet it counts as answered, and also as missed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Expectation {
    /// Any of these statuses; a number below 10 is a class: 2 means 200 to 299.
    Status(Vec<u16>),
    /// Bytes of the body, without transfer coding.
    Length(u64),
    Text(String),
    NoText(String),
    /// Path and query of the request that was answered, after redirects; see
    /// [`class::leads_to`](crate::class::leads_to).
    Url(String),
    /// `crc32:…`, `md5:…` or `sha256:…` of the body, in hex.
    Checksum(Checksum),
    /// The body is the same as in the first answer to this request.
    Same,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checksum {
    Crc32(String),
    Md5(String),
    Sha256(String),
}

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once('=').ok_or_else(|| {
            format!("'{text}' is not an expectation; write status=200, length=1234, text=Hello, no-text=Error, url=/path, checksum=sha256:… or checksum=same")
        })?;
        match kind {
            "status" => value
                .split(',')
                .map(|v| {
                    let digits = v.trim().trim_end_matches("xx");
                    digits.parse::<u16>().ok().filter(|n| (1..=5).contains(n) || (100..1000).contains(n))
                })
                .collect::<Option<Vec<u16>>>()
                .map(Expectation::Status)
                .ok_or_else(|| format!("'{value}' is not a status; write 200, 2xx or 200,304")),
            "length" => LENGTH.read(value).map(Expectation::Length).map_err(|e| e.to_string()),
            "text" if !value.is_empty() => Ok(Expectation::Text(value.to_string())),
            "no-text" if !value.is_empty() => Ok(Expectation::NoText(value.to_string())),
            "url" if value.starts_with('/') => Ok(Expectation::Url(value.to_string())),
            "url" => Err(format!("'{value}' is not a path; write url=/orders/{{n}}?tab")),
            "checksum" if value == "same" => Ok(Expectation::Same),
            "checksum" => {
                let hex = |sum: &str, len: usize| {
                    let fits = sum.len() == len && sum.bytes().all(|b| b.is_ascii_hexdigit());
                    fits.then(|| sum.to_ascii_lowercase())
                };
                let sum = match value.split_once(':') {
                    Some(("crc32", sum)) => hex(sum, 8).map(Checksum::Crc32),
                    Some(("md5", sum)) => hex(sum, 32).map(Checksum::Md5),
                    Some(("sha256", sum)) => hex(sum, 64).map(Checksum::Sha256),
                    _ => None,
                };
                sum.map(Expectation::Checksum).ok_or_else(|| {
                    format!("'{value}' is not a checksum; write crc32:, md5: or sha256: and its hex digits, or same")
                })
            }
            _ => Err(format!("'{kind}' cannot be expected; status, length, text, no-text, url and checksum can")),
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expectation::Status(list) => {
                let words: Vec<String> =
                    list.iter().map(|n| if *n < 10 { format!("{n}xx") } else { n.to_string() }).collect();
                write!(f, "status={}", words.join(","))
            }
            Expectation::Length(n) => write!(f, "length={n}"),
            Expectation::Text(text) => write!(f, "text={text}"),
            Expectation::NoText(text) => write!(f, "no-text={text}"),
            Expectation::Url(path) => write!(f, "url={path}"),
            Expectation::Checksum(Checksum::Crc32(sum)) => write!(f, "checksum=crc32:{sum}"),
            Expectation::Checksum(Checksum::Md5(sum)) => write!(f, "checksum=md5:{sum}"),
            Expectation::Checksum(Checksum::Sha256(sum)) => write!(f, "checksum=sha256:{sum}"),
            Expectation::Same => f.write_str("checksum=same"),
        }
    }
}

impl TryFrom<String> for Expectation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Expectation> for String {
    fn from(e: Expectation) -> String {
        e.to_string()
    }
}

/// A value taken from an answer and put into later requests as `{{name}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractSpec {
    pub name: String,
    pub from: ExtractSource,
}

/// Where in an answer a value is taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtractSource {
    Header(String),
    /// The first group of the first match in the body, or the whole match where it has no group.
    Regex(String),
    /// A JSON pointer (RFC 6901) into the body: `/items/0/id`.
    Json(String),
    /// A regex, as for the body, over the answer's Location or, without one, over the path and query after redirects.
    Url(String),
}

/// Think time: the pause of a user between an answer and the next request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ThinkTime {
    Fixed(Duration),
    Uniform(Duration, Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
}

impl ThinkTime {
    /// Returns the mean think time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match self {
            ThinkTime::Fixed(d) | ThinkTime::Exponential(d) => *d,
            ThinkTime::Uniform(low, high) => (*low + *high) / 2,
        }
    }
}

impl FromStr for ThinkTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |e: String| format!("{e}; a think time is '2s', '1s-3s' (uniform) or 'exp 2s' (exponential)");
        let pause = |text: &str| PAUSE.read(text).map_err(|e| wrong(e.to_string()));
        if let Some(mean) = text.trim().strip_prefix("exp ") {
            return pause(mean).map(ThinkTime::Exponential);
        }
        match text.split_once('-') {
            Some((low, high)) if !low.is_empty() => {
                let (low, high) = (pause(low)?, pause(high)?);
                if low > high {
                    return Err(wrong(format!("'{text}' ends before it begins")));
                }
                Ok(ThinkTime::Uniform(low, high))
            }
            _ => pause(text).map(ThinkTime::Fixed),
        }
    }
}

impl fmt::Display for ThinkTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = humantime::format_duration;
        match self {
            ThinkTime::Fixed(d) => write!(f, "{}", show(*d).to_string().replace(' ', "")),
            ThinkTime::Uniform(a, b) => {
                write!(f, "{}-{}", show(*a).to_string().replace(' ', ""), show(*b).to_string().replace(' ', ""))
            }
            ThinkTime::Exponential(d) => write!(f, "exp {}", show(*d).to_string().replace(' ', "")),
        }
    }
}

impl TryFrom<String> for ThinkTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ThinkTime> for String {
    fn from(t: ThinkTime) -> String {
        t.to_string()
    }
}

/// How the next request is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// At random by weight.
    #[default]
    Weighted,
    /// One after the other, over and over, all users together.
    Order,
    /// All of them in order are one session of one user.
    Session,
    /// Several sessions, each up to a request marked as the last, begun one after the other, over and over. A number of
    /// requests of a phase is then one of sessions.
    Sessions,
}

/// Source of data rows for templates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSource {
    /// CSV file with a header line.
    pub file: PathBuf,
    pub per: RowScope,
    /// Choose rows at random instead of in turn.
    #[serde(default)]
    pub random: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Per")]
pub enum RowScope {
    /// A user keeps its row.
    User,
    /// Each session, or each request where there are no sessions, has the next row.
    #[default]
    Request,
}

/// Page mode: loads pages as a browser does, the HTML and then its embedded parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    pub connections_per_host: u32,
    /// A user fetches cacheable parts only once.
    pub cache: bool,
}

/// Checks that a header's name and value cannot smuggle in another line (RFC 9110, section 5).
///
/// # Errors
/// With what is wrong.
pub fn check_header(name: &str, value: &str) -> Result<(), String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("'{name}' is not a header name"));
    }
    if value.bytes().any(|b| b < 0x20 && b != b'\t') {
        return Err(format!("the value of {name} has control characters"));
    }
    Ok(())
}

/// Reads a header line, `Name: value`.
///
/// # Errors
/// With what is wrong and how to write it.
pub fn header_line(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or_else(|| format!("'{text}' is not a header; write 'Name: value'"))?;
    let (name, value) = (name.trim(), value.trim());
    check_header(name, value)?;
    Ok((name.to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_read_what_they_print() {
        for text in [
            "status=200",
            "status=2xx,304",
            "length=12",
            "text=a=b",
            "no-text=x",
            "checksum=crc32:0123abcd",
            "checksum=same",
        ] {
            assert_eq!(text.parse::<Expectation>().expect("valid").to_string(), text);
        }
        for bad in ["status=20", "status=", "length=x", "text=", "checksum=sha256:12", "size=3", "200"] {
            assert!(bad.parse::<Expectation>().is_err(), "{bad}");
        }
    }

    #[test]
    fn think_times_read_what_they_print() {
        for text in ["2s", "1s-3s", "exp 500ms"] {
            assert_eq!(text.parse::<ThinkTime>().expect("valid").to_string(), text);
        }
        for bad in ["", "x", "3s-1s", "exp", "-2s"] {
            assert!(bad.parse::<ThinkTime>().is_err(), "{bad}");
        }
    }
}
