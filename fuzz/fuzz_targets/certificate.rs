//! A certificate of a server: what it says of itself, or nothing; never a panic.
#![no_main]

use std::time::SystemTime;

use lastdrop_wire::Certificate;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(certificate) = Certificate::read(data) {
        assert!(certificate.key.bits() <= data.len() * 8 || certificate.key.bits() <= 521);
        let _ = certificate.weaknesses(SystemTime::UNIX_EPOCH);
    }
});
