//! Finds the highest rate that meets an objective, and throughput against users.

use std::borrow::Cow;
use std::time::Duration;

use lastdrop_analyze::capacity::{FALL, Purpose, RateSearch, Rules, SearchStep, falls_behind, tail};
use lastdrop_analyze::objective::{error_share, judge};
use lastdrop_analyze::usl::{self, Staircase};
use lastdrop_diagnose::disturbance;
use lastdrop_model::documents::{CAPACITY_SCHEMA, CapacityDocument, CapacityStep, StaircaseStep};
use lastdrop_model::event::{Document, Outcome, RepeatScope};
use lastdrop_model::plan::{Arrival, Load, Phase, Plan};
use lastdrop_model::{Event, Kind, Objective, ObjectiveResult, Reason, Run, Verdict};

use crate::lab::clock::Stopwatch;
use crate::lab::{Lab, LabError};

/// What to find out.
#[derive(Debug, Clone)]
pub struct CapacityOptions {
    /// Requests and connections; its phases are not used.
    pub plan: Plan,
    pub objectives: Vec<Objective>,
    pub arrivals: Arrival,
    /// Most connections open at once.
    pub connections: u32,
    /// The first rate, if the user gives one.
    pub start: Option<f64>,
    pub ceiling: f64,
    /// Share by which the result may be too low.
    pub precision: f64,
    pub hold: Duration,
    /// The whole search ends by then.
    pub max_time: Duration,
    /// Most users of the staircase; None skips the staircase.
    pub most_users: Option<u32>,
}

/// Length of a step of the staircase, and of the load discarded before it.
const STAIR: Duration = Duration::from_millis(1200);
const STAIR_SETTLING: Duration = Duration::from_millis(250);
/// Load before a trial that is not measured, until queues have reached their length.
pub const SETTLING: Duration = Duration::from_millis(700);
/// Share of the time that the staircase may use.
const STAIRCASE_SHARE: f64 = 0.3;
/// A rate counts as falling behind if it would miss the objective within this time.
pub const HORIZON_S: f64 = 60.0;
/// Most trials repeated because the machine was disturbed: in total, and in a row.
const REPEATS: u32 = 6;
const REPEATS_OF_ONE: u32 = 2;
/// How often a failed rate is tried again.
const RECHECKS: u32 = 2;
/// Most checks whether a server has recovered from overload, half a second each.
const COOLING: u32 = 12;

struct CapacitySearch<'a, 'b> {
    lab: &'a mut Lab<'b>,
    order: &'a CapacityOptions,
    began: Stopwatch<'b>,
    steps: Vec<CapacityStep>,
    stairs: Vec<StaircaseStep>,
    notes: Vec<String>,
    /// Median response time of a single user, microseconds.
    alone_us: f64,
    departure: Option<f64>,
    /// The lowest rate at which the generator was at its limit.
    generator_limit: Option<f64>,
    held_s: f64,
    /// The search ended because its time was over.
    out_of_time: bool,
}

/// A shorter trial says nothing.
const LEAST_TRIAL_S: f64 = 1.0;
/// The result is held for at least this time, unless a shorter one was requested.
const LEAST_HOLD_S: f64 = 3.0;
/// Time between two trials, for recovering and ending.
const MOMENT_S: f64 = 3.0;
/// While no rate has passed yet, this share of the remaining time is reserved for holding the result.
const HOLD_SHARE: f64 = 0.6;

/// Returns how long a trial of `seconds` may take if `left_s` are left of the whole time. None if there is no time for
/// it. Before any rate has `passed`, a shortened trial is better than none.
fn time_for(purpose: Purpose, seconds: f64, left_s: f64, hold_s: f64, passed: bool) -> Option<f64> {
    if purpose == Purpose::Confirm {
        // Where it fails, as much is left for a lower rate.
        let half = ((left_s - MOMENT_S) / 2.0).max(hold_s);
        return (left_s >= hold_s.min(LEAST_HOLD_S)).then(|| seconds.min(half).min(left_s));
    }
    let to_hold = hold_s + MOMENT_S;
    if passed {
        return (left_s >= seconds + to_hold).then_some(seconds);
    }
    let room = left_s - to_hold.min(HOLD_SHARE * left_s);
    (room >= seconds.min(LEAST_TRIAL_S)).then(|| seconds.min(room))
}

