//! Reads HAR files (HTTP Archive 1.2), as Chromium, Firefox and proxies save them. Only the file itself is read; files
//! that it names are not opened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lastdrop_model::Url;
use serde_json::Value;

use super::{
    ImportedFile, MOST_ANSWER_BYTES, RecordedAnswer, RecordedExchange, RecordingError, RequestBody, UploadedFile, find,
    is_method,
};
use crate::time::TimeForm;

/// Kinds of page resources, by Chromium's name or by `Sec-Fetch-Dest`.
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

/// Most reasons for leaving entries out that are reported separately.
const MOST_REASONS: usize = 10;

/// Endless streams are not steps.
const STREAMS: [&str; 2] = ["websocket", "eventsource"];

/// Reads a HAR file.
///
/// # Errors
/// It is not a HAR file. Some entries are left out: other schemes (`data:`, WebSockets), endless streams, and requests
/// without an answer (blocked or cancelled). How many, and why, is reported.
pub fn read_har(text: &str) -> Result<ImportedFile, RecordingError> {
    let wrong = |what: String| RecordingError(format!("this is no HAR file: {what}"));
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let entries = document["log"]["entries"].as_array().ok_or_else(|| wrong("it has no log with entries".into()))?;
    // If no entry has a status, a missing one means nothing.
    let answered = entries.iter().any(|e| status(&e["response"]).is_some());
    let came_through = |e: &Value| !answered || e["response"]["status"].as_i64() != Some(0);
    let mut exchanges: Vec<RecordedExchange> = Vec::new();
    let mut reasons: Vec<(String, usize)> = Vec::new();
    let mut others = 0;
    for entry in entries {
        let read = if came_through(entry) {
            exchange(entry, exchanges.last().map(|e| &e.url))
        } else {
            Err("no answer, blocked or given up".into())
        };
        let reason = match read {
            Ok(exchange) => {
                exchanges.push(exchange);
                continue;
            }
            Err(reason) => reason,
        };
        if let Some((_, n)) = reasons.iter_mut().find(|(known, _)| *known == reason) {
            *n += 1;
        } else if reasons.len() < MOST_REASONS {
            reasons.push((reason, 1));
        } else {
            others += 1;
        }
    }
    // Firefox and some proxies write entries in the order of their ends.
    exchanges.sort_by_key(|e| e.begin_us);
    let note = |(reason, n): &(String, usize)| {
        let entries = if *n == 1 { "entry is" } else { "entries are" };
        format!("{n} {entries} left out: {reason}")
    };
    let mut left_out: Vec<String> = reasons.iter().map(note).collect();
    if others > 0 {
        left_out.push(format!("{others} entries are left out for other reasons"));
    }
    Ok(ImportedFile { exchanges, settings: None, left_out })
}

/// The URL of a request. Blanks and similar characters are percent-encoded, as a browser sends them. A bare path
/// belongs to the host that the request names, or to the previous request's.
fn url_of(request: &Value, before: Option<&Url>) -> Result<Url, String> {
    let written = request["url"].as_str().ok_or("it has no URL")?;
    let is_whole =
        written.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()));
    let headers = pairs(&request["headers"]);
    let host = find(&headers, "host").and_then(|host| {
        let scheme = if before.is_some_and(|b| b.tls) { "https" } else { "http" };
        format!("{scheme}://{host}/").parse::<Url>().ok()
    });
    let any = Url { tls: false, host: "localhost".into(), port: 80, path: "/".into() };
    let shown = || lastdrop_model::secrets::url(written.get(..100).unwrap_or(written)).into_owned();
    let base = match (is_whole, host.as_ref().or(before)) {
        (true, _) => &any,
        (false, Some(base)) => base,
        (false, None) if lastdrop_model::url::is_of_other_scheme(written.as_bytes()) => &any,
        (false, None) => return Err(format!("the URL '{}' names no host", shown())),
    };
    base.join(written).map_err(|e| match written.split_once(':') {
        Some((scheme, _))
            if !matches!(scheme, "http" | "https") && scheme.len() < 20 && !scheme.contains(['/', '?']) =>
        {
            format!("{scheme}: is not HTTP")
        }
        _ => e.to_string(),
    })
}

