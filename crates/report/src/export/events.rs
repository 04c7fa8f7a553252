//! JSON lines: each event as it is, for programs that analyse a run again.

use std::borrow::Cow;

use lastdrop_model::{Event, printable};

use super::{Encoder, Exporter, Framing, Runs};

#[derive(Debug)]
pub(super) struct Events;

impl Exporter for Events {
    fn name(&self) -> &'static str {
        "events"
    }

    fn about(&self) -> &'static str {
        "JSON lines of all that happens"
    }

    fn pieces(&self) -> Framing {
        Framing::Lines
    }

    fn begin(&self, _: Runs) -> Box<dyn Encoder> {
        Box::new(JsonLinesEncoder)
    }
}

#[derive(Debug)]
struct JsonLinesEncoder;

impl Encoder for JsonLinesEncoder {
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>> {
        let text = match event {
            // Single requests belong in the log export.
            Event::Exchanges { .. } => return None,
            // The seconds and samples were already written.
            Event::Ended { run } => serde_json::to_string(&Event::Ended { run: Cow::Owned(run.without_lists()) }),
            event => serde_json::to_string(event),
        };
        let mut line = printable::json(&text.ok()?).into_owned();
        line.push('\n');
        Some(line.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::run::RunBuilder;

    use super::*;
    use crate::export::fixtures::{events_of, text};
    use crate::html::fixtures::run_of;

    #[test]
    fn a_run_is_made_again_from_its_lines() {
        let text = text(Events.begin(Runs::One).as_mut(), &events_of(1, 3, 10));
        let mut builder = None;
        for line in text.lines() {
            match lastdrop_model::read_json(line).expect("own output") {
                Event::Began { plan, .. } => builder = Some(RunBuilder::new(&plan)),
                Event::Second { slice } => builder.as_mut().expect("begun").add(&slice),
                Event::PhaseEnd { phase, duration_us, peak } => {
                    builder.as_mut().expect("begun").end_phase(phase, duration_us, peak);
                }
                Event::Ended { run } => assert!(run.phases[0].seconds.is_empty()),
                _ => {}
            }
        }
        let phases = builder.expect("begun").into_reports();
        assert_eq!(phases[0].requests, run_of(3, 10).phases[0].requests);
    }
}
