//! Combines what agents report of a run. Each record is used once and in order, however it arrives. Seconds are merged.
//! Requests in the schedule of a lost agent that it did not send are counted as unsent.

use std::collections::BTreeMap;
use std::sync::Arc;

use lastdrop_load::schedule::DueCounter;
use lastdrop_load::share::Share;
use lastdrop_load::{EventMerger, MergedEvent};
use lastdrop_model::record::{AgentEnd, Record};
use lastdrop_model::run::{AgentReport, End, Requests};
use lastdrop_model::{Counts, Generator, Micros, Plan, Reason, Slice, Verdict, printable};

use super::Member;
use crate::lab::carrier::CarrierResult;

/// Most records of an agent that wait for an earlier one.
const MOST_WAITING: usize = 10_000;

/// State of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentState {
    Here,
    /// The run no longer waits for its records.
    Lost,
    /// All its records have come.
    Over,
}

/// One agent's share of the run.
#[derive(Debug)]
struct AgentPart {
    member: Member,
    state: AgentState,
    /// The epoch (life of the agent's process) that takes part, and the number of the next record.
    epoch: Option<u64>,
    next: u64,
    waiting: BTreeMap<u64, Record>,
    /// From the agent's end message: how many records it made, and why it did not complete its share.
    last_word: Option<(u64, Option<String>)>,
    end: Option<AgentEnd>,
    asked_to_end: bool,
    /// What was wrong with its records.
    fault: Option<String>,
    counts: Counts,
    /// Per phase: what it has reported, and the rest of its schedule.
    phases: Vec<Schedule>,
    /// One of its seconds came after that second had been passed on for all agents.
    late: bool,
}

/// The requests due in an agent's share of a phase, and how many of them it has reported.
#[derive(Debug)]
struct Schedule {
    due: DueCounter,
    /// Due according to its own reports.
    told: u64,
    /// Number of seconds that it has reported.
    reached: u32,
    over: bool,
    /// Due up to the point the schedule has reached.
    planned: u64,
    /// Counted as unsent on its behalf.
    unsent: u64,
}

impl Schedule {
    /// Returns what comes due up to `until` and exceeds what the agent has reported.
    fn unsent_up_to(&mut self, until: Micros) -> u64 {
        self.planned += self.due.up_to(until);
        let unsent = self.planned.saturating_sub(self.told + self.unsent);
        self.unsent += unsent;
        unsent
    }
}

/// The combined state of a run on many machines.
#[derive(Debug)]
pub struct RunAssembler {
    parts: Vec<AgentPart>,
    merge: EventMerger,
    /// Seconds of each phase that have been passed on.
    handed_on: Vec<u32>,
    /// Phases that end when their tape does.
    ends_by_itself: Vec<bool>,
    /// The end of a phase, held back until the unsent requests before it are reported.
    held: Option<MergedEvent>,
}

impl RunAssembler {
    /// Returns None if the weights are invalid.
    #[must_use]
    pub fn new(plan: &Plan, members: &[Member]) -> Option<RunAssembler> {
        RunAssembler::with_dues(plan, members, |_, phase, share| DueCounter::of(plan, phase, share))
    }

    /// Like `new`, for a plan that plays a tape with known due times.
    #[must_use]
    pub fn of_tape(plan: &Plan, members: &[Member], dues: &Arc<[Micros]>) -> Option<RunAssembler> {
        RunAssembler::with_dues(plan, members, |_, phase, share| {
            DueCounter::of_tape(plan, phase, share, Arc::clone(dues))
        })
    }

    /// `due` returns what is due in a member's share of a phase.
    pub(super) fn with_dues(
        plan: &Plan,
        members: &[Member],
        due: impl Fn(&Member, usize, &Share) -> DueCounter,
    ) -> Option<RunAssembler> {
        let weights: Vec<u32> = members.iter().map(|m| m.weight).collect();
        let shares = Share::by_weight(&weights)?;
        let schedule = |member: &Member, phase: usize, share: &Share| Schedule {
            due: due(member, phase, share),
            told: 0,
            reached: 0,
            over: false,
            planned: 0,
            unsent: 0,
        };
        let parts = members.iter().zip(&shares).map(|(member, share)| AgentPart {
            member: member.clone(),
            state: AgentState::Here,
            epoch: None,
            next: 0,
            waiting: BTreeMap::new(),
            last_word: None,
            end: None,
            asked_to_end: false,
            fault: None,
            counts: Counts::default(),
            phases: (0..plan.phases.len()).map(|phase| schedule(member, phase, share)).collect(),
            late: false,
        });
        Some(RunAssembler {
            parts: parts.collect(),
            merge: EventMerger::new(plan.phases.len(), members.len()),
            handed_on: vec![0; plan.phases.len()],
            ends_by_itself: plan.phases.iter().map(|p| plan.replay.is_some() && p.duration.is_none()).collect(),
            held: None,
        })
    }

