//! Header fields of a plan that concern the connection or the length of the body. lastdrop does what they ask or
//! refuses them. Sent unheeded, they would mix the bytes of one request with those of another.

use lastdrop_http::has_token;
use lastdrop_model::plan::HttpOptions;

use crate::template::Template;

/// Chunk size if only a header field asks for chunks.
const CHUNK_BYTES: usize = 16 * 1024;

/// What the fields of a request ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    /// No request follows on the connection (RFC 9112 section 9.6).
    pub closes: bool,
    /// The body is sent in chunks of this size.
    pub chunk_bytes: Option<usize>,
    /// The body waits for `100 Continue`.
    pub expects_continue: bool,
}

impl Framing {
    /// Removes the fields that are written anew with each body.
    pub fn take(
        headers: &mut Vec<(String, String)>,
        body: Option<&Template>,
        http: &HttpOptions,
        literal: bool,
    ) -> Result<Framing, String> {
        let mut framing = Framing {
            closes: closes(headers.iter().map(|(n, v)| (n.as_str(), v.as_str())), http.is_http10()),
            chunk_bytes: http.chunked.filter(|_| !http.is_http10()).map(|bytes| bytes as usize),
            expects_continue: http.expect_continue,
        };
        for (name, value) in headers.iter() {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let names = ["connection", "content-length", "transfer-encoding", "expect", "upgrade"];
            if !literal && value.contains("{{") && names.iter().any(|n| is(n)) {
                return Err(format!("{name} frames the request, so that its value cannot change from one to the next"));
            }
            if is("content-length") {
                check_length(value, body)?;
            } else if is("transfer-encoding") && !value.is_empty() {
                check_coding(value, body, http)?;
                framing.chunk_bytes = framing.chunk_bytes.or(Some(CHUNK_BYTES));
            } else if is("expect") && value.eq_ignore_ascii_case("100-continue") {
                framing.expects_continue = true;
            } else if is("upgrade") && !value.is_empty() {
                return Err(format!(
                    "'Upgrade: {value}' asks for another protocol, which is not spoken here; leave it out"
                ));
            }
        }
        let has = |name: &str| headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && !v.is_empty());
        if has("content-length") && has("transfer-encoding") {
            return Err("Content-Length and Transfer-Encoding exclude each other; leave one of them out".into());
        }
        // Without a body there is nothing to wait for, and its length is what the user wrote.
        let is_written = |name: &str, value: &str| {
            name.eq_ignore_ascii_case("transfer-encoding")
                || name.eq_ignore_ascii_case("content-length") && body.is_some()
                || name.eq_ignore_ascii_case("expect") && value.eq_ignore_ascii_case("100-continue")
        };
        headers.retain(|(name, value)| !is_written(name, value));
        Ok(framing)
    }

    /// The framing of fields that are sent as written.
    pub fn of_lines(lines: &str, http: &HttpOptions) -> Framing {
        let fields = lines.lines().filter_map(|line| line.split_once(':'));
        Framing {
            closes: closes(fields.map(|(name, value)| (name.trim(), value.trim())), http.is_http10()),
            chunk_bytes: http.chunked.filter(|_| !http.is_http10()).map(|bytes| bytes as usize),
            expects_continue: http.expect_continue,
        }
    }
}

/// Whether the fields end the connection. HTTP/1.0 closes unless asked not to; lastdrop asks if the user wrote no
/// Connection field.
fn closes<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>, http10: bool) -> bool {
    let mut own = fields.filter(|(name, _)| name.eq_ignore_ascii_case("connection")).peekable();
    if own.peek().is_none() {
        return false;
    }
    let (mut close, mut keep) = (false, false);
    for (_, value) in own {
        close |= has_token(value.as_bytes(), "close");
        keep |= has_token(value.as_bytes(), "keep-alive");
    }
    close || http10 && !keep
}

