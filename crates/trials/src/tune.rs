//! From a server as it is to settings that are proven better: baseline, search, race, verdict, and everything back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lastdrop_analyze::ratio::{self, Ratio};
use lastdrop_model::documents::{Baseline, Pair, SizeDocument, TUNE_SCHEMA, TuneDocument, TuneVerdict, Winner};
use lastdrop_model::event::{Decided, Document, Outcome, Stage, TrialBegan};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_duration};
use lastdrop_model::{Event, KeepAlive, Plan, Role, Setting, Settings};
use lastdrop_probe::host::cpus;
use lastdrop_server::{Effective, Restored, Stack};
use lastdrop_tune::race::{LEAST_ANSWERS, RatioInterval, are_divisible, is_clear};
use lastdrop_tune::{Decision, Expected, History, Point, Race, RaceVerdict, Space, Strategy};

use crate::size::size_of;
use crate::trial::{Measured, TrialOrder, trial};
use crate::tune_space::{Facts, Prepared, ROOM, Wishes, prepare};
use lastdrop_lab::warm::warm_each;
use lastdrop_lab::{Lab, LabError};

/// What to tune for.
#[derive(Debug, Clone)]
pub struct TuneOrder {
    /// The load of one block; its measured phase alone.
    pub plan: Plan,
    pub memory: Option<u64>,
    pub keep: bool,
    pub wishes: Wishes,
    /// Trials of the search, at most; a race follows.
    pub trials: u32,
    /// No trial of the search begins after this.
    pub time: Option<Duration>,
    pub seed: u64,
    pub max_pairs: u32,
    /// The smallest gain worth a change (0.05 is 5 %).
    pub min_gain: f64,
    pub recycling_warm_up: Duration,
    pub settling: Duration,
    /// Try what KeepAlive is worth to clients that keep their connections, where the load itself does not.
    pub advise_keepalive: bool,
}

/// Requests without an answer up to this share do not spoil a trial, or as many more than the baseline's.
const MOST_UNANSWERED: f64 = 0.01;
const MIN_PAIRS: usize = 4;
/// Blocks get no longer than this by themselves.
const LONGEST_BLOCK: Duration = Duration::from_secs(60);
/// How much longer a block without an answer gets.
const LONGER: f64 = 10.0;
/// Blocks that do not count are repeated this often.
const SPOILED_BLOCKS: usize = 3;
/// A search is over when the next trial promises less than this (natural logarithm).
const WORTH: f64 = 0.0002;
/// What is taken for the noise of a trial (standard deviation of the logarithm) before there are measurements of it, and for how
/// many of these it counts.
const NOISE: f64 = 0.05;
const NOISE_COUNTS: f64 = 2.0;
/// The server as it is is measured once more after so many trials.
const BASELINE_EVERY: usize = 8;

/// Tunes servers. The document comes back in every case in which something was measured; the servers are as they were
/// found, or keep the winner if that was asked for and proven.
///
/// # Errors
/// When a server cannot be brought back, or nothing could be measured at all.
pub fn tune(lab: &mut Lab<'_>, mut stack: Stack, order: &TuneOrder) -> Result<TuneDocument, LabError> {
    let mut document = TuneDocument {
        schema: TUNE_SCHEMA.into(),
        server: stack.name(),
        url: order.plan.url.to_string(),
        verdict: TuneVerdict::Inconclusive,
        because: "it was ended before there was a result".into(),
        baseline: None,
        winner: None,
        searched: Vec::new(),
        trials: Vec::new(),
        race: Vec::new(),
        diff: Vec::new(),
        kept: false,
        kept_in: None,
        restored: false,
        interrupted: false,
        notes: stack.original().notes.clone(),
    };
    let plan = order.plan.clone();
    let outcome = Tuning { lab, stack: &mut stack, order, plan, document: &mut document }.run();
    let improved = matches!(outcome, Ok(())) && document.verdict == TuneVerdict::Improved;
    if order.keep && improved && !lab.stopped() {
        let settings = document.winner.as_ref().map(|w| w.settings.clone()).unwrap_or_default();
        lab.tell(&Event::Keeping { settings: Cow::Borrowed(&settings) });
        let kept = stack.keep(&settings)?;
        document.kept = true;
        let places: Vec<String> = kept.iter().map(ToString::to_string).collect();
        document.kept_in = Some(places.join(", "));
    } else {
        lab.tell(&Event::Restoring);
        let restored = stack.restore()?;
        document.restored = true;
        document.notes.extend(restored.iter().flat_map(Restored::notes));
    }
    match outcome {
        Ok(()) => {}
        Err(LabError::Interrupted) => document.interrupted = true,
        // What was measured is worth reporting, but the failure is the result.
        Err(e) => return Err(e),
    }
    lab.tell(&Event::Concluded { document: Document::Tune { found: Cow::Borrowed(&document) } });
    Ok(document)
}

