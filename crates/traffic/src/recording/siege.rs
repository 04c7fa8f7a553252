//! Reads files of URLs (siege, http_load): independent requests.

use std::path::Path;

use lastdrop_model::request::Body;
use lastdrop_model::url_file;

use super::{RecordedExchange, RecordingError, RequestBody};

/// Reads a file of URLs. Variables are those of the file, never the environment's.
///
/// # Errors
/// The line that does not parse, or one that sends another file, which is not opened.
pub fn read_siege(text: &str) -> Result<Vec<RecordedExchange>, RecordingError> {
    let requests = url_file::parse(text, Path::new(""), |_| None).map_err(|e| RecordingError(e.to_string()))?;
    let exchange = |r: lastdrop_model::RequestSpec| {
        let body = match r.body {
            Body::Text(text) => RequestBody::of("application/x-www-form-urlencoded", text),
            Body::File(path) => {
                let what = "no other file is opened; put its content there";
                return Err(RecordingError(format!("{} {} <{}: {what}", r.url, r.method, path.display())));
            }
            _ => RequestBody::Nothing,
        };
        Ok(RecordedExchange { headers: r.headers, body, ..RecordedExchange::of(&r.method, r.url) })
    };
    requests.into_iter().map(exchange).collect()
}