/// Runs the search. If the user stops it, the document contains what was found so far.
///
/// # Errors
/// When no load can be generated, or no request gets a response.
pub fn capacity(lab: &mut Lab<'_>, order: &CapacityOptions) -> Result<CapacityDocument, LabError> {
    let began = Stopwatch::start(lab.clock);
    let mut finder = CapacitySearch {
        lab,
        order,
        began,
        steps: Vec::new(),
        stairs: Vec::new(),
        notes: Vec::new(),
        alone_us: 0.0,
        departure: None,
        generator_limit: None,
        held_s: 0.0,
        out_of_time: false,
    };
    let mut search = None;
    let interrupted = match finder.find(&mut search) {
        Ok(()) => false,
        Err(LabError::Interrupted) => true,
        Err(e) => return Err(e),
    };
    let document = finder.document(search, interrupted);
    lab.tell(&Event::Concluded { document: Document::Capacity { found: Cow::Borrowed(&document) } });
    Ok(document)
}

impl CapacitySearch<'_, '_> {
    fn find(&mut self, search: &mut Option<RateSearch>) -> Result<(), LabError> {
        let one = self.stair(1)?.ok_or_else(|| {
            let seconds = STAIR.as_secs_f64();
            LabError::Other(format!(
                "{} answers nothing to one user: no answer within {seconds:.1} s",
                self.order.plan.url
            ))
        })?;
        self.alone_us = one.p50_us;
        let alone_rps = one.rps;
        self.stairs.push(one);
        if let Some(most) = self.order.most_users {
            self.staircase(most)?;
        }
        let hint = self
            .order
            .most_users
            .and(self.stairs.iter().filter(|s| s.errors < 0.01).map(|s| s.rps).max_by(f64::total_cmp));
        let start = self.order.start.or(hint.map(|h| 0.6 * h)).unwrap_or(0.5 * alone_rps).max(0.1);
        let search = search.insert(RateSearch::new(Rules {
            start,
            hint,
            fall: FALL,
            ceiling: self.order.ceiling,
            precision: self.order.precision,
            rechecks: RECHECKS,
            hold_s: self.order.hold.as_secs_f64(),
            tail: tail(&self.order.objectives),
        }));
        let (mut repeats, mut of_this) = (REPEATS, REPEATS_OF_ONE);
        while let SearchStep::Trial { rate, purpose, seconds } = search.ask() {
            let passed = search.capacity().is_some();
            let left = self.order.max_time.saturating_sub(self.began.elapsed() + SETTLING).as_secs_f64();
            let Some(seconds) = time_for(purpose, seconds, left, self.order.hold.as_secs_f64(), passed) else {
                let before = search.ask();
                search.hurry();
                if search.ask() == before {
                    let what =
                        if purpose == Purpose::Confirm { "the answer could be held" } else { "the limit was found" };
                    self.notes.push(format!("the time was over before {what}: more with --max-time"));
                    self.out_of_time = true;
                    break;
                }
                continue;
            };
            let (step, disturbed) = self.trial(rate, purpose, seconds)?;
            let ok = step.ok;
            if let Some(Reason { rule, what: why, .. }) = disturbed.filter(|_| !ok) {
                if repeats.min(of_this) > 0 {
                    let told = why.as_str().into();
                    self.lab.tell(&Event::Repeated { what: RepeatScope::Rate, rule: rule.into(), why: told });
                    (repeats, of_this) = (repeats - 1, of_this - 1);
                    self.steps.push(CapacityStep { why: format!("repeated: {why}; {}", step.why), ..step });
                    self.cool_down()?;
                    continue;
                }
                self.notes.push(format!(
                    "{rate:.1} requests/s failed while the machine was disturbed ({why}): the capacity may be higher; \
                     repeat it on a quieter machine"
                ));
            }
            of_this = REPEATS_OF_ONE;
            if ok && purpose == Purpose::Confirm {
                self.held_s = step.seconds;
                if step.seconds < self.order.hold.as_secs_f64() {
                    self.notes.push(format!(
                        "there was time to hold it for {:.1} s only: more with --max-time",
                        step.seconds
                    ));
                }
            }
            self.steps.push(step);
            search.tell(rate, purpose, ok);
            if !ok {
                self.cool_down()?;
            }
        }
        Ok(())
    }

