//! An experiment in progress, as a terminal screen.
//!
//! [`LiveExperiment`] is the state that results from the events so far. It knows no command, so any source of runs can
//! be watched. [`draw`] renders it on a screen of any size, in the panes that have content. Neither needs a
//! clock or a terminal; `view` in the command line has both. Memory does not grow with the length of the
//! experiment: there are at most 512 columns, and only the latest trials and events are kept.

mod lists;
mod panes;
mod screen;
mod strip;
mod timeline;
mod trials;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lastdrop_model::event::{Lead, Stage, Suspicion, TrialBegan};
use lastdrop_model::printable::line;
use lastdrop_model::{Counts, Event, Histogram, KeptPlan, Kind, Sample, Slice};

pub use self::panes::Pane;
pub use self::screen::{ScreenOptions, draw};
use self::timeline::Timeline;
use self::trials::Trials;
use crate::events::event_line;
use crate::run::{describe as describe_load, what_of};
use crate::server::events;

/// A counter that changes in sample after sample gets one line within this many.
const RECENT: usize = 20;
/// Events that are kept.
const MOST_NEWS: usize = 200;

/// The state of an experiment so far.
#[derive(Debug, Clone, Default)]
pub struct LiveExperiment {
    /// Counts the events that changed something; a screen drawn for this version is up to date.
    pub version: u64,
    timeline: Timeline,
    /// Seconds of load so far.
    now_s: f64,
    run: RunSoFar,
    /// Number of runs that have begun.
    runs: u64,
    look: Option<Sample>,
    trials: Trials,
    /// The current activity, in words.
    doing: String,
    stage: String,
    lead: Option<Lead<'static>>,
    suspicion: Option<Suspicion<'static>>,
    /// Events, newest last.
    news: VecDeque<EventLine>,
}

/// Something that happened.
#[derive(Debug, Clone)]
struct EventLine {
    /// Second of load at which it happened.
    second: usize,
    text: String,
    /// For a counter that keeps changing: its total change, and the second of the latest one.
    counted: Option<(u64, usize)>,
}

/// The current run, or the latest one.
#[derive(Debug, Clone, Default)]
struct RunSoFar {
    /// The target of the load.
    what: String,
    phases: Vec<PhaseSoFar>,
    /// Index of the phase whose requests come due now.
    phase: usize,
    /// Seconds of load before this run.
    base_s: f64,
    under_way: bool,
}

#[derive(Debug, Clone, Default)]
struct PhaseSoFar {
    name: String,
    measured: bool,
    /// The planned load, in words.
    load: String,
    duration: Option<Duration>,
    requests: Option<u64>,
    /// The second of the run at which it began.
    start: Option<f64>,
    counts: Counts,
    status: BTreeMap<u16, u64>,
    response: Histogram,
    latest: Option<SecondNumbers>,
    /// Whole seconds of it that have passed.
    passed: u32,
}

/// Numbers of the latest second with requests.
#[derive(Debug, Clone, Copy)]
struct SecondNumbers {
    due_rps: f64,
    answered_rps: f64,
    unanswered: u64,
    p50_us: f64,
    p99_us: f64,
}

impl PhaseSoFar {
    fn unanswered(&self) -> u64 {
        self.counts.failed.total() + self.counts.timed_out
    }

    /// Returns the finished fraction (0 to 1) and what is left, in words; `None` if the end is unknown.
    fn progress(&self) -> Option<(f64, String)> {
        if let Some(of) = self.duration {
            let left = of.as_secs_f64() - f64::from(self.passed);
            let words = if left > 0.0 { format!("{} left", clock(left.ceil() as usize)) } else { "ending".into() };
            return Some(((f64::from(self.passed) / of.as_secs_f64().max(1e-3)).min(1.0), words));
        }
        // A replayed log sets a limit of more requests than it could ever have; that is no goal.
        let of = self.requests.filter(|n| *n <= MOST_REQUESTS)?;
        let done = self.counts.ended();
        Some((done as f64 / of.max(1) as f64, format!("{} requests left", trials::grouped(of.saturating_sub(done)))))
    }
}

