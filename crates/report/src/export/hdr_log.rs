//! HdrHistogram's interval log, format 1.3, which its tools merge, cut and plot. Values are microseconds. The
//! maximum column is in milliseconds, as in HdrHistogram's own logs; the tools display it but do not
//! calculate with it.

use lastdrop_model::{Event, Kind};

use super::phases::Phases;
use super::{Encoder, Exporter, Framing, Runs};
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

    fn pieces(&self) -> Framing {
        Framing::Lines
    }

    fn begin(&self, runs: Runs) -> Box<dyn Encoder> {
        Box::new(HdrLogEncoder {
            runs,
            began_unix_ms: None,
            offset_s: 0.0,
            run: String::new(),
            phases: Phases::default(),
        })
    }
}

#[derive(Debug)]
struct HdrLogEncoder {
    runs: Runs,
    /// Start of the first run; all times count from it.
    began_unix_ms: Option<u64>,
    /// Start of the current run, seconds after the first.
    offset_s: f64,
    run: String,
    phases: Phases,
}

impl HdrLogEncoder {
    fn head(&self, started_unix_ms: u64) -> String {
        let what = match self.runs {
            Runs::One => format!("run {}", self.run),
            Runs::Several => "a tag a run".into(),
        };
        format!(
            "#[Response latency in microseconds, {what}, by lastdrop]\n\
             #[Histogram log format version 1.3]\n\
             #[StartTime: {:.3} (seconds since epoch), {}]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
            started_unix_ms as f64 / 1e3,
            utc(started_unix_ms)
        )
    }

    /// Returns the run's id if there are several runs, and the phase's name if there are several phases.
    fn tag(&self, phase: u16) -> String {
        let phase = Some(tag(self.phases.name(phase))).filter(|_| self.phases.several());
        let run = Some(self.run.clone()).filter(|_| self.runs == Runs::Several);
        let parts: Vec<String> = run.into_iter().chain(phase).collect();
        if parts.is_empty() { String::new() } else { format!("Tag={},", parts.join(".")) }
    }
}

impl Encoder for HdrLogEncoder {
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>> {
        self.phases.on_event(event);
        match event {
            Event::Began { id, started_unix_ms, .. } => {
                self.run = tag(id);
                let first = self.began_unix_ms.is_none();
                let began = *self.began_unix_ms.get_or_insert(*started_unix_ms);
                self.offset_s = started_unix_ms.saturating_sub(began) as f64 / 1e3;
                first.then(|| self.head(began).into_bytes())
            }
            Event::Second { slice } => {
                let h = &slice.latencies[Kind::Response as usize];
                let at = self.offset_s + self.phases.at(slice.phase, slice.second);
                let (tag, max) = (self.tag(slice.phase), h.max() as f64 / 1e3);
                (h.count() > 0).then(|| format!("{tag}{at:.3},1.000,{max:.3},{}\n", h.encode_base64()).into_bytes())
            }
            _ => None,
        }
    }
}

/// Replaces commas, blanks and line ends, which a tag must not contain.
fn tag(name: &str) -> String {
    name.chars().map(|c| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use lastdrop_model::Histogram;

    use super::*;
    use crate::export::fixtures::{events_of, text};

    #[test]
    fn the_log_has_every_answer() {
        let text = text(HdrLog.begin(Runs::One).as_mut(), &events_of(2, 3, 10));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("version 1.3") && lines[2].starts_with("#[StartTime: 1700000000.000 "));
        assert!(lines[7].starts_with("Tag=p_1_\"b\",3.000,1.000,"), "{}", lines[7]);
        let histogram = |line: &&str| Histogram::decode_base64(line.rsplit(',').next().expect("a field")).expect("HDR");
        assert_eq!(lines[4..].iter().map(|l| histogram(l).count()).sum::<u64>(), 60);
    }

    #[test]
    fn several_runs_have_a_tag_each_and_one_clock() {
        let mut events = events_of(1, 2, 5);
        let mut second = events_of(1, 2, 5);
        if let Event::Began { id, started_unix_ms, .. } = &mut second[0] {
            (*id, *started_unix_ms) = ("beef0002".into(), *started_unix_ms + 5_500);
        }
        events.append(&mut second);
        let text = text(HdrLog.begin(Runs::Several).as_mut(), &events);
        let lines: Vec<&str> = text.lines().skip(4).collect();
        let starts = ["Tag=cafe0001,0.000,", "Tag=cafe0001,1.000,", "Tag=beef0002,5.500,", "Tag=beef0002,6.500,"];
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{text}");
    }
}