/// The exchange of an entry, or why there is none. `before` is the URL of the previous exchange.
fn exchange(entry: &Value, before: Option<&Url>) -> Result<RecordedExchange, String> {
    let request = &entry["request"];
    let url = url_of(request, before)?;
    let method = request["method"].as_str().ok_or("it has no method")?.to_ascii_uppercase();
    // A request served from the cache reached no server.
    let from_cache = entry["_fromCache"].is_string();
    let is_stream = entry["_resourceType"].as_str().is_some_and(|kind| STREAMS.contains(&kind))
        || status(&entry["response"]) == Some(101)
        || text_of(&entry["response"]["content"]["mimeType"]).starts_with("text/event-stream");
    let why = if !is_method(&method) {
        Some("its method is none")
    } else if method == "CONNECT" {
        Some("CONNECT to a proxy")
    } else if from_cache {
        Some("from the browser's cache")
    } else if is_stream {
        Some("WebSockets and streams of events, which never end")
    } else {
        None
    };
    if let Some(why) = why {
        return Err(why.into());
    }
    let begin_us = entry["startedDateTime"].as_str().and_then(|t| TimeForm::Iso.read(t.as_bytes())).map_or(0, |s| s.us);
    let took_us =
        entry["time"].as_f64().filter(|t| t.is_finite() && *t > 0.0).map_or(0, |ms| (ms.min(1e9) * 1e3) as i64);
    let headers = pairs(&request["headers"]);
    let answer = answer(&entry["response"]);
    let (body, files) = body(request);
    let mut exchange = RecordedExchange {
        begin_us,
        end_us: begin_us.saturating_add(took_us),
        body,
        files,
        headers,
        answer,
        ..RecordedExchange::of(&method, url)
    };
    exchange.is_part = is_part(entry, &exchange);
    Ok(exchange)
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().map(str::to_string);
    let pair = |v: &Value| Some((text(&v["name"])?, text(&v["value"]).unwrap_or_default()));
    // HTTP/2 has pseudo-headers such as `:method` among them.
    let pairs = list.as_array().into_iter().flatten().filter_map(pair);
    pairs.filter(|(name, _)| !name.starts_with(':')).collect()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn body(request: &Value) -> (RequestBody, Vec<UploadedFile>) {
    let post = &request["postData"];
    let content_type = text_of(&post["mimeType"]);
    let params = pairs(&post["params"]);
    let written = text_of(&post["text"]);
    let is_multipart = content_type.to_ascii_lowercase().starts_with("multipart/form-data");
    let text = if post["encoding"] == "base64" {
        let bytes = BASE64.decode(written).unwrap_or_default();
        // Parts that are text are kept even if others are not.
        let lossy = is_multipart.then(|| String::from_utf8_lossy(&bytes).into_owned());
        lossy.or_else(|| String::from_utf8(bytes).ok()).unwrap_or_default()
    } else {
        // Firefox puts the body's own head before it.
        let head = written.starts_with("Content-Type:") || written.starts_with("Content-Length:");
        head.then(|| written.split_once("\r\n\r\n")).flatten().map_or(written, |(_, body)| body).to_string()
    };
    if text.is_empty() && params.is_empty() {
        let had_some = !written.is_empty() || request["bodySize"].as_i64().is_some_and(|n| n > 0);
        return (if had_some { RequestBody::Lost } else { RequestBody::Nothing }, Vec::new());
    }
    if is_multipart {
        // The text has the content of files, if present.
        let (mut parts, mut files) = parts(content_type, &text);
        if parts.is_empty() {
            files = uploads(&post["params"]);
            parts = params;
        }
        return if parts.is_empty() {
            (RequestBody::Text(text), Vec::new())
        } else {
            (RequestBody::Multipart(parts), files)
        };
    }
    let body = match RequestBody::of(content_type, text) {
        RequestBody::Nothing => RequestBody::Form(params),
        body => body,
    };
    (body, Vec::new())
}

/// The files among parameters: those with a file name or a type.
fn uploads(params: &Value) -> Vec<UploadedFile> {
    let text = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_string);
    let params = params.as_array().into_iter().flatten().filter(|p| p["name"].is_string()).enumerate();
    let file = |(part, p): (usize, &Value)| {
        let (name, content_type) = (text(&p["fileName"]), text(&p["contentType"]));
        (name.is_some() || content_type.is_some()).then_some(UploadedFile { part, name, content_type, path: None })
    };
    params.filter(|(_, p)| !p["name"].as_str().is_some_and(|n| n.starts_with(':'))).filter_map(file).collect()
}

/// Splits the text of a multipart body into parts, with data about files among them. A file's content that is not text
/// is lost, and its part is empty.
pub(crate) fn parts(content_type: &str, text: &str) -> (Vec<(String, String)>, Vec<UploadedFile>) {
    let (mut parts, mut files) = (Vec::new(), Vec::new());
    let boundary =
        content_type.split("boundary=").nth(1).map(|b| b.split(';').next().unwrap_or(b).trim().trim_matches('"'));
    let Some(boundary) = boundary.filter(|b| !b.is_empty()) else { return (parts, files) };
    for part in text.split(&format!("--{boundary}")) {
        let ends = if part.contains("\r\n\r\n") { ("\r\n\r\n", "\r\n") } else { ("\n\n", "\n") };
        let Some((head, value)) = part.split_once(ends.0) else { continue };
        // `filename="` ends with the same letters.
        let quoted = |key: &str| {
            let at = head.match_indices(key).map(|(at, _)| at).find(|at| head[..*at].ends_with([' ', ';', '\t']))?;
            head[at + key.len()..].split('"').next().map(str::to_string)
        };
        let Some(name) = quoted("name=\"") else { continue };
        let file_name = quoted("filename=\"");
        let kind =
            head.lines().find_map(|l| l.split_once(':').filter(|(n, _)| n.trim().eq_ignore_ascii_case("content-type")));
        let value = value.strip_suffix(ends.1).unwrap_or(value);
        // Bytes that were not text have become U+FFFD.
        let is_lost = file_name.is_some() && value.contains('\u{fffd}');
        if file_name.is_some() || kind.is_some() {
            let content_type = kind.map(|(_, kind)| kind.trim().to_string());
            files.push(UploadedFile { part: parts.len(), name: file_name, content_type, path: None });
        }
        parts.push((name, if is_lost { String::new() } else { value.to_string() }));
    }
    (parts, files)
}

/// The status: a number, or from some proxies a text.
fn status(response: &Value) -> Option<u16> {
    let status = &response["status"];
    let status = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
    (100..600).contains(&status).then_some(status as u16)
}

fn answer(response: &Value) -> Option<RecordedAnswer> {
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
    Some(RecordedAnswer { status, headers, content_type, text })
}

/// Whether a page embeds it. Browsers state that; otherwise the type of the answer decides.
pub(crate) fn is_part(entry: &Value, exchange: &RecordedExchange) -> bool {
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
