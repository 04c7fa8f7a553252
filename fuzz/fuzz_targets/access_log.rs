//! Access logs of any format: no line can stop the reading, and all are counted.
#![no_main]

use std::io::Cursor;
use std::time::Duration;

use lastdrop_traffic::lines::Lines;
use lastdrop_traffic::{Entries, Format, Key, format};
use libfuzzer_sys::fuzz_target;

const FORMATS: [&str; 8] = [
    "common",
    "combined",
    "vhost_combined",
    "json",
    "haproxy",
    "epa",
    r#"%{%d/%b/%Y %T}t.%{usec_frac}t %h "%m %U%q %H" %>s %b %D "%{Cookie}i""#,
    "$msec $remote_addr \"$request\" $status $request_time $upstream_response_time",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, log)) = bytes.split_first() else { return };
    let format: Format = match FORMATS.get(usize::from(*choice)) {
        Some(known) => known.parse().expect("one of ours"),
        // The first line is the format.
        None => {
            let line = log.split(|b| *b == b'\n').next().unwrap_or_default();
            let Some(format) = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()) else {
                let _ = format::recognise(log.split(|b| *b == b'\n'));
                return;
            };
            format
        }
    };
    let Ok(lines) = Lines::new(Cursor::new(log.to_vec())) else { return };
    let mut entries = Entries::of(lines, format, Duration::from_secs(5));
    let mut requests = 0;
    while let Some(entry) = entries.next() {
        requests += 1;
        let texts = [entry.client(), entry.method(), entry.host(), entry.agent(), entry.cookie("sid")];
        assert!(texts.into_iter().flatten().all(|text| !text.is_empty()));
        assert!(entry.target().is_none_or(|t| t.len() >= entry.path().map_or(0, <[u8]>::len)));
        let _ = entry.key(&Key::Field(3));
        assert!(entry.resolution_us > 0 && entry.number > 0);
    }
    let tally = entries.tally();
    assert_eq!(tally.requests, requests);
    assert_eq!(tally.lines, tally.requests + tally.nothing + tally.unparsed);
});
