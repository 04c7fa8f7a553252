//! hey: the template in `requester/print.go`.

use super::{Report, number, number_of, share};

pub(super) fn read(text: &str) -> Report {
    // `  50% in 0.0003 secs`; some versions write `50%%`.
    let seconds = |percent: &str| {
        text.lines().find_map(|line| {
            let rest = line.trim_start().strip_prefix(percent)?.strip_prefix('%')?;
            number(rest.trim_start_matches('%').trim_start().strip_prefix("in")?)
        })
    };
    let micros = |percent| seconds(percent).map(|s| s * 1e6);
    // `  [200]        1000 responses` per status, and `  [5]  Get "http://…": …` per error.
    let listed = |heading: &str| {
        let lines = text.lines().skip_while(|l| l.trim() != heading).skip(1).take_while(|l| !l.trim().is_empty());
        lines.filter_map(|l| l.trim().strip_prefix('[')?.split_once(']')).collect::<Vec<_>>()
    };
    let of_status = |(code, n): &(&str, &str)| Some((code.parse::<u16>().ok()?, number(n)?));
    let statuses: Vec<(u16, f64)> = listed("Status code distribution:").iter().filter_map(of_status).collect();
    let lost: f64 = listed("Error distribution:").iter().filter_map(|(n, _)| n.parse::<f64>().ok()).sum();
    let answered: f64 = statuses.iter().map(|(_, n)| n).sum();
    let bad: f64 = statuses.iter().filter(|(code, _)| *code >= 400).map(|(_, n)| n).sum();
    let told = number_of(text, "Requests/sec");
    // hey's rate includes requests without an answer.
    let rps = if lost > 0.0 { number_of(text, "Total").and_then(|total| share(answered, total)) } else { told };
    let mut limits = vec!["no percentile above p99".to_string(), "its times are tenths of a millisecond".into()];
    if seconds("50").is_none() {
        limits.push("no percentiles in this report".into());
    }
    Report {
        tool: "hey",
        url: None,
        requests: Some((answered + lost) as u64).filter(|n| *n > 0),
        rps,
        p50_us: micros("50"),
        p90_us: micros("90"),
        p99_us: micros("99"),
        errors: share(bad + lost, answered + lost),
        open_loop: false,
        limits,
    }
}
