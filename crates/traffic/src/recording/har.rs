//! HAR files (HTTP Archive 1.2), as Chromium, Firefox and proxies save them. Only the file itself is read: what it names is not opened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::{Answer, Exchange, MOST_ANSWER_BYTES, RecordingError, Sent, find};
use crate::time::TimeForm;

/// What browsers fetch for a page, by Chromium's name of its kind or by `Sec-Fetch-Dest`.
const PARTS: [&str; 16] = [
    "stylesheet",
    "style",
    "script",
    "image",
    "font",
    "media",
    "audio",
    "video",
    "track",
    "texttrack",
    "manifest",
    "ping",
    "preflight",
    "worker",
    "sharedworker",
    "serviceworker",
];

/// Reads a HAR file.
///
/// # Errors
/// When it is none. Entries that are no requests over HTTP (`data:`, WebSockets) are left out.
pub fn read_har(text: &str) -> Result<Vec<Exchange>, RecordingError> {
    let wrong = |what: String| RecordingError(format!("this is no HAR file: {what}"));
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let entries = document["log"]["entries"].as_array().ok_or_else(|| wrong("it has no log with entries".into()))?;
    let mut exchanges: Vec<Exchange> = entries.iter().filter_map(exchange).collect();
    // Firefox and some proxies write them in the order of their ends.
    exchanges.sort_by_key(|e| e.begin_us);
    Ok(exchanges)
}

fn exchange(entry: &Value) -> Option<Exchange> {
    let request = &entry["request"];
    let url = request["url"].as_str()?;
    let url = match url.split_once('#') {
        Some((url, _)) => url.parse().ok()?,
        None => url.parse().ok()?,
    };
    let method = request["method"].as_str()?.to_ascii_uppercase();
    let is_token = !method.is_empty() && method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-');
    // What was asked of the cache was asked of no server.
    let from_cache = entry["_fromCache"].is_string();
    if !is_token || method == "CONNECT" || from_cache {
        return None;
    }
    let begin_us = entry["startedDateTime"].as_str().and_then(|t| TimeForm::Iso.read(t.as_bytes())).map_or(0, |s| s.us);
    let took_us =
        entry["time"].as_f64().filter(|t| t.is_finite() && *t > 0.0).map_or(0, |ms| (ms.min(1e9) * 1e3) as i64);
    let headers = pairs(&request["headers"]);
    let answer = answer(&entry["response"]);
    let mut exchange = Exchange {
        begin_us,
        end_us: begin_us.saturating_add(took_us),
        body: body(&request["postData"]),
        is_part: false,
        is_last: false,
        method,
        url,
        headers,
        answer,
    };
    exchange.is_part = is_part(entry, &exchange);
    Some(exchange)
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().map(str::to_string);
    let pair = |v: &Value| Some((text(&v["name"])?, text(&v["value"]).unwrap_or_default()));
    // HTTP/2 has `:method` and its like among them.
    let pairs = list.as_array().into_iter().flatten().filter_map(pair);
    pairs.filter(|(name, _)| !name.starts_with(':')).collect()
}

fn body(post: &Value) -> Sent {
    let content_type = post["mimeType"].as_str().unwrap_or_default();
    let text = post["text"].as_str().unwrap_or_default().to_string();
    let params = pairs(&post["params"]);
    if content_type.to_ascii_lowercase().starts_with("multipart/form-data") {
        let parts = if params.is_empty() { parts(content_type, &text) } else { params };
        return if parts.is_empty() { Sent::Text(text) } else { Sent::Multipart(parts) };
    }
    match Sent::of(content_type, text) {
        Sent::Nothing if !params.is_empty() => Sent::Form(params),
        body => body,
    }
}

/// Parts of a multipart body that was written down as text.
pub(crate) fn parts(content_type: &str, text: &str) -> Vec<(String, String)> {
    let Some(boundary) = content_type.split("boundary=").nth(1).map(|b| b.trim_matches('"')) else { return Vec::new() };
    let part = |part: &str| {
        let (head, value) = part.split_once("\r\n\r\n")?;
        let name = head.split("name=\"").nth(1)?.split('"').next()?.to_string();
        let is_file = head.contains("filename=");
        Some((name, if is_file { String::new() } else { value.strip_suffix("\r\n").unwrap_or(value).to_string() }))
    };
    text.split(&format!("--{boundary}")).filter_map(part).collect()
}

fn answer(response: &Value) -> Option<Answer> {
    let status = response["status"].as_u64().filter(|s| (100..600).contains(s))?;
    let content = &response["content"];
    let written = content["text"].as_str().unwrap_or_default();
    let mut text = if content["encoding"] == "base64" {
        BASE64.decode(written).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    } else {
        written.to_string()
    };
    if text.len() > MOST_ANSWER_BYTES {
        let end = (0..=MOST_ANSWER_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    let headers = pairs(&response["headers"]);
    let content_type = content["mimeType"]
        .as_str()
        .or_else(|| find(&headers, "content-type"))
        .unwrap_or_default()
        .to_ascii_lowercase();
    Some(Answer { status: status as u16, headers, content_type, text })
}

/// Is it fetched because a page has it in it? Browsers say so; of others the type of the answer does.
pub(crate) fn is_part(entry: &Value, exchange: &Exchange) -> bool {
    let kind = entry["_resourceType"].as_str().or_else(|| exchange.header("sec-fetch-dest"));
    match kind {
        Some(kind) if PARTS.contains(&kind) => true,
        Some("document" | "xhr" | "fetch") => false,
        _ if exchange.method != "GET" => false,
        _ => {
            let of_type = exchange.answer.as_ref().is_some_and(|a| is_part_type(&a.content_type));
            of_type || !crate::analysis::is_page(exchange.url.path.as_bytes()) || exchange.url.path == "/favicon.ico"
        }
    }
}

pub(crate) fn is_part_type(content_type: &str) -> bool {
    ["text/css", "image/", "font/", "audio/", "video/"].iter().any(|t| content_type.starts_with(t))
        || content_type.contains("javascript")
        || content_type.contains("font")
}
