//! A run while its load is on: what it has shown so far, and the observers who are told.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use lastdrop_load::RunClock;
use lastdrop_model::run::{Anatomy, JoinedLog, Mark, Pool, RunBuilder};
use lastdrop_model::{Event, PhaseReport, Plan, Sample, ServerTimeline, Timeline};
use lastdrop_store::Store;

use crate::lab::observers::Observer;
use crate::lab::readings::{MachineChanges, MachineReadings};
use crate::lab::run_sampler::RunSampler;
use crate::lab::runs::{tell, thousandth};
use crate::lab::server_log::ServerLog;
use crate::observe::anatomy::AnatomyRecorder;

/// The numbers of a run so far, and who is told of them.
pub(super) struct RunRecord<'r, 'a> {
    observers: &'r mut Vec<Box<dyn Observer + 'a>>,
    /// The first observer that archives the run is the one that is read.
    archive: Option<usize>,
    builder: RunBuilder,
    samples: Timeline<Sample>,
    marks: Vec<Mark>,
    clock: RunClock,
    /// When the load began. Seconds count from then, which is later than ours if another machine generates it.
    began: &'r Cell<Instant>,
    is_carried: bool,
    /// Length of the plan, if it has one.
    planned_s: Option<f64>,
}

impl<'r, 'a> RunRecord<'r, 'a> {
    pub fn new(
        observers: &'r mut Vec<Box<dyn Observer + 'a>>,
        (plan, id): (&Plan, &str),
        clock: RunClock,
        began: &'r Cell<Instant>,
        is_carried: bool,
    ) -> RunRecord<'r, 'a> {
        let archive = observers.iter().position(|o| o.archive().is_some());
        let store = archive.and_then(|i| observers[i].archive());
        let samples = store.map_or_else(Timeline::default, |store| Timeline::archived(store.looks(id)));
        let builder = match store {
            Some(store) => RunBuilder::archived(plan, |phase| store.seconds(id, phase)),
            None => RunBuilder::new(plan),
        };
        let planned_s = plan.phases.iter().map(|p| p.duration).sum::<Option<Duration>>().map(|d| d.as_secs_f64());
        RunRecord { observers, archive, builder, samples, marks: Vec::new(), clock, began, is_carried, planned_s }
    }

    /// Returns the archive as long as it takes what comes, which need not be kept here then.
    pub fn store(&self) -> Option<&Store> {
        self.observers.get(self.archive?)?.archive()
    }

    /// Takes an event of the load.
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Second { slice } => self.builder.add(slice),
            Event::PhaseEnd { phase, duration_us, peak } => self.builder.end_phase(*phase, *duration_us, *peak),
            _ => {}
        }
        tell(self.observers, event);
        if self.store().is_none() {
            self.builder.forget_nothing();
        }
        if let Event::Second { slice } = event
            && slice.second % seconds_between(slice.by_class.counts.len()) == 0
            && !slice.by_class.counts.is_empty()
        {
            let phase = usize::from(slice.phase);
            tell(self.observers, &Event::Classes { phase, classes: self.builder.classes(phase).into() });
        }
    }

    /// Takes a sample of the server.
    fn sample(&mut self, mut sample: Sample) {
        if self.is_carried {
            sample.t_s = thousandth(sample.t_s - self.clock.at(self.began.get()) as f64 / 1e6);
            // Drop samples from before the load, and from after it while the machines send the rest.
            let is_over = self.planned_s.is_some_and(|end| sample.t_s - sample.span_s >= end);
            if sample.t_s < sample.span_s / 2.0 || is_over {
                return;
            }
        }
        tell(self.observers, &Event::Sample { sample: Cow::Borrowed(&sample) });
        self.samples.push(sample);
        if self.store().is_some() {
            self.samples.forget_older();
        }
    }

    /// Takes new marks from the observers and shows them to all observers.
    fn hear(&mut self) {
        let said: Vec<(Instant, String)> = self.observers.iter_mut().flat_map(|o| o.take_marks()).collect();
        for (at, text) in said {
            let t_s = at.saturating_duration_since(self.began.get()).as_millis() as f64 / 1e3;
            let mark = Mark { t_s, text };
            tell(self.observers, &Event::Mark { mark: Cow::Borrowed(&mark) });
            self.marks.push(mark);
        }
    }
}

