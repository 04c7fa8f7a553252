//! Reports of other load generators: what is read are numbers that can be.
#![no_main]

use lastdrop_traffic::reports::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(reports) = read(text) else { return };
    assert!(!reports.is_empty());
    for r in reports {
        for x in [r.rps, r.p50_us, r.p90_us, r.p99_us].into_iter().flatten() {
            assert!(x.is_finite() && x >= 0.0, "{r:?}");
        }
        assert!(r.errors.is_none_or(|share| (0.0..=1.0).contains(&share)), "{r:?}");
        assert!(!r.tool.is_empty());
    }
});
