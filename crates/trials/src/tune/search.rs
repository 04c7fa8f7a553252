//! The search: trials of what promises most, until nothing does or the budget is used up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lastdrop_model::documents::{Baseline, Goal, SettingEffect, Trial};
use lastdrop_model::event::{ExperimentDecision, Lead, Stage};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_duration;
use lastdrop_model::{Event, KeepAlive, Plan, Role, Setting, Settings};
use lastdrop_server::{EffectiveSettings, Server};
use lastdrop_tune::frontier::undominated;
use lastdrop_tune::race::LEAST_ANSWERS;
use lastdrop_tune::{Effect, Expected, Finals, History, Point, Space, Strategy};

use super::space::{Prepared, ROOM};
use super::{LONGEST_BLOCK, PROBE, Tuning};
use crate::bar::Bar;
use crate::trial::Measured;
use lastdrop_lab::LabError;

/// A search is over when the next trial promises less than this (natural logarithm).
const WORTH: f64 = 0.0002;
/// What is taken for the noise of a trial (standard deviation of the logarithm) before there are measurements of it, and for how
/// many of these it counts.
const NOISE: f64 = 0.05;
const NOISE_COUNTS: f64 = 2.0;
/// How much longer a block without an answer gets.
const LONGER: f64 = 10.0;
/// The order of requests in the last trials.
const FINAL_SEED: u64 = 1000;
/// By how much a trial that does not count is behind (natural logarithm).
const OUT: f64 = 1.0;
/// Trials that show what KeepAlive is worth.
pub(super) const ADVICE_TRIALS: usize = 2;
/// The server as it is is measured once more after so many trials.
pub(super) const BASELINE_EVERY: usize = 8;

impl Tuning<'_, '_> {
    /// The settings to race against the server as it is.
    pub(super) fn search(
        &mut self,
        prepared: Prepared,
        fixed: &Settings,
        effective: &EffectiveSettings,
        budget: Option<u64>,
    ) -> Result<Option<Settings>, LabError> {
        let Prepared { space, moves, .. } = prepared;
        let mut strategy = Expected::new(self.seed, moves, WORTH);
        let mut history = History { noise: NOISE, ..History::default() };
        let (began, start) = (Instant::now(), space.start());
        let mut measured_as: BTreeMap<Settings, Option<f64>> = BTreeMap::new();
        let (mut trials, mut cut_short) = (0, Vec::new());
        let kept = self.kept_for_finals() + self.kept_for_advice();
        while self.trials_left() > kept && self.has_time(began) {
            let again = trials % BASELINE_EVERY == 1 && trials > 1;
            let Some(point) = (if again { Some(start.clone()) } else { strategy.next(&space, &history) }) else {
                break;
            };
            let is_start = point == start;
            let mut settings = space.settings(&point);
            if !is_start {
                settings.extend(fixed.clone());
            }
            let settings = self.stack.complete(&settings)?;
            // Another point comes to the same, such as the present pool size.
            if let Some(known) = measured_as.get(&settings).filter(|_| !is_start) {
                history.trials.push((point, *known));
                continue;
            }
            trials += 1;
            let measured = if is_start {
                self.baseline()?
            } else {
                let plan = self.plan.clone();
                self.measure(&settings, "search", &plan, budget)?
            };
            let trial = &measured.trial;
            if is_start && self.document.baseline.is_none() {
                self.document.baseline = Some(Baseline {
                    settings: effective.settings.clone(),
                    objective: trial.objective,
                    p99_us: trial.p99_us,
                    run: trial.run.clone(),
                });
            }
            let counts = trial.valid || trial.cut_short;
            let measure = self.order.goal.measure(trial).filter(|m| counts && *m > 0.0);
            let value = measure.map(|m| self.order.goal.goodness(m).ln());
            if trial.cut_short {
                cut_short.push(point.clone());
            }
            measured_as.insert(settings, value);
            history.trials.push((point, value));
            history.noise = noise(&history, &start);
            self.tell_lead(&space, &history, &start);
            self.bar = self.bar_of(&history);
        }
        let left = Left { began, cut_short };
        let Some(point) = self.finals(&space, &mut history, &strategy, &left, fixed, budget)? else {
            return Ok(None);
        };
        let point = strategy.plain(&space, &history, &point);
        self.say_room(&space, &point);
        let effects = strategy.effects(&space, &history, &point);
        self.document.effects = effects.into_iter().map(|e| shown(&space, &e)).collect();
        self.document.undominated = worth_a_thought(&self.document.trials);
        let settings = [space.settings(&point), fixed.clone()].into_iter().flatten().collect();
        Ok(Some(settings))
    }

    /// May another trial begin?
    fn has_time(&self, began: Instant) -> bool {
        self.order.time.is_none_or(|time| began.elapsed() < time)
    }