    /// Takes a record. Returns false if it was there already.
    ///
    /// # Errors
    /// When it is no valid record, or cannot belong to this run; it is left out.
    pub fn take(&mut self, member: usize, epoch: u64, seq: u64, bytes: &[u8]) -> Result<bool, String> {
        let phases = self.handed_on.len();
        let part = self.parts.get_mut(member).ok_or("it is of no agent of the run")?;
        if *part.epoch.get_or_insert(epoch) != epoch {
            // It comes from another epoch of the agent, which does not take part in the run.
            return Ok(false);
        }
        if seq < part.next || part.waiting.contains_key(&seq) {
            return Ok(false);
        }
        if part.waiting.len() >= MOST_WAITING && seq != part.next {
            return Err(format!("it is the {seq}th, and so many before it have not come"));
        }
        let record = Record::decode(bytes).map_err(|e| e.to_string())?;
        let phase = match &record {
            Record::Second(slice) => usize::from(slice.phase),
            Record::PhaseEnd { phase, .. } => usize::from(*phase),
            Record::Ended(_) => 0,
        };
        if phase >= phases {
            return Err(format!("it is of phase {phase}, and the plan has {phases}"));
        }
        part.waiting.insert(seq, record);
        while let Some(record) = self.parts[member].next_in_turn() {
            self.put(member, record);
        }
        self.look_for_end(member);
        Ok(true)
    }

    fn put(&mut self, member: usize, record: Record) {
        let part = &mut self.parts[member];
        match record {
            Record::Second(slice) => {
                let phase = usize::from(slice.phase);
                let schedule = &mut part.phases[phase];
                schedule.reached = schedule.reached.max(slice.second + 1);
                if slice.second < self.handed_on[phase] {
                    // Its due requests have already been reported as unsent.
                    part.late = true;
                } else {
                    part.counts.add(&slice.counts);
                    schedule.told += slice.counts.due;
                    self.merge.second(member, &slice);
                }
            }
            Record::PhaseEnd { phase, duration_us, peak } => {
                part.phases[usize::from(phase)].over = true;
                self.merge.phase_end(member, usize::from(phase), duration_us, peak);
            }
            Record::Ended(end) => part.end = Some(*end),
        }
    }

    /// Takes an agent's end message: how many records it has made.
    pub fn ended(&mut self, member: usize, epoch: u64, records: u64, error: Option<String>) {
        let Some(part) = self.parts.get_mut(member) else { return };
        if *part.epoch.get_or_insert(epoch) == epoch {
            part.last_word = Some((records, error));
            self.look_for_end(member);
        }
    }

    /// Checks whether all records of an agent have come.
    fn look_for_end(&mut self, member: usize) {
        let part = &mut self.parts[member];
        if part.last_word.as_ref().is_some_and(|(records, _)| part.next >= *records) {
            part.state = AgentState::Over;
            self.merge.leave(member);
        }
    }

    /// Notes that all agents have been asked to end early: an agent that then ends in order is complete.
    pub fn stopping(&mut self) {
        self.parts.iter_mut().for_each(|p| p.asked_to_end = true);
    }

    /// An agent sent invalid records: everything after that is ignored.
    pub fn distrust(&mut self, member: usize, why: &str) {
        if let Some(part) = self.parts.get_mut(member) {
            part.fault.get_or_insert_with(|| format!("a record of it makes no sense: {why}"));
            part.state = AgentState::Over;
            self.merge.leave(member);
        }
    }

    /// Stops waiting for an agent.
    pub fn lose(&mut self, member: usize) {
        if let Some(part) = self.parts.get_mut(member).filter(|p| p.state == AgentState::Here) {
            part.state = AgentState::Lost;
            self.merge.leave(member);
        }
    }

    /// A lost agent is back: the run waits for its remaining records again, but not for seconds already passed on.
    pub fn back(&mut self, member: usize) {
        if let Some(part) = self.parts.get_mut(member).filter(|p| p.state == AgentState::Lost) {
            part.state = AgentState::Here;
        }
    }

