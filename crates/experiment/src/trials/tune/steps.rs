//! Tunes servers that are in use: one setting at a time in small steps, judged by the visitors' latency.
//!
//! No load is generated except what the user gave. So the visitors determine the throughput, and settings change the
//! time of their requests. A step multiplies or divides a value by 1.5, or takes the next of a few values. It is
//! compared with the previous settings in pairs of blocks (before, step, step, before …), since visitors differ from
//! minute to minute. A block in which they fare worse ends at once, and so does the step. A step that is shown to be
//! better stays in force for the following steps. At the end all accepted steps together are compared once more with
//! the original settings, because the best of many tries is partly the luckiest.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::lab::LabError;
use crate::lab::clock::Stopwatch;
use crate::observe::visitors::Visitors;
use lastdrop_analyze::ratio::{self, Ratio};
use lastdrop_model::documents::{Baseline, Goal, LiveTuning, Pair, Trial, TuneStep, TuneVerdict, Winner};
use lastdrop_model::event::{ExperimentDecision, Outcome, Stage, TrialBegan};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_us;
use lastdrop_model::{Event, Experience, ReloadClass, Role, Setting, Settings};
use lastdrop_server::ServerError;
use lastdrop_tune::race::RatioInterval;
use lastdrop_tune::{Decision, Parameter, Race, RaceVerdict, RegressionDetector};

use super::race::{MIN_PAIRS, diff};
use super::visits::{SharedCell, UserMetricSource, UserSampler, UserSamples};
use super::{LONGEST_BLOCK, SearchSetup, Tuning};

/// Factor by which a number moves in one step.
const FACTOR: f64 = 1.5;
/// Fewest requests in a block, unless it has reached the maximum length.
const LEAST_REQUESTS: u64 = 50;
/// The quantile that is compared, by the number of requests in a block: a block cannot measure rarer events.
const COMPARED: [(u64, f64, &str); 3] = [(1000, 0.99, "p99"), (200, 0.95, "p95"), (0, 0.5, "p50")];
/// Most seconds of the previous settings that a detector is given.
const REMEMBERED: usize = 120;
/// Most blocks in a row without enough visitors to compare.
const MOST_EMPTY: usize = 3;
/// A visitor who waits so many times as long as 99 of 100 did is harmed, and so is one without an answer.
const HARMED: f64 = 3.0;
/// Reloads may harm this share of the visitors.
const MOST_HARMED: f64 = 0.01;

/// A block with some settings.
#[derive(Debug, Default)]
struct StepBlock {
    seconds: Vec<Experience>,
    /// The compared quantile in µs; None with too few requests.
    us: Option<f64>,
    worse: Option<String>,
}

/// The result of comparing two settings.
#[derive(Debug)]
struct StepComparison {
    verdict: RaceVerdict,
    ratio: Option<Ratio>,
    pairs: Vec<Pair>,
    /// Why the comparison was stopped early.
    worse: Option<String>,
}

struct LiveSteps<'t, 'a, 'b> {
    tuning: &'t mut Tuning<'a, 'b>,
    visitors: SharedCell<Visitors>,
    block: Duration,
    quantile: f64,
    /// Settings in force now, and the settings that steps start from.
    in_force: Settings,
    current: Settings,
    /// The latest seconds with `current`.
    remembered: Vec<Experience>,
    /// The latest seconds with the original settings.
    as_it_was: Vec<Experience>,
    began: Stopwatch<'b>,
    /// Why no more steps are made: applying settings costs visitors their responses, whatever the settings are.
    hurts: Option<String>,
}

