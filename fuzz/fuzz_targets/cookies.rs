//! Set-Cookie, Cookie and digest challenges: nothing that a server says may add a line to a request.
#![no_main]

use lastdrop_http::cookies::Jar;
use lastdrop_http::digest::Challenge;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<Vec<u8>>, &str, &str, bool)| {
    let (values, host, path, tls) = input;
    let mut jar = Jar::default();
    for value in &values {
        jar.set(value, host, path, tls, 1_700_000_000);
        if let Some(challenge) = Challenge::parse(value) {
            let answer = challenge.authorization("user", "pass", "GET", "/x", 1, "abc");
            assert!(!answer.contains(['\r', '\n']));
        }
    }
    let mut header = Vec::new();
    let any = jar.write_header(host, path, tls, &mut header);
    assert_eq!(any, !header.is_empty());
    assert!(header.iter().all(|b| *b >= 0x20 && *b != 0x7f), "{header:?}");
});
