//! Files of URLs (siege, http_load): requests that have nothing to do with each other.

use std::path::Path;

use lastdrop_model::request::Body;
use lastdrop_model::url_file;

use super::{Exchange, RecordingError, Sent};

/// Reads a file of URLs. A file that one of its lines sends is only named in the plan.
///
/// # Errors
/// With the line that is not understood.
pub fn read_siege(text: &str) -> Result<Vec<Exchange>, RecordingError> {
    let requests = url_file::parse(text, Path::new(""), |_| None).map_err(|e| RecordingError(e.to_string()))?;
    let exchange = |r: lastdrop_model::RequestSpec| {
        let body = match r.body {
            Body::Text(text) => Sent::of("application/x-www-form-urlencoded", text),
            Body::File(path) => Sent::File(path.display().to_string()),
            _ => Sent::Nothing,
        };
        Exchange { headers: r.headers, body, ..Exchange::of(&r.method, r.url) }
    };
    Ok(requests.into_iter().map(exchange).collect())
}
