//! From a server as it is to settings that are proven better: baseline, search, race, verdict, and everything back.

use std::time::Duration;

use lastdrop_analyze::ratio::{self, Ratio};
use lastdrop_model::documents::{Baseline, Pair, TUNE_SCHEMA, TuneDocument, TuneVerdict, Winner};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_us};
use lastdrop_model::{KeepAlive, Plan, Role, Setting, Settings};
use lastdrop_probe::host::cpus;
use lastdrop_server::{Effective, Session};
use lastdrop_tune::race::Interval;
use lastdrop_tune::{Candidate, Decision, Race, RaceVerdict, Search, Space};

use crate::lab::{Lab, LabError};
use crate::size::size_of;
use crate::trial::{Measured, TrialOrder, trial};
use crate::warm::warm_each;

/// What to tune for.
#[derive(Debug, Clone)]
pub struct TuneOrder {
    /// The load of one block; its measured phase alone.
    pub plan: Plan,
    pub memory: Option<u64>,
    pub keep: bool,
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
/// Blocks that do not count are repeated this often.
const SPOILED_BLOCKS: usize = 3;

/// Tunes the server of a session. The document comes back in every case in which something was measured; the server is
/// as it was found, or keeps the winner if that was asked for and proven.
///
/// # Errors
/// When the server cannot be brought back, or nothing could be measured at all.
pub fn tune(lab: &mut Lab<'_>, mut session: Session, order: &TuneOrder) -> Result<TuneDocument, LabError> {
    let mut document = TuneDocument {
        schema: TUNE_SCHEMA.into(),
        server: session.adapter().facts().name.clone(),
        url: order.plan.url.to_string(),
        verdict: TuneVerdict::Inconclusive,
        because: "it was ended before there was a result".into(),
        baseline: None,
        winner: None,
        trials: Vec::new(),
        race: Vec::new(),
        diff: Vec::new(),
        kept: false,
        kept_in: None,
        restored: false,
        interrupted: false,
        notes: session.original().notes.clone(),
    };
    let outcome = Tuning { lab, session: &mut session, order, document: &mut document }.run();
    let improved = matches!(outcome, Ok(())) && document.verdict == TuneVerdict::Improved;
    if order.keep && improved && !lab.stopped() {
        let settings = document.winner.as_ref().map(|w| w.settings.clone()).unwrap_or_default();
        lab.narrator.note("keeping the better settings");
        let kept = session.keep(&settings)?;
        document.kept = true;
        document.kept_in = Some(if kept.needs_argv {
            format!("{} (started with: {})", kept.file.display(), kept.argv.join(" "))
        } else {
            kept.file.display().to_string()
        });
    } else {
        lab.narrator.note("putting the server back as it was found");
        let restored = session.restore()?;
        document.restored = true;
        for difference in restored.differences {
            document.notes.push(format!("after putting it back: {difference}"));
        }
    }
    match outcome {
        Ok(()) => Ok(document),
        Err(LabError::Interrupted) => {
            document.interrupted = true;
            Ok(document)
        }
        // What was measured is worth reporting, but the failure is the result.
        Err(e) => Err(e),
    }
}

struct Tuning<'a, 'b> {
    lab: &'a mut Lab<'b>,
    session: &'a mut Session,
    order: &'a TuneOrder,
    document: &'a mut TuneDocument,
}

impl Tuning<'_, '_> {
    fn run(&mut self) -> Result<(), LabError> {
        let effective = self.session.original().clone();
        let adapter = self.session.adapter();
        // Memory settles with the second request; before the first a worker shares nearly everything.
        for _ in 0..2 {
            let _ = warm_each(&self.order.plan, self.session.workers().len());
        }
        let size = size_of(adapter, &effective.settings, self.order.memory, Vec::new())?;
        let fits = size.fits.independent * size.threads_per_worker;
        self.lab.narrator.note(format!(
            "{} ({}, {}): {} workers use {} of real memory; {} fit into {} ({})",
            size.server,
            size.version,
            size.model,
            size.workers.count,
            show_bytes(size.real_memory_bytes),
            fits,
            show_bytes(size.budget_bytes),
            size.budget_from,
        ));
        if fits == 0 {
            self.document.verdict = TuneVerdict::Infeasible;
            self.document.because = format!("not even one worker fits into {}", show_bytes(size.budget_bytes));
            return Ok(());
        }
        let space = self.space(&effective.settings, fits);
        if let (false, Some(present)) = (space.load_fills_pool(), space.pool) {
            let note = format!(
                "{} users at once cannot fill a pool of {present}: its size is not searched; with -c {present} it is",
                space.concurrency
            );
            self.lab.narrator.note(&note);
            self.document.notes.push(note);
        }
        self.lab.narrator.note("search:");
        let challenger = self.search(space, &effective, Some(size.budget_bytes))?;
        let Some(challenger) = challenger else {
            self.document.verdict = TuneVerdict::Infeasible;
            self.document.because = "no other settings could be measured; see why in the trials".into();
            return Ok(());
        };
        let settings = self.settings_of(challenger, &effective.settings);
        if self.order.advise_keepalive {
            self.advise_keepalive(&settings, &effective.settings)?;
        }
        self.race(&settings, &effective)
    }

