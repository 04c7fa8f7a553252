//! Conversations with a server that keeps the rules, and with one that breaks each.

use super::*;
use crate::h2::PREFACE;
use crate::h2::frame::{raw, write_data, write_headers, write_settings};

const LIMITS: Limits = Limits { streams: 100, requests: u32::MAX, stream_window: 100_000, connection_window: 200_000 };

/// What happened, in words.
#[derive(Debug, Default)]
struct SeenEvents(Vec<String>);

fn feed(c: &mut Connection, bytes: &[u8], step: usize) -> Result<SeenEvents, ConnectionError> {
    let mut seen = SeenEvents::default();
    for mut piece in bytes.chunks(step) {
        while let Some(event) = c.receive(&mut piece)? {
            seen.0.push(match event {
                Event::Interim { key } => format!("{key} interim"),
                Event::Head { key, status, .. } => format!("{key} head {status}"),
                Event::Data { key, piece, .. } => format!("{key} data {}", piece.len()),
                Event::End { key } => format!("{key} end"),
                Event::Reset { key, why: Reset::Refused } => format!("{key} refused"),
                Event::Reset { key, why: Reset::Code(code) } => format!("{key} {code}"),
                Event::Reset { key, why: Reset::Malformed(_, text) } => format!("{key} malformed: {text}"),
                Event::GoAway { code, refused } => format!("goaway {code} {refused:?}"),
                Event::Settings => "settings".into(),
            });
        }
    }
    Ok(seen)
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(n, v)| hpack::encode(&mut out, n.as_bytes(), v.as_bytes(), false));
    out
}

/// A connection after the server's settings, with streams of the keys 10, 11 … and nothing to send.
fn connection(streams: u32) -> Connection {
    let mut c = Connection::new(LIMITS);
    let mut settings = Vec::new();
    write_settings(&mut settings, &[]);
    feed(&mut c, &settings, 100).expect("valid");
    (0..streams).for_each(|n| c.begin(10 + n, &block(&[(":method", "GET")]), None, false, true));
    let bytes = c.output().len();
    c.wrote(bytes);
    c.take_written();
    c
}

/// Kinds, streams and payloads of the frames to send.
fn said(c: &mut Connection) -> Vec<(u8, u32, Vec<u8>)> {
    let mut out = Vec::new();
    let mut rest = c.output();
    while let Some(head) = FrameHead::read(rest) {
        out.push((head.kind, head.stream, rest[HEAD_BYTES..HEAD_BYTES + head.length].to_vec()));
        rest = &rest[HEAD_BYTES + head.length..];
    }
    let bytes = c.output().len();
    c.wrote(bytes);
    out
}

#[test]
fn answers_come_in_any_order_and_in_pieces_of_any_size() {
    let mut wire = Vec::new();
    write_headers(&mut wire, 3, &block(&[(":status", "103"), ("link", "x")]), false, 5);
    write_headers(&mut wire, 3, &block(&[(":status", "200"), ("content-length", "5")]), false, 4);
    write_headers(&mut wire, 1, &block(&[(":status", "204")]), true, 100);
    wire.extend(raw(kind::DATA, flag::PADDED, 3, b"\x02hel\0\0"));
    wire.extend(raw(kind::PING, 0, 0, b"12345678"));
    wire.extend(raw(99, 0, 7, b"unknown"));
    write_data(&mut wire, 3, b"lo", false);
    write_headers(&mut wire, 3, &block(&[("grpc-status", "0")]), true, 100);
    for step in 1..wire.len() + 1 {
        let mut c = connection(2);
        let seen = feed(&mut c, &wire, step).expect("valid");
        let want = ["11 interim", "11 head 200", "10 head 204", "10 end", "11 data 3", "11 data 2", "11 end"]
            .map(String::from);
        assert_eq!(seen.0, want, "in steps of {step}");
        assert_eq!(said(&mut c), [(kind::PING, 0, b"12345678".to_vec())]);
        assert_eq!((c.in_flight(), c.is_over()), (0, false));
    }
}