fn check_length(value: &str, body: Option<&Template>) -> Result<(), String> {
    if value.is_empty() {
        return Err("a request without its Content-Length has no end; leave the header out".into());
    }
    let says = value.parse::<usize>().map_err(|_| format!("'Content-Length: {value}' is not a number"))?;
    let length = body.map_or(Some(0), Template::literal_bytes);
    match length {
        Some(length) if length != says => {
            let of = if body.is_some() { format!("the body has {length} bytes") } else { "there is no body".into() };
            Err(format!("Content-Length says {says} and {of}; leave the header out, lastdrop writes it"))
        }
        // The length of a body that changes is written anew each time.
        _ => Ok(()),
    }
}

fn check_coding(value: &str, body: Option<&Template>, http: &HttpOptions) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("'Transfer-Encoding: {value}': {why}"));
    if !value.eq_ignore_ascii_case("chunked") {
        wrong("bodies are sent as they are, or chunked")
    } else if http.is_http10() {
        wrong("HTTP/1.0 has no chunks")
    } else if body.is_none() {
        wrong("the request has no body")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::http_options::Version;

    use super::*;

    fn take(fields: &[&str], body: Option<&str>, http10: bool) -> Result<(Framing, Vec<String>), String> {
        let split =
            |field: &&str| field.split_once(": ").map(|(n, v)| (n.to_string(), v.to_string())).expect("a field");
        let mut headers: Vec<_> = fields.iter().map(split).collect();
        let body = body.map(|text| Template::literal(text.into()));
        let version = if http10 { Version::Http10 } else { Version::Http11 };
        let http = HttpOptions { version, ..HttpOptions::default() };
        let framing = Framing::take(&mut headers, body.as_ref(), &http, false)?;
        Ok((framing, headers.into_iter().map(|(name, _)| name).collect()))
    }

    #[test]
    fn a_request_that_asks_to_close_has_nothing_behind_it() {
        let closes = |field: &str, http10: bool| take(&[field], None, http10).expect("valid").0.closes;
        assert!(closes("Connection: close", false) && closes("connection: TE, Close", false));
        assert!(!closes("Connection: keep-alive", false) && !closes("X: close", false));
        assert!(closes("Connection: ", true), "HTTP/1.0 without keep-alive");
        assert!(!closes("Connection: Keep-Alive", true) && !closes("X: y", true));
        let http = HttpOptions::default();
        assert!(Framing::of_lines("Host: h\r\nConnection: close\r\n", &http).closes);
        assert!(!Framing::of_lines("Host: h\r\n", &http).closes);
    }

    #[test]
    fn what_frames_a_body_is_done_and_written_once() {
        let (framing, left) = take(&["Transfer-Encoding: chunked", "X: y"], Some("abc"), false).expect("valid");
        assert_eq!((framing.chunk_bytes, left), (Some(CHUNK_BYTES), vec!["X".to_string()]));
        let (framing, left) = take(&["Expect: 100-continue"], Some("abc"), false).expect("valid");
        assert!(framing.expects_continue && left.is_empty());
        assert!(take(&["Content-Length: 3"], Some("abc"), false).expect("valid").1.is_empty());
        assert_eq!(take(&["Content-Length: 0"], None, false).expect("valid").1, ["Content-Length"]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (fields, body, http10, why) in [
            (&["Content-Length: 5"][..], Some("abc"), false, "the body has 3 bytes"),
            (&["Content-Length: 5"], None, false, "there is no body"),
            (&["Content-Length: x"], Some("abc"), false, "not a number"),
            (&["Content-Length: 3", "Transfer-Encoding: chunked"], Some("abc"), false, "exclude each other"),
            (&["Transfer-Encoding: gzip"], Some("abc"), false, "or chunked"),
            (&["Transfer-Encoding: chunked"], Some("abc"), true, "HTTP/1.0"),
            (&["Transfer-Encoding: chunked"], None, false, "no body"),
            (&["Upgrade: websocket"], None, false, "another protocol"),
            (&["Connection: {{name}}"], None, false, "cannot change"),
        ] {
            let error = take(fields, body, http10).expect_err(why);
            assert!(error.contains(why), "{fields:?}: {error}");
        }
    }
}
