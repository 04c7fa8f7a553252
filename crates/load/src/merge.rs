//! Merges the seconds of several parts of a run: of threads into those of a machine, of machines into those of a fleet.
//! Histograms are added up, never averaged.

use std::collections::BTreeMap;

use lastdrop_model::{Micros, Slice};

/// A merged result that is complete.
#[derive(Debug)]
pub enum MergedEvent {
    /// A second of all parts together; those of a phase come in order.
    Second(Box<Slice>),
    PhaseEnd {
        phase: usize,
        duration_us: Micros,
        peak: u64,
    },
}

/// What is known of a phase so far.
#[derive(Debug, Clone)]
struct PhaseState {
    /// Seconds that each part has handed over; `u32::MAX` once it is done with the phase.
    reached: Vec<u32>,
    merged: BTreeMap<u32, Box<Slice>>,
    duration_us: Micros,
    peak: u64,
    /// Its end has been reported.
    over: bool,
}

/// Merges seconds: one is complete when every part is past it.
#[derive(Debug)]
pub struct EventMerger {
    phases: Vec<PhaseState>,
}

impl EventMerger {
    #[must_use]
    pub fn new(phases: usize, parts: usize) -> EventMerger {
        let fresh =
            PhaseState { reached: vec![0; parts], merged: BTreeMap::new(), duration_us: 0, peak: 0, over: parts == 0 };
        EventMerger { phases: vec![fresh; phases] }
    }

    /// Adds a second of one part; a part's seconds of a phase come in order.
    pub fn second(&mut self, part: usize, slice: &Slice) {
        self.add(slice);
        let reached = &mut self.phases[usize::from(slice.phase)].reached[part];
        *reached = (*reached).max(slice.second.saturating_add(1));
    }

    /// Adds to a second that has not been returned yet, without marking a part as past it.
    pub fn add(&mut self, slice: &Slice) {
        let merged = &mut self.phases[usize::from(slice.phase)].merged;
        match merged.get_mut(&slice.second) {
            Some(sum) => sum.add(slice),
            None => drop(merged.insert(slice.second, Box::new(slice.clone()))),
        }
    }

    /// Marks a part as done with a phase, with its duration and its most open connections.
    pub fn phase_end(&mut self, part: usize, phase: usize, duration_us: Micros, peak: u64) {
        let phase = &mut self.phases[phase];
        phase.reached[part] = u32::MAX;
        phase.duration_us = phase.duration_us.max(duration_us);
        phase.peak += peak;
    }

    /// Stops waiting for a part from which nothing more comes.
    pub fn leave(&mut self, part: usize) {
        self.phases.iter_mut().for_each(|p| p.reached[part] = u32::MAX);
    }

    /// Seconds of a phase that a part has handed over; `None` if it is done with the phase.
    #[must_use]
    pub fn reached(&self, part: usize, phase: usize) -> Option<u32> {
        Some(self.phases[phase].reached[part]).filter(|r| *r != u32::MAX)
    }

    /// Returns the next second or phase end that all parts are past.
    pub fn pop(&mut self) -> Option<MergedEvent> {
        for (index, phase) in self.phases.iter_mut().enumerate().filter(|(_, p)| !p.over) {
            let complete = phase.reached.iter().copied().min().unwrap_or(u32::MAX);
            if let Some(entry) = phase.merged.first_entry().filter(|e| *e.key() < complete) {
                return Some(MergedEvent::Second(entry.remove()));
            }
            if complete == u32::MAX {
                phase.over = true;
                // A phase without any part never began.
                if phase.duration_us > 0 || phase.peak > 0 {
                    let (duration_us, peak) = (phase.duration_us, phase.peak);
                    return Some(MergedEvent::PhaseEnd { phase: index, duration_us, peak });
                }
            }
        }
        None
    }

    /// Returns the seconds that not every part is past.
    pub fn rest(&mut self) -> Vec<Box<Slice>> {
        self.phases.iter_mut().flat_map(|p| std::mem::take(&mut p.merged).into_values()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::Kind;

    fn slice(phase: u16, second: u32, times_us: &[u64]) -> Slice {
        let mut slice = Slice::new(phase, second);
        slice.counts.answered = times_us.len() as u64;
        times_us.iter().for_each(|us| slice.record(Kind::Response, *us));
        slice
    }

    /// The results so far: answers per second, or the end of a phase.
    fn told(merge: &mut EventMerger) -> Vec<String> {
        std::iter::from_fn(|| merge.pop())
            .map(|m| match m {
                MergedEvent::Second(s) => format!("{}.{}: {}", s.phase, s.second, s.counts.answered),
                MergedEvent::PhaseEnd { phase, duration_us, peak } => format!("{phase} over {duration_us} {peak}"),
            })
            .collect()
    }

    #[test]
    fn a_second_is_told_when_every_part_is_past_it() {
        let mut merge = EventMerger::new(2, 2);
        merge.second(0, &slice(0, 0, &[10]));
        merge.second(0, &slice(0, 1, &[10]));
        assert!(told(&mut merge).is_empty());
        merge.second(1, &slice(0, 0, &[20, 20]));
        assert_eq!(told(&mut merge), ["0.0: 3"]);
        merge.phase_end(0, 0, 2_000_000, 5);
        // The slower part goes on, past a second in which it has nothing to report.
        merge.second(1, &slice(0, 2, &[20]));
        assert_eq!(told(&mut merge), ["0.1: 1", "0.2: 1"]);
        merge.second(0, &slice(1, 0, &[1]));
        merge.phase_end(1, 0, 3_000_000, 4);
        assert_eq!(told(&mut merge), ["0 over 3000000 9"]);
        merge.leave(1);
        assert_eq!(told(&mut merge), ["1.0: 1"]);
    }

    #[test]
    fn percentiles_are_of_all_samples_together() {
        let mut merge = EventMerger::new(1, 2);
        merge.second(0, &slice(0, 0, &[100; 99]));
        merge.second(1, &slice(0, 0, &[100_000]));
        let Some(MergedEvent::Second(sum)) = merge.pop() else { panic!("a second") };
        let h = &sum.latencies[Kind::Response as usize];
        assert_eq!((h.count(), h.quantile(0.99)), (100, 100));
        assert!(h.max() >= 100_000);
    }
}
