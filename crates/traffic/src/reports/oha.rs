//! oha, as text: `src/printer.rs`. It looks like hey's, with a success rate, varying units and percentiles with
//! decimals.

use super::{Report, field, number, share};

/// oha's name for requests that were in flight when its time was over.
pub(super) const CUT_OFF: &str = "aborted due to deadline";

pub(super) fn read(text: &str) -> Report {
    // `  50.00% in 0.0003 sec`
    let micros = |percent: f64| {
        text.lines().find_map(|line| {
            let (share, time) = line.trim_start().split_once("% in ")?;
            (share.parse() == Ok(percent)).then(|| seconds(time)).flatten().map(|s| s * 1e6)
        })
    };
    // `  [200] 1000 responses`, `  [5] connection refused`
    let listed = |heading: &str| {
        let lines = text.lines().skip_while(|l| l.trim() != heading).skip(1).take_while(|l| !l.trim().is_empty());
        lines.filter_map(|l| l.trim().strip_prefix('[')?.split_once(']')).collect::<Vec<_>>()
    };
    let of_status = |(code, n): &(&str, &str)| Some((code.parse::<u16>().ok()?, number(n)?));
    let statuses: Vec<(u16, f64)> = listed("Status code distribution:").iter().filter_map(of_status).collect();
    let errors = listed("Error distribution:");
    let lost = errors.iter().filter(|(_, why)| why.trim() != CUT_OFF).filter_map(|(n, _)| n.parse::<f64>().ok());
    let lost: f64 = lost.sum();
    let answered: f64 = statuses.iter().map(|(_, n)| n).sum();
    let bad: f64 = statuses.iter().filter(|(code, _)| *code >= 400).map(|(_, n)| n).sum();
    let time = |percent: f64| micros(percent).filter(|_| answered > 0.0);
    Report {
        tool: "oha",
        url: None,
        requests: Some((answered + lost) as u64).filter(|n| *n > 0),
        rps: field(text, "Total").and_then(seconds).and_then(|total| share(answered, total)),
        p50_us: time(50.0),
        p90_us: time(90.0),
        p99_us: time(99.0),
        errors: share(bad + lost, answered + lost),
        open_loop: false,
        limits: vec!["what was cut off at its end is left out, however long it had waited".into()],
    }
}

/// `1.0012 sec`, `12.3 ms`, `1.0012 secs`.
fn seconds(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let n: f64 = words.next()?.parse().ok()?;
    let factor = match words.next()? {
        "sec" | "secs" | "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "ns" => 1e-9,
        "m" | "min" => 60.0,
        _ => return None,
    };
    Some(n * factor)
}
