//! Heads in HTTP/2 (RFC 9113 section 8): a request's from its HTTP/1.1 form, an answer's checked.

use super::hpack::{self, Fields};
use crate::{ProtocolError, content_length};

/// Fields about one connection, which HTTP/2 does not have (RFC 9113 section 8.2.2).
const OF_CONNECTION: [&[u8]; 7] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings", b"host"];

/// Fields that no table on the way may keep.
const SECRET: [&[u8]; 3] = [b"authorization", b"cookie", b"proxy-authorization"];

/// The parts of a request's head in its HTTP/1.1 form.
#[derive(Debug)]
pub struct RequestHead<'a> {
    method: &'a [u8],
    target: &'a [u8],
    fields: &'a [u8],
}

impl<'a> RequestHead<'a> {
    /// Splits a head, up to and without its empty line.
    ///
    /// # Errors
    /// It has no request line.
    pub fn split(head: &'a [u8]) -> Result<RequestHead<'a>, ProtocolError> {
        const BAD: ProtocolError = ProtocolError("a request without a request line");
        let end = memchr::memchr(b'\n', head).ok_or(BAD)?;
        let mut words = head[..end].trim_ascii().splitn(3, |b| *b == b' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Err(BAD) };
        Ok(RequestHead { method, target, fields: &head[end + 1..] })
    }

    fn lines(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let lines = self.fields.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        lines.take_while(|line| !line.is_empty()).filter_map(|line| {
            let colon = memchr::memchr(b':', line)?;
            Some((line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()))
        })
    }
}

/// Appends a request's header block: its HTTP/1.1 head without fields about the connection; `Host` is the authority.
///
/// # Errors
/// The head has no request line.
pub fn encode_request(head: &[u8], https: bool, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    let head = RequestHead::split(head)?;
    let host = head.lines().find(|(name, _)| name.eq_ignore_ascii_case(b"host"));
    hpack::encode(out, b":method", head.method, false);
    hpack::encode(out, b":scheme", if https { b"https" } else { b"http" }, false);
    if let Some((_, host)) = host {
        hpack::encode(out, b":authority", host, false);
    }
    hpack::encode(out, b":path", head.target, false);
    let mut lower = Vec::new();
    for (name, value) in head.lines() {
        lower.clear();
        lower.extend(name.iter().map(u8::to_ascii_lowercase));
        if lower.is_empty() || OF_CONNECTION.contains(&&lower[..]) || lower == b"te" && value != b"trailers" {
            continue;
        }
        hpack::encode(out, &lower, value, SECRET.contains(&&lower[..]));
    }
    Ok(())
}

/// What an answer's head says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AnswerHead {
    pub status: u16,
    pub length: Option<u64>,
}

/// Checks the fields of an answer.
///
/// # Errors
/// The answer is malformed (RFC 9113 section 8.1.1).
pub(super) fn check_answer(fields: &Fields) -> Result<AnswerHead, ProtocolError> {
    let mut head = AnswerHead::default();
    let mut ordinary = false;
    for (name, value) in fields.iter() {
        if let Some(pseudo) = name.strip_prefix(b":") {
            if ordinary {
                return Err(ProtocolError("a pseudo-header field after other fields"));
            }
            if pseudo != b"status" || head.status != 0 {
                return Err(ProtocolError("a pseudo-header field that no answer has, or has once"));
            }
            head.status = match value {
                [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                    [a, b, c].iter().fold(0, |n, digit| n * 10 + u16::from(*digit - b'0'))
                }
                _ => return Err(ProtocolError("a :status that is not three digits")),
            };
            continue;
        }
        ordinary = true;
        check_field(name, value)?;
        if name == b"content-length" {
            let length = content_length(value)?;
            if head.length.is_some_and(|other| other != length) {
                return Err(ProtocolError("two Content-Lengths that differ"));
            }
            head.length = Some(length);
        }
    }
    match head.status {
        0 => Err(ProtocolError("an answer without :status")),
        101 => Err(ProtocolError("a switch of protocols, which HTTP/2 does not have")),
        _ => Ok(head),
    }
}

/// Checks the fields after a body.
///
/// # Errors
/// The answer is malformed.
pub(super) fn check_trailers(fields: &Fields) -> Result<(), ProtocolError> {
    for (name, value) in fields.iter() {
        if name.starts_with(b":") {
            return Err(ProtocolError("a pseudo-header field in trailers"));
        }
        check_field(name, value)?;
    }
    Ok(())
}

fn check_field(name: &[u8], value: &[u8]) -> Result<(), ProtocolError> {
    let is_token = |b: &u8| b.is_ascii_alphanumeric() && !b.is_ascii_uppercase() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(ProtocolError("the name of a field in capital letters, or with characters that names do not have"));
    }
    let blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
    if value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n')) || blank(value.first()) || blank(value.last()) {
        return Err(ProtocolError("the value of a field with a line feed, a NUL or blanks around it"));
    }
    // Most names are told apart by their length.
    let of_connection = match name.len() {
        2 => name == b"te" && value != b"trailers",
        7 => name == b"upgrade",
        10 => name == b"connection" || name == b"keep-alive",
        16 => name == b"proxy-connection",
        17 => name == b"transfer-encoding",
        _ => false,
    };
    if of_connection { Err(ProtocolError("a field about the connection, which HTTP/2 does not have")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::hpack::Decoder;
    use super::*;

    fn fields(of: &[(&str, &str)]) -> Fields {
        let mut block = Vec::new();
        of.iter().for_each(|(name, value)| hpack::encode(&mut block, name.as_bytes(), value.as_bytes(), false));
        let mut fields = Fields::default();
        Decoder::default().decode(&block, &mut fields).expect("valid");
        fields
    }

    #[test]
    fn a_request_keeps_its_fields_but_those_of_the_connection() {
        let text = "POST /p?q HTTP/1.1\r\nHost: h:81\r\nUser-Agent: x\r\nConnection: close\r\nTE: gzip\r\n\
                    Transfer-Encoding: chunked\r\nAuthorization:  Basic eDp5 \r\nContent-Length: 2\r\n\r\n";
        let mut block = Vec::new();
        encode_request(text.as_bytes(), true, &mut block).expect("valid");
        let mut fields = Fields::default();
        Decoder::default().decode(&block, &mut fields).expect("valid");
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let seen: Vec<String> = fields.iter().map(|(n, v)| format!("{}={}", text(n), text(v))).collect();
        let want = [
            ":method=POST",
            ":scheme=https",
            ":authority=h:81",
            ":path=/p?q",
            "user-agent=x",
            "authorization=Basic eDp5",
            "content-length=2",
        ];
        assert_eq!(seen, want);
        assert!(encode_request(b"", true, &mut block).is_err());
    }

    #[test]
    fn malformed_answers_are_found() {
        let good = [(":status", "200"), ("content-length", "3"), ("te", "trailers")];
        assert_eq!(check_answer(&fields(&good)), Ok(AnswerHead { status: 200, length: Some(3) }));
        for bad in [
            &[("a", "b")][..],
            &[("a", "b"), (":status", "200")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "20")],
            &[(":status", "099")],
            &[(":status", "101")],
            &[(":path", "/"), (":status", "200")],
            &[(":status", "200"), ("A", "b")],
            &[(":status", "200"), ("", "b")],
            &[(":status", "200"), ("a b", "c")],
            &[(":status", "200"), ("a", "b\nc")],
            &[(":status", "200"), ("a", " b")],
            &[(":status", "200"), ("connection", "close")],
            &[(":status", "200"), ("transfer-encoding", "chunked")],
            &[(":status", "200"), ("upgrade", "h2c")],
            &[(":status", "200"), ("te", "gzip")],
            &[(":status", "200"), ("content-length", "3"), ("content-length", "4")],
            &[(":status", "200"), ("content-length", "x")],
        ] {
            assert!(check_answer(&fields(bad)).is_err(), "{bad:?}");
        }
        assert!(check_trailers(&fields(&[("a", "b")])).is_ok());
        assert!(check_trailers(&fields(&[(":status", "200")])).is_err());
    }
}