#[test]
fn the_first_flight_has_one_request_and_the_servers_limit_holds_then() {
    let mut c = Connection::new(LIMITS);
    assert!(c.output().starts_with(PREFACE) && c.has_room());
    c.begin(1, b"\x82", None, false, false);
    assert!(!c.has_room());
    let mut wire = Vec::new();
    write_settings(&mut wire, &[(setting::MAX_CONCURRENT_STREAMS, 2), (setting::HEADER_TABLE_SIZE, 0)]);
    assert_eq!(feed(&mut c, &wire, 3).expect("valid").0, ["settings"]);
    assert!(c.has_room() && c.peer_streams() == Some(2));
    let bytes = c.output().len();
    c.wrote(bytes);
    c.begin(2, b"\x82", None, false, false);
    assert!(!c.has_room());
    // The first block after a smaller table says that ours is empty.
    assert_eq!(said(&mut c), [(kind::HEADERS, 3, vec![0x20, 0x82])]);
}

#[test]
fn a_head_is_not_decoded_again_unless_the_table_has_changed() {
    let head = block(&[(":status", "200"), ("server", "x")]);
    let mut c = Connection::new(LIMITS);
    let mut wire = Vec::new();
    write_settings(&mut wire, &[]);
    feed(&mut c, &wire, 100).expect("valid");
    let decoded = |c: &mut Connection, block: &[u8], wants: bool| {
        c.begin(1, b"\x82", None, false, wants);
        let (mut wire, mut found) = (Vec::new(), None);
        write_headers(&mut wire, c.next_stream - 2, block, true, 1000);
        let mut input = &wire[..];
        while let Some(event) = c.receive(&mut input).expect("valid") {
            if let Event::Head { status, fields, .. } = event {
                assert_eq!(status, 200);
                found = Some(fields.is_some());
            }
        }
        found.expect("a head")
    };
    assert!(decoded(&mut c, &head, false) && !decoded(&mut c, &head, false) && decoded(&mut c, &head, true));
    // A block that inserts fields and refers to none means the same each time, as nginx's do.
    let inserts = [0x88, 0x40, 1, b'a', 1, b'b'];
    assert!(decoded(&mut c, &inserts, false) && !decoded(&mut c, &inserts, false));
    // One that refers to the table does not, once the table has changed.
    let refers = [0x88, 0xbe];
    assert!(decoded(&mut c, &refers, false) && !decoded(&mut c, &refers, false));
    assert!(!decoded(&mut c, &inserts, false) && decoded(&mut c, &refers, false));
    assert!(!decoded(&mut c, &head, false));
}

#[test]
fn remembered_heads_leave_the_table_as_decoded_ones_do() {
    let mut c = connection(0);
    let mut plain = Decoder::default();
    let mut fields = Fields::default();
    let long = [&[0x88, 0x40, 1, b'l', 120][..], &[b'x'; 120]].concat();
    let blocks: [&[u8]; 9] = [
        &[0x88, 0x40, 1, b'a', 1, b'b'],
        &[0x8d, 0x40, 1, b'c', 2, b'd', b'e', 0x40, 1, b'f', 0],
        &[0x88, 0x00, 1, b'g', 1, b'h'],
        &[0x88, 0xbe],
        &[0x88, 0xbf, 0x40, 1, b'i', 1, b'j'],
        &[0x88, 0x7e, 1, b'k'],
        &long,
        // A table of 128 bytes, which does not hold the long field, and one of 4,096.
        &[0x3f, 0x61, 0x88],
        &[0x3f, 0xe1, 0x1f, 0x8d],
    ];
    let (mut seed, mut known) = (7u32, 0);
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let dice = seed >> 16;
        // Often the same few.
        let block = blocks[(dice % if dice & 0x100 == 0 { 3 } else { 9 }) as usize];
        let refers = block.iter().any(|b| matches!(b, 0xbe | 0xbf | 0x7e));
        if refers && plain.len() < 2 {
            continue;
        }
        plain.decode(block, &mut fields).expect("valid");
        let wants = dice & 0x3000 == 0;
        c.begin(1, b"\x82", None, false, wants);
        let mut wire = Vec::new();
        write_headers(&mut wire, c.next_stream - 2, block, true, 1000);
        let mut input = &wire[..];
        while let Some(event) = c.receive(&mut input).expect("valid") {
            let Event::Head { status, fields: seen, .. } = event else { continue };
            assert_eq!(Some(status.to_string().as_bytes()), fields.iter().next().map(|(_, value)| value));
            match seen {
                Some(seen) => assert!(seen.iter().eq(fields.iter())),
                None => known += 1,
            }
        }
        c.wrote(c.output().len());
    }
    assert!(known > 5_000, "{known}");
}

