//! Rules of HTTP/2 (RFC 9113) and of its header compression (RFC 7541), each broken by a server of the test's own. A run
//! ends in time, its sums are exact, and it names the rule and its code. What is odd and allowed is answered.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use lastdrop_http::h2::frame::{self, FrameHead, flag, kind, raw, setting};
use lastdrop_http::h2::{ErrorCode, PREFACE, hpack};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::common::{CommandOutput, Folder, assert_sums, n, number, quiet, wait_until};

/// Runs at the same time.
const SIDE_BY_SIDE: usize = 6;
/// Seconds of a run by its own clock.
const LONGEST_S: f64 = 3.0;
const END_STREAM: u8 = flag::END_STREAM;
const END_HEADERS: u8 = flag::END_HEADERS;
const NAME_OF_FLOOD: &str = "more than 10,000 frames that bring nothing";

/// What the server does after its reply to the first request.
#[derive(Clone, Copy)]
enum AfterReply {
    Stays,
    /// Ends its side, and reads on.
    Ends,
    /// Sends this again and again.
    Repeats(fn() -> Vec<u8>),
    /// Reads no more.
    IsDeaf,
}

/// What the run says at the end.
#[derive(Clone, Copy)]
enum Outcome {
    /// All requests are answered, over so many connections.
    Answered(u64),
    /// The first request fails, and its stream is reset with this code. The others are answered on the same connection.
    OfStream(ErrorCode, &'static str),
    /// Each request fails, and each connection ends with this code.
    OfConnection(ErrorCode, &'static str),
    /// The rule is broken behind the first answer: the second request fails, the third is the first of a connection.
    Behind(ErrorCode, &'static str),
    /// So many requests fail, of this kind.
    Failed(&'static str, u64, &'static str),
    TimedOut,
}

/// One server, and what a run of three requests says about it.
struct Case {
    name: String,
    options: Vec<&'static str>,
    greeting: Vec<u8>,
    /// Replies to the first requests of each connection. Others get an answer.
    replies: Vec<Vec<u8>>,
    then: AfterReply,
    /// Protocols on which the server agrees, for each connection; the last ones hold for all that follow. Empty: it
    /// speaks clear text.
    protocols: Vec<&'static [&'static str]>,
    outcome: Outcome,
}

impl Case {
    fn new(name: impl Into<String>, reply: impl Into<Vec<u8>>, outcome: Outcome) -> Case {
        Case {
            name: name.into(),
            options: vec!["-n", "3", "--timeout", "2s"],
            greeting: settings(&[]),
            replies: vec![reply.into()],
            then: AfterReply::Stays,
            protocols: Vec::new(),
            outcome,
        }
    }

    fn greets(mut self, with: impl Into<Vec<u8>>) -> Case {
        self.greeting = with.into();
        self
    }

    fn replies_next(mut self, with: Vec<u8>) -> Case {
        self.replies.push(with);
        self
    }

    fn then(mut self, then: AfterReply) -> Case {
        self.then = then;
        self
    }

    fn options(mut self, options: &[&'static str]) -> Case {
        self.options = options.to_vec();
        self
    }

    fn agrees_on(mut self, protocols: &[&'static [&'static str]]) -> Case {
        self.protocols = protocols.to_vec();
        self
    }

    /// For a request that waits for its timeout.
    fn once(self) -> Case {
        self.options(&["-n", "1", "--timeout", "300ms"])
    }
}

fn settings(all: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_settings(&mut out, all);
    out
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(name, value)| hpack::encode(&mut out, name.as_bytes(), value.as_bytes(), false));
    out
}

/// HEADERS of stream 1.
fn coded(flags: u8, block: &[u8]) -> Vec<u8> {
    raw(kind::HEADERS, flags | END_HEADERS, 1, block)
}

/// HEADERS of stream 1 that may go on with DATA.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    coded(0, &block(fields))
}

/// HEADERS of stream 1 that end it.
fn all(fields: &[(&str, &str)]) -> Vec<u8> {
    coded(END_STREAM, &block(fields))
}

fn begun() -> Vec<u8> {
    coded(0, &[0x88])
}

fn data(flags: u8, bytes: &[u8]) -> Vec<u8> {
    raw(kind::DATA, flags, 1, bytes)
}

