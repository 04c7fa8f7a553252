//! The phases of a run as its events report them: their names and when each began.

use lastdrop_model::Event;

#[derive(Debug, Clone, Default)]
struct Phase {
    name: String,
    /// The planned length in seconds, if the phase cannot end earlier.
    planned_s: Option<f64>,
    /// The real length once it is known; until then, the number of seconds reported so far.
    lasted_s: f64,
}

/// The phases of the current run.
#[derive(Debug, Clone, Default)]
pub(super) struct Phases(Vec<Phase>);

impl Phases {
    pub fn on_event(&mut self, event: &Event<'_>) {
        match event {
            Event::Began { plan, .. } => {
                self.0 = plan
                    .phases
                    .iter()
                    .map(|p| Phase {
                        name: p.name.clone(),
                        planned_s: p.duration.filter(|_| p.requests.is_none()).map(|d| d.as_secs_f64()),
                        lasted_s: 0.0,
                    })
                    .collect();
            }
            Event::Second { slice } => {
                if let Some(phase) = self.0.get_mut(usize::from(slice.phase)) {
                    phase.lasted_s = phase.lasted_s.max(f64::from(slice.second) + 1.0);
                }
            }
            Event::PhaseEnd { phase, duration_us, .. } => {
                if let Some(phase) = self.0.get_mut(*phase) {
                    phase.lasted_s = *duration_us as f64 / 1e6;
                }
            }
            _ => {}
        }
    }

    pub fn several(&self) -> bool {
        self.0.len() > 1
    }

    pub fn name(&self, phase: u16) -> &str {
        self.0.get(usize::from(phase)).map_or("", |p| &p.name)
    }

    /// Returns when a second of a phase began, in seconds since the run began. A phase begins before the real
    /// length of the previous one is known, since requests are still in flight. So the planned length is used
    /// if there is one.
    pub fn at(&self, phase: u16, second: u32) -> f64 {
        let before = self.0.iter().take(usize::from(phase));
        before.map(|p| p.planned_s.unwrap_or(p.lasted_s)).sum::<f64>() + f64::from(second)
    }
}