#[test]
fn a_status_from_the_table_is_read_anew_once_the_table_has_changed() {
    let mut c = connection(0);
    let mut status = |block: &[u8]| {
        c.begin(1, b"\x82", None, false, false);
        let (mut wire, mut found) = (Vec::new(), 0);
        write_headers(&mut wire, c.next_stream - 2, block, true, 1000);
        let mut input = &wire[..];
        while let Some(event) = c.receive(&mut input).expect("valid") {
            if let Event::Head { status, .. } = event {
                found = status;
            }
        }
        found
    };
    for digit in *b"12312" {
        let inserted = status(&[0x48, 3, b'2', b'0', digit]);
        assert_eq!(inserted, 200 + u16::from(digit - b'0'));
        // The newest field of the table.
        assert_eq!([status(&[0xbe]), status(&[0xbe])], [inserted; 2]);
    }
}

#[test]
fn a_body_keeps_to_both_windows_and_streams_take_turns() {
    let mut c = connection(0);
    let mut wire = Vec::new();
    write_settings(&mut wire, &[(setting::INITIAL_WINDOW_SIZE, 40_000)]);
    feed(&mut c, &wire, 100).expect("valid");
    said(&mut c);
    let body: Body = vec![7; 50_000].into();
    c.begin(1, b"\x83", Some(body.clone()), false, false);
    c.begin(2, b"\x83", Some(body), false, false);
    let mut sent = [0, 0];
    let count = |c: &mut Connection, sent: &mut [usize; 2]| {
        loop {
            let frames = said(c);
            if frames.is_empty() {
                break;
            }
            frames.iter().filter(|f| f.0 == kind::DATA).for_each(|f| sent[(f.1 as usize - 1) / 2] += f.2.len());
        }
    };
    count(&mut c, &mut sent);
    assert_eq!((sent[0] + sent[1], sent[0].max(sent[1])), (65_535, 40_000));
    assert!(c.take_written().is_empty());
    feed(&mut c, &raw(kind::WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]), 100).expect("valid");
    count(&mut c, &mut sent);
    assert_eq!(sent, [40_000, 40_000]);
    // A smaller window may be negative until it has been earned back.
    wire.clear();
    write_settings(&mut wire, &[(setting::INITIAL_WINDOW_SIZE, 10_000)]);
    wire.extend(raw(kind::WINDOW_UPDATE, 0, 1, &35_000u32.to_be_bytes()));
    feed(&mut c, &wire, 100).expect("valid");
    count(&mut c, &mut sent);
    assert_eq!(sent, [45_000, 40_000]);
    feed(&mut c, &raw(kind::WINDOW_UPDATE, 0, 1, &5_000u32.to_be_bytes()), 100).expect("valid");
    count(&mut c, &mut sent);
    assert_eq!((sent, c.take_written()), ([50_000, 40_000], vec![1]));
}

#[test]
fn our_windows_are_updated_at_half_and_an_overrun_is_an_error() {
    let mut c = connection(3);
    let mut wire = Vec::new();
    for stream in [1, 3, 5] {
        write_headers(&mut wire, stream, &block(&[(":status", "200")]), false, 1000);
    }
    (0..4).for_each(|_| write_data(&mut wire, 1, &[0; 15_000], false));
    feed(&mut c, &wire, 5000).expect("valid");
    assert_eq!(said(&mut c), [(kind::WINDOW_UPDATE, 1, 60_000u32.to_be_bytes().to_vec())]);
    // The server counts on windows that we have not given: half of the connection's is in use.
    let mut wire = Vec::new();
    (0..3).for_each(|_| write_data(&mut wire, 3, &[0; 16_000], false));
    let seen = feed(&mut c, &wire, 5000).expect("valid");
    assert_eq!(seen.0.len(), 3);
    assert_eq!(said(&mut c)[0].0, kind::WINDOW_UPDATE);
}

#[test]
fn what_a_server_did_not_process_is_told_apart() {
    let mut c = connection(4);
    let goaway = |last: u32, code: u32| raw(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat());
    let mut wire = goaway(0x7fff_ffff, 0);
    wire.extend(raw(kind::RST_STREAM, 0, 3, &7u32.to_be_bytes()));
    wire.extend(raw(kind::RST_STREAM, 0, 1, &11u32.to_be_bytes()));
    wire.extend(goaway(5, 0));
    write_headers(&mut wire, 5, &block(&[(":status", "200")]), true, 1000);
    let seen = feed(&mut c, &wire, 7).expect("valid");
    let want =
        ["goaway NO_ERROR []", "11 refused", "10 ENHANCE_YOUR_CALM", "goaway NO_ERROR [13]", "12 head 200", "12 end"];
    assert_eq!(seen.0, want);
    assert!(c.is_over() && !c.has_room() && c.in_flight() == 0);
}

