//! Turns one user's recording into a plan of one session: steps with bodies and pauses. Values from an answer that a
//! later request used become extractions, passwords become columns of a data file. Resources that pages embed are left
//! to page mode.
//!
//! The readers of recordings (`har`, `curl` …) produce [`RecordedExchange`]s; the rest is the same for all. The module is pure:
//! it opens no file that a recording names, and no shell.

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
pub use self::settings::ImportSettings;
pub use self::shell::RUNS_ANOTHER;
pub use self::siege::read_siege;

/// Length up to which answers are searched for values.
pub(crate) const MOST_ANSWER_BYTES: usize = 4 << 20;

/// A request and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedExchange {
    /// µs of any clock.
    pub begin_us: i64,
    pub end_us: i64,
    pub method: String,
    pub url: Url,
    /// As they were sent, in order.
    pub headers: Vec<(String, String)>,
    pub body: RequestBody,
    /// `None` if the recording has no answers (a command line, a list).
    pub answer: Option<RecordedAnswer>,
    /// A page embeds it: a script, an image.
    pub is_part: bool,
    /// It is the last of its session.
    pub is_last: bool,
    /// The files among the parts of a multipart body.
    pub files: Vec<UploadedFile>,
    /// A person listed all its headers: none was added by a browser.
    pub is_exact: bool,
}

/// A part of a multipart body with a file name or a type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadedFile {
    /// Index of the part.
    pub part: usize,
    /// The file name as sent.
    pub name: Option<String>,
    pub content_type: Option<String>,
    /// A file with the content; the part's text is then empty.
    pub path: Option<String>,
}

/// The content of an imported file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportedFile {
    pub exchanges: Vec<RecordedExchange>,
    /// The connection settings that the file states; without them a plan acts like a browser.
    pub settings: Option<ImportSettings>,
    /// What the plan cannot express, in words.
    pub left_out: Vec<String>,
}

impl From<Vec<RecordedExchange>> for ImportedFile {
    fn from(exchanges: Vec<RecordedExchange>) -> ImportedFile {
        ImportedFile { exchanges, ..ImportedFile::default() }
    }
}

impl RecordedExchange {
    /// A request of which nothing else is known.
    #[must_use]
    pub fn of(method: &str, url: Url) -> RecordedExchange {
        RecordedExchange {
            begin_us: 0,
            end_us: 0,
            method: method.into(),
            url,
            headers: Vec::new(),
            body: RequestBody::Nothing,
            answer: None,
            is_part: false,
            is_last: false,
            files: Vec::new(),
            is_exact: false,
        }
    }

    /// Sets whether a page embeds it, by its own fields and its answer.
    #[must_use]
    pub fn classified(self) -> RecordedExchange {
        // A frame is loaded with its page, unless the user has navigated in it.
        let is_frame = matches!(self.header("sec-fetch-dest"), Some("iframe" | "frame"));
        let is_embedded = is_frame && self.method == "GET" && self.header("sec-fetch-user").is_none();
        RecordedExchange { is_part: is_embedded || har::is_part(&serde_json::Value::Null, &self), ..self }
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
pub enum RequestBody {
    #[default]
    Nothing,
    Text(String),
    /// `application/x-www-form-urlencoded`, decoded.
    Form(Vec<(String, String)>),
    /// `multipart/form-data`: names and texts of the parts. More about files among them is in [`RecordedExchange::files`].
    Multipart(Vec<(String, String)>),
    /// The content of a file, which is read when the plan runs.
    File(String),
    /// The recording lacks it, or it is not text.
    Lost,
}

impl RequestBody {
    /// Creates a body by its type.
    #[must_use]
    pub fn of(content_type: &str, text: String) -> RequestBody {
        if text.is_empty() {
            return RequestBody::Nothing;
        }
        let kind = content_type.trim_start().to_ascii_lowercase();
        if kind.starts_with("multipart/form-data") {
            let (parts, _) = har::parts(content_type, &text);
            return if parts.is_empty() { RequestBody::Text(text) } else { RequestBody::Multipart(parts) };
        }
        let form = kind.starts_with("application/x-www-form-urlencoded") && is_written_as_form(&text);
        match form.then(|| fields(&text)).flatten() {
            Some(fields) => RequestBody::Form(fields),
            None => RequestBody::Text(text),
        }
    }
}

/// Whether the text has only characters of an encoded form. XML or JSON sent as a form would come out changed.
fn is_written_as_form(text: &str) -> bool {
    text.bytes().all(|b| (b.is_ascii_graphic() || !b.is_ascii()) && !b"<>\"{}\\^`|".contains(&b))
}

/// The files among the parts of a body.
#[must_use]
pub fn uploaded_files(sent: &RequestBody, content_type: &str, body: &[u8]) -> Vec<UploadedFile> {
    match sent {
        RequestBody::Multipart(_) => har::parts(content_type, &String::from_utf8_lossy(body)).1,
        _ => Vec::new(),
    }
}

/// Whether the text may be a method.
pub(crate) fn is_method(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-')
}

/// The fields of a query or form; `None` if encoding them again would not give the same fields.
pub(crate) fn fields(text: &str) -> Option<Vec<(String, String)>> {
    text.split('&').map(|pair| pair.split_once('=').and_then(|(n, v)| Some((decoded(n)?, decoded(v)?)))).collect()
}

/// Decodes percent-encoding and plus signs.
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

/// The answer to a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedAnswer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub content_type: String,
    /// Its beginning, if it is text.
    pub text: String,
}

/// Options for making a plan.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// Hosts that the plan may address; if empty, only the first step's.
    pub hosts: Vec<String>,
    /// Name of the data file, as the plan refers to it.
    pub data_file: String,
    /// The requests are independent, not the path of one user.
    pub independent: bool,
    /// Do not verify the server's certificates.
    pub insecure: bool,
    /// A file of authorities that verify the server's certificate.
    pub ca: Option<String>,
    /// Connection settings, if the import states them.
    pub settings: Option<ImportSettings>,
    /// What the import has already left out.
    pub left_out: Vec<String>,
    /// Answers to the same URLs without cookies, by URL, if they were fetched.
    pub without_cookies: HashMap<String, RecordedAnswer>,
}

/// A plan with its data file and notes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedPlan {
    pub plan: String,
    /// The data file: the user's passwords and tokens.
    pub data: Option<String>,
    /// Notes for a person.
    pub notes: Vec<String>,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordingError(pub String);

/// Pages that a user with cookies fetched by GET: fetching them again without cookies changes nothing. Pages with a
/// secret in their URL are excluded, because such a link may work only once.
#[must_use]
pub fn pages_with_cookies<'a>(exchanges: &'a [RecordedExchange], hosts: &[String]) -> Vec<&'a RecordedExchange> {
    let mut pages: Vec<&RecordedExchange> = Vec::new();
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

/// Makes a plan of a recording.
///
/// # Errors
/// No exchange is a step.
pub fn plan(exchanges: Vec<RecordedExchange>, options: &PlanOptions) -> Result<RecordedPlan, RecordingError> {
    plan_with_progress(exchanges, options, &mut |_| {})
}

/// Like [`plan`], for many exchanges: `progress` gets the percentage done.
///
/// # Errors
/// As [`plan`].
pub fn plan_with_progress(
    exchanges: Vec<RecordedExchange>,
    options: &PlanOptions,
    progress: &mut dyn FnMut(u8),
) -> Result<RecordedPlan, RecordingError> {
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
