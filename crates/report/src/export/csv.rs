//! CSV: one line per second, with the sample of the server taken at its end.

use std::collections::VecDeque;

use lastdrop_model::{Event, Kind, Sample, Slice};

use super::phases::Phases;
use super::{Encoder, Exporter, Framing, Runs};
use crate::server::shown_queue;
use crate::table::quote;

#[derive(Debug)]
pub(super) struct Csv;

/// Seconds count from the start of the run; times are in microseconds. A value that was not measured is
/// empty, never 0.
const HEADING: &str = "second,phase,answered,failed,mean_us,p50_us,p90_us,p99_us,p99_9_us,max_us,\
                       workers,busy,cpu_cores,queue,real_memory_bytes,host_cores,run\n";

impl Exporter for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn about(&self) -> &'static str {
        "a line per second, for spreadsheets"
    }

    fn pieces(&self) -> Framing {
        Framing::Lines
    }

    fn begin(&self, _: Runs) -> Box<dyn Encoder> {
        Box::new(CsvEncoder::default())
    }
}

/// The sample for a second arrives a little after that second ends. It must arrive within this time after the
/// second began.
const LOOK_UNTIL_S: f64 = 1.5;
/// A second waits for its sample until this many later seconds have come.
const WAITS: usize = 5;
/// Samples to remember: seconds come late if they wait for the server's log.
const LOOKS: usize = 120;

#[derive(Debug, Default)]
struct CsvEncoder {
    headed: bool,
    run: String,
    phases: Phases,
    /// Seconds that wait for their sample: start time, and the line without the sample's fields.
    waiting: VecDeque<(f64, String)>,
    /// Time of each sample, and its fields.
    looks: VecDeque<(f64, String)>,
}

impl CsvEncoder {
    fn second(&self, slice: &Slice) -> (f64, String) {
        let at = self.phases.at(slice.phase, slice.second);
        let h = &slice.latencies[Kind::Response as usize];
        let times = if h.count() == 0 {
            ",,,,,".to_string()
        } else {
            let q = |q| h.quantile(q);
            format!("{:.1},{},{},{},{},{}", h.mean(), q(0.5), q(0.9), q(0.99), q(0.999), h.max())
        };
        let (phase, counts) = (quote(self.phases.name(slice.phase)), &slice.counts);
        let failed = counts.failed.total() + counts.timed_out;
        (at, format!("{at:.3},{phase},{},{failed},{times},", counts.answered))
    }

    /// Returns the lines that need not wait any longer; with `all`, every line.
    fn ready(&mut self, all: bool) -> String {
        let latest_look = self.looks.back().map_or(0.0, |(t_s, _)| *t_s);
        let mut out = String::new();
        while let Some((at, _)) = self.waiting.front()
            && (all || latest_look >= at + LOOK_UNTIL_S || self.waiting.len() > WAITS)
            && let Some((at, line)) = self.waiting.pop_front()
        {
            let within = |t_s: f64| t_s >= at + LOOK_UNTIL_S - 1.0 && t_s < at + LOOK_UNTIL_S;
            let look = self.looks.iter().rev().find(|(t_s, _)| within(*t_s));
            out += &format!("{line}{},{}\n", look.map_or(",,,,,", |(_, fields)| fields), self.run);
        }
        out
    }
}

impl Encoder for CsvEncoder {
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>> {
        let mut out = String::new();
        // The previous run may have failed, without an `Ended` event.
        if let Event::Began { id, .. } = event {
            out += &self.ready(true);
            self.looks.clear();
            self.run = quote(id);
            if !std::mem::replace(&mut self.headed, true) {
                out += HEADING;
            }
        }
        self.phases.on_event(event);
        match event {
            Event::Second { slice } => self.waiting.push_back(self.second(slice)),
            Event::Sample { sample } => {
                self.looks.push_back((sample.t_s, fields(sample)));
                if self.looks.len() > LOOKS {
                    self.looks.pop_front();
                }
            }
            _ => {}
        }
        out += &self.ready(matches!(event, Event::Ended { .. } | Event::Failed { .. }));
        Some(out.into_bytes()).filter(|out| !out.is_empty())
    }
}

fn fields(look: &Sample) -> String {
    let whole = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
    let cores = |c: Option<f64>| c.map_or(String::new(), |c| format!("{c:.3}"));
    let host = (!look.host.cores.is_empty()).then(|| look.host.cores.iter().sum());
    [
        look.worker_count.to_string(),
        whole(look.busy),
        cores(look.cpu_cores),
        whole(shown_queue(look).map(|q| q.queue)),
        whole(look.real_memory_bytes),
        cores(host),
    ]
    .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::{events_of, text};

    #[test]
    fn a_second_is_a_line_with_as_many_fields_as_the_heading() {
        let text = text(&mut CsvEncoder::default(), &events_of(2, 3, 10));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[2].starts_with("1.000,\"p 0,\"\"b\"\"\",10,0,"), "{}", lines[2]);
        assert!(lines[4].starts_with("3.000,\"p 1,"), "{}", lines[4]);
        // The name contains a comma itself.
        assert!(lines[1..].iter().all(|l| l.matches(',').count() == HEADING.matches(',').count() + 1), "{lines:?}");
        assert!(lines[1..].iter().all(|l| l.ends_with(",8,,,,,,cafe0001")), "{lines:?}");
    }

    #[test]
    fn a_look_is_that_of_one_second_whenever_it_comes() {
        let mut events = events_of(1, 5, 1);
        let whole = text(&mut CsvEncoder::default(), &events);
        // All samples first: seconds come late if they wait for the server's log.
        events[1..].sort_by_key(|e| !matches!(e, Event::Sample { .. }));
        assert_eq!(text(&mut CsvEncoder::default(), &events), whole);
        events.retain(|e| !matches!(e, Event::Sample { sample } if sample.t_s < 3.0));
        let text = text(&mut CsvEncoder::default(), &events);
        let seen: Vec<bool> = text.lines().skip(1).map(|l| l.contains(",8,")).collect();
        assert_eq!(seen, [false, false, true, true, true], "{text}");
    }
}