#[test]
fn a_cancelled_stream_may_be_answered_late_and_the_table_stays_in_step() {
    let mut c = connection(2);
    c.cancel(10);
    assert_eq!(said(&mut c), [(kind::RST_STREAM, 1, 8u32.to_be_bytes().to_vec())]);
    let mut wire = Vec::new();
    write_headers(&mut wire, 1, &[0x88, 0x40, 1, b'a', 1, b'b'], false, 1000);
    write_data(&mut wire, 1, b"late", true);
    wire.extend(raw(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]));
    write_headers(&mut wire, 3, &[0x88, 0xbe], true, 1000);
    assert_eq!(feed(&mut c, &wire, 4).expect("valid").0, ["11 head 200", "11 end"]);
    assert!(c.take_other_bytes() > 20);
}

#[test]
fn an_early_answer_ends_the_upload() {
    let mut c = connection(0);
    c.begin(1, b"\x83", Some(vec![0; 1 << 20].into()), false, true);
    said(&mut c);
    let mut wire = Vec::new();
    write_headers(&mut wire, 1, &block(&[(":status", "413")]), true, 1000);
    wire.extend(raw(kind::RST_STREAM, 0, 1, &[0, 0, 0, 0]));
    assert_eq!(feed(&mut c, &wire, 1000).expect("valid").0, ["1 head 413", "1 end"]);
    assert!(said(&mut c).contains(&(kind::RST_STREAM, 1, vec![0, 0, 0, 0])));
    assert!(c.has_room());
}

#[test]
fn each_broken_rule_of_a_stream_ends_that_stream_alone() {
    let ok = &[(":status", "200"), ("content-length", "3")][..];
    let head = |fields: &[(&str, &str)], ends: bool| {
        let mut wire = Vec::new();
        write_headers(&mut wire, 1, &block(fields), ends, 1000);
        wire
    };
    let data = |bytes: &[u8], ends: bool| {
        let mut wire = Vec::new();
        write_data(&mut wire, 1, bytes, ends);
        wire
    };
    let cases: Vec<(Vec<u8>, u32)> = vec![
        (data(b"x", true), 1),
        (head(&[("a", "b")], true), 1),
        (head(&[(":status", "200"), ("Connection", "x")], true), 1),
        (head(&[(":status", "200"), ("connection", "x")], true), 1),
        (head(&[(":status", "100")], true), 1),
        ([head(ok, false), data(b"ab", true)].concat(), 1),
        ([head(ok, false), data(b"abcd", false)].concat(), 1),
        (head(ok, true), 1),
        ([head(&[(":status", "204")], false), data(b"x", true)].concat(), 1),
        ([head(&[(":status", "200")], false), head(&[(":status", "200")], false)].concat(), 1),
        ([head(&[(":status", "200")], false), head(&[("a", "b")], false)].concat(), 1),
        ([head(&[(":status", "200")], false), head(&[(":status", "200")], true)].concat(), 1),
        (raw(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), 1),
        (raw(kind::WINDOW_UPDATE, 0, 1, &0x7fff_ffffu32.to_be_bytes()), 3),
        (raw(kind::PRIORITY, 0, 1, &[0; 4]), 6),
    ];
    for (at, (wire, code)) in cases.iter().enumerate() {
        let mut c = connection(2);
        let mut wire = wire.clone();
        write_headers(&mut wire, 3, &block(&[(":status", "200")]), true, 1000);
        let seen = feed(&mut c, &wire, 3).unwrap_or_else(|e| panic!("case {at}: {e}"));
        assert!(seen.0.iter().any(|s| s.starts_with("10 malformed")), "case {at}: {seen:?}");
        assert!(seen.0.ends_with(&["11 head 200".into(), "11 end".into()]), "case {at}: {seen:?}");
        assert_eq!(said(&mut c), [(kind::RST_STREAM, 1, code.to_be_bytes().to_vec())], "case {at}");
    }
}

