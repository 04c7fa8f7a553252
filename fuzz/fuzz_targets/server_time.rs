//! What servers say of their own time: whatever bytes come, times are within a day, and reading twice changes nothing.
#![no_main]

use lastdrop_http::ServerTime;
use lastdrop_http::server_time::Unit;
use libfuzzer_sys::fuzz_target;

const DAY_US: u64 = 86_400_000_000;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (which, value) = input;
    let units = [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds, Unit::AsWritten];
    let read = |said: &mut ServerTime| match which % 4 {
        0 => said.take_known("Server-Timing", &value),
        1 => said.take_known("X-Runtime", &value),
        2 => said.take_known("X-Upstream-Response-Time", &value),
        _ => said.take_named("X-Mine", &value, units[usize::from(which >> 2) % 4]),
    };
    let mut said = ServerTime::default();
    read(&mut said);
    // One number is at most a day; a field has room for some thousands.
    for us in [said.took_us, said.upstream_us, said.queued_us].into_iter().flatten() {
        assert!(us <= DAY_US * 4096, "{us}");
    }
    let (mut again, first) = (said, said);
    if which % 4 != 0 {
        read(&mut again);
        assert_eq!(again, first);
    }
});
