//! HdrHistogram's own log of intervals (format 1.3): its tools merge, cut and plot it. Values are microseconds; the column of
//! maxima, which they show and do not reckon with, is in milliseconds as theirs is.

use lastdrop_model::{Histogram, Run};

use super::Exporter;
use crate::run::utc;

#[derive(Debug)]
pub(super) struct HdrLog;

impl Exporter for HdrLog {
    fn name(&self) -> &'static str {
        "hdr"
    }

    fn about(&self) -> &'static str {
        "response latency of each second, for HdrHistogram's tools"
    }

    fn lines<'a>(&self, run: &'a Run) -> Box<dyn Iterator<Item = String> + 'a> {
        let head = [
            format!("#[Response latency in microseconds, run {}, by lastdrop]", run.id),
            "#[Histogram log format version 1.3]".to_string(),
            format!(
                "#[StartTime: {:.3} (seconds since epoch), {}]",
                run.started_unix_ms as f64 / 1e3,
                utc(run.started_unix_ms)
            ),
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"".to_string(),
        ];
        let several = run.phases.len() > 1;
        let starts = run.phases.iter().scan(0.0, |start, p| {
            let begun = *start;
            *start += p.duration_s;
            Some(begun)
        });
        let lines = run.phases.iter().zip(starts).flat_map(move |(phase, start)| {
            let tag = if several { format!("Tag={},", tag(&phase.name)) } else { String::new() };
            phase.seconds.iter().filter_map(move |s| {
                let max = Histogram::decode_base64(&s.response_hdr).ok().filter(|h| h.count() > 0)?.max();
                let at = start + f64::from(s.t);
                Some(format!("{tag}{at:.3},1.000,{:.3},{}", max as f64 / 1e3, s.response_hdr))
            })
        });
        Box::new(head.into_iter().chain(lines))
    }
}

/// A tag has no commas, blanks or ends of lines.
fn tag(name: &str) -> String {
    name.chars().map(|c| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::fixtures::run_of;

    #[test]
    fn the_log_has_every_answer() {
        let mut run = run_of(3, 10);
        run.phases.push(run.phases[0].clone());
        run.phases[1].name = "a b,c".into();
        let lines: Vec<String> = HdrLog.lines(&run).collect();
        assert!(lines[1].contains("version 1.3") && lines[2].starts_with("#[StartTime: 1700000000.000 "));
        assert!(lines[7].starts_with("Tag=a_b_c,3.000,1.000,"), "{}", lines[7]);
        let histogram =
            |line: &String| Histogram::decode_base64(line.rsplit(',').next().expect("a field")).expect("HDR");
        assert_eq!(lines[4..].iter().map(|l| histogram(l).count()).sum::<u64>(), 60);
    }
}
