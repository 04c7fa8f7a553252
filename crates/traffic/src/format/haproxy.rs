//! HAProxy's `option httplog` (and httpslog), with what syslog puts before it. What `option tcplog` writes, and what HAProxy says of
//! itself, is no request.

use super::pattern::{Field, Misfit, Pattern, Piece, Took};
use crate::entry::{Entry, Role};
use crate::time::TimeForm;

const PROGRAM: &[u8] = b"haproxy[";

/// `client:port [accepted] frontend backend/server TR/Tw/Tc/Tr/Ta status bytes cookies cookies state connections queues
/// {captured} {captured} "request"`, as the manual of HAProxy 2.6 has it in section 8.2.3.
pub(super) fn pattern() -> Pattern {
    let text = Field::Text;
    let took = |what| Field::Took(what, 1_000);
    let pieces = [
        ("", text(Role::Client), "%ci"),
        (":", Field::Digits, "%cp"),
        (" [", Field::Time(TimeForm::Common), "%tr"),
        ("] ", Field::Other, "%ft"),
        (" ", Field::Other, "%b/%s"),
        (" ", Field::Other, "%TR"),
        ("/", took(Took::Queue), "%Tw"),
        ("/", Field::Other, "%Tc"),
        ("/", took(Took::Upstream), "%Tr"),
        ("/", took(Took::Server), "%Ta"),
        (" ", Field::Status, "%ST"),
        (" ", Field::Bytes, "%B"),
        (" ", Field::Other, "%CC"),
        (" ", Field::Other, "%CS"),
        (" ", Field::Other, "%tsc"),
        (" ", Field::Other, "%ac/%fc/%bc/%sc/%rc"),
        (" ", Field::Other, "%sq/%bq %hr %hs"),
        (" \"", Field::RequestLine, "%r"),
    ];
    Pattern {
        pieces: pieces
            .into_iter()
            .map(|(before, field, name)| Piece { before: before.into(), field, name: name.into() })
            .collect(),
        tail: b"\"".to_vec(),
        open: true,
        stamped_at_end: false,
    }
}

/// Whether the line is that of a request.
pub(super) fn read(pattern: &Pattern, entry: &mut Entry) -> Result<bool, Misfit> {
    let line = &entry.line;
    let program = memchr::memmem::find(line, PROGRAM);
    let message = program.and_then(|at| memchr::memmem::find(&line[at..], b"]: ").map(|end| at + end + 3));
    // Where HAProxy writes to a file or to stdout, there is nothing before it.
    match pattern.read(entry, message.unwrap_or(0)) {
        Ok(()) => Ok(true),
        Err(_) if message.is_some() && memchr::memchr(b'"', &entry.line).is_none() => Ok(false),
        Err(misfit) => Err(misfit),
    }
}