    /// Returns true if every agent has sent everything, or is lost.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.parts.iter().all(|p| p.state != AgentState::Here)
    }

    /// Returns true if an agent is lost that may still come back.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.parts.iter().any(|p| p.state == AgentState::Lost)
    }

    /// Returns true if a second came too late to be merged; then the run has to be rebuilt from all records.
    #[must_use]
    pub fn needs_rebuild(&self) -> bool {
        self.parts.iter().any(|p| p.late)
    }

    /// Returns the next second or end of a phase that all living agents have passed, including unsent requests of lost
    /// agents.
    pub fn pop(&mut self) -> Option<MergedEvent> {
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        match self.merge.pop()? {
            MergedEvent::Second(mut slice) => {
                let phase = usize::from(slice.phase);
                self.handed_on[phase] = slice.second + 1;
                slice.counts.due += self.unsent(phase, (u64::from(slice.second) + 1) * 1_000_000);
                Some(MergedEvent::Second(slice))
            }
            MergedEvent::PhaseEnd { phase, duration_us, peak } => {
                // An agent may have had no second at the very end of the phase; if a tape plays out, its last request
                // may have been a lost agent's.
                let played_out = self.ends_by_itself[phase] && self.parts.iter().all(|p| !p.asked_to_end);
                let unsent = self.unsent(phase, if played_out { Micros::MAX } else { duration_us });
                let end = MergedEvent::PhaseEnd { phase, duration_us, peak };
                if unsent == 0 {
                    return Some(end);
                }
                self.held = Some(end);
                let mut slice = Slice::new(phase as u16, self.handed_on[phase]);
                self.handed_on[phase] += 1;
                slice.counts.due = unsent;
                Some(MergedEvent::Second(Box::new(slice)))
            }
        }
    }

    /// Counts what lost agents should have sent by then.
    fn unsent(&mut self, phase: usize, until: Micros) -> u64 {
        let lost = self.parts.iter_mut().filter(|p| p.state == AgentState::Lost || p.has_failed());
        let schedules = lost.map(|p| &mut p.phases[phase]).filter(|s| !s.over);
        schedules.map(|s| s.unsent_up_to(until)).sum()
    }

    /// Returns everything left once no agent is waited for any more.
    pub fn rest(&mut self, plan: &Plan) -> Vec<MergedEvent> {
        (0..self.parts.len()).for_each(|member| self.lose(member));
        let mut rest: Vec<MergedEvent> = std::iter::from_fn(|| self.pop()).collect();
        // If no agent has reached the end of a phase, it ends as planned.
        let told = |rest: &[MergedEvent], phase| {
            rest.iter().any(|m| matches!(m, MergedEvent::PhaseEnd { phase: p, .. } if *p == phase))
        };
        for (phase, planned) in plan.phases.iter().enumerate() {
            let nobody = self.parts.iter().all(|p| !p.phases[phase].over);
            let begun = self.parts.iter().any(|p| p.phases[phase].reached > 0);
            let Some(duration) = planned.duration.filter(|_| nobody && !told(&rest, phase)) else { continue };
            let unsent = self.unsent(phase, duration.as_micros() as Micros);
            if unsent > 0 {
                let mut slice = Slice::new(phase as u16, self.handed_on[phase]);
                slice.counts.due = unsent;
                rest.push(MergedEvent::Second(Box::new(slice)));
            }
            if unsent > 0 || begun {
                rest.push(MergedEvent::PhaseEnd { phase, duration_us: duration.as_micros() as Micros, peak: 0 });
            }
        }
        rest
    }

    /// Returns the result of the whole run.
    #[must_use]
    pub fn finish(self, stopped: bool) -> CarrierResult {
        let mut carried = CarrierResult { stopped, ..CarrierResult::default() };
        let several = self.parts.len() > 1;
        for part in &self.parts {
            carried.reasons.extend(part.reasons(several));
            if let Some(end) = &part.end {
                add(&mut carried.generator, &end.generator);
            }
            carried.agents.push(part.report());
        }
        carried.reasons.sort_by_key(|r| std::cmp::Reverse(r.verdict));
        let answered: u64 = self.parts.iter().map(|p| p.counts.answered).sum();
        carried.generator.cpu_us_per_request =
            if answered == 0 { 0.0 } else { carried.generator.cpu_s * 1e6 / answered as f64 };
        carried.unreachable =
            self.parts.iter().all(|p| p.end.as_ref().is_some_and(|e| e.end == End::Unreachable)) && answered == 0;
        carried
    }
}

impl AgentPart {
    fn next_in_turn(&mut self) -> Option<Record> {
        let record = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(record)
    }

    /// Returns true if the agent has ended without completing its share.
    fn has_failed(&self) -> bool {
        self.state == AgentState::Over && !self.is_complete()
    }

