//! What one user did, as a plan of one session: steps with bodies and pauses, values that an answer gave and a later request took as
//! extractions, passwords as columns of a data file, and what pages embed left to page mode.
//!
//! Whoever reads a recording (`har`, `curl` …) makes [`Exchange`]s of it; all else is the same for all of them. Pure: nothing is opened here,
//! neither what a recording names nor a shell.

mod curl;
mod expect;
mod har;
mod httperf;
mod rules;
mod settings;
mod shell;
mod siege;
mod sources;
mod steps;
mod values;
mod write;

use std::collections::HashMap;

use lastdrop_model::{Url, secrets};

pub use self::curl::read_curl;
pub use self::har::read_har;
pub use self::httperf::{read_wlog, read_wsesslog};
pub use self::settings::Settings;
pub use self::shell::RUNS_ANOTHER;
pub use self::siege::read_siege;

/// Answers are looked at for values up to here.
pub(crate) const MOST_ANSWER_BYTES: usize = 4 << 20;

/// A request and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// µs of any clock.
    pub begin_us: i64,
    pub end_us: i64,
    pub method: String,
    pub url: Url,
    /// As they were sent, in their order.
    pub headers: Vec<(String, String)>,
    pub body: Sent,
    /// None where there is no answer to be seen (a command line, a list).
    pub answer: Option<Answer>,
    /// A page embeds it: a script, an image.
    pub is_part: bool,
    /// The last of its session.
    pub is_last: bool,
    /// What is known of files among the parts of a multipart body.
    pub files: Vec<UploadedFile>,
    /// Somebody wrote down each of its headers to be sent: none is a browser's own.
    pub is_exact: bool,
}

/// A part of a multipart body that has a file's name or a type, beside its name and text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadedFile {
    /// The part's place among the parts.
    pub part: usize,
    /// The file's name, as it is sent.
    pub name: Option<String>,
    pub content_type: Option<String>,
    /// A file that has the content; the part's text is empty then.
    pub path: Option<String>,
}

/// What a file to be imported has in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    pub exchanges: Vec<Exchange>,
    /// What is sent beside requests, where the file says it; otherwise a plan asks as browsers do.
    pub settings: Option<Settings>,
    /// What the plan cannot say, each in words.
    pub left_out: Vec<String>,
}

impl From<Vec<Exchange>> for Imported {
    fn from(exchanges: Vec<Exchange>) -> Imported {
        Imported { exchanges, ..Imported::default() }
    }
}

impl Exchange {
    /// A request of which only that is known.
    #[must_use]
    pub fn of(method: &str, url: Url) -> Exchange {
        Exchange {
            begin_us: 0,
            end_us: 0,
            method: method.into(),
            url,
            headers: Vec::new(),
            body: Sent::Nothing,
            answer: None,
            is_part: false,
            is_last: false,
            files: Vec::new(),
            is_exact: false,
        }
    }

    /// With what its own fields and its answer say of whether a page embeds it.
    #[must_use]
    pub fn classified(self) -> Exchange {
        // A frame is loaded with its page, unless the user has gone on in it.
        let is_frame = matches!(self.header("sec-fetch-dest"), Some("iframe" | "frame"));
        let is_embedded = is_frame && self.method == "GET" && self.header("sec-fetch-user").is_none();
        Exchange { is_part: is_embedded || har::is_part(&serde_json::Value::Null, &self), ..self }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

pub(crate) fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// The body of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Sent {
    #[default]
    Nothing,
    Text(String),
    /// `application/x-www-form-urlencoded`, decoded.
    Form(Vec<(String, String)>),
    /// `multipart/form-data`: names and texts of the parts. What else there is of files among them is in [`Exchange::files`].
    Multipart(Vec<(String, String)>),
    /// What a file has in it, which is read when the plan runs.
    File(String),
    /// The recording does not have it, or it is no text.
    Lost,
}

impl Sent {
    /// A body by its type.
    #[must_use]
    pub fn of(content_type: &str, text: String) -> Sent {
        if text.is_empty() {
            return Sent::Nothing;
        }
        let kind = content_type.trim_start().to_ascii_lowercase();
        if kind.starts_with("multipart/form-data") {
            let (parts, _) = har::parts(content_type, &text);
            return if parts.is_empty() { Sent::Text(text) } else { Sent::Multipart(parts) };
        }
        let form = kind.starts_with("application/x-www-form-urlencoded") && is_written_as_form(&text);
        match form.then(|| fields(&text)).flatten() {
            Some(fields) => Sent::Form(fields),
            None => Sent::Text(text),
        }
    }
}

/// Has the text no blanks and nothing else that an encoded form does not have? XML or JSON that is sent as a form would come out changed.
fn is_written_as_form(text: &str) -> bool {
    text.bytes().all(|b| (b.is_ascii_graphic() || !b.is_ascii()) && !b"<>\"{}\\^`|".contains(&b))
}

/// What a body of parts says of files among them.
#[must_use]
pub fn uploaded_files(sent: &Sent, content_type: &str, body: &[u8]) -> Vec<UploadedFile> {
    match sent {
        Sent::Multipart(_) => har::parts(content_type, &String::from_utf8_lossy(body)).1,
        _ => Vec::new(),
    }
}

/// Could the text be a method's name?
pub(crate) fn is_method(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-')
}

/// The fields of a query or a form; None where encoding them again would not give the same fields.
pub(crate) fn fields(text: &str) -> Option<Vec<(String, String)>> {
    text.split('&').map(|pair| pair.split_once('=').and_then(|(n, v)| Some((decoded(n)?, decoded(v)?)))).collect()
}

/// Percent-encoding and plus signs undone.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        bytes.push(match b {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|d| char::from(d).to_digit(16));
                (digit()? * 16 + digit()?) as u8
            }
            b => b,
        });
    }
    String::from_utf8(bytes).ok()
}