    /// Tells who is ahead of the server as it is. The best of many is the luckiest of them, too: what it is worth is for the
    /// race to say.
    fn tell_lead(&mut self, space: &Space, history: &History, start: &Point) {
        let values = |of: &Point| -> Vec<f64> {
            history.trials.iter().filter(|(point, _)| point == of).filter_map(|(_, value)| *value).collect()
        };
        let measured = history.trials.iter().filter_map(|(point, value)| Some((point, (*value)?)));
        let best = measured.filter(|(point, _)| *point != start).max_by(|a, b| a.1.total_cmp(&b.1));
        let (Some((best, _)), theirs) = (best, values(start)) else { return };
        let ours = values(best);
        if theirs.is_empty() {
            return;
        }
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let gain = mean(&ours) - mean(&theirs);
        let error = history.noise * (1.0 / ours.len() as f64 + 1.0 / theirs.len() as f64).sqrt();
        let lead = Lead {
            what: describe(&space.settings(best)).into(),
            ratio: gain.exp(),
            // 95 % of a normal distribution.
            interval: Some([(gain - 1.96 * error).exp(), (gain + 1.96 * error).exp()]),
            times: self.order.goal.times().into(),
            rests_on: format!("{} trials", history.trials.len()).into(),
        };
        self.lab.tell(&Event::Leading { lead });
    }

    /// What a trial has to be able to reach: the best mean so far, where good answers a second are what counts.
    fn bar_of(&self, history: &History) -> Option<Bar> {
        let counts = self.order.goal == Goal::Throughput && !self.order.searches_rates();
        let best = history.points().into_iter().filter_map(|p| Some(history.mean(p)?.0)).reduce(f64::max)?;
        counts.then(|| Bar { best_rps: best.exp(), noise: history.noise, block_s: self.block().as_secs_f64() })
    }

    /// Of those that trials cannot tell apart some are measured again in another order of requests, each on a fresh start.
    fn finals(
        &mut self,
        space: &Space,
        history: &mut History,
        strategy: &Expected,
        left: &Left,
        fixed: &Settings,
        budget: Option<u64>,
    ) -> Result<Option<Point>, LabError> {
        let mut ranked = strategy.ranked(space, history);
        ranked.retain(|p| *p != space.start() && !left.cut_short.contains(p));
        // What comes to the same is one finalist.
        let mut seen = Vec::new();
        ranked.retain(|p| {
            let settings = self.stack.complete(&space.settings(p)).unwrap_or_default();
            let new = !seen.contains(&settings);
            seen.push(settings);
            new
        });
        let plan = Plan { seed: self.seed.wrapping_add(FINAL_SEED), ..self.plan.clone() };
        let mut finals = Finals::new(ranked, history, self.trials_left().saturating_sub(self.kept_for_advice()));
        while self.has_time(left.began)
            && let Some(point) = finals.next(|| strategy.ranked(space, history))
        {
            let settings = [space.settings(&point), fixed.clone()].into_iter().flatten().collect();
            let settings = self.stack.complete(&settings)?;
            let trial = self.measure(&settings, "final", &plan, budget)?.trial;
            let measure = self.order.goal.measure(&trial).filter(|m| trial.valid && *m > 0.0);
            let value = measure.map(|m| self.order.goal.goodness(m).ln());
            // One that does not count is out.
            let out = || history.mean(&point).map(|(mean, _)| mean - OUT);
            let value = value.or_else(out);
            history.trials.push((point, value));
        }
        Ok(finals.winner().cloned())
    }

    /// A small pool looks best under a load from next door, which has no slow clients.
    fn say_room(&mut self, space: &Space, point: &Point) {
        let room = ROOM * self.stack.pool().map_or(1, Server::cores);
        let pools = self.stack.knobs(Role::PoolSize);
        let small = |(name, value): &(String, Setting)| {
            let count = value.count().and_then(|n| u64::try_from(n).ok());
            pools.iter().any(|(pool, ..)| pool == name) && count.is_some_and(|n| n < room)
        };
        let Some((name, value)) = space.settings(point).into_iter().find(small) else { return };
        self.document.notes.push(format!(
            "{name} {value} is what is best for this load; visitors with slow links hold a worker each for longer: leave \
             room for them, such as {room}, or have nginx or HAProxy before it"
        ));
    }

    /// The server as it is, whatever memory it uses: it is what it is. With the first of these measurements blocks become
    /// as long as it takes for enough answers.
    fn baseline(&mut self) -> Result<Measured, LabError> {
        let first = self.document.baseline.is_none();
        if self.order.searches_rates() {
            if first {
                self.long_enough(PROBE, &Plan { objectives: Vec::new(), ..self.plan.clone() })?;
            }
            let plan = self.plan.clone();
            return self.measure(&Settings::new(), "baseline", &plan, None);
        }
        let plan = self.plan.clone();
        if first {
            self.long_enough("baseline", &plan)
        } else {
            self.measure(&Settings::new(), "baseline", &plan, None)
        }
    }

