//! A connection of HTTP/2: what arrives means the same however it is cut, and nothing of it panics.
#![no_main]

use lastdrop_http::h2::{Connection, Event, Limits};
use libfuzzer_sys::fuzz_target;

fn converse(data: &[u8], step: usize) -> (Vec<String>, usize) {
    let limits = Limits { streams: 100, requests: 100, stream_window: 100_000, connection_window: 200_000 };
    let (mut c, mut seen) = (Connection::new(limits), Vec::new());
    // SETTINGS, so that what follows is looked at.
    let mut settings = &[0, 0, 0, 4, 0, 0, 0, 0, 0][..];
    while c.receive(&mut settings).expect("valid").is_some() {}
    for key in 0..4 {
        let body = (key == 3).then(|| vec![7; 100_000].into());
        c.begin(key, &[0x82, 0x86, 0x84], body, key == 2, true);
    }
    for mut part in data.chunks(step) {
        loop {
            match c.receive(&mut part) {
                Ok(None) => break,
                Ok(Some(Event::Data { key, piece, .. })) => seen.push(format!("data {key} {piece:?}")),
                Ok(Some(Event::Head { key, status, fields, .. })) => {
                    seen.push(format!("head {key} {status} {:?}", fields.map(|f| f.iter().count())));
                }
                Ok(Some(event)) => seen.push(format!("{event:?}")),
                Err(e) => {
                    seen.push(e.to_string());
                    return (seen, c.in_flight());
                }
            }
        }
    }
    (seen, c.in_flight())
}

fuzz_target!(|input: &[u8]| {
    if let Some((step, data)) = input.split_first().filter(|(_, data)| !data.is_empty()) {
        assert_eq!(converse(data, data.len()), converse(data, usize::from(*step) + 1));
    }
});