impl Tuning<'_, '_> {
    /// Tunes by the visitors' latency.
    pub(super) fn steps(&mut self, visitors: Visitors) -> Result<(), LabError> {
        let Some(SearchSetup { sizes, constraints, mut prepared }) = self.ready()? else { return Ok(()) };
        self.document.goal = Goal::Latency;
        let by = visitors.by().to_string();
        let needs = |name: &str| self.stack.all_knobs().into_iter().find(|(known, ..)| known == name).map(|k| k.1);
        let gentle = |p: &Parameter| {
            constraints.names(&p.name) || needs(&p.name).is_some_and(|knob| knob.needs != ReloadClass::Restart)
        };
        for s in prepared.searched.iter_mut().filter(|s| !s.values.is_empty()) {
            if prepared.space.parameters.iter().any(|p| p.name == s.name && !gentle(p)) {
                s.values.clear();
                s.reason = format!("it needs a restart, which visitors would notice; --only {} tries it", s.name);
            }
        }
        let parameters: Vec<Parameter> = prepared.space.parameters.iter().filter(|p| gentle(p)).cloned().collect();
        let most = |p: &Parameter| {
            let pool = self.stack.knobs(Role::PoolSize).into_iter().find(|(name, ..)| *name == p.name)?;
            let size = sizes.iter().find(|(place, _)| *place == pool.2.place())?;
            Some(size.1.fitting() * size.1.threads_per_worker)
        };
        let bounds: Vec<(u64, u64)> = parameters
            .iter()
            .map(|p| {
                let (low, high) = constraints.range(&p.name).unwrap_or((1, u64::MAX));
                (low, high.min(most(p).unwrap_or(u64::MAX)))
            })
            .collect();
        self.document.searched.clone_from(&prepared.searched);
        self.document.planned = Some(self.plan_steps());
        let fixed = constraints.fixed.clone();
        self.lab.tell(&Event::Stage { stage: Stage::Steps });
        let (block, began) = (self.block(), Stopwatch::start(self.lab.clock));
        let mut steps = LiveSteps {
            tuning: self,
            visitors: Rc::new(RefCell::new(visitors)),
            block,
            quantile: 0.5,
            in_force: Settings::new(),
            current: Settings::new(),
            remembered: Vec::new(),
            as_it_was: Vec::new(),
            began,
            hurts: None,
        };
        steps.begin(by)?;
        if !fixed.is_empty() {
            steps.step("--fix", &fixed, "as it was", &describe(&fixed))?;
        }
        steps.walk(&parameters, &bounds)?;
        steps.prove()
    }
}