/// More requests than this mean "no limit".
const MOST_REQUESTS: u64 = 1_000_000_000;

/// Formats seconds as a clock: hours, minutes, seconds.
fn clock(seconds: usize) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match hours {
        0 => format!("{minutes}:{:02}", seconds % 60),
        _ => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
    }
}

impl LiveExperiment {
    /// Processes an event, which costs some tens of microseconds per second of load.
    pub fn on_event(&mut self, event: &Event<'_>) {
        self.version += 1;
        match event {
            Event::Began { plan, .. } => self.began(plan),
            Event::Second { slice } => self.second(slice),
            Event::Sample { sample } => self.looked(sample),
            Event::PhaseEnd { phase, duration_us, .. } => {
                let start = self.run.phases.get(*phase).and_then(|p| p.start).unwrap_or(0.0);
                let end = start + *duration_us as f64 / 1e6;
                self.now_s = self.run.base_s + end;
                if let Some(next) = self.run.phases.get_mut(phase + 1) {
                    next.start.get_or_insert(end);
                }
            }
            Event::Mark { mark } => {
                let second = (self.run.base_s + mark.t_s) as usize;
                self.timeline.mark(second);
                self.tell(second, format!("mark: {}", mark.text));
            }
            // Many runs of an experiment report the same finding.
            Event::Finding { reason } => {
                let what = line(&reason.what);
                if self.news.iter().rev().take(RECENT).all(|news| news.text != what) {
                    self.say(&what);
                }
            }
            Event::Ended { .. } => self.run.under_way = false,
            Event::Failed { why } => {
                self.run.under_way = false;
                self.say(why);
            }
            Event::Stage { stage } => {
                self.stage = match stage {
                    Stage::Search => "search",
                    Stage::KeepAlive => "what KeepAlive is worth",
                    Stage::Race => "race against the server as it is",
                    Stage::Hold => "the rate of the best, held on a fresh start",
                    Stage::Steps => "one small step at a time, judged by visitors",
                    Stage::Before => "as it was, to compare the watch with",
                    Stage::Watch => "the better settings are in force and watched",
                }
                .into();
                let stage = self.stage.clone();
                self.say(&stage);
            }
            Event::Experiment { what } => {
                self.doing = line(what);
                self.say(what);
            }
            Event::TrialBegan { trial } => self.tries(trial),
            Event::TrialDone { outcome } => self.trials.add(outcome),
            Event::Leading { lead } => {
                let what = line(&lead.what).into();
                self.lead = Some(Lead {
                    what,
                    times: lead.times.to_string().into(),
                    rests_on: lead.rests_on.to_string().into(),
                    ..lead.clone()
                });
            }
            Event::Suspicion { suspicion } => {
                self.suspicion = Some(Suspicion {
                    suspects: suspicion.suspects.to_vec().into(),
                    excluded: suspicion.excluded.to_vec().into(),
                });
            }
            Event::Decided { .. }
            | Event::Repeated { .. }
            | Event::Sized { .. }
            | Event::Warmed { .. }
            | Event::Recovering
            | Event::Restoring
            | Event::Keeping { .. }
            | Event::Guard { .. } => {
                if let Some(line) = event_line(event) {
                    self.doing = match event {
                        Event::Recovering | Event::Restoring | Event::Keeping { .. } => line.trim().into(),
                        _ => std::mem::take(&mut self.doing),
                    };
                    self.say(&line);
                }
            }
            Event::Exchanges { .. } | Event::Classes { .. } | Event::Visited { .. } | Event::Concluded { .. } => {
                self.version -= 1;
            }
        }
    }

    fn say(&mut self, text: &str) {
        self.tell(self.now_s as usize, text.to_string());
    }

    fn tell(&mut self, second: usize, text: String) {
        if self.news.len() == MOST_NEWS {
            self.news.pop_front();
        }
        self.news.push_back(EventLine { second, text: line(text.trim()), counted: None });
    }

