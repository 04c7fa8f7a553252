//! Passes a request and its answer on, and records both.

use std::borrow::Cow;

use lastdrop_http::request::{write_field, write_line};
use lastdrop_model::Url;
use lastdrop_traffic::recording::{RecordedExchange, RequestBody, uploaded_files};
use lastdrop_wire::Wire;

use crate::bounds;
use crate::incoming::{Request, field};
use crate::listener::ProxyState;
use crate::recorder::now_us;
use crate::relay::ResponseRelay;
use crate::rewrite;
use crate::upstream::Upstream;

/// Fields about one connection (RFC 9110, section 7.6.1), and `Host` and lengths, which are written anew.
pub(crate) const OWN_FIELDS: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Fields that depend on the browser's earlier visits. A plan's user has none, and an answer "not modified" has no
/// values.
const CONDITIONS: [&str; 3] = ["accept-encoding", "if-modified-since", "if-none-match"];
/// A longer text in a plan is unreadable.
const MOST_TEXT_BYTES: usize = 256 * 1024;

/// Whether a field, by its name in lower case, is about the request and not about the connection or an earlier visit.
pub(crate) fn is_passed_on(name: &str) -> bool {
    !OWN_FIELDS.contains(&name) && !CONDITIONS.contains(&name)
}

/// A complete answer by the proxy itself, after which the connection ends.
pub fn plain_answer(status: u16, text: &str) -> Vec<u8> {
    let text = format!("lastdrop record: {text}\n");
    let mut bytes = status_line(status);
    write_field(&mut bytes, "Content-Type", b"text/plain; charset=utf-8");
    write_field(&mut bytes, "Content-Length", text.len().to_string().as_bytes());
    write_field(&mut bytes, "Connection", b"close");
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A status line without reason phrase: the phrase is useless (RFC 9112, section 4), and the parser does not keep it.
pub(crate) fn status_line(status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} \r\n").into_bytes()
}

/// Passes a request on, and its answer back. Returns false if the connection cannot be reused.
pub fn pass(wire: &mut Wire, shared: &ProxyState, request: &Request<'_>, asked: &Url) -> bool {
    let _in_flight = shared.recorder.begin();
    let begin_us = now_us();
    let (url, body) = match &shared.names {
        Some(names) => {
            let path = names.for_server(asked.path.as_bytes());
            (asked.with_path(&String::from_utf8_lossy(&path)), Cow::Owned(names.for_server(&request.body)))
        }
        None => (asked.clone(), Cow::Borrowed(request.body.as_slice())),
    };
    let fields = fields_for_server(shared, request);
    let head = head_for_server(request, &url, &fields, body.len());
    let exchange = described(shared, request, &url, fields, &body, begin_us);
    let failed = |wire: &mut Wire, why: String| {
        wire.within(bounds::SILENCE);
        let _ = wire.write(&plain_answer(502, &why));
        shared.recorder.trouble(why);
        false
    };
    let mut upstream = match Upstream::send(&url, &shared.tls, request.head.method == "HEAD", &head, &body) {
        Ok(upstream) => upstream,
        Err(why) => return failed(wire, why),
    };
    let first = match upstream.next() {
        Ok(Some(piece)) => piece,
        Ok(None) => return failed(wire, format!("{} gave no answer", url.origin())),
        Err(why) => return failed(wire, format!("{}: {why}", url.origin())),
    };
    let mut relay = ResponseRelay::new(shared, request, &url, upstream.status(), first.fields, exchange.is_part);
    let mut passed = relay.begin(wire).and_then(|()| relay.pass(wire, &first.body));
    let whole = loop {
        match passed.map_err(|_| None).and_then(|()| upstream.next().map_err(Some)) {
            Ok(Some(piece)) => passed = relay.pass(wire, &piece.body),
            Ok(None) => break relay.finish(wire).is_ok(),
            Err(why) => {
                why.into_iter().for_each(|why| shared.recorder.trouble(format!("{}: {why}", url.origin())));
                break false;
            }
        }
    };
    let keep = whole && relay.keeps_connection;
    let exchange = RecordedExchange { end_us: now_us(), answer: Some(relay.answer()), ..exchange }.classified();
    // A plan's method consists of letters.
    if exchange.method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        shared.recorder.keep(exchange);
    }
    keep
}

/// The fields as the server receives them.
fn fields_for_server(shared: &ProxyState, request: &Request<'_>) -> Vec<(String, Vec<u8>)> {
    let named = request.text("connection").unwrap_or_default().to_ascii_lowercase();
    let stays = |name: &str| {
        let name = name.to_ascii_lowercase();
        is_passed_on(&name) && !named.split(',').any(|word| word.trim() == name)
    };
    let changed = |name: &str, value: &[u8]| match (&shared.names, str::from_utf8(value)) {
        (None, _) => value.to_vec(),
        (Some(_), Ok(text)) if name.eq_ignore_ascii_case("cookie") => rewrite::cookies(text).into_bytes(),
        (Some(names), _) => names.for_server(value),
    };
    request.fields.iter().filter(|(n, _)| stays(n)).map(|(n, v)| (n.clone(), changed(n, v))).collect()
}

fn head_for_server(request: &Request<'_>, url: &Url, fields: &[(String, Vec<u8>)], body_bytes: usize) -> Vec<u8> {
    let mut head = Vec::new();
    write_line(&mut head, &request.head.method, url.path.as_bytes(), false);
    write_field(&mut head, "Host", url.authority().as_bytes());
    fields.iter().for_each(|(name, value)| write_field(&mut head, name, value));
    // The proxy searches answers for values and replaces names in them, so they should not be compressed.
    write_field(&mut head, "Accept-Encoding", b"identity");
    if request.field("content-length").is_some() || request.field("transfer-encoding").is_some() {
        write_field(&mut head, "Content-Length", body_bytes.to_string().as_bytes());
    }
    write_field(&mut head, "Connection", b"close");
    head.extend_from_slice(b"\r\n");
    head
}

/// Describes a request for the recording.
fn described(
    shared: &ProxyState,
    request: &Request<'_>,
    url: &Url,
    fields: Vec<(String, Vec<u8>)>,
    body: &[u8],
    begin_us: i64,
) -> RecordedExchange {
    let content_type =
        field(&fields, "content-type").map(|v| String::from_utf8_lossy(v).into_owned()).unwrap_or_default();
    let text = String::from_utf8_lossy(body).into_owned();
    let is_text = str::from_utf8(body).is_ok();
    let mut sent = RequestBody::of(&content_type, text);
    if let RequestBody::Text(text) = &sent
        && (!is_text || text.len() > MOST_TEXT_BYTES)
    {
        shared.recorder.trouble("a body that is no text, or more than 256 KB of it, is not in the plan");
        sent = RequestBody::Lost;
    }
    let headers =
        fields.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned())).collect();
    let mut exchange = RecordedExchange::of(&request.head.method, url.clone());
    exchange.begin_us = begin_us;
    exchange.end_us = begin_us;
    exchange.headers = headers;
    exchange.files = uploaded_files(&sent, &content_type, body);
    exchange.body = sent;
    exchange.classified()
}