struct Tuning<'a, 'b> {
    lab: &'a mut Lab<'b>,
    stack: &'a mut Stack,
    order: &'a TuneOrder,
    /// The load of one block, as long as it has to be.
    plan: Plan,
    document: &'a mut TuneDocument,
}

const NOTHING_TO_TRY: &str = "there is nothing to try: the server has no pool, recycling or keep-alive that this load could \
                              use; lastdrop knobs lists its settings, for a sweep";

impl Tuning<'_, '_> {
    fn run(&mut self) -> Result<(), LabError> {
        self.stack.check_changeable()?;
        let effective = self.stack.original().clone();
        let pool = self.stack.pool().ok_or_else(|| LabError::Other("there is no server to tune".into()))?;
        // Memory settles with the second request; before the first a worker shares nearly everything.
        for _ in 0..2 {
            let _ = warm_each(&self.order.plan, pool.workers().len());
        }
        // What fits is of interest where there is a pool of which the size can be set.
        let mut sizes: Vec<(i32, SizeDocument)> = Vec::new();
        for (_, _, session) in self.stack.knobs(Role::PoolSize) {
            if sizes.iter().all(|(master, _)| *master != session.master()) {
                let size = size_of(session.adapter(), &session.original().settings, self.order.memory, Vec::new())?;
                sizes.push((session.master(), size));
            }
        }
        for (_, size) in &sizes {
            self.lab.tell(&Event::Sized { size: Cow::Borrowed(size) });
            if size.fits.independent == 0 {
                self.document.verdict = TuneVerdict::Infeasible;
                self.document.because = format!("not even one worker fits into {}", show_bytes(size.budget_bytes));
                return Ok(());
            }
        }
        let wishes = self.order.wishes.settled(self.stack)?;
        let facts =
            Facts { stack: self.stack, plan: &self.plan, present: &effective.settings, sizes: &sizes, wishes: &wishes };
        let prepared = prepare(&facts);
        self.document.searched.clone_from(&prepared.searched);
        self.lab.tell(&Event::Stage { stage: Stage::Search });
        let budget = sizes.first().map(|(_, size)| size.budget_bytes);
        let challenger = self.search(prepared, &wishes.fixed, &effective, budget)?;
        let Some(challenger) = challenger else {
            let tried = self.document.trials.iter().any(|t| !t.settings.is_empty());
            let (verdict, because) = if tried {
                (TuneVerdict::Infeasible, "no other settings could be measured; see why in the trials")
            } else {
                (TuneVerdict::NoGain, NOTHING_TO_TRY)
            };
            (self.document.verdict, self.document.because) = (verdict, because.into());
            return Ok(());
        };
        let settings = self.stack.complete(&challenger)?;
        if self.order.advise_keepalive {
            self.advise_keepalive(&settings, &effective.settings)?;
        }
        self.race(&settings, &effective)
    }

    fn measure(
        &mut self,
        settings: &Settings,
        role: &str,
        plan: &Plan,
        budget: Option<u64>,
    ) -> Result<Measured, LabError> {
        let baseline_share = self.baseline_unanswered();
        let label = format!("tune {role}: {}", describe(settings));
        let order = TrialOrder {
            plan,
            settings: settings.clone(),
            label,
            role,
            recycling_warm_up: self.order.recycling_warm_up,
            settling: self.order.settling,
            budget,
            most_unanswered: MOST_UNANSWERED.max(baseline_share + 0.005),
        };
        let phase = &plan.phases[0];
        let began = TrialBegan {
            number: self.document.trials.len() as u64 + 1,
            role: role.into(),
            settings: Cow::Borrowed(settings),
            users: phase.load.most_concurrent(),
            requests: phase.requests,
            duration: phase.duration,
            url: plan.url.to_string().into(),
            ..TrialBegan::default()
        };
        self.lab.tell(&Event::TrialBegan { trial: began });
        let measured = trial(self.lab, self.stack, &order)?;
        let outcome = Outcome::Tune { trial: Cow::Borrowed(&measured.trial) };
        self.lab.tell(&Event::TrialDone { outcome });
        self.document.trials.push(measured.trial.clone());
        Ok(measured)
    }

