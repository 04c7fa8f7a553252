//! Stores runs in the user's store, each event as it happens, so a killed run is stored up to that point.

use lastdrop_model::Event;
use lastdrop_store::{Store, StoreError};

use super::Observer;

/// Writes runs into a store until a write fails. The runs go on, and the user is told at the end.
#[derive(Debug)]
pub struct Keeper {
    store: Store,
    /// Its runs are parts of one experiment.
    several: bool,
    /// Id of the present run.
    run: String,
    /// The first error; nothing is written after it.
    error: Option<StoreError>,
}

impl Keeper {
    #[must_use]
    pub fn new(store: Store) -> Keeper {
        Keeper { store, several: false, run: String::new(), error: None }
    }

    /// Returns a keeper whose runs are parts of the store's experiment.
    #[must_use]
    pub fn of_experiment(store: Store) -> Keeper {
        Keeper { several: true, ..Keeper::new(store) }
    }

    fn write(&mut self, event: &Event<'_>) -> Result<(), StoreError> {
        let (store, run) = (&self.store, &self.run);
        match event {
            Event::Began { id, started_unix_ms, label, plan, environment } => {
                store.begin(id, *started_unix_ms, label, plan, environment)?;
                if self.several {
                    store.keep_as_part(id)?;
                }
                self.run = id.to_string();
                Ok(())
            }
            Event::Second { slice } => store.second(run, slice),
            Event::Sample { sample } => store.look(run, sample),
            Event::Mark { mark } => store.mark(run, mark),
            Event::Classes { phase, classes } => store.classes(run, *phase, classes),
            Event::PhaseEnd { phase, duration_us, peak } => store.phase_end(run, *phase, *duration_us, *peak),
            Event::Ended { run } => store.finish(run),
            _ => Ok(()),
        }
    }
}

impl Observer for Keeper {
    fn on_event(&mut self, event: &Event<'_>) {
        if self.error.is_none() {
            self.error = self.write(event).err();
        }
    }

    fn archive(&self) -> Option<&Store> {
        Some(&self.store).filter(|_| self.error.is_none())
    }

    fn error(&self) -> Option<String> {
        self.error.as_ref().map(|e| format!("could not be kept: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::{KeptPlan, Plan, Slice};
    use std::borrow::Cow;

    #[test]
    fn what_cannot_be_kept_is_told_once_and_ends_the_keeping() {
        let store = Store::scratch().expect("a scratch file");
        let mut keeper = Keeper::new(store.clone());
        let plan = KeptPlan::from(Plan::new("http://10.0.0.1/".parse().expect("valid"), 1));
        let began = |id: &'static str| Event::Began {
            id: id.into(),
            started_unix_ms: 5,
            label: "".into(),
            plan: Cow::Borrowed(&plan),
            environment: Cow::Owned(serde_json::json!({})),
        };
        let second = |n| Event::Second { slice: Cow::Owned(Slice::new(0, n)) };
        for event in [began("a"), second(0)] {
            keeper.on_event(&event);
        }
        assert!(keeper.archive().is_some() && keeper.error().is_none());
        // No two runs have the same id.
        for event in [began("a"), second(1), began("b")] {
            keeper.on_event(&event);
        }
        assert!(keeper.archive().is_none());
        assert!(keeper.error().is_some_and(|t| t.starts_with("could not be kept: ") && t.contains("UNIQUE")));
        let kept: Vec<String> = store.history(9).expect("reads").into_iter().map(|e| e.id).collect();
        assert_eq!(kept, ["a"]);
        assert_eq!(store.load("a").expect("is there").phases[0].seconds.iter().count(), 1);
    }
}
