//! The search: tries the most promising settings until none is promising, or the budget is used up.

use std::collections::BTreeMap;
use std::time::Duration;

use lastdrop_model::documents::{Baseline, Goal, SettingEffect, Trial};
use lastdrop_model::event::{ExperimentDecision, Lead, Stage};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_duration;
use lastdrop_model::{Event, KeepAlive, Plan, Role, Setting, Settings};
use lastdrop_server::{EffectiveSettings, Server};
use lastdrop_tune::frontier::undominated;
use lastdrop_tune::race::LEAST_ANSWERS;
use lastdrop_tune::{Effect, ExpectedImprovement, Finals, History, Point, Space, Strategy};

use super::space::{PreparedSearch, ROOM};
use super::{LONGEST_BLOCK, PROBE, Tuning};
use crate::lab::LabError;
use crate::lab::clock::Stopwatch;
use crate::trials::early_stop::EarlyStop;
use crate::trials::trial::TrialResult;

/// A search ends when the next trial promises less than this (natural logarithm).
const WORTH: f64 = 0.0015;
/// Assumed noise of a trial (standard deviation of the logarithm) before it is measured, and the number of measurements
/// that the assumption counts as.
const NOISE: f64 = 0.01;
/// With less noise, settings that trials cannot tell apart are equally good, and no finals are held.
pub(super) const QUIET: f64 = 0.025;
const NOISE_COUNTS: f64 = 2.0;
/// Factor by which a block without any response is lengthened.
const LONGER: f64 = 10.0;
/// Offset of the seed in the finals.
const FINAL_SEED: u64 = 1000;
/// Penalty of an invalid final trial (natural logarithm).
const OUT: f64 = 1.0;
/// Trials that measure KeepAlive.
pub(super) const ADVICE_TRIALS: usize = 2;
/// The baseline is measured again after this many trials.
pub(super) const BASELINE_EVERY: usize = 8;

