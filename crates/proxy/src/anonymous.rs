//! Fetches a recorded request once without cookies, by GET alone, to see what a server answers to a new visitor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lastdrop_http::request::{write_field, write_line};
use lastdrop_traffic::recording::{RecordedAnswer, RecordedExchange};
use rustls::ClientConfig;

use crate::bounds;
use crate::exchange::is_passed_on;
use crate::upstream::Upstream;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Fields that identify the user.
const OF_USERS: [&str; 2] = ["cookie", "authorization"];

/// Fetches the URL of a recorded GET without the fields that identify the user. `None` if the answer is incomplete or
/// encoded.
#[must_use]
pub fn ask_without_cookies(exchange: &RecordedExchange, tls: &Arc<ClientConfig>) -> Option<RecordedAnswer> {
    let began = Instant::now();
    let mut head = Vec::new();
    write_line(&mut head, "GET", exchange.url.path.as_bytes(), false);
    write_field(&mut head, "Host", exchange.url.authority().as_bytes());
    for (name, value) in &exchange.headers {
        let lower = name.to_ascii_lowercase();
        if is_passed_on(&lower) && !OF_USERS.contains(&lower.as_str()) {
            write_field(&mut head, name, value.as_bytes());
        }
    }
    write_field(&mut head, "Accept-Encoding", b"identity");
    write_field(&mut head, "Connection", b"close");
    head.extend_from_slice(b"\r\n");
    let mut upstream = Upstream::send(&exchange.url, tls, false, &head, &[]).ok()?.patient(PATIENCE);
    let (mut fields, mut body) = (Vec::new(), Vec::new());
    while let Some(piece) = upstream.next().ok()? {
        fields.extend(piece.fields);
        body.extend_from_slice(&piece.body);
        if body.len() > bounds::ANSWER_BYTES || began.elapsed() > PATIENCE {
            return None;
        }
    }
    let headers: Vec<(String, String)> =
        fields.into_iter().map(|(n, v)| (n, String::from_utf8_lossy(&v).into_owned())).collect();
    let of = |name: &str| headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone());
    if of("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return None;
    }
    let content_type = of("content-type").unwrap_or_default().to_ascii_lowercase();
    Some(RecordedAnswer {
        status: upstream.status(),
        headers,
        content_type,
        text: String::from_utf8_lossy(&body).into_owned(),
    })
}