    /// Something is done otherwise than expected: told now, and in the document.
    fn decided(&mut self, what: Decided, because: String) {
        self.lab.tell(&Event::Decided { what, because: because.as_str().into() });
        self.document.notes.push(because);
    }

    /// Share of requests without an answer that the server has as it is: others are not held to more.
    fn baseline_unanswered(&self) -> f64 {
        let Some(t) = self.document.trials.iter().rev().find(|t| t.role == "baseline") else { return 1.0 };
        let answered = self.answers(t.objective) as f64;
        t.unanswered as f64 / (t.unanswered as f64 + answered).max(1.0)
    }

    /// The settings to race against the server as it is.
    fn search(
        &mut self,
        prepared: Prepared,
        fixed: &Settings,
        effective: &Effective,
        budget: Option<u64>,
    ) -> Result<Option<Settings>, LabError> {
        let Prepared { space, moves, .. } = prepared;
        let mut strategy = Expected::new(self.order.seed, moves, WORTH);
        let mut history = History { noise: NOISE, ..History::default() };
        let (began, start) = (Instant::now(), space.start());
        let mut measured_as: BTreeMap<Settings, Option<f64>> = BTreeMap::new();
        let mut trials = 0;
        while trials < self.order.trials as usize && self.order.time.is_none_or(|time| began.elapsed() < time) {
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
            let value = (trial.valid && trial.objective > 0.0).then(|| trial.objective.ln());
            measured_as.insert(settings, value);
            history.trials.push((point, value));
            history.noise = noise(&history, &start);
        }
        let ranked = strategy.ranked(&space, &history).into_iter().find(|point| *point != start);
        let Some(point) = ranked else { return Ok(None) };
        self.say_room(&space, &point);
        let settings = [space.settings(&point), fixed.clone()].into_iter().flatten().collect();
        Ok(Some(settings))
    }