impl LiveSteps<'_, '_, '_> {
    /// Measures the original settings: how long a block has to be, and which quantile can be compared.
    fn begin(&mut self, by: String) -> Result<(), LabError> {
        let first = loop {
            let block = self.see(&Settings::new(), "baseline", None)?;
            let requests = Experience::sum(&block.seconds).requests;
            if requests >= LEAST_REQUESTS || self.block >= LONGEST_BLOCK {
                break block;
            }
            let factor = if requests == 0 { 10.0 } else { 1.25 * LEAST_REQUESTS as f64 / requests as f64 };
            let longer = self.block.mul_f64(factor.max(1.1)).min(LONGEST_BLOCK);
            self.block = Duration::from_millis((longer.as_millis() as u64).next_multiple_of(100));
        };
        let seen = Experience::sum(&first.seconds);
        let compared = COMPARED.iter().find(|(least, ..)| seen.latency.count() >= *least);
        let (_, quantile, name) = *compared.unwrap_or(&COMPARED[2]);
        self.quantile = quantile;
        self.remembered = first.seconds;
        let document = &mut *self.tuning.document;
        document.baseline = Some(Baseline {
            settings: self.tuning.stack.original().settings.clone(),
            objective: seen.requests as f64 / seen.seconds.max(1e-3),
            p99_us: seen.latency.quantile(0.99) as f64,
            run: String::new(),
        });
        document.visited = Some(LiveTuning { by, compared: name.into(), before: seen.metrics(), steps: Vec::new() });
        Ok(())
    }

    /// Moves one setting after the other as long as that is better.
    fn walk(&mut self, parameters: &[Parameter], bounds: &[(u64, u64)]) -> Result<(), LabError> {
        let began = Stopwatch::start(self.tuning.lab.clock);
        for (p, bounds) in parameters.iter().zip(bounds) {
            let mut tried = vec![self.value(p)];
            for up in [true, false] {
                let from = self.value(p);
                while let Some(to) = next(p, &self.value(p), up, *bounds, &tried) {
                    let steps = self.tuning.document.visited.as_ref().map_or(0, |v| v.steps.len());
                    let order = self.tuning.order;
                    if self.hurts.is_some() {
                        return Ok(());
                    }
                    if steps >= order.trials as usize || order.time.is_some_and(|time| began.elapsed() >= time) {
                        return Ok(());
                    }
                    tried.push(to.clone());
                    let now = self.value(p).to_string();
                    let change = Settings::from([(p.name.clone(), to.clone())]);
                    let taken = self.step(&p.name, &change, &now, &to.to_string())?;
                    // Of a few values any may be the best; a number is left once moving it further does not help.
                    if !taken && to.count().is_some() {
                        break;
                    }
                }
                // If moving one way was better, the other way is not tried.
                if self.value(p) != from {
                    break;
                }
            }
        }
        Ok(())
    }

    fn value(&self, p: &Parameter) -> Setting {
        self.current.get(&p.name).unwrap_or(&p.levels[p.present]).clone()
    }

    /// Makes one step; returns true if it is better and stays in force.
    fn step(&mut self, name: &str, change: &Settings, from: &str, to: &str) -> Result<bool, LabError> {
        let mut settings = self.current.clone();
        settings.extend(change.clone());
        let settings = self.tuning.stack.complete(&settings)?;
        let current = self.current.clone();
        let mut step = TuneStep { name: name.into(), from: from.into(), to: to.into(), ..TuneStep::default() };
        match self.compare(&current, &settings, "step") {
            Ok(compared) => {
                (step.ratio, step.pairs) = (compared.ratio.map(|r| r.ratio), compared.pairs.len());
                step.interval = compared.ratio.map(|r| [r.low, r.high]);
                step.taken = compared.verdict == RaceVerdict::Improved;
                step.reason = match (compared.worse, compared.verdict, compared.ratio) {
                    (Some(worse), ..) => format!("put back at once: {worse}"),
                    (_, RaceVerdict::Improved, _) => "shown to be better".into(),
                    (.., Some(r)) if r.high < 1.0 => "worse".into(),
                    (_, RaceVerdict::NoGain, _) => "not shown to be better".into(),
                    _ => "cannot be told apart".into(),
                };
            }
            Err(LabError::Server(e)) if e.is_refusal() => step.reason = format!("refused: {e}"),
            Err(e) => return Err(e),
        }
        let taken = step.taken;
        if let Some(visited) = &mut self.tuning.document.visited {
            visited.steps.push(step);
        }
        if taken {
            self.current = settings;
        }
        let current = self.current.clone();
        self.bring(&current)?;
        Ok(taken)
    }

    /// Compares all accepted steps together with the original settings.
    fn prove(&mut self) -> Result<(), LabError> {
        let settings = self.current.clone();
        if let Some(hurts) = self.hurts.take() {
            (self.tuning.document.verdict, self.tuning.document.reason) = (TuneVerdict::Inconclusive, hurts);
            return Ok(());
        }
        if settings.is_empty() {
            let tried = self.tuning.document.visited.as_ref().is_some_and(|v| !v.steps.is_empty());
            (self.tuning.document.verdict, self.tuning.document.reason) = if tried {
                (TuneVerdict::NoGain, "no step was shown to be better for visitors".into())
            } else {
                let elapsed = self.began.elapsed();
                (
                    TuneVerdict::Inconclusive,
                    self.tuning
                        .nothing_tried(self.tuning.document.searched.iter().all(|s| s.values.is_empty()), elapsed),
                )
            };
            return Ok(());
        }
        self.tuning.lab.tell(&Event::Stage { stage: Stage::Race });
        self.remembered.clear();
        let compared = self.compare(&Settings::new(), &settings, "race")?;
        let effective = self.tuning.stack.original().clone();
        let document = &mut *self.tuning.document;
        let what = document.visited.as_ref().map_or_else(String::new, |v| v.compared.clone());
        let interval = |r: Ratio| {
            let Ratio { ratio, low, high, pairs } = r;
            format!(
                "{ratio:.2} times as short a {what} of visitors, between {low:.2} and {high:.2} with 95 % confidence, in {pairs} pairs"
            )
        };
        (document.verdict, document.reason) = match (compared.verdict, compared.worse, compared.ratio) {
            (_, Some(worse), _) => (TuneVerdict::NoGain, format!("all steps together made it worse: {worse}")),
            (RaceVerdict::Improved, _, Some(r)) => (TuneVerdict::Improved, interval(r)),
            (RaceVerdict::NoGain, _, Some(r)) => {
                (TuneVerdict::NoGain, format!("all steps together: {}: not shown to be worth it", interval(r)))
            }
            (_, _, Some(r)) => (TuneVerdict::Inconclusive, interval(r)),
            (.., None) => (TuneVerdict::Inconclusive, "too few visitors came to compare".into()),
        };
        document.diff = diff(&settings, &effective);
        let mean =
            |of: fn(&Pair) -> f64| compared.pairs.iter().map(of).sum::<f64>() / compared.pairs.len().max(1) as f64;
        let last = document.trials.iter().rev().find(|t| t.valid && t.settings == settings);
        document.winner = Some(Winner {
            p99_us: last.map_or(0.0, |t| t.p99_us),
            ratio: compared.ratio.map(|r| r.ratio),
            interval: compared.ratio.map(|r| [r.low, r.high]),
            objective: mean(|p| p.best),
            meets: None,
            memory: None,
            settings,
        });
        document.race = compared.pairs;
        let visitors = Rc::clone(&self.visitors);
        let before = std::mem::take(&mut self.as_it_was);
        if let Some(baseline) = &mut document.baseline {
            baseline.p99_us = Experience::sum(&before).latency.quantile(0.99) as f64;
        }
        self.tuning.visits = Some(UserMetricSource::Visitors { visitors, before });
        Ok(())
    }

    /// Measures pairs of blocks until it is clear which settings are better, or that `other` is worse.
    fn compare(&mut self, one: &Settings, other: &Settings, role: &str) -> Result<StepComparison, LabError> {
        let race = Race {
            min_pairs: MIN_PAIRS,
            max_pairs: (self.tuning.order.max_pairs as usize).max(MIN_PAIRS),
            worth: 1.0 + self.tuning.order.min_gain,
        };
        let mut c = StepComparison { verdict: RaceVerdict::Inconclusive, ratio: None, pairs: Vec::new(), worse: None };
        let mut empty = 0;
        while empty < MOST_EMPTY {
            // Shorter is better.
            let pairs: Vec<(f64, f64)> = c.pairs.iter().map(|p| (1.0 / p.baseline, 1.0 / p.best)).collect();
            let of = |confidence| ratio::paired(&pairs, confidence);
            let interval = |r: Ratio| RatioInterval { ratio: r.ratio, low: r.low, high: r.high };
            c.ratio = of(race.confidence(pairs.len()));
            let other_first = match race.decide(pairs.len(), of(0.99).map(interval), of(0.95).map(interval)) {
                Decision::Pair { best_first } => best_first,
                Decision::Stop(verdict) => {
                    c.verdict = verdict;
                    break;
                }
            };
            let mut us = [None; 2];
            for is_other in [other_first, !other_first] {
                let with = if is_other { other } else { one };
                let detector =
                    (is_other && !self.remembered.is_empty()).then(|| RegressionDetector::new(&self.remembered, 0.0));
                let block = self.see(with, role, detector)?;
                if block.worse.is_some() {
                    (c.worse, c.verdict) = (block.worse, RaceVerdict::NoGain);
                    return Ok(c);
                }
                us[usize::from(is_other)] = block.us;
                if !is_other {
                    remember(&mut self.remembered, &block.seconds);
                }
            }
            match us {
                [Some(baseline), Some(best)] => (empty, _) = (0, c.pairs.push(Pair { baseline, best })),
                _ => empty += 1,
            }
        }
        Ok(c)
    }

    /// Applies settings unless they are in force; returns true if it did.
    fn bring(&mut self, settings: &Settings) -> Result<bool, ServerError> {
        let others = self.in_force != *settings;
        if others {
            self.tuning.stack.apply(settings)?;
            self.in_force.clone_from(settings);
        }
        Ok(others)
    }

    /// Describes what visitors have lost by a reload, from the seconds during and after it.
    fn cost(&self, seconds: &[Experience]) -> Option<String> {
        let mut detector = RegressionDetector::new(&self.remembered, f64::INFINITY);
        let lost = seconds.iter().find_map(|second| detector.add(second.clone()))?;
        Some(format!(
            "a reload costs visitors their answers, so that no step is small: {lost}. PHP-FPM lets requests end with \
             process_control_timeout = 10s in [global]"
        ))
    }

    /// Lengthens the blocks so that reloads like this one harm few visitors. Returns why even the longest block is too short.
    fn spread(&mut self, seconds: &[Experience]) -> Option<String> {
        let (before, now) = (Experience::sum(&self.remembered), Experience::sum(seconds));
        // Nothing to compare with at the beginning of the race.
        if before.requests == 0 {
            return None;
        }
        let rate = before.requests as f64 / before.seconds.max(1e-3);
        let long_us = (HARMED * before.latency.quantile(0.99) as f64) as u64;
        let harmed = now.errors + now.latency.count_above(long_us);
        let needed = harmed as f64 / (MOST_HARMED * rate);
        if needed > LONGEST_BLOCK.as_secs_f64() {
            return Some(format!(
                "a reload makes {harmed} visitors wait longer than {} or get no answer, {rate:.0} come in a second: no step is small; try it \
                 when fewer come",
                show_us(long_us as f64)
            ));
        }
        self.block = self.block.max(Duration::from_secs_f64(needed.ceil()));
        None
    }

    /// Measures a block with these settings.
    fn see(
        &mut self,
        settings: &Settings,
        role: &str,
        detector: Option<RegressionDetector>,
    ) -> Result<StepBlock, LabError> {
        self.tuning.lab.check_stop()?;
        let began = TrialBegan {
            number: self.tuning.document.trials.len() as u64 + 1,
            role: role.into(),
            settings: std::borrow::Cow::Owned(settings.clone()),
            users: 0,
            duration: Some(self.block),
            url: self.tuning.plan.url.to_string().into(),
            ..TrialBegan::default()
        };
        self.tuning.lab.tell(&Event::TrialBegan { trial: began });
        let visitors = Rc::clone(&self.visitors);
        // Requests that a reload interrupts are counted with the reload.
        visitors.borrow_mut().look();
        let label = format!("tune {role}: {}", describe(settings));
        let detector = detector.map(|detector| Rc::new(RefCell::new(detector)));
        let load = self.tuning.order.beside_visitors.clone();
        let mut looking = UserSampler {
            visitors: Some(&visitors),
            load: None,
            time: self.tuning.order.settling,
            detector: None,
            label: &label,
        };
        // Measuring the settings starts after the reload; the cost of the reload is judged separately.
        let reload = Stopwatch::start(self.tuning.lab.clock);
        if self.bring(settings)? {
            let seen = visitors.borrow_mut().look();
            let mut seconds = vec![Experience { seconds: reload.elapsed().as_secs_f64(), ..seen }];
            seconds.extend(looking.look(self.tuning.lab, self.tuning.stack)?.seconds);
            self.hurts = self.hurts.take().or_else(|| self.cost(&seconds)).or_else(|| self.spread(&seconds));
        }
        if let Some(hurts) = &self.hurts {
            return Ok(StepBlock { worse: Some(hurts.clone()), ..StepBlock::default() });
        }
        (looking.load, looking.time, looking.detector) = (load.as_ref(), self.block, detector.as_ref());
        let UserSamples { seconds, worse, run } = looking.look(self.tuning.lab, self.tuning.stack)?;
        self.tuning.lab.check_stop()?;
        if settings.is_empty() {
            remember(&mut self.as_it_was, &seconds);
        }
        let seen = Experience::sum(&seconds);
        let enough = seen.latency.count() >= LEAST_REQUESTS / 2;
        let us = enough.then(|| seen.latency.quantile(self.quantile) as f64).filter(|us| *us > 0.0);
        if let Some(worse) = &worse {
            let reason = format!("{}: {worse}", describe(settings)).into();
            self.tuning.lab.tell(&Event::Decided { what: ExperimentDecision::GoBack, reason });
        }
        let trial = Trial {
            settings: settings.clone(),
            objective: seen.requests as f64 / seen.seconds.max(1e-3),
            valid: us.is_some() && worse.is_none(),
            why: worse.clone().unwrap_or_else(|| if enough { String::new() } else { "too few visitors came".into() }),
            p99_us: seen.latency.quantile(0.99) as f64,
            unanswered: seen.errors,
            real_memory_bytes: crate::trials::trial::memory(self.tuning.stack),
            warmed: String::new(),
            role: role.into(),
            keepalive: String::new(),
            run,
            repeated: 0,
            cut_short: worse.is_some(),
            steps: Vec::new(),
        };
        let outcome = Outcome::Tune { trial: std::borrow::Cow::Borrowed(&trial) };
        self.tuning.lab.tell(&Event::TrialDone { outcome });
        self.tuning.document.trials.push(trial);
        Ok(StepBlock { seconds, us, worse })
    }
}

