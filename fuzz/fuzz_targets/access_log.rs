//! Access logs of any format: no line can stop the reading, and all are counted.
#![no_main]

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use lastdrop_model::url_file;
use lastdrop_traffic::lines::Lines;
use lastdrop_traffic::{Analysis, Format, LogEntries, SessionKey, Window, format};
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
    let mut entries = LogEntries::of(lines, format, Duration::from_secs(5));
    let mut requests = 0;
    let mut analysis = Analysis::default();
    let mut window = Window::new(1.0);
    while let Some(entry) = entries.next() {
        requests += 1;
        analysis.take(entry);
        window.take(entry, requests as f64 / 100.0);
        let texts = [entry.client(), entry.method(), entry.host(), entry.agent(), entry.cookie("sid")];
        assert!(texts.into_iter().flatten().all(|text| !text.is_empty()));
        assert!(entry.target().is_none_or(|t| t.len() >= entry.path().map_or(0, <[u8]>::len)));
        let _ = entry.key(&SessionKey::Field(3));
        assert!(entry.resolution_us > 0 && entry.number > 0);
    }
    assert!(window.look(requests as f64 / 100.0).requests <= requests);
    if let Some(imitation) = analysis.imitate("http://127.0.0.1:8080") {
        url_file::parse(&imitation.urls, Path::new("/folder"), |_| None).expect("a file of URLs");
    }
    let document = analysis.finish(&entries);
    assert_eq!(document.requests, requests);
    assert_eq!(document.classes.iter().map(|c| c.count).sum::<u64>(), requests);
    let tally = entries.tally();
    assert_eq!(tally.requests, requests);
    assert_eq!(tally.lines, tally.requests + tally.nothing + tally.unparsed);
});
