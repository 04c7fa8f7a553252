//! HAR files (HTTP Archive 1.2), as Chromium, Firefox and proxies save them. Only the file itself is read: what it names is not opened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::{Answer, Exchange, MOST_ANSWER_BYTES, RecordingError, Sent, find, is_method};
use crate::time::TimeForm;

/// What browsers fetch for a page, by Chromium's name of its kind or by `Sec-Fetch-Dest`.
const PARTS: [&str; 19] = [
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
    "prefetch",
    "csp-violation-report",
    "signed-exchange",
    "worker",
    "sharedworker",
    "serviceworker",
];

/// What never ends is no step.
const STREAMS: [&str; 2] = ["websocket", "eventsource"];

/// Reads a HAR file.
///
/// # Errors
/// When it is none. Entries that are no requests over HTTP (`data:`, WebSockets), streams without an end, and what got no answer because it was
/// blocked or given up, are left out.
pub fn read_har(text: &str) -> Result<Vec<Exchange>, RecordingError> {
    let wrong = |what: String| RecordingError(format!("this is no HAR file: {what}"));
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let entries = document["log"]["entries"].as_array().ok_or_else(|| wrong("it has no log with entries".into()))?;
    // Where nothing has a status, none is no sign.
    let answered = entries.iter().any(|e| status(&e["response"]).is_some());
    let came_through = |e: &&Value| !answered || e["response"]["status"].as_i64() != Some(0);
    let mut exchanges: Vec<Exchange> = entries.iter().filter(came_through).filter_map(exchange).collect();
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
    // What was asked of the cache was asked of no server.
    let from_cache = entry["_fromCache"].is_string();
    let is_stream = entry["_resourceType"].as_str().is_some_and(|kind| STREAMS.contains(&kind))
        || status(&entry["response"]) == Some(101)
        || text_of(&entry["response"]["content"]["mimeType"]).starts_with("text/event-stream");
    if !is_method(&method) || method == "CONNECT" || from_cache || is_stream {
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
        body: body(request),
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

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn body(request: &Value) -> Sent {
    let post = &request["postData"];
    let content_type = text_of(&post["mimeType"]);
    let params = pairs(&post["params"]);
    let written = text_of(&post["text"]);
    let text = if post["encoding"] == "base64" {
        BASE64.decode(written).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    } else {
        // Firefox had the body's own head before it.
        let head = written.starts_with("Content-Type:") || written.starts_with("Content-Length:");
        head.then(|| written.split_once("\r\n\r\n")).flatten().map_or(written, |(_, body)| body).to_string()
    };
    if text.is_empty() && params.is_empty() {
        let had_some = !written.is_empty() || request["bodySize"].as_i64().is_some_and(|n| n > 0);
        return if had_some { Sent::Lost } else { Sent::Nothing };
    }
    if content_type.to_ascii_lowercase().starts_with("multipart/form-data") {
        let parts = if params.is_empty() { parts(content_type, &text) } else { params };
        return if parts.is_empty() { Sent::Text(text) } else { Sent::Multipart(parts) };
    }
    match Sent::of(content_type, text) {
        Sent::Nothing => Sent::Form(params),
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

/// A number; of some proxies a text.
fn status(response: &Value) -> Option<u16> {
    let status = &response["status"];
    let status = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
    (100..600).contains(&status).then_some(status as u16)
}

fn answer(response: &Value) -> Option<Answer> {
    let status = status(response)?;
    let content = &response["content"];
    let written = text_of(&content["text"]);
    let mut text = if content["encoding"] == "base64" {
        BASE64.decode(written).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    } else {
        written.to_string()
    };
    if text.len() > MOST_ANSWER_BYTES {
        let end = (0..=MOST_ANSWER_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    let mut headers = pairs(&response["headers"]);
    let redirect = text_of(&response["redirectURL"]);
    if !redirect.is_empty() && find(&headers, "location").is_none() {
        headers.push(("Location".into(), redirect.into()));
    }
    let content_type = content["mimeType"]
        .as_str()
        .or_else(|| find(&headers, "content-type"))
        .unwrap_or_default()
        .to_ascii_lowercase();
    Some(Answer { status, headers, content_type, text })
}

/// Is it fetched because a page has it in it? Browsers say so; of others the type of the answer does.
pub(crate) fn is_part(entry: &Value, exchange: &Exchange) -> bool {
    let kind = entry["_resourceType"].as_str().or_else(|| exchange.header("sec-fetch-dest"));
    match kind {
        Some(kind) if PARTS.contains(&kind) => true,
        Some("document" | "iframe" | "frame" | "xhr" | "fetch") => false,
        _ if exchange.method == "OPTIONS" && exchange.header("access-control-request-method").is_some() => true,
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