/// Adds seconds and drops the oldest.
fn remember(seconds: &mut Vec<Experience>, more: &[Experience]) {
    seconds.extend(more.iter().cloned());
    seconds.drain(..seconds.len().saturating_sub(REMEMBERED));
}

/// Returns the next untried value of a setting in a direction.
fn next(p: &Parameter, now: &Setting, up: bool, bounds: (u64, u64), tried: &[Setting]) -> Option<Setting> {
    let Some(n) = now.count().filter(|n| *n > 0).and_then(|n| u64::try_from(n).ok()) else {
        return p.levels.iter().find(|level| !tried.contains(level)).cloned();
    };
    let moved = if up {
        ((n as f64 * FACTOR).floor() as u64).max(n + 1).min(bounds.1.max(n))
    } else {
        ((n as f64 / FACTOR).ceil() as u64).min(n.saturating_sub(1)).max(bounds.0.min(n)).max(1)
    };
    let moved = Setting::from(moved);
    (moved != *now && !tried.contains(&moved)).then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_moves_by_half_at_most_and_within_its_bounds() {
        let count = |n: u64| Setting::from(n);
        let p = Parameter::sizes("workers", 1, 64, 1, 4);
        let next = |now: u64, up: bool, bounds: (u64, u64)| next(&p, &count(now), up, bounds, &[]);
        assert_eq!(next(4, true, (1, u64::MAX)), Some(count(6)));
        assert_eq!(next(1, true, (1, u64::MAX)), Some(count(2)), "one more at least");
        assert_eq!(next(6, true, (1, 7)), Some(count(7)), "what still fits");
        assert_eq!(next(7, true, (1, 7)), None);
        assert_eq!(next(9, true, (1, 7)), None, "one that is beyond stays");
        assert_eq!(next(6, false, (1, u64::MAX)), Some(count(4)));
        assert_eq!((next(1, false, (1, 9)), next(2, false, (1, 9))), (None, Some(count(1))));
        assert_eq!(super::next(&p, &count(4), true, (1, 99), &[count(6)]), None, "tried already");
        let switch = Parameter::kinds("keepalive", vec!["on".into(), "off".into()], 0);
        assert_eq!(super::next(&switch, &"on".into(), true, (1, 9), &["on".into()]), Some("off".into()));
    }
}
