//! The report of wrk, and the units of its numbers.

use std::fmt::Write as _;

use lastdrop_analyze::samples::Samples;

use super::counts::WrkCounts;
use super::flags::WrkOptions;
use super::spectrum::spectrum;
use crate::personality::Compatibility;

pub fn report(o: &WrkOptions, t: &WrkCounts, run_s: f64, compatibility: Compatibility) -> String {
    let mut out = format!("  Thread Stats{:>6}{:>11}{:>8}{:>12}\n", "Avg", "Stdev", "Max", "+/- Stdev");
    let rates = t.rates();
    for (name, samples, format) in
        [("Latency", &t.latency, time_us as fn(f64) -> String), ("Req/Sec", &rates, metric as fn(f64) -> String)]
    {
        let within = match samples.share_within(1.0) {
            Some(share) => format!("{:8.2}%", share * 100.0),
            // C prints 0 divided by 0 like this.
            None if compatibility.like_the_original => "    -nan%".into(),
            None => format!("{:8.2}%", 0.0),
        };
        let _ = writeln!(
            out,
            "    {name:<10}{}{}{}{within}",
            padded(&format(samples.mean()), 8),
            padded(&format(samples.deviation()), 10),
            padded(&format(samples.max() as f64), 9)
        );
    }
    match (o.latency, o.rate) {
        (true, None) => {
            out.push_str("  Latency Distribution\n");
            for p in [50.0, 75.0, 90.0, 99.0] {
                let _ = writeln!(out, "{p:7.0}%{}", at(&t.latency, p / 100.0));
            }
        }
        (true, Some(_)) => {
            distribution(&mut out, &t.latency, "Recorded Latency");
            if o.uncorrected {
                out.push('\n');
                let what = "Uncorrected Latency (measured without taking delayed starts into account)";
                distribution(&mut out, &t.uncorrected, what);
            }
        }
        _ => {}
    }
    let _ = writeln!(out, "  {} requests in {}, {}B read", t.complete, time_us(run_s * 1e6), binary(t.bytes as f64));
    if t.connect + t.read + t.timeout > 0 {
        let _ =
            writeln!(out, "  Socket errors: connect {}, read {}, write 0, timeout {}", t.connect, t.read, t.timeout);
    }
    if t.status > 0 {
        let _ = writeln!(out, "  Non-2xx or 3xx responses: {}", t.status);
    }
    let _ = writeln!(out, "Requests/sec: {:9.2}", t.complete as f64 / run_s);
    let _ = writeln!(out, "Transfer/sec: {:>10}B", binary(t.bytes as f64 / run_s));
    out
}

fn at(samples: &Samples, share: f64) -> String {
    padded(&time_us(samples.at_rank((share * samples.count() as f64) as u64) as f64), 10)
}

/// wrk2's block of latencies.
fn distribution(out: &mut String, samples: &Samples, what: &str) {
    let _ = writeln!(out, "  Latency Distribution (HdrHistogram - {what})");
    for p in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0] {
        let _ = writeln!(out, "{p:7.3}%{}", at(samples, p / 100.0));
    }
    let line = "-".repeat(58);
    let _ = write!(out, "\n  Detailed Percentile spectrum:\n{}{line}\n", spectrum(samples));
}

/// A number with the unit that wrk chooses: the next larger unit from 85 % of it on.
pub fn scaled(mut n: f64, scale: f64, units: &[&str], digits: usize) -> String {
    let mut unit = units[0];
    for next in &units[1..] {
        if n < scale * 0.85 {
            break;
        }
        n /= scale;
        unit = next;
    }
    format!("{n:.digits$}{unit}")
}

fn time_us(us: f64) -> String {
    if us >= 1_000_000.0 { scaled(us / 1e6, 60.0, &["s", "m"], 2) } else { scaled(us, 1000.0, &["us", "ms"], 2) }
}

fn metric(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T"], 2)
}

fn binary(n: f64) -> String {
    scaled(n, 1024.0, &["", "K", "M", "G", "T"], 2)
}

/// Right-aligned, so that the digits line up for different units.
fn padded(text: &str, width: usize) -> String {
    let letters = text.chars().rev().take(2).filter(char::is_ascii_alphabetic).count();
    let pad = 2 - letters;
    format!("{text:>w$}{:pad$}", "", w = width - pad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_units_and_the_places_of_wrk() {
        assert_eq!((metric(8991.0), metric(990.0), metric(5.0)), ("8.99k".into(), "0.99k".into(), "5.00".into()));
        assert_eq!(
            (time_us(647.57), time_us(3550.0), time_us(1.1e6)),
            ("647.57us".into(), "3.55ms".into(), "1.10s".into())
        );
        assert_eq!(binary(0.0), "0.00");
        assert_eq!(padded("3.30k", 8), "  3.30k ");
        assert_eq!(padded("647.57us", 8), "647.57us");
    }
}