    fn began(&mut self, plan: &KeptPlan) {
        let phase = |p: &lastdrop_model::Phase| PhaseSoFar {
            name: line(&p.name),
            measured: p.measured,
            load: describe_load(plan, p),
            duration: p.duration,
            requests: p.requests,
            ..PhaseSoFar::default()
        };
        self.runs += 1;
        let base_s = self.now_s;
        self.run = RunSoFar {
            what: line(&what_of(plan)),
            phases: plan.phases.iter().map(phase).collect(),
            phase: 0,
            base_s,
            under_way: true,
        };
        if self.runs > 1 {
            self.timeline.begin(base_s as usize);
        }
        if let Some(first) = self.run.phases.first_mut() {
            first.start = Some(0.0);
        }
    }

    fn second(&mut self, slice: &Slice) {
        let place = usize::from(slice.phase);
        // This phase begins at the planned end of the previous ones, if that is known.
        let before: Option<Duration> = self.run.phases.iter().take(place).map(|p| p.duration).sum();
        let so_far = self.now_s - self.run.base_s;
        let Some(phase) = self.run.phases.get_mut(place) else { return };
        let start = *phase.start.get_or_insert(before.map_or(so_far, |d| d.as_secs_f64()));
        let left = phase.duration.map_or(1.0, |d| d.as_secs_f64() - f64::from(slice.second));
        // Answers after the end of the phase get no load time.
        let span_s = left.clamp(0.0, 1.0);
        let response = &slice.latencies[Kind::Response as usize];
        phase.counts.add(&slice.counts);
        phase.response.add(response);
        for (code, n) in slice.status.iter().enumerate().filter(|(_, n)| **n > 0) {
            *phase.status.entry(code as u16).or_default() += n;
        }
        if left > 0.0 {
            phase.passed = phase.passed.max(slice.second + 1);
            phase.latest = Some(SecondNumbers {
                due_rps: slice.counts.due as f64 / span_s,
                answered_rps: slice.counts.answered as f64 / span_s,
                unanswered: slice.counts.failed.total() + slice.counts.timed_out,
                p50_us: response.quantile(0.5) as f64,
                p99_us: response.quantile(0.99) as f64,
            });
        }
        let from_s = self.run.base_s + start + f64::from(slice.second);
        if left > 0.0 {
            self.now_s = self.now_s.max(from_s + span_s);
        }
        let second = from_s as usize;
        if slice.second == 0 && place > 0 {
            self.timeline.begin(second);
        }
        self.timeline.add(second, slice, span_s);
        self.run.phase = self.run.phase.max(place);
    }

    fn looked(&mut self, look: &Sample) {
        // A sample describes the time before it.
        let second = (self.run.base_s + (look.t_s - look.span_s / 2.0).max(0.0)) as usize;
        self.timeline.look(second, look);
        for (what, n) in events(look) {
            let what = line(&what);
            match self.news.iter_mut().rev().take(RECENT).find(|news| news.counted.is_some() && news.text == what) {
                Some(news) => news.counted = news.counted.map(|(so_far, _)| (so_far + n, second)),
                None => {
                    self.tell(second, what);
                    if let Some(news) = self.news.back_mut() {
                        news.counted = Some((n, second));
                    }
                }
            }
        }
        self.look = Some(look.clone());
    }

    fn tries(&mut self, trial: &TrialBegan<'_>) {
        let round = trial.round.map_or(String::new(), |n| format!(", round {n}"));
        let of = trial.of.map_or(String::new(), |n| format!(" of {n}"));
        let series = if trial.series.is_empty() { String::new() } else { format!(" {}", line(&trial.series)) };
        self.doing = format!("trial {}{of}{round}:{series} {}", trial.number, line(&trial.changes()));
    }

    /// Returns the current phase.
    fn phase(&self) -> Option<&PhaseSoFar> {
        self.run.phases.get(self.run.phase)
    }

    /// Returns the panes that have content; the first is the one to start with.
    #[must_use]
    pub fn panes(&self) -> Vec<Pane> {
        let there = |pane: &Pane| match pane {
            Pane::Trials => !self.trials.rows.is_empty(),
            Pane::Doctor => self.suspicion.is_some(),
            Pane::Server => self.look.is_some(),
            Pane::Overview | Pane::Latency | Pane::News => true,
        };
        Pane::ALL.into_iter().filter(there).collect()
    }
}
