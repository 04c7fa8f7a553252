//! Parses nginx's log_format (ngx_http_log_module) into a pattern.

use super::apache::push;
use super::pattern::{DurationKind, Field, Notation, Pattern, Piece};
use crate::entry::Role;
use crate::time::TimeForm;

/// Parses the text of a log_format, its parts joined.
///
/// # Errors
/// A variable has no name.
pub(super) fn read(text: &str) -> Result<Pattern, String> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut before = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '$' {
            push(c, &mut before);
            continue;
        }
        let braces = chars.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
        if name.is_empty() || (braces && chars.next() != Some('}')) {
            return Err("a $ without the name of a variable".into());
        }
        // $uri$is_args$args is the target.
        let of_query = matches!(name.as_str(), "is_args" | "args" | "query_string");
        let question = before == b"?";
        if of_query
            && (before.is_empty() || question)
            && pieces.last().is_some_and(|p| p.field == Field::Text(Role::Target))
        {
            before.clear();
            continue;
        }
        pieces.push(Piece { before: std::mem::take(&mut before), field: field(&name), name: format!("${name}") });
    }
    // nginx writes a line when a request is over.
    Ok(Pattern { pieces, tail: before, open: false, stamped_at_end: true })
}

fn field(name: &str) -> Field {
    match name {
        "remote_addr" | "realip_remote_addr" | "the_real_ip" | "proxy_protocol_addr" | "http_x_real_ip" => {
            Field::Text(Role::Client)
        }
        "remote_user" => Field::Text(Role::User),
        "time_local" => Field::Time(TimeForm::Common),
        "time_iso8601" => Field::Time(TimeForm::Iso),
        "msec" => Field::Time(TimeForm::Epoch(1_000_000)),
        "request" => Field::RequestLine,
        "request_method" => Field::Text(Role::Method),
        "request_uri" | "uri" | "document_uri" => Field::Text(Role::Target),
        "args" | "query_string" => Field::Text(Role::Query),
        "server_protocol" => Field::Text(Role::Protocol),
        "status" => Field::Status,
        "body_bytes_sent" | "bytes_sent" => Field::Bytes,
        "http_host" | "host" | "server_name" => Field::Text(Role::Host),
        "http_referer" => Field::Text(Role::Referer),
        "http_user_agent" => Field::Text(Role::Agent),
        "http_cookie" => Field::Text(Role::Cookies),
        "sent_http_location" | "upstream_http_location" => Field::Text(Role::Location),
        "http_x_forwarded_for" | "proxy_add_x_forwarded_for" => Field::Forwarded,
        "remote_port"
        | "realip_remote_port"
        | "server_port"
        | "proxy_protocol_port"
        | "connection"
        | "connection_requests"
        | "request_length"
        | "pid" => Field::Digits,
        "request_time" => Field::Took(DurationKind::Server, 1_000_000, Notation::List),
        "upstream_response_time" => Field::Took(DurationKind::Upstream, 1_000_000, Notation::List),
        "upstream_queue_time" => Field::Took(DurationKind::Queue, 1_000_000, Notation::List),
        "upstream_addr" => Field::Peers,
        "upstream_status" => Field::Statuses,
        "upstream_response_length" | "upstream_bytes_received" | "upstream_bytes_sent" => Field::Numbers,
        name => {
            let is_free = ["http_", "sent_http_", "upstream_http_", "cookie_", "upstream_cookie_", "arg_"];
            if is_free.iter().any(|prefix| name.starts_with(prefix)) { Field::Free } else { Field::Other }
        }
    }
}
