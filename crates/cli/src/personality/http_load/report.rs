//! The report of http_load.

use std::fmt::Write as _;

use super::counts::HttpLoadCounts;
use super::flags::HttpLoadOptions;
use crate::personality::number::g;

pub fn report(o: &HttpLoadOptions, t: &HttpLoadCounts, seconds: f64, peak: u64) -> String {
    let mut out =
        format!("{} fetches, {peak} max parallel, {} bytes, in {} seconds\n", t.fetches, g(t.bytes as f64), g(seconds));
    if t.fetches > 0 {
        let _ = writeln!(out, "{} mean bytes/connection", g(t.bytes as f64 / t.fetches as f64));
    }
    if seconds > 0.01 {
        let _ =
            writeln!(out, "{} fetches/sec, {} bytes/sec", g(t.fetches as f64 / seconds), g(t.bytes as f64 / seconds));
    }
    for (name, s) in [("connect", &t.connect), ("first-response", &t.first)] {
        if s.count() > 0 {
            let ms = |us: f64| g(us / 1000.0);
            let _ = writeln!(
                out,
                "msecs/{name}: {} mean, {} max, {} min",
                ms(s.mean()),
                ms(s.max() as f64),
                ms(s.min() as f64)
            );
        }
    }
    if t.timeouts > 0 {
        let _ = writeln!(out, "{} timeouts", t.timeouts);
    }
    if t.wrong > 0 {
        let _ = writeln!(out, "{} bad {}", t.wrong, if o.checksum { "checksums" } else { "byte counts" });
    }
    out.push_str("HTTP response codes:\n");
    for (status, n) in &t.status {
        let _ = writeln!(out, "  code {status:03} -- {n}");
    }
    out
}