    /// A small pool looks best under a load from next door, which has no slow clients.
    fn say_room(&mut self, space: &Space, point: &Point) {
        let room = ROOM * cpus() as u64;
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
        loop {
            let plan = self.plan.clone();
            let first = self.document.baseline.is_none();
            let measured = self.measure(&Settings::new(), "baseline", &plan, None)?;
            let (answers, block) = (self.answers(measured.trial.objective), self.block());
            if !first || answers >= LEAST_ANSWERS || block >= LONGEST_BLOCK {
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
            self.decided(Decided::LongerBlocks, note);
            if let Some(trial) = self.document.trials.last_mut() {
                (trial.valid, trial.why) = (false, format!("{answers} answers in {short} are too few"));
            }
            for phase in &mut self.plan.phases {
                phase.duration = Some(longer);
            }
        }
    }

    fn block(&self) -> Duration {
        self.plan.phases[0].duration.unwrap_or(LONGEST_BLOCK)
    }

    /// Answers in a block at a rate.
    fn answers(&self, rate: f64) -> u64 {
        (rate * self.block().as_secs_f64()).round() as u64
    }

    fn answers_of(&self, pairs: &[(f64, f64)]) -> Vec<(u64, u64)> {
        pairs.iter().map(|(baseline, best)| (self.answers(*baseline), self.answers(*best))).collect()
    }

    /// A load that opens a connection for each request cannot tell what KeepAlive is worth. It is tried with clients
    /// that keep theirs, on the best settings, and told as advice: the race does not prove it.
    fn advise_keepalive(&mut self, settings: &Settings, effective: &Settings) -> Result<(), LabError> {
        let (Some((name, knob)), KeepAlive::Off) = (self.stack.knob(Role::KeepAlive), self.plan.keepalive) else {
            return Ok(());
        };
        let plan = Plan { keepalive: KeepAlive::On, ..self.plan.clone() };
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

    fn race(&mut self, settings: &Settings, effective: &Effective) -> Result<(), LabError> {
        self.lab.tell(&Event::Stage { stage: Stage::Race });
        let race = Race {
            min_pairs: MIN_PAIRS,
            max_pairs: (self.order.max_pairs as usize).max(MIN_PAIRS),
            worth: 1.0 + self.order.min_gain,
        };
        let plan = self.plan.clone();
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let (mut p99s, mut spoiled) = (Vec::new(), 0);
        let verdict = loop {
            let answers = self.answers_of(&pairs);
            let divisible = are_divisible(&answers);
            let of = |confidence| interval(&pairs, confidence).filter(|_| divisible);
            let best_first = match race.decide(pairs.len(), of(0.99), of(0.95)) {
                _ if pairs.len() >= MIN_PAIRS && !divisible && is_clear(&answers) => break RaceVerdict::Improved,
                Decision::Pair { best_first } => best_first,
                Decision::Stop(verdict) => break verdict,
            };
            let mut scores = [0.0; 2];
            let mut counts = true;
            for is_best in [best_first, !best_first] {
                let with = if is_best { settings.clone() } else { Settings::new() };
                let t = self.measure(&with, "race", &plan, None)?.trial;
                // A baseline that answers nothing is a result; a winner that does not count is none.
                counts &= t.valid || !is_best;
                scores[usize::from(is_best)] = t.objective;
                if is_best {
                    p99s.push(t.p99_us);
                }
            }
            if !counts {
                spoiled += 1;
                if spoiled > SPOILED_BLOCKS {
                    break RaceVerdict::Inconclusive;
                }
                continue;
            }
            pairs.push((scores[0], scores[1]));
            self.document.race.push(Pair { baseline: scores[0], best: scores[1] });
        };
        self.conclude(verdict, settings, effective, &pairs, &p99s, spoiled);
        Ok(())
    }

    fn conclude(
        &mut self,
        verdict: RaceVerdict,
        settings: &Settings,
        effective: &Effective,
        pairs: &[(f64, f64)],
        p99s: &[f64],
        spoiled: usize,
    ) {
        let answers = self.answers_of(pairs);
        let measured: Option<Ratio> = ratio::paired(pairs, 0.95).filter(|_| are_divisible(&answers));
        let percent = self.order.min_gain * 100.0;
        let (ours, theirs) = answers.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        let words = format!(
            "in {} blocks of {} the server as it is answered {}, the best of the others {theirs} requests: too little to \
             divide by",
            pairs.len(),
            show_duration(self.block()),
            if ours == 0 { "nothing".into() } else { ours.to_string() },
        );
        let d = &mut *self.document;
        (d.verdict, d.because) = match (verdict, measured) {
            (RaceVerdict::Improved, Some(r)) => (
                TuneVerdict::Improved,
                format!(
                    "{:.2} times the throughput, between {:.2} and {:.2} with 95 % confidence, in {} pairs",
                    r.ratio, r.low, r.high, r.pairs
                ),
            ),
            (RaceVerdict::Improved, None) => (TuneVerdict::Improved, words),
            (RaceVerdict::NoGain, Some(r)) => (
                TuneVerdict::NoGain,
                format!(
                    "the best of the others gives {:.2} times the throughput, between {:.2} and {:.2} with 95 % confidence: \
                     not shown to be worth {percent:.0} %",
                    r.ratio, r.low, r.high
                ),
            ),
            (_, Some(r)) => (
                TuneVerdict::Inconclusive,
                format!(
                    "{:.2} times the throughput, but anything between {:.2} and {:.2} is possible: run with longer blocks (-d)",
                    r.ratio, r.low, r.high
                ),
            ),
            (_, None) if spoiled <= SPOILED_BLOCKS => {
                (TuneVerdict::Inconclusive, format!("{words}; run with longer blocks (-d)"))
            }
            (_, None) => (TuneVerdict::Inconclusive, format!("{spoiled} blocks did not count; see why in the trials")),
        };
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let all: Vec<f64> = values.collect();
            if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
        };
        if measured.is_some() || d.verdict == TuneVerdict::Improved {
            d.winner = Some(Winner {
                settings: settings.clone(),
                ratio: measured.map(|r| r.ratio),
                interval: measured.map(|r| [r.low, r.high]),
                objective: mean(&mut pairs.iter().map(|p| p.1)),
                p99_us: mean(&mut p99s.iter().copied()),
            });
        }
        for (name, value) in settings {
            if let Some(old) = effective.settings.get(name) {
                let source = effective.sources.get(name).map_or("", String::as_str);
                d.diff.push(format!("-{name} {old}    # {source}"));
            }
            d.diff.push(format!("+{name} {value}"));
        }
    }
}

/// Standard deviation of a trial's value, from the trials of the server as it is and what is assumed without them.
fn noise(history: &History, start: &Point) -> f64 {
    let values: Vec<f64> = history.trials.iter().filter(|(p, _)| p == start).filter_map(|(_, value)| *value).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let free = values.len().saturating_sub(1) as f64;
    ((NOISE_COUNTS * NOISE * NOISE + squares) / (NOISE_COUNTS + free)).sqrt()
}

fn interval(pairs: &[(f64, f64)], confidence: f64) -> Option<RatioInterval> {
    ratio::paired(pairs, confidence).map(|r| RatioInterval { ratio: r.ratio, low: r.low, high: r.high })
}