/// A run whose load is on.
pub(super) struct LiveRun<'r, 'a> {
    pub record: RunRecord<'r, 'a>,
    pub server_log: Option<ServerLog>,
    pub sampler: RunSampler,
    /// Records where requests spend their time, if that was asked for.
    pub anatomy: Option<AnatomyRecorder>,
    /// None on a simulated machine.
    pub readings: Option<MachineReadings>,
    pub measured: Option<usize>,
    /// Samples that another component takes.
    pub others_samples: Option<&'r Receiver<Sample>>,
    pub stop: &'r AtomicBool,
    /// Set when an observer has seen enough.
    pub enough: &'r AtomicBool,
}

/// What a run has shown when its load is over.
pub(super) struct RunShown {
    pub phases: Vec<PhaseReport>,
    pub pool: Option<Pool>,
    pub server: Option<ServerTimeline>,
    pub marks: Vec<Mark>,
    pub joined_log: Option<JoinedLog>,
    pub anatomy: Option<Anatomy>,
    pub changes: MachineChanges,
}

impl LiveRun<'_, '_> {
    /// Takes an event of the load, and what has come meanwhile.
    pub fn report(&mut self, event: &Event<'_>) {
        if let Event::PhaseEnd { phase, .. } = event {
            self.phase_ended(*phase);
        }
        if let Some(anatomy) = &mut self.anatomy {
            anatomy.take(event);
        }
        match &mut self.server_log {
            None => self.record.event(event),
            Some(log) => {
                log.take(event, |event| self.record.event(event));
                if log.trouble.is_some() {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
        if matches!(event, Event::Second { .. }) {
            if self.record.observers.iter().any(|o| o.has_seen_enough()) {
                self.enough.store(true, Ordering::Relaxed);
            }
            let now_s = self.record.clock.now_us() as f64 / 1e6;
            let others = self.others_samples.into_iter().flat_map(Receiver::try_iter);
            for sample in self.sampler.news().into_iter().chain(others.map(|sample| Sample { t_s: now_s, ..sample })) {
                self.record.sample(sample);
            }
            self.record.hear();
        }
    }

    fn phase_ended(&mut self, phase: usize) {
        if let Some(readings) = &mut self.readings {
            readings.phase_ended(phase);
        }
        let workers = self.sampler.count_workers();
        if let (Some(measured), Some(pool)) = (self.measured, &mut self.sampler.pool) {
            if phase + 1 == measured {
                pool.workers_at_start = workers;
            } else if phase == measured {
                pool.workers_at_end = workers;
            }
        }
    }

    /// Ends once the load is over. `server_here`: the server is on this machine.
    ///
    /// # Errors
    /// When the server's log lacks what is needed.
    pub fn finish(self, server_here: bool) -> Result<RunShown, String> {
        let LiveRun { mut record, server_log, sampler, anatomy, readings, stop, .. } = self;
        let anatomy = anatomy.map(AnatomyRecorder::finish);
        let joined_log = server_log.map(|log| log.finish(stop, |event| record.event(event))).transpose()?;
        let (pool, server, last) = sampler.finish();
        last.into_iter().for_each(|sample| record.sample(sample));
        record.hear();
        let RunRecord { builder, samples, marks, .. } = record;
        Ok(RunShown {
            phases: builder.into_reports(),
            pool,
            server: server.map(|server| ServerTimeline { samples, ..server }),
            marks,
            joined_log,
            anatomy,
            changes: readings.map(|readings| readings.finish(server_here)).unwrap_or_default(),
        })
    }
}

/// Returns how often the classes of a run are reported while it goes on: summing up a hundred of them takes some
/// milliseconds.
fn seconds_between(classes: usize) -> u32 {
    (classes as u32).div_ceil(10).clamp(1, 10)
}