#[test]
fn each_broken_rule_of_the_connection_ends_it_with_its_code() {
    let headers = |flags: u8, stream: u32, payload: &[u8]| raw(kind::HEADERS, flags, stream, payload);
    let big = |n: usize| vec![0; n];
    let setting = |name: u16, value: u32| {
        let mut wire = Vec::new();
        write_settings(&mut wire, &[(name, value)]);
        wire
    };
    let finished = {
        let mut wire = Vec::new();
        write_headers(&mut wire, 1, &block(&[(":status", "200")]), true, 1000);
        wire
    };
    let many = |frame: Vec<u8>, n: usize| frame.repeat(n);
    let cases: Vec<(&str, Vec<u8>, ErrorCode)> = vec![
        ("a frame too large", raw(kind::DATA, 0, 1, &big(16_385)), ErrorCode::FRAME_SIZE),
        ("DATA on 0", raw(kind::DATA, 0, 0, b"x"), ErrorCode::PROTOCOL),
        ("DATA on an idle stream", raw(kind::DATA, 0, 9, b"x"), ErrorCode::PROTOCOL),
        ("DATA on a stream of the server", raw(kind::DATA, 0, 2, b"x"), ErrorCode::PROTOCOL),
        ("too much padding", raw(kind::DATA, flag::PADDED, 1, b"\x09x"), ErrorCode::PROTOCOL),
        ("no padding", raw(kind::DATA, flag::PADDED, 1, b""), ErrorCode::FRAME_SIZE),
        ("HEADERS on 0", headers(4, 0, &[0x88]), ErrorCode::PROTOCOL),
        ("HEADERS on an idle stream", headers(4, 9, &[0x88]), ErrorCode::PROTOCOL),
        ("HEADERS with too much padding", headers(12, 1, &[9, 0x88]), ErrorCode::PROTOCOL),
        ("HEADERS too short for their priority", headers(0x24, 1, &[0, 0]), ErrorCode::FRAME_SIZE),
        ("a wrong block", headers(4, 1, &[0x80]), ErrorCode::COMPRESSION),
        ("a block that is cut off", headers(4, 1, &[0x40, 0x09]), ErrorCode::COMPRESSION),
        ("a frame within a block", [headers(0, 1, &[0x88]), raw(6, 0, 0, &[0; 8])].concat(), ErrorCode::PROTOCOL),
        ("a block goes on elsewhere", [headers(0, 1, &[0x88]), raw(9, 4, 3, &[])].concat(), ErrorCode::PROTOCOL),
        ("CONTINUATION alone", raw(kind::CONTINUATION, 4, 1, &[0x88]), ErrorCode::PROTOCOL),
        (
            "CONTINUATION without end",
            [headers(0, 1, &[0x88]), many(raw(9, 0, 1, &[]), 65)].concat(),
            ErrorCode::ENHANCE_YOUR_CALM,
        ),
        (
            "a block without end",
            [headers(0, 1, &[0x88]), many(raw(9, 0, 1, &big(16_000)), 5)].concat(),
            ErrorCode::ENHANCE_YOUR_CALM,
        ),
        ("PRIORITY on 0", raw(kind::PRIORITY, 0, 0, &[0; 5]), ErrorCode::PROTOCOL),
        ("a short RST_STREAM", raw(kind::RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FRAME_SIZE),
        ("RST_STREAM on 0", raw(kind::RST_STREAM, 0, 0, &[0; 4]), ErrorCode::PROTOCOL),
        ("RST_STREAM on an idle stream", raw(kind::RST_STREAM, 0, 9, &[0; 4]), ErrorCode::PROTOCOL),
        ("SETTINGS on a stream", raw(kind::SETTINGS, 0, 1, &[]), ErrorCode::PROTOCOL),
        ("SETTINGS of 5 bytes", raw(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE),
        ("SETTINGS acknowledged with bytes", raw(kind::SETTINGS, 1, 0, &[0; 6]), ErrorCode::FRAME_SIZE),
        ("pushing on", setting(setting::ENABLE_PUSH, 1), ErrorCode::PROTOCOL),
        ("pushing 2", setting(setting::ENABLE_PUSH, 2), ErrorCode::PROTOCOL),
        ("a window too large", setting(setting::INITIAL_WINDOW_SIZE, 1 << 31), ErrorCode::FLOW_CONTROL),
        ("frames too small", setting(setting::MAX_FRAME_SIZE, 16_383), ErrorCode::PROTOCOL),
        ("frames too large", setting(setting::MAX_FRAME_SIZE, 1 << 24), ErrorCode::PROTOCOL),
        ("a push", raw(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]), ErrorCode::PROTOCOL),
        ("PING on a stream", raw(kind::PING, 0, 1, &[0; 8]), ErrorCode::PROTOCOL),
        ("PING of 7 bytes", raw(kind::PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE),
        ("GOAWAY on a stream", raw(kind::GOAWAY, 0, 1, &[0; 8]), ErrorCode::PROTOCOL),
        ("GOAWAY of 7 bytes", raw(kind::GOAWAY, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE),
        ("WINDOW_UPDATE of 3 bytes", raw(kind::WINDOW_UPDATE, 0, 0, &[0; 3]), ErrorCode::FRAME_SIZE),
        ("WINDOW_UPDATE of 0", raw(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), ErrorCode::PROTOCOL),
        ("WINDOW_UPDATE on an idle stream", raw(kind::WINDOW_UPDATE, 0, 9, &[0, 0, 0, 1]), ErrorCode::PROTOCOL),
        (
            "a window that overflows",
            raw(kind::WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes()),
            ErrorCode::FLOW_CONTROL,
        ),
        ("DATA after the end", [finished.clone(), raw(kind::DATA, 0, 1, b"x")].concat(), ErrorCode::STREAM_CLOSED),
        ("a head after the end", [finished.clone(), finished].concat(), ErrorCode::STREAM_CLOSED),
        ("PINGs that nobody can answer", many(raw(6, 0, 0, &[0; 8]), 4000), ErrorCode::ENHANCE_YOUR_CALM),
        ("PRIORITY without end", many(raw(2, 0, 1, &[0; 5]), 10_001), ErrorCode::ENHANCE_YOUR_CALM),
        ("unknown frames without end", many(raw(42, 0, 1, &[]), 10_001), ErrorCode::ENHANCE_YOUR_CALM),
        ("RST_STREAM without end", many(raw(3, 0, 1, &[0; 4]), 10_003), ErrorCode::ENHANCE_YOUR_CALM),
    ];
    for (name, wire, code) in cases {
        for step in [1, 7, wire.len()] {
            let mut c = connection(2);
            let error = feed(&mut c, &wire, step).err().unwrap_or_else(|| panic!("{name}: no error"));
            assert_eq!(error.code, code, "{name}: {error}");
            let said = said(&mut c);
            let (kind, stream, payload) = said.last().expect("something");
            assert_eq!((*kind, *stream, &payload[4..]), (kind::GOAWAY, 0, &code.0.to_be_bytes()[..]), "{name}");
        }
    }
    // Each HEADERS on a stream that was cancelled, too, and each GOAWAY but the first.
    let goaway = raw(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    for (wire, most) in [(headers(4, 1, &[0x88]), 10_000), (goaway, 10_001)] {
        let mut c = connection(2);
        c.cancel(10);
        feed(&mut c, &many(wire.clone(), most), 9999).expect("as many as are borne");
        assert_eq!(feed(&mut c, &wire, 9999).expect_err("a flood").code, ErrorCode::ENHANCE_YOUR_CALM);
    }
    // Empty DATA, too, on a stream that is open.
    let mut c = connection(1);
    let mut wire = Vec::new();
    write_headers(&mut wire, 1, &block(&[(":status", "200")]), false, 1000);
    wire.extend(many(raw(kind::DATA, 0, 1, b""), 10_001));
    assert_eq!(feed(&mut c, &wire, 9999).expect_err("a flood").code, ErrorCode::ENHANCE_YOUR_CALM);
    // An answer of another protocol.
    let mut c = Connection::new(LIMITS);
    c.begin(1, b"\x82", None, false, false);
    assert_eq!(feed(&mut c, b"HTTP/1.1 400 Bad Request\r\n\r\n", 100).expect_err("HTTP/1").code, ErrorCode::PROTOCOL);
}

#[test]
fn nothing_that_arrives_panics() {
    let mut dice = 0x1234_5678_9abc_def0u64;
    let mut roll = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    for _ in 0..20_000 {
        let mut c = connection(3);
        let mut wire = Vec::new();
        for _ in 0..roll(12) {
            let payload: Vec<u8> = (0..roll(14)).map(|_| roll(256) as u8).collect();
            wire.extend(raw(roll(11) as u8, roll(64) as u8, roll(8) as u32, &payload));
        }
        let step = 1 + roll(30) as usize;
        let _ = feed(&mut c, &wire, step);
        assert!(c.in_flight() <= 3);
    }
}
