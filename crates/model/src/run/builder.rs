//! Adds up slices, second by second, to the phases of a [`Run`](super::Run). A finished phase is kept as its report;
//! only a running phase has histograms.

use std::sync::Arc;

use super::by_class::ClassTotals;
use super::phase::{ClassReport, Connections, FollowUpCounts, PageCounts, PhaseReport, Second, SlowRequest};
use super::summary::results;
use crate::class::Classes;
use crate::counts::Counts;
use crate::histogram::Kind;
use crate::http_options::Version;
use crate::plan::{Phase, Plan};
use crate::slice::{Slice, TracedRequest};
use crate::timeline::{Archive, Timeline};

/// Sums of one phase.
#[derive(Debug)]
struct PhaseTotal {
    total: Slice,
    peak: u64,
    /// Duration of the phase, once known.
    duration_us: Option<u64>,
    seconds: Timeline<Second>,
    classes: ClassTotals,
}

impl PhaseTotal {
    fn new(index: usize, archive: Option<Arc<dyn Archive<Second>>>) -> PhaseTotal {
        let seconds = archive.map_or_else(Timeline::default, Timeline::archived);
        PhaseTotal {
            total: Slice::new(index as u16, 0),
            peak: 0,
            duration_us: None,
            seconds,
            classes: ClassTotals::default(),
        }
    }

    fn duration_s(&self) -> f64 {
        match self.duration_us {
            Some(us) => us as f64 / 1e6,
            None => self.seconds.latest().map_or(0.0, |s| f64::from(s.t) + 1.0),
        }
    }
}

/// Progress of a phase. Only a running phase has histograms, because a plan may have thousands of phases.
#[derive(Debug)]
enum PhaseState {
    NotBegun,
    Counting(Box<PhaseTotal>),
    Over(Box<(PhaseReport, Counts)>),
}

#[derive(Debug)]
struct PhaseBuilder {
    name: String,
    measured: bool,
    archive: Option<Arc<dyn Archive<Second>>>,
    stage: PhaseState,
}

impl PhaseBuilder {
    fn begin(&mut self, index: usize) {
        if matches!(self.stage, PhaseState::NotBegun) {
            self.stage = PhaseState::Counting(Box::new(PhaseTotal::new(index, self.archive.take())));
        }
    }
}

/// Builds a [`Run`](super::Run) from its slices, in any grouping, one second at a time.
#[derive(Debug)]
pub struct RunBuilder {
    phases: Vec<PhaseBuilder>,
    classes: Classes,
    replay: bool,
    version: Version,
    forgetful: bool,
}

impl RunBuilder {
    #[must_use]
    pub fn new(plan: &Plan) -> RunBuilder {
        RunBuilder::on(plan, |_| None)
    }

    /// Makes a builder whose seconds are also in an archive, so that older ones need not stay in memory. The archive
    /// must have a second before the next one is added.
    #[must_use]
    pub fn archived(plan: &Plan, archive: impl Fn(u16) -> Arc<dyn Archive<Second>>) -> RunBuilder {
        RunBuilder::on(plan, |phase| Some(archive(phase)))
    }

    fn on(plan: &Plan, archive: impl Fn(u16) -> Option<Arc<dyn Archive<Second>>>) -> RunBuilder {
        let builder = |(i, p): (usize, &Phase)| PhaseBuilder {
            name: p.name.clone(),
            measured: p.measured,
            archive: archive(i as u16),
            stage: PhaseState::NotBegun,
        };
        let phases = plan.phases.iter().enumerate().map(builder).collect();
        RunBuilder {
            phases,
            classes: Classes::of(plan),
            replay: plan.replay.is_some(),
            version: plan.http.spoken(),
            forgetful: true,
        }
    }

    /// Keeps every further second in memory, because the archive accepts no more.
    pub fn forget_nothing(&mut self) {
        self.forgetful = false;
    }

    /// Adds one second, summed over all threads. Seconds of a phase come in order, and before its end.
    pub fn add(&mut self, slice: &Slice) {
        let index = usize::from(slice.phase);
        let Some(builder) = self.phases.get_mut(index) else { return };
        builder.begin(index);
        if let PhaseState::Counting(phase) = &mut builder.stage {
            phase.total.add_unclassed(slice);
            phase.classes.add(&slice.by_class);
            phase.seconds.push(Second::of(slice));
            if self.forgetful {
                phase.seconds.forget_older();
            }
        }
    }

    /// Ends a phase, with the time until nothing more came due and the most connections open at once.
    pub fn end_phase(&mut self, index: usize, duration_us: u64, peak: u64) {
        let Some(phase) = self.phases.get_mut(index) else { return };
        phase.begin(index);
        let mut total = match std::mem::replace(&mut phase.stage, PhaseState::NotBegun) {
            PhaseState::Counting(total) => total,
            other => {
                phase.stage = other;
                return;
            }
        };
        (total.duration_us, total.peak) = (Some(duration_us), peak);
        let counts = total.total.counts;
        let report = report_phase(&phase.name, phase.measured, *total, &self.classes, self.replay, self.version);
        phase.stage = PhaseState::Over(Box::new((report, counts)));
    }

