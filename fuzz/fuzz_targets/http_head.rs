//! Answers of a server: the same however they are cut, never more consumed than given, never a panic; and the memory of
//! the last head changes nothing.
#![no_main]

use lastdrop_http::{HeadMemory, ProtocolError, ResponseParser, Sink};
use libfuzzer_sys::fuzz_target;

#[derive(Default, PartialEq, Debug)]
struct Collected {
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Sink for Collected {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.fields.push((name.into(), value.to_vec()));
    }

    fn body(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }
}

type Outcome = Result<(u16, bool, usize, bool), ProtocolError>;

fn parse(data: &[u8], step: usize, head: bool) -> (Outcome, Collected) {
    let (mut p, mut seen, mut used) = (ResponseParser::default(), Collected::default(), 0);
    p.start(head);
    for part in data.chunks(step) {
        match p.feed(part, &mut seen) {
            Err(e) => return (Err(e), seen),
            Ok(f) => {
                assert!(f.consumed <= part.len() && (f.complete || f.consumed == part.len()));
                used += f.consumed;
                if f.complete {
                    return (Ok((p.status(), p.keep_alive(), used, true)), seen);
                }
            }
        }
    }
    let complete = p.close();
    (Ok((if p.has_head() { p.status() } else { 0 }, complete, used, complete)), seen)
}

fuzz_target!(|input: (u8, bool, Vec<u8>)| {
    let (step, head, data) = input;
    if data.is_empty() {
        return;
    }
    let (whole, seen) = parse(&data, data.len(), head);
    let (cut, seen_cut) = parse(&data, usize::from(step) + 1, head);
    match (&whole, &cut) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a, b);
            assert_eq!(seen, seen_cut);
        }
        // What is wrong may be found earlier or later: a head in pieces is looked at with each line.
        (Err(_), Err(_)) => {}
        (Err(_), Ok((_, _, _, complete))) | (Ok((_, _, _, complete)), Err(_)) => {
            // In pieces a head that is too long is refused before its end comes.
            assert!(!complete || data.len() > 60_000, "{whole:?} {cut:?}");
        }
    }
    let mut memory = HeadMemory::default();
    for _ in 0..2 {
        let (mut plain, mut remembering) = (ResponseParser::default(), ResponseParser::default());
        plain.start(head);
        remembering.start(head);
        let a = plain.feed(&data, &mut lastdrop_http::NullSink);
        let b = remembering.feed_remembering(&data, &mut memory);
        assert_eq!(a, b);
        assert_eq!(plain.body_bytes(), remembering.body_bytes());
    }
});