    fn space(&self, effective: &Settings, fits: u64) -> Space {
        let adapter = self.session.adapter();
        let count = |role| adapter.value(role, effective).and_then(|s| s.count()).map(|n| n.max(0) as u64);
        let keeps = self.order.plan.keepalive != KeepAlive::Off;
        Space {
            pool: count(Role::PoolSize),
            fits,
            concurrency: self.order.plan.phases.first().map_or(1, |p| u64::from(p.load.most_concurrent())),
            granule: adapter.knob(Role::ThreadsPerWorker).and_then(|_| count(Role::ThreadsPerWorker)).unwrap_or(1),
            smallest: 4 * cpus() as u64,
            recycle: count(Role::Recycle),
            keepalive: adapter.value(Role::KeepAlive, effective).map(|s| s.is_on()).filter(|_| keeps),
        }
    }

    /// The directives of a candidate; those that are in force anyway are left out.
    fn settings_of(&self, candidate: Candidate, effective: &Settings) -> Settings {
        let adapter = self.session.adapter();
        let mut settings = candidate.pool.map(|n| adapter.pool_settings(n, effective)).unwrap_or_default();
        let mut set = |role, value: Option<Setting>| {
            if let (Some(knob), Some(value)) = (adapter.knob(role), value) {
                settings.insert(knob.name.into(), value);
            }
        };
        set(Role::Recycle, candidate.recycle.map(Setting::from));
        set(Role::KeepAlive, candidate.keepalive.map(|on| Setting::from(if on { "On" } else { "Off" })));
        settings.retain(|name, value| effective.get(name) != Some(value));
        settings
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
        let measured = trial(self.lab, self.session, &order)?;
        let t = &measured.trial;
        let what = if t.valid {
            format!("{:>8.1}/s  p99 {}", t.objective, show_us(t.p99_us))
        } else if t.run.is_empty() {
            format!("refused: {}", t.why)
        } else {
            format!("{:>8.1}/s  does not count: {}", t.objective, t.why)
        };
        self.lab.narrator.note(format!("  {:<58} {what}", describe(settings)));
        self.document.trials.push(t.clone());
        Ok(measured)
    }

    /// Share of requests without an answer that the server has as it is: others are not held to more.
    fn baseline_unanswered(&self) -> f64 {
        let Some(t) = self.document.trials.iter().find(|t| t.role == "baseline") else { return 1.0 };
        let answered = t.objective * self.order.plan.phases[0].duration.map_or(1.0, |d| d.as_secs_f64());
        t.unanswered as f64 / (t.unanswered as f64 + answered).max(1.0)
    }

    fn search(
        &mut self,
        space: Space,
        effective: &Effective,
        budget: Option<u64>,
    ) -> Result<Option<Candidate>, LabError> {
        let mut search = Search::new(space);
        let mut measured_as: Vec<(Settings, Candidate)> = Vec::new();
        while let Some(candidate) = search.next_candidate() {
            let settings = self.settings_of(candidate, &effective.settings);
            match measured_as.iter().find(|(s, _)| *s == settings) {
                // The same settings under another name, such as the present pool size.
                Some((_, other)) if *other != candidate => continue,
                Some(_) => {}
                None => measured_as.push((settings.clone(), candidate)),
            }
            let plan = self.order.plan.clone();
            let role = if candidate.is_baseline() { "baseline" } else { "search" };
            // The baseline is measured whatever it uses: it is what it is.
            let limit = budget.filter(|_| !candidate.is_baseline());
            let measured = self.measure(&settings, role, &plan, limit)?;
            if candidate.is_baseline() {
                self.document.baseline = Some(Baseline {
                    settings: effective.settings.clone(),
                    objective: measured.trial.objective,
                    p99_us: measured.trial.p99_us,
                    run: measured.trial.run.clone(),
                });
            }
            search.learn(candidate, measured.trial.valid.then_some(measured.trial.objective));
        }
        Ok(search.challenger())
    }