    fn staircase(&mut self, most: u32) -> Result<(), LabError> {
        let mut staircase = Staircase::new(most);
        let until = self.order.max_time.mul_f64(STAIRCASE_SHARE);
        while let Some(users) = staircase.ask(&self.stairs) {
            if self.began.elapsed() > until {
                self.notes.push("the staircase had no time for more steps: more with --max-time".into());
                break;
            }
            let Some(stair) = self.stair(users)? else {
                self.notes.push(format!(
                    "{users} users got no answer within {:.1} s: the staircase ends below",
                    STAIR.as_secs_f64()
                ));
                break;
            };
            self.stairs.push(stair);
        }
        self.stairs.sort_by_key(|s| s.users);
        self.cool_down()
    }

    fn run(&mut self, load: Load, settling: Duration, duration: Duration, label: &str) -> Result<Run, LabError> {
        self.lab.check_stop()?;
        let main = Phase { name: "main".into(), measured: true, load, requests: None, duration: Some(duration) };
        let objectives = self.order.objectives.clone();
        let mut plan = Plan { phases: vec![main], objectives, ..self.order.plan.clone() };
        plan.warm_up("settling", settling);
        let run = self.lab.run(&plan, label)?;
        self.lab.check_stop()?;
        Ok(run)
    }

    /// Measures one step of the staircase. `None` if so many users got no answer in its time.
    fn stair(&mut self, users: u32) -> Result<Option<StaircaseStep>, LabError> {
        let mut load = Load::closed(users);
        if self.order.plan.http.most_streams() > 1 && self.order.plan.http.is_http2() {
            load.limit_connections(self.order.connections);
        }
        let run = self.run(load, STAIR_SETTLING, STAIR, &format!("capacity {users} users"))?;
        let Some(phase) = run.measured().filter(|p| p.requests.answered > 0) else {
            return match run.generator.connect_errors.keys().next() {
                Some(why) => {
                    let url = &self.order.plan.url;
                    Err(LabError::Other(format!("{url} answers nothing to {users} users: {why}")))
                }
                None => Ok(None),
            };
        };
        let latency = |field| phase.latency(Kind::Response, field).unwrap_or(0.0);
        let stair = StaircaseStep {
            users,
            rps: phase.rate.answered_rps,
            mean_us: latency("mean"),
            p50_us: latency("p50"),
            p99_us: latency("p99"),
            errors: error_share(&run.plan, phase),
            run: run.id.clone(),
        };
        let outcome = Outcome::Stair { stair: Cow::Borrowed(&stair) };
        self.lab.tell(&Event::TrialDone { outcome });
        Ok(Some(stair))
    }

