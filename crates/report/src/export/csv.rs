//! CSV: a line a second, with what was seen of the server at its end.

use lastdrop_model::{Histogram, Look, Run};

use super::Exporter;
use crate::server::shown_queue;

#[derive(Debug)]
pub(super) struct Csv;

/// Seconds are since the run began, times are microseconds. What was not measured is empty, never 0.
const HEADING: &str = "second,phase,answered,failed,mean_us,p50_us,p90_us,p99_us,p99_9_us,max_us,\
                       workers,busy,cpu_cores,queue,real_memory_bytes,host_cores";

impl Exporter for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn about(&self) -> &'static str {
        "a line a second, for spreadsheets"
    }

    fn lines<'a>(&self, run: &'a Run) -> Box<dyn Iterator<Item = String> + 'a> {
        let starts = run.phases.iter().scan(0.0, |start, p| {
            let begun = *start;
            *start += p.duration_s;
            Some(begun)
        });
        let mut looks = run.server.iter().flat_map(|o| o.looks.iter()).peekable();
        let seconds = run.phases.iter().zip(starts).flat_map(|(phase, start)| {
            let name = quoted(&phase.name);
            phase.seconds.iter().map(move |s| (start + f64::from(s.t), name.clone(), s))
        });
        let lines = seconds.map(move |(at, phase, s)| {
            // The look at the end of a second comes a little late.
            let mut look = None;
            while let Some(next) = looks.next_if(|l| l.t_s < at + 1.5) {
                look = Some(next);
            }
            let h = Histogram::decode_base64(&s.response_hdr).unwrap_or_default();
            let times = if h.count() == 0 {
                ",,,,,".to_string()
            } else {
                let q = |q| h.quantile(q);
                format!("{:.1},{},{},{},{},{}", h.mean(), q(0.5), q(0.9), q(0.99), q(0.999), h.max())
            };
            format!("{at:.3},{phase},{},{},{times},{}", s.answered, s.failed, look.map_or(",,,,,".into(), |l| seen(&l)))
        });
        Box::new(std::iter::once(HEADING.to_string()).chain(lines))
    }
}

fn seen(look: &Look) -> String {
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

/// A field as RFC 4180 has it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::fixtures::run_of;

    #[test]
    fn a_second_is_a_line_with_as_many_fields_as_the_heading() {
        let mut run = run_of(3, 10);
        run.phases[0].name = "a,\"b\"".into();
        let lines: Vec<String> = Csv.lines(&run).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[2].starts_with("1.000,\"a,\"\"b\"\"\",10,0,"), "{}", lines[2]);
        // The name has a comma of its own.
        assert!(lines[1..].iter().all(|l| l.matches(',').count() == HEADING.matches(',').count() + 1), "{lines:?}");
    }
}
