//! Replays a stored run as the events that it was made of.

use std::borrow::Cow;
use std::collections::VecDeque;

use lastdrop_model::{Event, Sample};

use crate::{Store, StoreError};

/// A sample belongs to the second that ended this many seconds before it, at most.
const LOOK_LATENESS_S: f64 = 0.5;

impl Store {
    /// Replays the events of a run, phase by phase, in the order in which observers got them. Single requests
    /// are not stored, nor are the classes of each second; the classes' totals come with the end of a phase.
    ///
    /// # Errors
    /// If the run does not exist or is damaged. Events before the damage were already passed to `tell`.
    pub fn replay_events(&self, id: &str, mut tell: impl FnMut(&Event<'_>)) -> Result<(), StoreError> {
        let run = self.load(id)?;
        tell(&Event::Began {
            id: Cow::Borrowed(&run.id),
            started_unix_ms: run.started_unix_ms,
            label: Cow::Borrowed(&run.label),
            plan: Cow::Borrowed(&run.plan),
            environment: Cow::Borrowed(&run.environment),
        });
        let mut looks = run.server.iter().flat_map(|o| o.samples.iter()).peekable();
        let mut ends = self.phase_ends(id)?;
        let classes = |phase: usize| run.phases.get(phase).map(|p| p.classes.as_slice()).filter(|c| c.len() > 1);
        let end = |tell: &mut dyn FnMut(&Event<'_>), phase: usize, duration_us: u64, peak: u64| {
            if let Some(classes) = classes(phase) {
                tell(&Event::Classes { phase, classes: classes.into() });
            }
            tell(&Event::PhaseEnd { phase, duration_us, peak });
        };
        let mut begun_s = 0.0;
        self.each_second(id, |slice| {
            while let Some((phase, duration_us, peak)) = before(&mut ends, usize::from(slice.phase)) {
                end(&mut tell, phase, duration_us, peak);
                begun_s += duration_us as f64 / 1e6;
            }
            tell(&Event::Second { slice: Cow::Borrowed(slice) });
            let over_s = begun_s + f64::from(slice.second) + 1.0;
            while let Some(look) = looks.next_if(|l: &Sample| l.t_s < over_s + LOOK_LATENESS_S) {
                tell(&Event::Sample { sample: Cow::Borrowed(&look) });
            }
        })?;
        looks.for_each(|look| tell(&Event::Sample { sample: Cow::Borrowed(&look) }));
        ends.into_iter().for_each(|(phase, duration_us, peak)| end(&mut tell, phase, duration_us, peak));
        for reason in &run.validity.reasons {
            tell(&Event::Finding { reason: Cow::Borrowed(reason) });
        }
        tell(&Event::Ended { run: Cow::Borrowed(&run) });
        self.check_reads()
    }
}

/// Takes the next phase end that belongs to a phase before this one.
fn before(ends: &mut VecDeque<(usize, u64, u64)>, phase: usize) -> Option<(usize, u64, u64)> {
    if ends.front().is_some_and(|(ended, ..)| *ended < phase) { ends.pop_front() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{plan, second};

    #[test]
    fn a_run_is_told_again_in_the_order_in_which_it_happened() {
        let store = Store::scratch().expect("a scratch store");
        store.begin("cafe0001", 7, "again", &plan(), &serde_json::json!({})).expect("begins");
        for n in 0..250 {
            store.second("cafe0001", &second(n)).expect("written");
            let look = Sample { t_s: f64::from(n) + 1.02, span_s: 1.0, ..Sample::default() };
            store.look("cafe0001", &look).expect("written");
        }
        store.phase_end("cafe0001", 0, 250_000_000, 4).expect("written");
        let mut told = Vec::new();
        let mut tell = |event: &Event<'_>| {
            told.push(match event {
                Event::Began { id, started_unix_ms, label, .. } => format!("{id} {started_unix_ms} {label}"),
                Event::Second { slice } => format!("s{} {}", slice.second, slice.counts.answered),
                Event::Sample { sample } => format!("l{}", sample.t_s),
                Event::PhaseEnd { phase, duration_us, peak } => format!("{phase} {duration_us} {peak}"),
                Event::Ended { run } => format!("end {}", run.phases[0].requests.answered),
                other => format!("{other:?}"),
            });
        };
        store.replay_events("cafe0001", &mut tell).expect("told");
        let answered = second(0).counts.answered;
        assert_eq!(told[..3], ["cafe0001 7 again".to_string(), format!("s0 {answered}"), "l1.02".into()]);
        assert_eq!(
            told[499..],
            [format!("s249 {answered}"), "l250.02".into(), "0 250000000 4".into(), format!("end {}", 250 * answered)]
        );
    }
}