    /// Tries a rate; also returns whether the machine was disturbed meanwhile.
    fn trial(&mut self, rate: f64, purpose: Purpose, seconds: f64) -> Result<(CapacityStep, Option<Reason>), LabError> {
        let load = Load::open(rate, self.order.arrivals, self.order.connections);
        let run =
            self.run(load, SETTLING, Duration::from_secs_f64(seconds), &format!("capacity {}", purpose.name()))?;
        let judged = judge(&self.order.objectives, &run.plan, &run.phases, run.server.as_ref());
        let mut step = step_of(&run, rate, purpose, seconds);
        let behind = run.measured().and_then(|p| falls_behind(p, &self.order.objectives, HORIZON_S));
        if let Some(p) = run.measured() {
            let mean = |kind| p.latency(kind, "mean").unwrap_or(0.0);
            if mean(Kind::Blocked) > 0.1 * mean(Kind::Service) && self.departure.is_none_or(|d| rate < d) {
                self.departure = Some(rate);
            }
        }
        let missed: Vec<String> =
            judged.iter().filter(|j| !j.met).map(|j| format!("{} is {}", j.objective.what(), j.seen)).collect();
        step.why = if missed.is_empty() { behind.clone().unwrap_or_default() } else { missed.join("; ") };
        // Results of a generator at its limit say nothing about the server: the rate is out of reach.
        if run.generator.saturated && run.validity.verdict == Verdict::Invalid {
            step.why = "the generator itself is at its limit".into();
            if self.generator_limit.is_none_or(|limit| rate < limit) {
                self.generator_limit = Some(rate);
            }
        }
        step.ok = ObjectiveResult::all_met(&judged) && step.why.is_empty();
        let outcome = Outcome::Capacity { step: Cow::Borrowed(&step) };
        self.lab.tell(&Event::TrialDone { outcome });
        let disturbed = disturbance(&run.validity).cloned();
        Ok((step, disturbed))
    }

    /// Waits until a single user is served about as fast as at the start, so that overload does not carry over into the
    /// next trial.
    fn cool_down(&mut self) -> Result<(), LabError> {
        let left = self.order.max_time.saturating_sub(self.began.elapsed());
        if !cool_down(self.lab, &self.order.plan, 2.0 * self.alone_us + 1000.0, left)? {
            let note = "the server did not get over its overload within some seconds: what came after may be too low";
            if !self.notes.iter().any(|n| n == note) {
                self.notes.push(note.into());
            }
        }
        Ok(())
    }

    fn document(mut self, search: Option<RateSearch>, interrupted: bool) -> CapacityDocument {
        let capacity = search.as_ref().and_then(RateSearch::capacity);
        let held = search.as_ref().and_then(RateSearch::held);
        let failed = search.as_ref().and_then(RateSearch::lowest_failed);
        let goal = self.order.objectives.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = match (capacity, held) {
            (Some(rate), Some(_)) => format!(
                "{rate:.1} requests/s meet {goal}, held for {:.0} s{}",
                self.held_s,
                match failed {
                    Some(bad) => format!("; {bad:.1} do not"),
                    None if rate >= self.order.ceiling => "; no higher rate was asked for (--max-rate)".into(),
                    None => String::new(),
                }
            ),
            (Some(rate), None) => format!("{rate:.1} requests/s met {goal} for some seconds; that was not held"),
            (None, _) if interrupted => "stopped before there was an answer".into(),
            (None, _) if self.generator_limit.is_some() => "the generator is the limit, not the server".into(),
            (None, _) => {
                let failed = self.steps.iter().filter(|s| !s.ok);
                match failed.min_by(|a, b| a.rate.total_cmp(&b.rate)) {
                    Some(s) if self.out_of_time => format!(
                        "the time was over before a rate was found that meets {goal}: the lowest that was tried, {:.1} \
                         requests/s, does not: {}",
                        s.rate, s.why
                    ),
                    Some(s) => format!("no rate meets {goal}: even at {:.1} requests/s {}", s.rate, s.why),
                    None => "there was no time for a single trial: more with --max-time".into(),
                }
            }
        };
        let staircase = self.order.most_users.is_some();
        let generator_limited = failed.is_some() && self.generator_limit == failed;
        if generator_limited {
            self.notes.push(
                "it was the generator that was at its limit, not the server, which may take more: use more threads (-t) or \
                 another machine"
                    .into(),
            );
        }
        let usl = if staircase { usl::fit(&self.stairs) } else { None };
        let knee = if staircase { usl::knee(&self.stairs, usl.as_ref()) } else { None };
        if staircase && knee.is_none() && self.stairs.len() > 1 {
            self.notes.push(format!(
                "the knee lies beyond {} users: more with -c",
                self.stairs.iter().map(|s| s.users).max().unwrap_or(0)
            ));
        }
        let rate = capacity.unwrap_or(0.0);
        CapacityDocument {
            schema: CAPACITY_SCHEMA.into(),
            url: self.order.plan.url.to_string(),
            objective: self.order.objectives.clone(),
            met: capacity.is_some(),
            capacity_rps: rate,
            interval: [rate, failed.unwrap_or(rate).max(rate)],
            reason,
            held_s: if held.is_some() { self.held_s } else { 0.0 },
            steps: self.steps,
            stairs: if staircase { self.stairs } else { Vec::new() },
            knee,
            usl,
            departure_rps: self.departure,
            generator_limited,
            out_of_time: capacity.is_none() && self.out_of_time,
            interrupted,
            notes: self.notes,
        }
    }
}

