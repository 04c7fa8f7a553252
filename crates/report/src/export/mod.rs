//! Exports of runs for other programs: one file per format, all behind one trait. A format is built from
//! events only. So an export of a running experiment equals one made later from the events that the store
//! replays.

mod csv;
mod events;
mod hdr_log;
mod metrics;
mod otlp;
pub mod otlp_messages;
mod phases;
mod prometheus;
mod totals;

use std::fmt::Debug;

use lastdrop_model::Event;

/// A format in which runs are exported.
pub trait Exporter: Debug + Sync {
    /// The name that users give for it.
    fn name(&self) -> &'static str;
    /// The programs that read it.
    fn about(&self) -> &'static str;
    /// How its pieces combine.
    fn pieces(&self) -> Framing;
    /// Starts an export of one run, or of several in a row.
    fn begin(&self, runs: Runs) -> Box<dyn Encoder>;
}

/// Encodes events into pieces of one format.
pub trait Encoder: Debug {
    /// Takes the next event and returns the output that is ready now.
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>>;
}

/// How the pieces of a format combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Lines of text; pieces are appended.
    Lines,
    /// Each piece is the whole text and replaces the previous one.
    State,
    /// Messages; several in a row are a valid message, too.
    Messages,
}

/// Whether one run or several will follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    One,
    Several,
}

/// All formats; the first is the default.
pub const EXPORTERS: [&dyn Exporter; 5] =
    [&csv::Csv, &hdr_log::HdrLog, &events::Events, &prometheus::Prometheus, &otlp::Otlp];

/// Returns the format with this name.
#[must_use]
pub fn exporter(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|e| e.name() == name)
}

#[cfg(test)]
mod fixtures {
    use std::borrow::Cow;

    use lastdrop_model::{Counts, Event, Kind, Sample, Slice};

    use super::Encoder;
    use crate::html::fixtures::run_of;

    /// Returns the events of a run with this many phases of this many seconds, with this many answers per
    /// second, and its samples.
    pub(super) fn events_of(phases: u16, seconds: u32, answers: u64) -> Vec<Event<'static>> {
        let mut run = run_of(seconds, answers);
        let mut plan = lastdrop_model::Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        plan.phases = vec![plan.phases[0].clone(); usize::from(phases)];
        for (i, phase) in plan.phases.iter_mut().enumerate() {
            phase.name = format!("p {i},\"b\"");
            phase.duration = Some(std::time::Duration::from_secs(u64::from(seconds)));
        }
        run.plan = plan.into();
        let mut events = vec![Event::Began {
            id: run.id.clone().into(),
            started_unix_ms: run.started_unix_ms,
            label: "".into(),
            plan: Cow::Owned(run.plan.clone()),
            environment: Cow::Owned(serde_json::json!({})),
        }];
        for phase in 0..phases {
            for second in 0..seconds {
                let mut slice = Slice::new(phase, second);
                slice.counts = Counts { due: answers, sent: answers, answered: answers, ..Counts::default() };
                slice.status[200] = answers;
                (0..answers).for_each(|i| slice.record(Kind::Response, 400 + 37 * i));
                events.push(Event::Second { slice: Cow::Owned(slice) });
                let t_s = f64::from(u32::from(phase) * seconds + second) + 1.02;
                events.push(Event::Sample { sample: Cow::Owned(Sample { t_s, worker_count: 8, ..Sample::default() }) });
            }
            let duration_us = u64::from(seconds) * 1_000_000;
            events.push(Event::PhaseEnd { phase: usize::from(phase), duration_us, peak: 1 });
        }
        events.push(Event::Ended { run: Cow::Owned(run) });
        events
    }

    /// Feeds these events and returns all pieces.
    pub(super) fn pieces(form: &mut dyn Encoder, events: &[Event<'_>]) -> Vec<Vec<u8>> {
        events.iter().filter_map(|e| form.encode(e)).collect()
    }

    /// Feeds these events and returns the text of all pieces.
    pub(super) fn text(form: &mut dyn Encoder, events: &[Event<'_>]) -> String {
        String::from_utf8(pieces(form, events).concat()).expect("text")
    }
}