impl Tuning<'_, '_> {
    /// Returns the settings to race against the baseline.
    pub(super) fn search(
        &mut self,
        prepared: PreparedSearch,
        fixed: &Settings,
        effective: &EffectiveSettings,
        budget: Option<u64>,
    ) -> Result<Option<Settings>, LabError> {
        let PreparedSearch { space, moves, .. } = prepared;
        let mut strategy = ExpectedImprovement::new(self.seed, moves, WORTH);
        let mut history = History { noise: NOISE, ..History::default() };
        let (began, start) = (Stopwatch::start(self.lab.clock), space.start());
        let mut measured_as: BTreeMap<Settings, Option<f64>> = BTreeMap::new();
        let (mut trials, mut cut_short) = (0, Vec::new());
        while self.trials_left() > self.kept_for_finals(history.noise) + self.kept_for_advice() && self.has_time(began)
        {
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
            // Another point gives the same settings, such as the present pool size.
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
            self.early_stop = self.early_stop_of(&history);
        }
        let left = FinalsInput { began, cut_short };
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

    /// Returns true if another trial may begin.
    fn has_time(&self, began: Stopwatch<'_>) -> bool {
        self.order.time.is_none_or(|time| began.elapsed() < time)
    }

    /// Reports which settings lead the baseline. The best of many is partly the luckiest; the race shows its real gain.
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

    /// Returns the best mean so far, which a trial has to be able to reach; only if good responses per second are the
    /// goal.
    fn early_stop_of(&self, history: &History) -> Option<EarlyStop> {
        let counts = self.order.goal == Goal::Throughput && !self.order.searches_rates();
        let best = history.points().into_iter().filter_map(|p| Some(history.mean(p)?.0)).reduce(f64::max)?;
        counts.then(|| EarlyStop { best_rps: best.exp(), noise: history.noise, block_s: self.block().as_secs_f64() })
    }

    /// Measures again some of the settings that trials cannot tell apart, in another order of requests, each on a fresh
    /// start.
    fn finals(
        &mut self,
        space: &Space,
        history: &mut History,
        strategy: &ExpectedImprovement,
        left: &FinalsInput<'_>,
        fixed: &Settings,
        budget: Option<u64>,
    ) -> Result<Option<Point>, LabError> {
        let mut ranked = strategy.ranked(space, history);
        ranked.retain(|p| *p != space.start() && !left.cut_short.contains(p));
        // Points with the same settings are one finalist.
        let mut seen = Vec::new();
        ranked.retain(|p| {
            let settings = self.stack.complete(&space.settings(p)).unwrap_or_default();
            let new = !seen.contains(&settings);
            seen.push(settings);
            new
        });
        let plan = Plan { seed: self.seed.wrapping_add(FINAL_SEED), ..self.plan.clone() };
        let left_for_finals = match self.kept_for_finals(history.noise) {
            0 => 0,
            _ => self.trials_left().saturating_sub(self.kept_for_advice()),
        };
        let mut finals = Finals::new(ranked, history, left_for_finals);
        while self.has_time(left.began)
            && let Some(point) = finals.next(|| strategy.ranked(space, history))
        {
            let settings = [space.settings(&point), fixed.clone()].into_iter().flatten().collect();
            let settings = self.stack.complete(&settings)?;
            let trial = self.measure(&settings, "final", &plan, budget)?.trial;
            let measure = self.order.goal.measure(&trial).filter(|m| trial.valid && *m > 0.0);
            let value = measure.map(|m| self.order.goal.goodness(m).ln());
            // An invalid trial puts its settings out.
            let out = || history.mean(&point).map(|(mean, _)| mean - OUT);
            let value = value.or_else(out);
            history.trials.push((point, value));
        }
        Ok(finals.winner().cloned())
    }

    /// Warns about a small pool: it looks best under a load from nearby, which has no slow clients.
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

    /// Measures the server with its present settings, without a memory limit. The first of these measurements lengthens
    /// blocks until they have enough responses.
    fn baseline(&mut self) -> Result<TrialResult, LabError> {
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

    /// Measures the server with its present settings until a block has enough responses, and makes all blocks as long.
    fn long_enough(&mut self, role: &str, plan: &Plan) -> Result<TrialResult, LabError> {
        let mut plan = plan.clone();
        loop {
            let measured = self.measure(&Settings::new(), role, &plan, None)?;
            let (answers, block) = (self.answers(measured.trial.objective), self.block());
            if answers >= LEAST_ANSWERS || block >= LONGEST_BLOCK {
                return Ok(measured);
            }
            let factor = if answers == 0 { LONGER } else { 1.25 * LEAST_ANSWERS as f64 / answers as f64 };
            // Rounded up to a tenth of a second, for readability.
            let longer = Duration::from_millis((block.mul_f64(factor).as_millis() as u64).next_multiple_of(100));
            let longer = longer.min(LONGEST_BLOCK);
            let (short, long) = (show_duration(block), show_duration(longer));
            let note = format!(
                "a block of {short} has {answers} answers: blocks are {long} long, for at least {LEAST_ANSWERS}"
            );
            self.decided(ExperimentDecision::LongerBlocks, note);
            self.repeated += 1;
            if let Some(trial) = self.document.trials.last_mut() {
                (trial.valid, trial.why) = (false, format!("{answers} answers in {short} are too few"));
            }
            for phase in self.plan.phases.iter_mut().chain(&mut plan.phases) {
                phase.duration = Some(longer);
            }
        }
    }

    /// Measures KeepAlive on the best settings with clients that keep their connections; a load with a connection per
    /// request cannot show its effect. The result is reported as advice: the race does not prove it.
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

/// What the search passes to its finals.
struct FinalsInput<'a> {
    /// When the search began.
    began: Stopwatch<'a>,
    /// Excluded points, whose trials were cut short.
    cut_short: Vec<Point>,
}

fn shown(space: &Space, e: &Effect) -> SettingEffect {
    let p = &space.parameters[e.parameter];
    let [value, other] = [e.level, e.other].map(|level| p.levels[level].to_string());
    SettingEffect { name: p.name.clone(), value, other, ratio: e.ratio, interval: [e.low, e.high] }
}

/// Returns the trials that are not dominated in throughput, p99 and memory together, each set of settings once.
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

/// Returns the standard deviation of a trial's value, from the baseline trials and the assumed noise.
fn noise(history: &History, start: &Point) -> f64 {
    let values: Vec<f64> = history.trials.iter().filter(|(p, _)| p == start).filter_map(|(_, value)| *value).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let free = values.len().saturating_sub(1) as f64;
    ((NOISE_COUNTS * NOISE * NOISE + squares) / (NOISE_COUNTS + free)).sqrt()
}