/// Returns what a run at a rate has shown; the caller decides whether that is good enough.
pub(crate) fn step_of(run: &Run, rate: f64, purpose: Purpose, seconds: f64) -> CapacityStep {
    let latency = |field| run.measured().and_then(|p| p.latency(Kind::Response, field)).unwrap_or(0.0);
    CapacityStep {
        rate,
        ok: false,
        role: purpose.name().into(),
        seconds,
        answered_rps: run.measured().map_or(0.0, |p| p.rate.answered_rps),
        p50_us: latency("p50"),
        p99_us: latency("p99"),
        errors: run.measured().map_or(1.0, |p| error_share(&run.plan, p)),
        why: String::new(),
        run: run.id.clone(),
    }
}

/// Waits until the median response time of a single user is at most `calm_us`; false if it still is not after some
/// seconds.
///
/// # Errors
/// When a run fails.
pub(crate) fn cool_down(lab: &mut Lab<'_>, plan: &Plan, calm_us: f64, most: Duration) -> Result<bool, LabError> {
    let began = Stopwatch::start(lab.clock);
    let main = Phase {
        name: "main".into(),
        measured: true,
        load: Load::closed(1),
        requests: None,
        duration: Some(Duration::from_millis(250)),
    };
    let mut plan = Plan { phases: vec![main], objectives: Vec::new(), ..plan.clone() };
    plan.warm_up("settling", Duration::from_millis(50));
    for look in 0..COOLING {
        if began.elapsed() > most {
            return Ok(true);
        }
        lab.check_stop()?;
        let run = lab.run(&plan, "capacity cool-down")?;
        lab.check_stop()?;
        let p50 = run.measured().and_then(|p| p.latency(Kind::Response, "p50"));
        if p50.is_some_and(|us| us <= calm_us) {
            return Ok(true);
        }
        if look == 0 {
            lab.tell(&Event::Recovering);
        }
        lab.clock.sleep(Duration::from_millis(300));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_there_is_gets_used() {
        // Twelve seconds, of which five to hold: the first trial is shortened, so that there is time to hold it.
        let first = time_for(Purpose::Start, 6.0, 12.0, 5.0, false).expect("there is time");
        assert!(first >= 3.0 && time_for(Purpose::Confirm, 5.0, 11.0 - first, 5.0, true) == Some(5.0), "{first}");
        assert_eq!(time_for(Purpose::Bracket, 3.0, 30.0, 5.0, false), Some(3.0));
        // With too little time to search above, the passed rate is held.
        assert_eq!(time_for(Purpose::Bracket, 3.0, 10.0, 5.0, true), None);
        assert_eq!(
            (time_for(Purpose::Start, 6.0, 1.0, 5.0, false), time_for(Purpose::Confirm, 15.0, 2.0, 15.0, true)),
            (None, None)
        );
    }
}