fn answer(stream: u32) -> Vec<u8> {
    [raw(kind::HEADERS, END_HEADERS, stream, &[0x88]), raw(kind::DATA, END_STREAM, stream, b"ok")].concat()
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    raw(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
}

fn goaway(last: u32, code: u32) -> Vec<u8> {
    raw(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    raw(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// A literal field without Huffman code; `kind` says whether it is inserted.
fn literal(kind: u8, name: &str, value_bytes: usize) -> Vec<u8> {
    let mut out = vec![kind, name.len() as u8];
    out.extend(name.bytes());
    if value_bytes < 127 {
        out.push(value_bytes as u8);
    } else {
        let rest = value_bytes - 127;
        out.extend([127, rest as u8 | 0x80, (rest >> 7) as u8]);
    }
    out.resize(out.len() + value_bytes, b'x');
    out
}

/// Connections end at once, with the code of the rule.
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn of_connection() -> Vec<Case> {
    use ErrorCode as E;
    let on_no_stream = "on no stream";
    let nobody = "a frame on a stream that nobody began";
    let within = "a frame within a header block";
    let open_block = || raw(kind::HEADERS, 0, 1, &[0x88]);
    let in_block = |frame: Vec<u8>| [open_block(), frame].concat();
    let large = "a frame larger than 16,384 bytes";
    let head_alone = |length: usize, kind: u8, stream: u32| {
        let mut out = Vec::new();
        FrameHead { length, kind, flags: 0, stream }.write(&mut out);
        out
    };
    let after_interim = |interim: &[u8], block: &[u8]| {
        let interim = [&self::block(&[(":status", "103")]), interim].concat();
        [coded(0, &interim), coded(END_STREAM, block)].concat()
    };
    let index = "a header field with a number that no table has";
    let cut = "a header block that ends within a field";
    let number = "a number in a header block that is too large";
    let huffman = "a text in a wrong Huffman code";
    let flood = |frame: Vec<u8>| frame.repeat(10_100);
    let cases: Vec<(&str, Vec<u8>, ErrorCode, &'static str)> = vec![
        // Sizes of frames (RFC 9113, 4.2 and 6).
        ("DATA of 16,385 bytes", data(0, &[0; 16_385]), E::FRAME_SIZE, large),
        ("HEADERS of 16,385 bytes", coded(0, &[0; 16_385]), E::FRAME_SIZE, large),
        ("SETTINGS of 16,386 bytes", raw(kind::SETTINGS, 0, 0, &[0; 16_386]), E::FRAME_SIZE, large),
        ("an unknown frame of 16,385 bytes", raw(42, 0, 1, &[0; 16_385]), E::FRAME_SIZE, large),
        ("the head of a frame of 16 MB", head_alone(0xff_ffff, kind::DATA, 1), E::FRAME_SIZE, large),
        ("PADDED DATA without a length", data(flag::PADDED, b""), E::FRAME_SIZE, "too short for its flags"),
        ("PADDED HEADERS without a length", coded(flag::PADDED, b""), E::FRAME_SIZE, "too short for its flags"),
        ("HEADERS with half a priority", coded(flag::PRIORITY, &[0; 4]), E::FRAME_SIZE, "too short for its flags"),
        ("SETTINGS of 5 bytes", raw(kind::SETTINGS, 0, 0, &[0; 5]), E::FRAME_SIZE, "not of 6 bytes each"),
        ("SETTINGS acknowledged with bytes", raw(kind::SETTINGS, 1, 0, &[0; 6]), E::FRAME_SIZE, "with a payload"),
        ("PING of 7 bytes", raw(kind::PING, 0, 0, &[0; 7]), E::FRAME_SIZE, "a PING that is not 8 bytes"),
        ("PING of 9 bytes", raw(kind::PING, 0, 0, &[0; 9]), E::FRAME_SIZE, "a PING that is not 8 bytes"),
        ("PING acknowledged without bytes", raw(kind::PING, 1, 0, &[]), E::FRAME_SIZE, "a PING that is not 8 bytes"),
        ("GOAWAY of 7 bytes", raw(kind::GOAWAY, 0, 0, &[0; 7]), E::FRAME_SIZE, "a GOAWAY of less than 8 bytes"),
        ("RST_STREAM of 3 bytes", raw(kind::RST_STREAM, 0, 1, &[0; 3]), E::FRAME_SIZE, "RST_STREAM that is not 4"),
        ("RST_STREAM of 5 bytes", raw(kind::RST_STREAM, 0, 1, &[0; 5]), E::FRAME_SIZE, "RST_STREAM that is not 4"),
        ("WINDOW_UPDATE of 3 bytes", raw(kind::WINDOW_UPDATE, 0, 0, &[1; 3]), E::FRAME_SIZE, "UPDATE that is not 4"),
        ("WINDOW_UPDATE of 5 bytes", raw(kind::WINDOW_UPDATE, 0, 1, &[1; 5]), E::FRAME_SIZE, "UPDATE that is not 4"),
        // Padding (6.1, 6.2).
        ("DATA of nothing but padding and more", data(flag::PADDED, &[2, 0]), E::PROTOCOL, "padding longer"),
        ("HEADERS padded too much", coded(flag::PADDED, &[2, 0x88]), E::PROTOCOL, "padding longer"),
        (
            "padding that reaches into the priority",
            coded(flag::PADDED | flag::PRIORITY, &[2, 0, 0, 0, 0, 0, 0x88]),
            E::PROTOCOL,
            "padding longer",
        ),
        // Streams (5.1, 6).
        ("DATA on stream 0", raw(kind::DATA, 0, 0, b"x"), E::PROTOCOL, on_no_stream),
        ("HEADERS on stream 0", raw(kind::HEADERS, END_HEADERS, 0, &[0x88]), E::PROTOCOL, on_no_stream),
        ("PRIORITY on stream 0", raw(kind::PRIORITY, 0, 0, &[0; 5]), E::PROTOCOL, on_no_stream),
        ("RST_STREAM on stream 0", reset(0, 2), E::PROTOCOL, on_no_stream),
        ("CONTINUATION on stream 0", raw(kind::CONTINUATION, 4, 0, &[0x88]), E::PROTOCOL, on_no_stream),
        ("SETTINGS on a stream", raw(kind::SETTINGS, 0, 1, &[]), E::PROTOCOL, "GOAWAY on a stream"),
        ("PING on a stream", raw(kind::PING, 0, 1, &[0; 8]), E::PROTOCOL, "GOAWAY on a stream"),
        ("GOAWAY on a stream", raw(kind::GOAWAY, 0, 1, &[0; 8]), E::PROTOCOL, "GOAWAY on a stream"),
        ("DATA on an idle stream", raw(kind::DATA, 0, 9, b"x"), E::PROTOCOL, nobody),
        ("HEADERS on an idle stream", raw(kind::HEADERS, END_HEADERS, 9, &[0x88]), E::PROTOCOL, nobody),
        ("RST_STREAM on an idle stream", reset(9, 2), E::PROTOCOL, nobody),
        ("WINDOW_UPDATE on an idle stream", window_update(9, 1), E::PROTOCOL, nobody),
        ("DATA on a stream of the server's", raw(kind::DATA, 0, 2, b"x"), E::PROTOCOL, nobody),
        ("HEADERS on a stream of the server's", raw(kind::HEADERS, END_HEADERS, 2, &[0x88]), E::PROTOCOL, nobody),
        ("an answer to the request after this one", answer(3), E::PROTOCOL, nobody),
        // Header blocks (4.3, 6.10).
        ("CONTINUATION alone", raw(kind::CONTINUATION, 4, 1, &[0x88]), E::PROTOCOL, "without a header block"),
        (
            "CONTINUATION behind a whole block",
            [begun(), raw(kind::CONTINUATION, 4, 1, &[0x88])].concat(),
            E::PROTOCOL,
            "without a header block",
        ),
        ("PING within a block", in_block(raw(kind::PING, 0, 0, &[0; 8])), E::PROTOCOL, within),
        ("DATA within a block", in_block(data(0, b"x")), E::PROTOCOL, within),
        ("HEADERS within a block", in_block(begun()), E::PROTOCOL, within),
        ("RST_STREAM within a block", in_block(reset(1, 2)), E::PROTOCOL, within),
        ("an unknown frame within a block", in_block(raw(42, 0, 1, b"x")), E::PROTOCOL, within),
        ("a block that goes on elsewhere", in_block(raw(kind::CONTINUATION, 4, 3, &[])), E::PROTOCOL, within),
        ("a block that goes on at stream 0", in_block(raw(kind::CONTINUATION, 4, 0, &[])), E::PROTOCOL, within),
        // Settings (6.5.2).
        ("ENABLE_PUSH of 1", settings(&[(setting::ENABLE_PUSH, 1)]), E::PROTOCOL, "turn pushing on"),
        ("ENABLE_PUSH of 2", settings(&[(setting::ENABLE_PUSH, 2)]), E::PROTOCOL, "turn pushing on"),
        ("a window of 2^31", settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), E::FLOW_CONTROL, "above 2^31"),
        ("a window of 2^32 - 1", settings(&[(setting::INITIAL_WINDOW_SIZE, !0)]), E::FLOW_CONTROL, "above 2^31"),
        ("frames of 16,383 bytes", settings(&[(setting::MAX_FRAME_SIZE, 16_383)]), E::PROTOCOL, "out of bounds"),
        ("frames of 0 bytes", settings(&[(setting::MAX_FRAME_SIZE, 0)]), E::PROTOCOL, "out of bounds"),
        ("frames of 2^24 bytes", settings(&[(setting::MAX_FRAME_SIZE, 1 << 24)]), E::PROTOCOL, "out of bounds"),
        (
            "an initial window that lifts one beyond 2^31",
            [window_update(1, 0x7fff_ffff - 65_535), settings(&[(setting::INITIAL_WINDOW_SIZE, 65_536)])].concat(),
            E::FLOW_CONTROL,
            "above 2^31",
        ),
        // Windows (6.9).
        ("WINDOW_UPDATE of 0", window_update(0, 0), E::PROTOCOL, "a WINDOW_UPDATE of 0 bytes"),
        ("WINDOW_UPDATE beyond 2^31", window_update(0, 0x7fff_ffff), E::FLOW_CONTROL, "a connection's window above"),
        (
            "WINDOW_UPDATE beyond 2^31 in two steps",
            [window_update(0, 1 << 30), window_update(0, 1 << 30)].concat(),
            E::FLOW_CONTROL,
            "a connection's window above",
        ),
        // Pushing is off (6.6, 8.4).
        ("a push", raw(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]), E::PROTOCOL, "though pushing is off"),
        ("half a push", raw(kind::PUSH_PROMISE, 4, 1, &[0, 0]), E::PROTOCOL, "though pushing is off"),
        // Header compression (RFC 7541).
        ("field 0", coded(0, &[0x80]), E::COMPRESSION, index),
        ("field 62 of an empty table", coded(0, &[0x88, 0xbe]), E::COMPRESSION, index),
        ("field 255", coded(0, &[0x88, 0xff, 0x80, 0x01]), E::COMPRESSION, index),
        ("the name of field 62 of an empty table", coded(0, &[0x88, 0x7e, 1, b'x']), E::COMPRESSION, index),
        ("the name of field 63, never indexed", coded(0, &[0x88, 0x1f, 0x30, 1, b'x']), E::COMPRESSION, index),
        (
            "a field that was evicted",
            coded(0, &[&[0x88][..], &literal(0x40, "a", 1), &literal(0x40, "b", 4050), &[0xbf]].concat()),
            E::COMPRESSION,
            index,
        ),
        (
            "a field after the table was emptied",
            after_interim(&literal(0x40, "a", 1), &[0x20, 0x88, 0xbe]),
            E::COMPRESSION,
            index,
        ),
        (
            "a field after one larger than the table",
            after_interim(&literal(0x40, "a", 1), &[&[0x88][..], &literal(0x40, "b", 5000), &[0xbe]].concat()),
            E::COMPRESSION,
            index,
        ),
        ("a number that is cut off", coded(0, &[0x88, 0xff, 0x80]), E::COMPRESSION, cut),
        ("a name that is cut off", coded(0, &[0x88, 0x00, 5, b'a']), E::COMPRESSION, cut),
        ("a name without a value", coded(0, &[0x88, 0x00, 1, b'a']), E::COMPRESSION, cut),
        ("a literal without a name", coded(0, &[0x88, 0x40]), E::COMPRESSION, cut),
        ("a text longer than its block", coded(0, &[0x88, 0, 0x7f, 0xff, 0x7f]), E::COMPRESSION, cut),
        ("a number of 6 bytes", coded(0, &[0x88, 0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 1]), E::COMPRESSION, number),
        ("a length of 2^32", coded(0, &[0x88, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f]), E::COMPRESSION, number),
        ("Huffman code padded with zeros", coded(0, &[0x88, 0, 0x81, 0x00, 0]), E::COMPRESSION, huffman),
        ("Huffman code padded with a byte", coded(0, &[0x88, 0, 0x82, 0x07, 0xff, 0]), E::COMPRESSION, huffman),
        (
            "Huffman code with its end symbol",
            coded(0, &[0x88, 0, 0x84, 255, 255, 255, 255, 0]),
            E::COMPRESSION,
            huffman,
        ),
        ("a table of 4,097 bytes", coded(0, &[0x3f, 0xe2, 0x1f, 0x88]), E::COMPRESSION, "larger than was allowed"),
        ("a table's size after a field", coded(0, &[0x88, 0x20]), E::COMPRESSION, "size after a field"),
        (
            "a wrong block in trailers",
            [begun(), data(0, b"ok"), coded(END_STREAM, &[0x80])].concat(),
            E::COMPRESSION,
            index,
        ),
        (
            "a wrong block in pieces",
            [open_block(), raw(kind::CONTINUATION, 4, 1, &[0x80])].concat(),
            E::COMPRESSION,
            index,
        ),
        // Floods (10.5), and the CVEs of 2019 and 2024.
        (
            "a block that becomes 4 MB of fields",
            coded(0, &[&[0x88][..], &literal(0x40, "a", 4000), &[0xbe; 1000]].concat()),
            E::ENHANCE_YOUR_CALM,
            "header fields of more than 256 KB",
        ),
        (
            "CONTINUATION without end",
            [open_block(), raw(kind::CONTINUATION, 0, 1, &[]).repeat(10_000)].concat(),
            E::ENHANCE_YOUR_CALM,
            "more than 64 CONTINUATION",
        ),
        (
            "a block of 80 KB",
            [open_block(), raw(kind::CONTINUATION, 0, 1, &[0; 16_000]).repeat(5)].concat(),
            E::ENHANCE_YOUR_CALM,
            "a header block of more than 64 KB",
        ),
        ("PRIORITY without end", flood(raw(kind::PRIORITY, 0, 1, &[0; 5])), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("WINDOW_UPDATE without end", flood(window_update(0, 1)), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("unknown frames without end", flood(raw(42, 0, 0, &[])), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("acknowledgements without end", flood(raw(kind::SETTINGS, 1, 0, &[])), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("replies to no PING without end", flood(raw(kind::PING, 1, 0, &[0; 8])), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("empty DATA without end", [begun(), flood(data(0, b""))].concat(), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        (
            "padding without end",
            [begun(), flood(data(flag::PADDED, &[3, 0, 0, 0]))].concat(),
            E::ENHANCE_YOUR_CALM,
            NAME_OF_FLOOD,
        ),
        ("interim answers without end", flood(head(&[(":status", "103")])), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ("GOAWAY without end", flood(goaway(1, 0)), E::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
    ];
    let cases =
        cases.into_iter().map(|(name, reply, code, text)| Case::new(name, reply, Outcome::OfConnection(code, text)));
    // Another protocol, or a wrong beginning (3.4).
    let greetings: Vec<(&str, Vec<u8>)> = vec![
        ("HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()),
        ("an error of HTTP/1.0", b"HTTP/1.0 400 Bad request\r\n\r\n".to_vec()),
        ("an alert of TLS", [&[0x15, 3, 3, 0, 2, 2, 0x28][..], &[0x15, 3, 3, 0, 2, 1, 0]].concat()),
        ("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec()),
        ("zeros", vec![0; 100]),
        ("the client's own preface", PREFACE.to_vec()),
        ("GOAWAY before SETTINGS", goaway(0, 11)),
        ("HEADERS before SETTINGS", answer(1)),
        ("WINDOW_UPDATE before SETTINGS", [window_update(0, 1), settings(&[])].concat()),
        ("PING before SETTINGS", [raw(kind::PING, 0, 0, &[0; 8]), settings(&[])].concat()),
        ("an unknown frame before SETTINGS", [raw(42, 0, 0, &[]), settings(&[])].concat()),
        ("an acknowledgement before SETTINGS", [raw(kind::SETTINGS, 1, 0, &[]), settings(&[])].concat()),
    ];
    let beginning = Outcome::OfConnection(E::PROTOCOL, "a connection that does not begin with SETTINGS: not HTTP/2?");
    let greetings = greetings.into_iter().map(|(name, greeting)| Case::new(name, [], beginning).greets(greeting));
    cases.chain(greetings).collect()
}

/// Frames behind the end of an answer (5.1).
fn behind_an_answer() -> Vec<Case> {
    let ended = "a frame on a stream that has ended";
    let cases: Vec<(&str, Vec<u8>, Outcome)> = vec![
        ("DATA behind the end", data(0, b"x"), Outcome::Behind(ErrorCode::STREAM_CLOSED, ended)),
        ("a head behind the end", all(&[(":status", "200")]), Outcome::Behind(ErrorCode::STREAM_CLOSED, ended)),
        ("trailers behind the end", all(&[("a", "b")]), Outcome::Behind(ErrorCode::STREAM_CLOSED, ended)),
        (
            "RST_STREAM behind the end, without end",
            reset(1, 8).repeat(10_100),
            Outcome::Behind(ErrorCode::ENHANCE_YOUR_CALM, NAME_OF_FLOOD),
        ),
    ];
    cases.into_iter().map(|(name, wire, outcome)| Case::new(name, [answer(1), wire].concat(), outcome)).collect()
}

/// Streams end, with the code of the rule; their connection goes on.
fn of_stream() -> Vec<Case> {
    use ErrorCode as E;
    let status = "a :status that is not three digits";
    let name = "the name of a field in capital letters, or with characters that names do not have";
    let value = "the value of a field with a line feed, a NUL or blanks around it";
    let connection = "a field about the connection, which HTTP/2 does not have";
    let pseudo = "a pseudo-header field that no answer has";
    let (short, long) = ("a body shorter than its Content-Length", "a body longer than its Content-Length");
    let number = "a Content-Length that is not a number";
    let second = "a second head, or trailers without an end";
    let with = |name: &str, value: &str| all(&[(":status", "200"), (name, value)]);
    let sized = |length: &str, body: Vec<u8>| [head(&[(":status", "200"), ("content-length", length)]), body].concat();
    let trailed = |fields: &[(&str, &str)]| [begun(), data(0, b"ok"), all(fields)].concat();
    let cases: Vec<(&str, Vec<u8>, ErrorCode, &'static str)> = vec![
        // The order of frames (8.1).
        ("DATA before a head", data(END_STREAM, b"x"), E::PROTOCOL, "data before a head"),
        ("empty DATA before a head", data(END_STREAM, b""), E::PROTOCOL, "data before a head"),
        ("trailers without an end", [begun(), head(&[("a", "b")])].concat(), E::PROTOCOL, second),
        ("a second head", [begun(), begun()].concat(), E::PROTOCOL, "a pseudo-header field in trailers"),
        (
            "an interim answer behind the head",
            [begun(), head(&[(":status", "103")])].concat(),
            E::PROTOCOL,
            "a pseudo-header field in trailers",
        ),
        ("an interim answer with an end", all(&[(":status", "100")]), E::PROTOCOL, "an interim answer that ends"),
        ("101", all(&[(":status", "101"), ("upgrade-to", "x")]), E::PROTOCOL, "a switch of protocols"),
        // Pseudo-header fields (8.3).
        ("an empty block", coded(END_STREAM, b""), E::PROTOCOL, "an answer without :status"),
        ("no :status", all(&[("a", "b")]), E::PROTOCOL, "an answer without :status"),
        ("two :status", with(":status", "200"), E::PROTOCOL, pseudo),
        ("an empty :status", all(&[(":status", "")]), E::PROTOCOL, status),
        (":status of two digits", all(&[(":status", "20")]), E::PROTOCOL, status),
        (":status of four digits", all(&[(":status", "2000")]), E::PROTOCOL, status),
        (":status with a letter", all(&[(":status", "2x0")]), E::PROTOCOL, status),
        (":status below 100", all(&[(":status", "099")]), E::PROTOCOL, status),
        (":status with a reason", all(&[(":status", "200 OK")]), E::PROTOCOL, status),
        (":status behind a field", all(&[("a", "b"), (":status", "200")]), E::PROTOCOL, "after other fields"),
        ("a request's pseudo-header field", with(":path", "/"), E::PROTOCOL, pseudo),
        ("an unknown pseudo-header field", with(":foo", "bar"), E::PROTOCOL, pseudo),
        (":Status", all(&[(":Status", "200")]), E::PROTOCOL, pseudo),
        (":status in trailers", trailed(&[(":status", "200")]), E::PROTOCOL, "a pseudo-header field in trailers"),
        // Names and values (8.2.1).
        ("a name in capital letters", with("Server", "x"), E::PROTOCOL, name),
        ("a name of no letters", with("", "x"), E::PROTOCOL, name),
        ("a name with a blank", with("a b", "x"), E::PROTOCOL, name),
        ("a name with a colon", with("a:b", "x"), E::PROTOCOL, name),
        ("a name with a line feed", with("a\nb", "x"), E::PROTOCOL, name),
        ("a name beyond ASCII", with("\u{e4}", "x"), E::PROTOCOL, name),
        ("a name with DEL", with("a\u{7f}", "x"), E::PROTOCOL, name),
        ("a value with NUL", with("a", "b\0c"), E::PROTOCOL, value),
        ("a value with CR", with("a", "b\rc"), E::PROTOCOL, value),
        ("a value with LF", with("a", "b\nc"), E::PROTOCOL, value),
        ("a value that begins with a blank", with("a", " b"), E::PROTOCOL, value),
        ("a value that ends with a tab", with("a", "b\t"), E::PROTOCOL, value),
        ("a name in capital letters in trailers", trailed(&[("A", "b")]), E::PROTOCOL, name),
        ("a value with LF in an interim answer", head(&[(":status", "103"), ("a", "\n")]), E::PROTOCOL, value),
        // Fields about the connection (8.2.2).
        ("connection", with("connection", "close"), E::PROTOCOL, connection),
        ("keep-alive", with("keep-alive", "timeout=5"), E::PROTOCOL, connection),
        ("proxy-connection", with("proxy-connection", "close"), E::PROTOCOL, connection),
        ("transfer-encoding", with("transfer-encoding", "chunked"), E::PROTOCOL, connection),
        ("upgrade", with("upgrade", "h2c"), E::PROTOCOL, connection),
        ("te other than trailers", with("te", "gzip"), E::PROTOCOL, connection),
        ("connection in trailers", trailed(&[("connection", "close")]), E::PROTOCOL, connection),
        // Content-Length (8.1.1).
        ("a length that is no number", with("content-length", "x"), E::PROTOCOL, number),
        ("a length below 0", with("content-length", "-1"), E::PROTOCOL, number),
        ("an empty length", with("content-length", ""), E::PROTOCOL, number),
        ("a length of 30 digits", with("content-length", &"9".repeat(30)), E::PROTOCOL, number),
        ("a list of lengths", with("content-length", "3, 4"), E::PROTOCOL, "two Content-Lengths that differ"),
        (
            "two lengths",
            all(&[(":status", "200"), ("content-length", "3"), ("content-length", "4")]),
            E::PROTOCOL,
            "two Content-Lengths that differ",
        ),
        ("a length without a body", with("content-length", "3"), E::PROTOCOL, short),
        ("a short body", sized("3", data(END_STREAM, b"ab")), E::PROTOCOL, short),
        ("a short body before trailers", sized("3", [data(0, b"ab"), all(&[("a", "b")])].concat()), E::PROTOCOL, short),
        ("a body whose padding makes up its length", sized("3", data(9, &[1, b'a', b'b', 0])), E::PROTOCOL, short),
        ("a long body", sized("3", data(END_STREAM, b"abcd")), E::PROTOCOL, long),
        ("a long body in two frames", sized("3", [data(0, b"abc"), data(1, b"d")].concat()), E::PROTOCOL, long),
        ("a body of a length of 0", sized("0", data(END_STREAM, b"a")), E::PROTOCOL, long),
        ("204 with a body", [head(&[(":status", "204")]), data(1, b"x")].concat(), E::PROTOCOL, "where none may be"),
        ("304 with a body", [head(&[(":status", "304")]), data(1, b"x")].concat(), E::PROTOCOL, "where none may be"),
        // Windows and priority of a stream (6.3, 6.9).
        ("WINDOW_UPDATE of 0 on a stream", window_update(1, 0), E::PROTOCOL, "a WINDOW_UPDATE of 0 bytes"),
        ("WINDOW_UPDATE beyond 2^31 on a stream", window_update(1, !0), E::FLOW_CONTROL, "a stream's window above"),
        ("PRIORITY of 4 bytes", raw(kind::PRIORITY, 0, 1, &[0; 4]), E::FRAME_SIZE, "PRIORITY that is not 5 bytes"),
        ("PRIORITY of 6 bytes", raw(kind::PRIORITY, 0, 1, &[0; 6]), E::FRAME_SIZE, "PRIORITY that is not 5 bytes"),
    ];
    cases.into_iter().map(|(name, wire, code, text)| Case::new(name, wire, Outcome::OfStream(code, text))).collect()
}

/// What a server does of its own: it gives up a stream, says that it goes, goes, or falls silent (5.4, 6.4, 6.8).
fn given_up() -> Vec<Case> {
    let mut cases = Vec::new();
    for (code, text) in [
        (0, "RST_STREAM with NO_ERROR"),
        (1, "RST_STREAM with PROTOCOL_ERROR"),
        (2, "RST_STREAM with INTERNAL_ERROR"),
        (3, "RST_STREAM with FLOW_CONTROL_ERROR"),
        (8, "RST_STREAM with CANCEL"),
        (11, "RST_STREAM with ENHANCE_YOUR_CALM"),
        (0xabcd, "RST_STREAM with the unknown code 0xabcd"),
    ] {
        cases.push(Case::new(text, reset(1, code), Outcome::Failed("reset", 1, text)));
        let late = [begun(), data(0, b"half"), reset(1, code)].concat();
        cases.push(Case::new(format!("{text} after half an answer"), late, Outcome::Failed("reset", 1, text)));
    }
    for (code, text) in [
        (0, ""),
        (1, "GOAWAY with PROTOCOL_ERROR"),
        (11, "GOAWAY with ENHANCE_YOUR_CALM"),
        (12, "GOAWAY with INADEQUATE_SECURITY"),
        (0xabcd, "GOAWAY with the unknown code 0xabcd"),
    ] {
        // Nothing was processed: each request goes twice.
        let name = format!("GOAWAY for every request, {code}");
        cases.push(Case::new(name, goaway(0, code), Outcome::Failed("refused", 3, text)));
    }
    let last = 0x7fff_ffff;
    let calm = Outcome::Failed("protocol", 3, "(ENHANCE_YOUR_CALM)");
    cases.extend([
        Case::new("REFUSED_STREAM", reset(1, 7), Outcome::Answered(1)),
        Case::new("REFUSED_STREAM twice", reset(1, 7), Outcome::Failed("refused", 1, "")).replies_next(reset(3, 7)),
        Case::new("HTTP_1_1_REQUIRED", reset(1, 13), Outcome::Failed("protocol", 1, "the server wants HTTP/1.1")),
        Case::new("GOAWAY with more to read", [goaway(1, 0), answer(1)].concat(), Outcome::Answered(3)),
        Case::new(
            "GOAWAY that is announced",
            [goaway(last, 0), answer(1), goaway(1, 0)].concat(),
            Outcome::Answered(3),
        ),
        Case::new("GOAWAY that takes back", [goaway(1, 0), goaway(last, 0), answer(1)].concat(), Outcome::Answered(3)),
        Case::new(
            "GOAWAY with words",
            [raw(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\0goodbye"), answer(1)].concat(),
            Outcome::Answered(3),
        ),
        Case::new(
            "GOAWAY for what is answered then",
            [goaway(0, 0), answer(1)].concat(),
            Outcome::Failed("refused", 3, "a frame on a stream that has ended (STREAM_CLOSED)"),
        ),
        Case::new("GOAWAY and the end", goaway(1, 0), Outcome::Failed("closed", 3, "")).then(AfterReply::Ends),
        Case::new("GOAWAY and silence", goaway(1, 0), Outcome::TimedOut).once(),
        Case::new("the end without a byte", [], Outcome::Failed("closed", 3, "")).greets([]).then(AfterReply::Ends),
        Case::new("the end within SETTINGS", [], Outcome::Failed("closed", 3, ""))
            .greets(&settings(&[])[..5])
            .then(AfterReply::Ends),
        Case::new("the end within a frame's head", &begun()[..5], Outcome::Failed("closed", 3, ""))
            .then(AfterReply::Ends),
        Case::new("the end within a header block", &begun()[..9], Outcome::Failed("closed", 3, ""))
            .then(AfterReply::Ends),
        Case::new(
            "the end within a block of two frames",
            raw(kind::HEADERS, 0, 1, &[0x88]),
            Outcome::Failed("closed", 3, ""),
        )
        .then(AfterReply::Ends),
        Case::new("the end behind a head", begun(), Outcome::Failed("closed", 3, "")).then(AfterReply::Ends),
        Case::new(
            "the end within a body",
            [head(&[(":status", "200"), ("content-length", "10")]), data(0, b"abc")].concat(),
            Outcome::Failed("closed", 3, ""),
        )
        .then(AfterReply::Ends),
        Case::new("silence", [], Outcome::TimedOut).greets([]).once(),
        Case::new("silence after SETTINGS", [], Outcome::TimedOut).once(),
        Case::new("silence within SETTINGS", [], Outcome::TimedOut).greets(&settings(&[])[..5]).once(),
        Case::new("silence within a frame's head", &begun()[..5], Outcome::TimedOut).once(),
        Case::new("silence within a header block", raw(kind::HEADERS, 0, 1, &[0x88]), Outcome::TimedOut).once(),
        Case::new("silence behind a head", begun(), Outcome::TimedOut).once(),
        Case::new("interim answers and silence", head(&[(":status", "100")]).repeat(3), Outcome::TimedOut).once(),
        Case::new("a body without end", begun(), Outcome::TimedOut)
            .then(AfterReply::Repeats(|| data(0, &[b'x'; 16_000])))
            .once(),
        Case::new("a window of 0 for a body", [], Outcome::TimedOut)
            .greets(settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]))
            .options(&["-n", "1", "--timeout", "300ms", "--body", "@body"]),
        Case::new("a body that nobody reads", [], Outcome::TimedOut)
            .greets([settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]), window_update(0, 1 << 30)].concat())
            .then(AfterReply::IsDeaf)
            .options(&["-n", "1", "--timeout", "300ms", "--body", "@large"]),
        Case::new("a body after HEAD", answer(1), Outcome::Failed("protocol", 3, "a body where none may be"))
            .options(&["-n", "3", "--timeout", "2s", "--method", "HEAD"]),
        // The client's replies fill the socket, and what it says at the end may not arrive.
        Case::new("SETTINGS without end", settings(&[]).repeat(10_100), calm),
        Case::new("PING without end", raw(kind::PING, 0, 0, &[0; 8]).repeat(10_100), calm),
        // Each connection carries one request, which goes out before the settings arrive.
        Case::new("no streams at all", answer(1), Outcome::Answered(3))
            .greets(settings(&[(setting::MAX_CONCURRENT_STREAMS, 0)]))
            .options(&["-n", "3", "--timeout", "300ms"]),
    ]);
    cases
}

/// What is odd, and allowed.
fn allowed() -> Vec<Case> {
    let with = |name: &str, value: &str| all(&[(":status", "200"), (name, value)]);
    let sized = |status: &str| all(&[(":status", status), ("content-length", "3")]);
    let behind = |frame: Vec<u8>| [frame, answer(1)].concat();
    let interim = |more: &[u8], block: &[u8]| {
        let interim = [&self::block(&[(":status", "103")]), more].concat();
        [coded(0, &interim), coded(END_STREAM, block)].concat()
    };
    let in_pieces = |pieces: usize| {
        let mut out = raw(kind::HEADERS, END_STREAM, 1, &[0x88]);
        (1..pieces).for_each(|_| out.extend(raw(kind::CONTINUATION, 0, 1, &[])));
        out.extend(raw(kind::CONTINUATION, END_HEADERS, 1, &literal(0, "a", 1)));
        out
    };
    let reserved = |mut frame: Vec<u8>| {
        frame[5] |= 0x80;
        frame
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("an answer", answer(1)),
        ("a head that is all", all(&[(":status", "200")])),
        ("an end in empty DATA", [begun(), data(END_STREAM, b"")].concat()),
        ("padded DATA", [begun(), data(flag::PADDED, &[2, b'o', b'k', 0, 0]), data(1, b"")].concat()),
        ("DATA of nothing but padding", [begun(), data(9, &[3, 0, 0, 0])].concat()),
        ("padded HEADERS", coded(END_STREAM | flag::PADDED, &[1, 0x88, 0])),
        ("HEADERS with a priority", coded(END_STREAM | flag::PRIORITY, &[0, 0, 0, 0, 9, 0x88])),
        ("HEADERS that depend on themselves", coded(END_STREAM | flag::PRIORITY, &[0, 0, 0, 1, 9, 0x88])),
        ("a block in 2 frames", in_pieces(1)),
        ("a block in 65 frames", in_pieces(64)),
        ("unknown frames on a stream", behind(raw(0xa, 0xff, 1, b"alt-svc"))),
        ("unknown frames on the connection", behind(raw(0xff, 0, 0, b"x"))),
        ("an unknown frame on an idle stream", behind(raw(0x10, 0, 99, b"u=1"))),
        ("unknown flags", [coded(0x50, &[0x88]), raw(kind::PING, 0xfe, 0, &[0; 8]), data(0xf1 & !8, b"ok")].concat()),
        ("the reserved bit of a stream's number", [reserved(begun()), reserved(data(END_STREAM, b"ok"))].concat()),
        ("the reserved bit of a window", behind(window_update(0, 0x8000_0001))),
        (
            "interim answers",
            [head(&[(":status", "100")]), head(&[(":status", "103"), ("link", "</a>")]), answer(1)].concat(),
        ),
        ("1,000 interim answers", behind(head(&[(":status", "102")]).repeat(1000))),
        ("trailers", [begun(), data(0, b"ok"), all(&[("grpc-status", "0")])].concat()),
        ("trailers without a body", [begun(), all(&[("grpc-status", "0")])].concat()),
        ("empty trailers", [begun(), coded(END_STREAM, b"")].concat()),
        ("PING", behind(raw(kind::PING, 0, 0, b"12345678").repeat(100))),
        ("a reply to no PING", behind(raw(kind::PING, 1, 0, b"12345678"))),
        ("SETTINGS again", behind(settings(&[(setting::MAX_CONCURRENT_STREAMS, 5)]).repeat(100))),
        ("acknowledgements of nothing", behind(raw(kind::SETTINGS, 1, 0, &[]).repeat(3))),
        ("unknown settings", behind(settings(&[(0, 1), (8, 1), (0xffff, !0)]))),
        ("a setting twice", behind(settings(&[(setting::MAX_FRAME_SIZE, 16_384), (setting::MAX_FRAME_SIZE, 20_000)]))),
        ("ENABLE_PUSH of 0", behind(settings(&[(setting::ENABLE_PUSH, 0)]))),
        ("the largest settings", behind(settings(&[(1, !0), (3, !0), (4, 0x7fff_ffff), (5, 0xff_ffff), (6, !0)]))),
        ("no header table", behind(settings(&[(setting::HEADER_TABLE_SIZE, 0)]))),
        ("a limit of 0 that is lifted", behind(settings(&[(3, 0)])).into_iter().chain(settings(&[(3, 9)])).collect()),
        ("WINDOW_UPDATE behind the end", [answer(1), window_update(1, 5)].concat()),
        ("RST_STREAM behind the end", [answer(1), reset(1, 0)].concat()),
        ("PRIORITY of any stream", behind([1u32, 2, 99].map(|s| raw(kind::PRIORITY, 0, s, &[0; 5])).concat())),
        ("a window up to 2^31 - 1", behind(window_update(0, 0x7fff_ffff - 65_535))),
        ("the same length twice", all(&[(":status", "200"), ("content-length", "0"), ("content-length", "0")])),
        ("a list of the same length", with("content-length", "0, 0")),
        ("204 with a length", sized("204")),
        ("304 with a length", sized("304")),
        ("te: trailers", with("te", "trailers")),
        (":status 999", all(&[(":status", "999")])),
        ("a value of control characters", with("a", "\u{1}\u{7f}\u{e4}")),
        ("an empty value", with("a", "")),
        ("a field from the table", interim(&literal(0x40, "a", 1), &[0x88, 0xbe])),
        ("a field larger than the table", coded(END_STREAM, &[&[0x88][..], &literal(0x40, "a", 5000)].concat())),
        ("a table that shrinks and grows", coded(END_STREAM, &[0x20, 0x3f, 0xe1, 0x1f, 0x88])),
        ("a field that is never indexed", coded(END_STREAM, &[&[0x88][..], &literal(0x10, "a", 1)].concat())),
        ("many fields", coded(END_STREAM, &[&[0x88][..], &literal(0, "a", 9).repeat(1000)].concat())),
    ];
    let mut cases: Vec<Case> =
        cases.into_iter().map(|(name, wire)| Case::new(name, wire, Outcome::Answered(1))).collect();
    cases.extend([
        Case::new("a length after HEAD", sized("200"), Outcome::Answered(1))
            .replies_next(raw(kind::HEADERS, 5, 3, &[0x88]))
            .replies_next(raw(kind::HEADERS, 5, 5, &[0x88]))
            .options(&["-n", "3", "--timeout", "2s", "--method", "HEAD"]),
        Case::new("an answer before the body", [answer(1), reset(1, 0)].concat(), Outcome::Answered(1)).options(&[
            "-n",
            "3",
            "--timeout",
            "2s",
            "--body",
            "@body",
        ]),
    ]);
    cases
}

/// TLS that agrees on other protocols than were asked for, or on one that the server does not speak (3.2).
fn behind_tls() -> Vec<Case> {
    let auto = &["-n", "3", "--timeout", "2s", "--http", "auto"];
    vec![
        Case::new("HTTP/2", answer(1), Outcome::Answered(1)).agrees_on(&[&["h2"]]),
        Case::new("no agreement", [], Outcome::Failed("connect", 3, "did not agree on HTTP/2 (ALPN)"))
            .agrees_on(&[&[]]),
        Case::new("HTTP/1.1 alone", [], Outcome::Failed("connect", 3, "--http 1.1 offers another"))
            .agrees_on(&[&["http/1.1"]]),
        Case::new(
            "HTTP/1.1 though HTTP/2 was agreed on",
            [],
            Outcome::Failed("protocol", 3, "not HTTP/2? (PROTOCOL_ERROR)"),
        )
        .greets(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .agrees_on(&[&["h2"]]),
        Case::new("the end of TLS behind a head", begun(), Outcome::Failed("closed", 3, ""))
            .then(AfterReply::Ends)
            .agrees_on(&[&["h2"]]),
        Case::new("auto, and HTTP/2", answer(1), Outcome::Answered(1)).options(auto).agrees_on(&[&["h2", "http/1.1"]]),
        Case::new("auto, and HTTP/1.1", [], Outcome::Answered(3)).options(auto).agrees_on(&[&["http/1.1"]]),
        Case::new("auto, and no agreement", [], Outcome::Answered(3)).options(auto).agrees_on(&[&[]]),
        Case::new("HTTP/2 before the run only", [], Outcome::Failed("connect", 3, "agreed on HTTP/1.1 (ALPN); before"))
            .options(auto)
            .agrees_on(&[&["h2"], &["http/1.1"]]),
        Case::new("HTTP/1.1 before the run only", [], Outcome::Failed("connect", 3, "agreed on HTTP/2 (ALPN); before"))
            .options(auto)
            .agrees_on(&[&["http/1.1"], &["h2"]]),
    ]
}

trait Socket: Read + Write {
    /// Ends the server's side.
    fn end(&mut self);
}

impl Socket for TcpStream {
    fn end(&mut self) {
        // The client may have gone.
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Socket for StreamOwned<ServerConnection, TcpStream> {
    fn end(&mut self) {
        self.conn.send_close_notify();
        let _ = self.flush();
    }
}

/// The TLS side of a server, with the certificate in the folder.
fn tls_config(folder: &Folder, protocols: &[&str]) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(folder.join("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("a key");
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certificate], key).expect("they belong together");
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// The server of one case.
struct Server {
    address: SocketAddr,
    /// The codes with which clients have ended streams and connections.
    codes: Arc<Mutex<BTreeSet<u32>>>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Server {
    /// Ends its thread: each run looks at the memory of this process, and that of hundreds of threads takes long.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn start(folder: &Folder, case: &Case) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let codes = Arc::<Mutex<BTreeSet<u32>>>::default();
    let is_over = Arc::<AtomicBool>::default();
    let server = Server { address, codes: Arc::clone(&codes), is_over: Arc::clone(&is_over) };
    let (greeting, replies) = (Arc::new(case.greeting.clone()), Arc::new(case.replies.clone()));
    let (then, heard) = (case.then, codes);
    let configs: Vec<_> = case.protocols.iter().map(|protocols| tls_config(folder, protocols)).collect();
    thread::spawn(move || {
        for (nth, socket) in listener.incoming().flatten().enumerate() {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let (greeting, replies, heard) = (Arc::clone(&greeting), Arc::clone(&replies), Arc::clone(&heard));
            let config = configs.get(nth).or(configs.last()).cloned();
            thread::spawn(move || match config {
                None => converse(socket, &greeting, &replies, then, &heard),
                Some(config) => {
                    let tls = ServerConnection::new(config).expect("a configuration");
                    converse(StreamOwned::new(tls, socket), &greeting, &replies, then, &heard)
                }
            });
        }
    });
    server
}

fn converse(
    mut socket: impl Socket,
    greeting: &[u8],
    replies: &[Vec<u8>],
    then: AfterReply,
    heard: &Mutex<BTreeSet<u32>>,
) -> Option<()> {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).ok()?;
    if preface != PREFACE {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        socket.end();
        return None;
    }
    let _ = socket.write_all(greeting).and_then(|()| socket.flush());
    loop {
        let (head, payload) = next_frame(&mut socket)?;
        match head.kind {
            kind::RST_STREAM => _ = heard.lock().expect("nobody panicked").insert(frame::number(&payload)),
            kind::GOAWAY => _ = heard.lock().expect("nobody panicked").insert(frame::number(&payload[4..])),
            kind::HEADERS => {
                let reply = replies.get(head.stream as usize / 2).cloned().unwrap_or_else(|| answer(head.stream));
                // The client may have gone.
                let _ = socket.write_all(&reply).and_then(|()| socket.flush());
                match then {
                    AfterReply::Stays => {}
                    AfterReply::Ends => socket.end(),
                    AfterReply::Repeats(bytes) => while socket.write_all(&bytes()).is_ok() {},
                    AfterReply::IsDeaf => loop {
                        thread::park();
                    },
                }
            }
            _ => {}
        }
    }
}

fn next_frame(from: &mut impl Read) -> Option<(FrameHead, Vec<u8>)> {
    let mut head = [0; frame::HEAD_BYTES];
    from.read_exact(&mut head).ok()?;
    let head = FrameHead::read(&head)?;
    let mut payload = vec![0; head.length];
    from.read_exact(&mut payload).ok()?;
    Some((head, payload))
}

/// Runs the program, for at most 20 s.
fn run(folder: &Folder, url: &str, options: &[&str]) -> CommandOutput {
    let options: Vec<String> =
        options.iter().map(|o| o.replace('@', &format!("@{}/", folder.path().display()))).collect();
    let mut args = vec!["run", url, "-c", "1", "--insecure", "--no-store", "--json", "-"];
    args.extend(options.iter().map(String::as_str));
    let ours = folder.lastdrop(&args);
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "20"]).arg(ours.get_program()).args(ours.get_args());
    command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    CommandOutput::of(command.output().expect("the program runs"), &args)
}

/// Asserts what a case wants.
fn check(folder: &Folder, case: &Case) {
    let name = &case.name;
    let server = start(folder, case);
    let scheme = if case.protocols.is_empty() { "http" } else { "https" };
    let url = format!("{scheme}://{}/", server.address);
    let version: &[&str] = if case.options.contains(&"--http") { &[] } else { &["--http", "2"] };
    let options = [version, &case.options].concat();
    let done = run(folder, &url, &options);
    let document: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{name}: {e}: {done:?}"));
    assert_sums(&document);
    let phase = &document["phases"][0];
    // By its own clock: a busy machine takes seconds to start a program.
    let took = number(&phase["duration_s"]);
    assert!(took < LONGEST_S, "{name}: {took} {done:?}");
    let (requests, connections) = (&phase["requests"], &phase["connections"]);
    let generator = &document["generator"];
    let errors = format!("{} {}", generator["protocol_errors"], generator["connect_errors"]);
    let what = format!("{name}: {requests} {connections} {errors}");
    let due = n(&requests["due"]);
    let failed = |kind: &str| requests["failed"][kind].as_u64().unwrap_or(0);
    let (answered, opened) = (n(&requests["answered"]), n(&connections["opened"]));
    assert_eq!(done.code, i32::from(answered == 0), "{what} {}", done.stderr);
    let (code, text) = match case.outcome {
        Outcome::Answered(over) => {
            assert_eq!((answered, opened), (due, over), "{what}");
            assert!(over > 1 || generator.get("protocol_errors").is_none_or(is_empty), "{what}");
            (None, "")
        }
        Outcome::OfStream(code, text) => {
            assert_eq!((answered, failed("protocol"), opened), (2, 1, 1), "{what}");
            (Some(code), text)
        }
        Outcome::OfConnection(code, text) => {
            assert_eq!((answered, failed("protocol"), opened), (0, due, due), "{what}");
            (Some(code), text)
        }
        Outcome::Behind(code, text) => {
            assert_eq!((answered, failed("protocol"), opened), (2, 1, 2), "{what}");
            (Some(code), text)
        }
        Outcome::Failed(kind, count, text) => {
            assert_eq!((answered, failed(kind)), (due - count, count), "{what}");
            (None, text)
        }
        Outcome::TimedOut => {
            assert_eq!(n(&requests["timed_out"]), due, "{what}");
            (None, "")
        }
    };
    assert!(errors.contains(text), "{what}");
    if let Some(code) = code {
        assert!(errors.contains(&format!("({code})")), "{what}");
        wait_until(name, || server.codes.lock().expect("nobody panicked").contains(&code.0));
    }
}

fn is_empty(errors: &Value) -> bool {
    errors.as_object().is_some_and(serde_json::Map::is_empty)
}

#[test]
fn each_rule_that_a_server_breaks_ends_in_time_with_its_name_and_exact_sums() {
    let _quiet = quiet();
    let folder = Folder::new();
    fs::write(folder.join("body"), vec![b'x'; 200_000]).expect("written");
    fs::write(folder.join("large"), vec![b'x'; 30_000_000]).expect("written");
    let groups = [of_connection(), behind_an_answer(), of_stream(), given_up()];
    let cases: Vec<Case> = groups.into_iter().flatten().collect();
    assert!(cases.len() >= 200, "{}", cases.len());
    side_by_side(&folder, &cases);
}

#[test]
fn what_is_odd_and_allowed_is_answered() {
    let folder = Folder::new();
    fs::write(folder.join("body"), vec![b'x'; 200_000]).expect("written");
    side_by_side(&folder, &allowed());
}

#[test]
fn a_server_behind_tls_is_held_to_what_it_agreed_on() {
    let folder = Folder::new();
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem \
                  -days 2 -subj /CN=localhost";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    side_by_side(&folder, &behind_tls());
    // Nobody answers the handshake before the run.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/", listener.local_addr().expect("its address"));
    let done = run(&folder, &url, &["-n", "1", "--timeout", "300ms", "--http", "auto"]);
    assert!(done.code == 1 && done.stderr.contains("the server does not answer"), "{done:?}");
}

/// Checks several cases at the same time, and all of them though some fail.
fn side_by_side(folder: &Folder, cases: &[Case]) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(folder, case)));
                    if checked.is_err() {
                        wrong.lock().expect("nobody panicked").push(case.name.clone());
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("nobody panicked");
    assert!(wrong.is_empty(), "{} of {}: {wrong:?}", wrong.len(), cases.len());
}