    /// Measures the server as it is until a block has enough answers, and makes all blocks as long.
    fn long_enough(&mut self, role: &str, plan: &Plan) -> Result<Measured, LabError> {
        let mut plan = plan.clone();
        loop {
            let measured = self.measure(&Settings::new(), role, &plan, None)?;
            let (answers, block) = (self.answers(measured.trial.objective), self.block());
            if answers >= LEAST_ANSWERS || block >= LONGEST_BLOCK {
                return Ok(measured);
            }
            let factor = if answers == 0 { LONGER } else { 1.25 * LEAST_ANSWERS as f64 / answers as f64 };
            // To the next tenth of a second: a number that people can read.
            let longer = Duration::from_millis((block.mul_f64(factor).as_millis() as u64).next_multiple_of(100));
            let longer = longer.min(LONGEST_BLOCK);
            let (short, long) = (show_duration(block), show_duration(longer));
            let note = format!(
                "a block of {short} has {answers} answers: blocks are {long} long, for at least {LEAST_ANSWERS}"
            );
            self.decided(ExperimentDecision::LongerBlocks, note);
            if let Some(trial) = self.document.trials.last_mut() {
                (trial.valid, trial.why) = (false, format!("{answers} answers in {short} are too few"));
            }
            for phase in self.plan.phases.iter_mut().chain(&mut plan.phases) {
                phase.duration = Some(longer);
            }
        }
    }

    /// A load that opens a connection for each request cannot tell what KeepAlive is worth. It is tried with clients
    /// that keep theirs, on the best settings, and told as advice: the race does not prove it.
    pub(super) fn advise_keepalive(&mut self, settings: &Settings, effective: &Settings) -> Result<(), LabError> {
        let (Some((name, knob)), KeepAlive::Off) = (self.stack.knob(Role::KeepAlive), self.plan.keepalive) else {
            return Ok(());
        };
        if self.trials_left() < ADVICE_TRIALS {
            return Ok(());
        }
        let objectives = if self.order.searches_rates() { Vec::new() } else { self.plan.objectives.clone() };
        let plan = Plan { keepalive: KeepAlive::On, objectives, ..self.plan.clone() };
        let now_on = self.stack.value(Role::KeepAlive, effective).is_some_and(|s| s.is_on());
        self.lab.tell(&Event::Stage { stage: Stage::KeepAlive });
        let mut rates = Vec::new();
        for on in [now_on, !now_on] {
            let mut with = settings.clone();
            with.insert(name.clone(), knob.switched(on));
            let t = self.measure(&with, "advice", &plan, None)?.trial;
            rates.push(if t.valid { t.objective } else { 0.0 });
        }
        let word = |on| knob.switched(on);
        let note = format!(
            "{}: with clients that keep their connections {} gives {:.1}/s and {} {:.1}/s; the race was run with a \
             connection for each request, which cannot tell: to have it searched and proven, --keepalive on",
            name,
            word(now_on),
            rates[0],
            word(!now_on),
            rates[1],
        );
        self.document.notes.push(note);
        Ok(())
    }
}

/// What a search leaves to its finals.
struct Left {
    /// When the search began.
    began: Instant,
    /// Points that are out of it: their trials were cut short.
    cut_short: Vec<Point>,
}

fn shown(space: &Space, e: &Effect) -> SettingEffect {
    let p = &space.parameters[e.parameter];
    let [value, other] = [e.level, e.other].map(|level| p.levels[level].to_string());
    SettingEffect { name: p.name.clone(), value, other, ratio: e.ratio, interval: [e.low, e.high] }
}

/// Trials that none is better than in throughput, p99 and memory at once, each settings once.
fn worth_a_thought(trials: &[Trial]) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut first = |t: &Trial| {
        let new = t.valid && !seen.contains(&t.settings);
        seen.push(t.settings.clone());
        new
    };
    let counted: Vec<usize> = (0..trials.len()).filter(|i| first(&trials[*i])).collect();
    let respects = |t: &Trial| {
        let memory = t.real_memory_bytes.map_or(f64::NAN, |bytes| -(bytes as f64));
        vec![t.objective, -t.p99_us, memory]
    };
    let all: Vec<Vec<f64>> = counted.iter().map(|i| respects(&trials[*i])).collect();
    undominated(&all).into_iter().map(|i| counted[i]).collect()
}

/// Standard deviation of a trial's value, from the trials of the server as it is and what is assumed without them.
fn noise(history: &History, start: &Point) -> f64 {
    let values: Vec<f64> = history.trials.iter().filter(|(p, _)| p == start).filter_map(|(_, value)| *value).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let free = values.len().saturating_sub(1) as f64;
    ((NOISE_COUNTS * NOISE * NOISE + squares) / (NOISE_COUNTS + free)).sqrt()
}