    fn why_not_whole(&self) -> Option<String> {
        let in_order = self.asked_to_end && self.end.as_ref().is_some_and(|e| e.failed.is_none());
        let error = self.last_word.as_ref().filter(|_| !in_order).and_then(|(_, error)| error.clone());
        let error = self.fault.clone().or(error);
        let error = error.or_else(|| self.end.as_ref().and_then(|e| e.failed.clone()));
        error.or_else(|| self.late.then(|| "seconds of it came too late to be put where they belong".into()))
    }

    fn is_complete(&self) -> bool {
        self.state == AgentState::Over && self.end.is_some() && self.why_not_whole().is_none()
    }

    fn report(&self) -> AgentReport {
        let unsent: u64 = self.phases.iter().map(|s| s.unsent).sum();
        let counts = Counts { due: self.counts.due + unsent, ..self.counts };
        AgentReport {
            name: self.member.name.clone(),
            complete: self.is_complete(),
            requests: Requests::from(&counts),
            offset_us: self.member.offset_us,
            error_us: self.member.error_us,
            cpu_s: self.end.as_ref().map_or(0.0, |e| e.generator.cpu_s),
            weight: self.member.weight,
            here: self.member.is_here(),
            played_up_to: self.end.as_ref().and_then(|e| e.played_up_to),
            told_s: self.phases.iter().map(|s| u64::from(s.reached)).collect(),
        }
    }

    /// Returns what is wrong with its measurement.
    fn reasons(&self, several: bool) -> Vec<Reason> {
        let name = &self.member.name;
        let mut reasons = Vec::new();
        if !self.is_complete() {
            let told: u64 = self.phases.iter().map(|s| u64::from(s.reached)).sum();
            let unsent: u64 = self.phases.iter().map(|s| s.unsent).sum();
            let what = match self.why_not_whole() {
                Some(why) => format!("agent {name} did not do its part: {}", printable::lossless(why.as_bytes())),
                None => format!("agent {name} is lost: nothing was heard of it"),
            };
            reasons.push(Reason {
                rule: "agent-lost".into(),
                verdict: Verdict::Invalid,
                what: format!(
                    "{what} after {told} s; {unsent} requests of its share are unsent (the server may have seen more)"
                ),
                advice: "look at that machine and run again; what it tells later is added to the kept run".into(),
            });
        }
        let of_machine =
            self.end.iter().flat_map(|e| &e.reasons).filter(|r| lastdrop_diagnose::is_of_generator(&r.rule));
        reasons.extend(of_machine.map(|r| {
            let text = |text: &str| printable::lossless(text.as_bytes());
            let of = if several { format!("agent {name}: ") } else { String::new() };
            Reason { what: format!("{of}{}", text(&r.what)), advice: text(&r.advice), ..r.clone() }
        }));
        reasons
    }
}

/// Adds what another machine used.
fn add(sum: &mut Generator, one: &Generator) {
    sum.cpu_s += one.cpu_s;
    sum.peak_rss_bytes += one.peak_rss_bytes;
    sum.threads += one.threads;
    sum.saturated |= one.saturated;
    sum.busiest_thread_cores = sum.busiest_thread_cores.max(one.busiest_thread_cores);
    sum.thread_cores.extend(&one.thread_cores);
    for (sum, one) in [
        (&mut sum.connect_errors, &one.connect_errors),
        (&mut sum.protocol_errors, &one.protocol_errors),
        (&mut sum.page_errors, &one.page_errors),
        (&mut sum.looked_at, &one.looked_at),
        (&mut sum.doubts, &one.doubts),
    ] {
        for (what, n) in one {
            *sum.entry(printable::lossless(what.as_bytes())).or_insert(0) += n;
        }
    }
    let escaped = |all: &Vec<String>| all.iter().map(|what| printable::lossless(what.as_bytes())).collect();
    sum.unverified = sum.unverified.take().or_else(|| one.unverified.as_ref().map(escaped));
    sum.shortage.add(one.shortage);
    // The smallest limit and the worst condition of all machines.
    let least = |a: u64, b: u64| if a == 0 { b } else { a.min(b) };
    sum.descriptor_limit = least(sum.descriptor_limit, one.descriptor_limit);
    sum.local_ports = least(sum.local_ports, one.local_ports);
    sum.time_wait = sum.time_wait.max(one.time_wait);
    let most = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    sum.throttled_s = most(sum.throttled_s, one.throttled_s);
    sum.steal = most(sum.steal, one.steal);
    if one.clock_step_s.abs() > sum.clock_step_s.abs() {
        sum.clock_step_s = one.clock_step_s;
    }
    sum.suspended_s = sum.suspended_s.max(one.suspended_s);
    sum.co_located |= one.co_located;
    sum.processors += one.processors;
    sum.others_cores = match (sum.others_cores, one.others_cores) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    sum.others.extend(one.others.iter().cloned());
}
