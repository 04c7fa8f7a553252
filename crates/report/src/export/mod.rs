//! What happens in runs for other programs: a file a form, all behind one trait. A form is made of events one after the other,
//! so that it is the same while a run goes on and afterwards, of the events that the store tells again.

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

/// A form in which runs are handed on.
pub trait Exporter: Debug + Sync {
    /// As it is asked for.
    fn name(&self) -> &'static str;
    /// What reads it.
    fn about(&self) -> &'static str;
    /// What its pieces are to each other.
    fn pieces(&self) -> Pieces;
    /// Begins with one run, or with several that follow each other.
    fn begin(&self, runs: Runs) -> Box<dyn Form>;
}

/// Something that is made of events, piece by piece.
pub trait Form: Debug {
    /// Is shown the next event, and gives what is ready by now.
    fn see(&mut self, event: &Event<'_>) -> Option<Vec<u8>>;
}

/// What the pieces of a form are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// Lines of a text, one piece after the other.
    Lines,
    /// Each is the whole text, and takes the place of the one before.
    State,
    /// Messages. Several in a row are a message, too.
    Messages,
}

/// How many runs there will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    One,
    Several,
}

/// All of them; the first is the usual one.
pub const EXPORTERS: [&dyn Exporter; 5] =
    [&csv::Csv, &hdr_log::HdrLog, &events::Events, &prometheus::Prometheus, &otlp::Otlp];

/// The one of a name.
#[must_use]
pub fn exporter(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|e| e.name() == name)
}

#[cfg(test)]
mod fixtures {
    use std::borrow::Cow;

    use lastdrop_model::{Counts, Event, Kind, Look, Slice};

    use super::Form;
    use crate::html::fixtures::run_of;

    /// The events of a run with so many phases of so many seconds, with so many answers in each; and looks.
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
                events.push(Event::Look { look: Cow::Owned(Look { t_s, worker_count: 8, ..Look::default() }) });
            }
            let duration_us = u64::from(seconds) * 1_000_000;
            events.push(Event::PhaseEnd { phase: usize::from(phase), duration_us, peak: 1 });
        }
        events.push(Event::Ended { run: Cow::Owned(run) });
        events
    }

    /// All pieces of a form that is shown these.
    pub(super) fn pieces(form: &mut dyn Form, events: &[Event<'_>]) -> Vec<Vec<u8>> {
        events.iter().filter_map(|e| form.see(e)).collect()
    }

    /// Their text.
    pub(super) fn text(form: &mut dyn Form, events: &[Event<'_>]) -> String {
        String::from_utf8(pieces(form, events).concat()).expect("text")
    }
}
