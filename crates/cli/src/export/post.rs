//! Posts messages to an OTLP collector. Messages that arrive during a request go together with the next one.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Result, anyhow};
use lastdrop_model::Url;
use lastdrop_probe::status::post;
use lastdrop_report::export::otlp_messages::ExportMetricsServiceResponse;
use prost::Message as _;

use super::Sink;
use super::thread::{Losses, Thread};

/// Path of the metrics in OTLP over HTTP.
const METRICS: &str = "/v1/metrics";
/// Timeout of a collector's response; after it the message is lost.
const LIMIT: Duration = Duration::from_secs(5);
/// Limit of one request body, bytes.
const MOST_AT_ONCE: usize = 1 << 20;

/// The URL of a collector, whose path may be left out.
///
/// # Errors
/// Says what is wrong with the text.
pub fn collector(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|e: lastdrop_model::plan::UrlError| e.to_string())?;
    if url.tls {
        return Err(format!("{url}: a collector is posted to without TLS; name its http listener"));
    }
    Ok(match url.path.trim_end_matches('/') {
        path if path.ends_with(METRICS) => url,
        path => url.with_path(&format!("{path}{METRICS}")),
    })
}

#[derive(Debug)]
pub(super) struct Poster(Thread);

impl Poster {
    /// # Errors
    /// When the system has no more threads.
    pub fn open(to: &str) -> Result<Poster> {
        let url = collector(to).map_err(|e| anyhow!(e))?;
        Ok(Poster(Thread::start("export-post", move |from, losses| work(&url, from, losses))?))
    }
}

impl Sink for Poster {
    fn take(&self, piece: Vec<u8>) {
        self.0.take(piece);
    }

    fn close(&self) -> Option<String> {
        self.0.close()
    }
}

fn work(url: &Url, from: &Receiver<Vec<u8>>, losses: &Losses) {
    while let Ok(mut body) = from.recv() {
        let mut pieces = 1;
        while body.len() < MOST_AT_ONCE
            && let Ok(more) = from.try_recv()
        {
            body.extend_from_slice(&more);
            pieces += 1;
        }
        if let Err(why) = send(url, &body) {
            losses.add(pieces, || why);
        }
    }
}

/// Posts all messages to a collector, several per request.
///
/// # Errors
/// When the collector does not take a message.
pub fn post_all(url: &Url, messages: impl Iterator<Item = Vec<u8>>) -> Result<()> {
    let mut body = Vec::new();
    for message in messages {
        body.extend_from_slice(&message);
        if body.len() >= MOST_AT_ONCE {
            send(url, &std::mem::take(&mut body)).map_err(|e| anyhow!(e))?;
        }
    }
    if body.is_empty() { Ok(()) } else { send(url, &body).map_err(|e| anyhow!(e)) }
}

fn send(url: &Url, body: &[u8]) -> Result<(), String> {
    let answer = post(url, "application/x-protobuf", body, LIMIT).map_err(|e| e.to_string())?;
    if !(200..300).contains(&answer.status) {
        return Err(format!("{url} answered {}", answer.status));
    }
    // If the body cannot be read, the status alone says success.
    let response = ExportMetricsServiceResponse::decode(answer.body.as_slice()).unwrap_or_default();
    match response.partial_success {
        Some(partial) if partial.rejected_data_points > 0 => {
            Err(format!("{url} refused {} numbers: {}", partial.rejected_data_points, partial.error_message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_host_or_all_of_the_url() {
        let path = |text: &str| collector(text).map(|url| url.path);
        assert_eq!(path("http://h:4318"), Ok("/v1/metrics".into()));
        assert_eq!(path("http://h:4318/otlp/"), Ok("/otlp/v1/metrics".into()));
        assert_eq!(path("http://h:4318/v1/metrics"), Ok("/v1/metrics".into()));
        assert!(path("https://h:4318").is_err());
    }
}