/// What came back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub content_type: String,
    /// Its beginning, if it is text.
    pub text: String,
}

/// How a plan is made.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// Hosts that the plan may ask; without any, that of the first step.
    pub hosts: Vec<String>,
    /// Name of the data file, as the plan has it.
    pub data_file: String,
    /// They are no path of one user, but requests that have nothing to do with each other.
    pub independent: bool,
    /// Certificates of the server are not verified.
    pub insecure: bool,
    /// A file of authorities that the server's certificate is verified by.
    pub ca: Option<String>,
    /// What is sent beside requests, where what is imported says it.
    pub settings: Option<Settings>,
    /// What has been left out already.
    pub left_out: Vec<String>,
    /// Answers to the same URLs without cookies, by URL, where somebody has asked for them.
    pub without_cookies: HashMap<String, Answer>,
}

/// A plan and what belongs to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recorded {
    pub plan: String,
    /// The data file: passwords and tokens that the user had.
    pub data: Option<String>,
    /// What a person should know of it.
    pub notes: Vec<String>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordingError(pub String);

/// Pages that a user with cookies got by GET: whether a stranger gets the same can be asked without changing anything. Those with a
/// secret in their URL are left out, because such a link may work once.
#[must_use]
pub fn pages_with_cookies<'a>(exchanges: &'a [Exchange], hosts: &[String]) -> Vec<&'a Exchange> {
    let mut pages: Vec<&Exchange> = Vec::new();
    for e in exchanges {
        let is_page = e.answer.as_ref().is_some_and(|a| a.status == 200 && a.content_type.contains("html"));
        let is_ours = hosts.iter().any(|h| h.eq_ignore_ascii_case(&e.url.host));
        let is_plain = secrets::url(&e.url.path) == e.url.path;
        if e.method == "GET"
            && !e.is_part
            && is_page
            && is_ours
            && is_plain
            && e.header("cookie").is_some()
            && !pages.iter().any(|other| other.url == e.url)
        {
            pages.push(e);
        }
    }
    pages
}

/// Makes a plan of what was recorded.
///
/// # Errors
/// When nothing of it is a step.
pub fn plan(exchanges: Vec<Exchange>, options: &PlanOptions) -> Result<Recorded, RecordingError> {
    plan_with_progress(exchanges, options, &mut |_| {})
}

/// The same of many exchanges, telling how much of it is done, in percent.
///
/// # Errors
/// As [`plan`].
pub fn plan_with_progress(
    exchanges: Vec<Exchange>,
    options: &PlanOptions,
    progress: &mut dyn FnMut(u8),
) -> Result<Recorded, RecordingError> {
    let mut notes = options.left_out.clone();
    let mut steps = steps::steps(exchanges, options, &mut notes);
    if steps.is_empty() {
        return Err(RecordingError("there is no request in it that a plan could send".into()));
    }
    let columns = if options.independent { Vec::new() } else { values::connect(&mut steps, progress) };
    let stranger = |step: &steps::Step| {
        let url = step.landed.as_ref().unwrap_or(&step.exchange.url);
        let is_get = step.landed.is_some() || step.exchange.method == "GET";
        options.without_cookies.get(&url.in_full()).filter(|_| is_get).cloned()
    };
    expect::expect(&mut steps, &columns, &stranger);
    Ok(write::write(&steps, &columns, options, notes))
}

#[cfg(test)]
mod tests;