    /// Returns the counts of a phase so far.
    #[must_use]
    pub fn counts(&self, index: usize) -> Counts {
        match self.phases.get(index).map(|p| &p.stage) {
            None | Some(PhaseState::NotBegun) => Counts::default(),
            Some(PhaseState::Counting(phase)) => phase.total.counts,
            Some(PhaseState::Over(over)) => over.1,
        }
    }

    /// Returns the results of a phase by class so far, if there are several classes.
    #[must_use]
    pub fn classes(&self, index: usize) -> Vec<ClassReport> {
        match self.phases.get(index).map(|p| &p.stage) {
            Some(PhaseState::Counting(phase)) => phase.classes.several(&self.classes, phase.duration_s(), self.replay),
            Some(PhaseState::Over(over)) => over.0.classes.clone(),
            None | Some(PhaseState::NotBegun) => Vec::new(),
        }
    }

    /// Returns the reports of all phases. Phases that never began are left out; they come last.
    #[must_use]
    pub fn into_reports(self) -> Vec<PhaseReport> {
        let (classes, replay, version) = (&self.classes, self.replay, self.version);
        let report = |phase: PhaseBuilder| match phase.stage {
            PhaseState::NotBegun => None,
            PhaseState::Counting(total) => {
                Some(report_phase(&phase.name, phase.measured, *total, classes, replay, version))
            }
            PhaseState::Over(over) => Some(over.0),
        };
        self.phases.into_iter().filter_map(report).collect()
    }
}

fn slow_request(request: &TracedRequest, classes: &Classes) -> SlowRequest {
    let class = classes.names.get(usize::from(request.class)).filter(|_| classes.names.len() > 1);
    SlowRequest {
        trace: request.trace,
        response_us: request.response_us,
        status: (request.status > 0).then_some(request.status),
        second: request.second,
        class: class.cloned(),
    }
}

fn report_phase(
    name: &str,
    measured: bool,
    phase: PhaseTotal,
    classes: &Classes,
    replay: bool,
    version: Version,
) -> PhaseReport {
    let c = &phase.total.counts;
    let duration_s = phase.duration_s();
    let status = phase.total.status.iter().enumerate().filter(|(_, n)| **n > 0).map(|(code, n)| (code as u16, *n));
    let latencies = Kind::ALL.into_iter().map(|kind| (kind, &phase.total.latencies[kind as usize]));
    let results = results(c, status, latencies, duration_s, replay);
    PhaseReport {
        name: name.to_string(),
        measured,
        duration_s,
        connections: Connections {
            opened: c.opened,
            peak: phase.peak,
            lost_on_reuse: c.lost_on_reuse,
            handshakes_full: c.handshakes_full,
            handshakes_resumed: c.handshakes_resumed,
            by_version: [(version.name().to_string(), c.opened)].into(),
            goaway: c.goaway,
            sent_again: c.sent_again,
        },
        followed: FollowUpCounts {
            redirects: c.redirected,
            challenges: c.challenged,
            elsewhere: c.elsewhere,
            unusable: c.unusable,
            left_out: c.left_out,
        },
        pages: PageCounts { loaded: c.pages, failed: c.pages_failed },
        server_cpu: None,
        slowest: phase.total.slowest.iter().map(|request| slow_request(request, classes)).collect(),
        classes: phase.classes.report(classes, &results, duration_s, replay),
        results,
        seconds: phase.seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new("http://127.0.0.1/".parse().expect("valid"), 1)
    }

    #[test]
    fn the_two_sums_hold_when_requests_are_still_in_flight() {
        let mut b = RunBuilder::new(&plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 100, sent: 90, answered: 50, timed_out: 10, ..Counts::default() };
        s.counts.failed.reset = 5;
        b.add(&s);
        let r = &b.into_reports()[0].requests;
        assert_eq!(r.due, r.sent + r.unsent);
        assert_eq!(r.sent, r.answered + r.failed.total() + r.timed_out + r.censored);
        assert_eq!((r.unsent, r.censored), (10, 25));
    }

    #[test]
    fn percentiles_beyond_the_missing_answers_are_lower_bounds() {
        let mut b = RunBuilder::new(&plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 1000, sent: 1000, answered: 980, timed_out: 20, ..Counts::default() };
        for _ in 0..980 {
            s.record(Kind::Response, 100);
        }
        b.add(&s);
        let p = &b.into_reports()[0];
        assert!(p.is_lower_bound("p99") && p.is_lower_bound("p99_9"));
        assert!(!p.is_lower_bound("p95") && !p.is_lower_bound("p50"));
    }

    #[test]
    fn exactly_one_percent_missing_leaves_p99_alone() {
        let mut b = RunBuilder::new(&plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 1000, sent: 1000, answered: 990, timed_out: 10, ..Counts::default() };
        s.record(Kind::Response, 100);
        b.add(&s);
        assert!(!b.into_reports()[0].is_lower_bound("p99"));
    }
}
