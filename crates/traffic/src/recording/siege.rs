//! Files of URLs (siege, http_load): requests that have nothing to do with each other.

use std::path::Path;

use lastdrop_model::request::Body;
use lastdrop_model::url_file;

use super::{Exchange, RecordingError, Sent};

/// Reads a file of URLs. Variables are those of the file, never the environment's.
///
/// # Errors
/// With the line that is not understood, or for one that sends another file: that is not opened.
pub fn read_siege(text: &str) -> Result<Vec<Exchange>, RecordingError> {
    let requests = url_file::parse(text, Path::new(""), |_| None).map_err(|e| RecordingError(e.to_string()))?;
    let exchange = |r: lastdrop_model::RequestSpec| {
        let body = match r.body {
            Body::Text(text) => Sent::of("application/x-www-form-urlencoded", text),
            Body::File(path) => {
                let what = "no other file is opened; put its content there";
                return Err(RecordingError(format!("{} {} <{}: {what}", r.url, r.method, path.display())));
            }
            _ => Sent::Nothing,
        };
        Ok(Exchange { headers: r.headers, body, ..Exchange::of(&r.method, r.url) })
    };
    requests.into_iter().map(exchange).collect()
}
