//! Chunked bodies: the same however they are cut; and what we write ourselves is read back.
#![no_main]

use lastdrop_http::chunked::ChunkDecoder;
use lastdrop_http::request::write_chunked;
use libfuzzer_sys::fuzz_target;

fn decode(data: &[u8], step: usize) -> Option<(Vec<u8>, usize, bool)> {
    let (mut decoder, mut body, mut used) = (ChunkDecoder::default(), Vec::new(), 0);
    for part in data.chunks(step) {
        let (n, done) = decoder.feed(part, |b| body.extend_from_slice(b)).ok()?;
        assert!(n <= part.len());
        used += n;
        if done {
            return Some((body, used, true));
        }
    }
    Some((body, used, false))
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (step, data) = input;
    let step = usize::from(step) + 1;
    if !data.is_empty() {
        assert_eq!(decode(&data, data.len()), decode(&data, step));
    }
    let mut wire = Vec::new();
    write_chunked(&mut wire, &data, step);
    assert_eq!(decode(&wire, step), Some((data, wire.len(), true)));
});