    /// A load that opens a connection for each request cannot tell what KeepAlive is worth. It is tried with clients
    /// that keep theirs, on the best settings, and told as advice: the race does not prove it.
    fn advise_keepalive(&mut self, settings: &Settings, effective: &Settings) -> Result<(), LabError> {
        let adapter = self.session.adapter();
        let (Some(knob), KeepAlive::Off) = (adapter.knob(Role::KeepAlive), self.order.plan.keepalive) else {
            return Ok(());
        };
        let plan = Plan { keepalive: KeepAlive::On, ..self.order.plan.clone() };
        let now_on = adapter.value(Role::KeepAlive, effective).is_some_and(|s| s.is_on());
        self.lab.narrator.note("KeepAlive, with clients that keep their connections:");
        let mut rates = Vec::new();
        for on in [now_on, !now_on] {
            let mut with = settings.clone();
            with.insert(knob.name.into(), Setting::from(if on { "On" } else { "Off" }));
            let t = self.measure(&with, "advice", &plan, None)?.trial;
            rates.push(if t.valid { t.objective } else { 0.0 });
        }
        let word = |on| if on { "On" } else { "Off" };
        let note = format!(
            "{}: with clients that keep their connections {} gives {:.1}/s and {} {:.1}/s; the race was run with a \
             connection for each request, which cannot tell: to have it searched and proven, --keepalive on",
            knob.name,
            word(now_on),
            rates[0],
            word(!now_on),
            rates[1],
        );
        self.document.notes.push(note);
        Ok(())
    }

    fn race(&mut self, settings: &Settings, effective: &Effective) -> Result<(), LabError> {
        self.lab.narrator.note("race, baseline against best, each on a fresh start:");
        let race = Race {
            min_pairs: MIN_PAIRS,
            max_pairs: (self.order.max_pairs as usize).max(MIN_PAIRS),
            worth: 1.0 + self.order.min_gain,
        };
        let plan = self.order.plan.clone();
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let (mut p99s, mut spoiled) = (Vec::new(), 0);
        let verdict = loop {
            let decision = race.decide(pairs.len(), interval(&pairs, 0.99), interval(&pairs, 0.95));
            let best_first = match decision {
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
                scores[usize::from(is_best)] = t.objective.max(self.one_answer());
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

    /// The rate of a block with one answer: less cannot be told from nothing, and nothing has no ratio.
    fn one_answer(&self) -> f64 {
        self.order.plan.phases[0].duration.map_or(1.0, |d| 1.0 / d.as_secs_f64())
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
        let d = &mut *self.document;
        let measured: Option<Ratio> = ratio::paired(pairs, 0.95);
        let percent = self.order.min_gain * 100.0;
        (d.verdict, d.because) = match (verdict, measured) {
            (RaceVerdict::Improved, Some(r)) => (
                TuneVerdict::Improved,
                format!(
                    "{:.2} times the throughput, between {:.2} and {:.2} with 95 % confidence, in {} pairs",
                    r.ratio, r.low, r.high, r.pairs
                ),
            ),
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
            (_, None) => (TuneVerdict::Inconclusive, format!("{spoiled} blocks did not count; see why in the trials")),
        };
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let all: Vec<f64> = values.collect();
            if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
        };
        if let Some(r) = measured {
            d.winner = Some(Winner {
                settings: settings.clone(),
                ratio: r.ratio,
                interval: [r.low, r.high],
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

fn interval(pairs: &[(f64, f64)], confidence: f64) -> Option<Interval> {
    ratio::paired(pairs, confidence).map(|r| Interval { ratio: r.ratio, low: r.low, high: r.high })
}
