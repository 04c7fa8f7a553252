//! Tunes a server: baseline, search, race, verdict, and everything restored. The result are settings that are proven
//! better.

use std::borrow::Cow;
use std::time::Duration;

use crate::observe::visitors::Visitors;
use lastdrop_analyze::workers::capped;
use lastdrop_model::documents::{
    Clue, Goal, Proposal, RemainingLimit, SizeDocument, Trial, TuneDocument, TuneEstimate, TuneVerdict, WorkersAdvice,
};
use lastdrop_model::event::{Document, ExperimentDecision, Outcome, Stage, TrialBegan};
use lastdrop_model::objective::Metric;
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_duration};
use lastdrop_model::{Event, Experience, KeepAlive, Load, Plan, Role, Settings};
use lastdrop_server::{RestoreReport, Stack};

use crate::lab::clock::Stopwatch;
use crate::lab::{Lab, LabError};
use crate::trials::early_stop::EarlyStop;
use crate::trials::rate::{MOST_STEPS, RateStart, bounds_a_rate, rate_trial};
use crate::trials::size::size_of_server;
use crate::trials::trial::{TrialResult, TrialSpec, trial};
use lastdrop_tune::{Space, trials_of_finals};

mod checkpoint;
mod meets;
mod memory;
mod race;
mod search;
mod space;
mod steps;
mod visits;
mod watch;

pub use self::checkpoint::CheckpointOptions;
use self::checkpoint::{Checkpoint, Hints, digest};
pub use self::space::SearchConstraints;
use self::space::{PreparedSearch, SearchFacts, prepare};
use self::visits::UserMetricSource;

/// What to tune for.
#[derive(Debug, Clone)]
pub struct TuneOptions {
    /// The load of one block; only its measured phase is used. A trial that misses one of its objectives does not
    /// count. With throughput as the goal and closed-loop users, each trial searches the highest rate that meets the
    /// objectives.
    pub plan: Plan,
    pub goal: Goal,
    pub memory: Option<u64>,
    pub keep: bool,
    /// How long the servers are watched with the better settings, which are rolled back if things get worse.
    pub watch: Option<Duration>,
    /// Extra load while real users are the metric; None: no extra load.
    pub beside_visitors: Option<Plan>,
    pub constraints: SearchConstraints,
    /// Settings that are tried first.
    pub proposals: Vec<Proposal>,
    /// Observations of the servers under the load before the search: settings that may help are searched.
    pub clues: Vec<Clue>,
    /// Advised numbers of workers from the same observations.
    pub workers: Vec<WorkersAdvice>,
    /// Only report what would be tried: nothing is changed or measured.
    pub dry_run: bool,
    /// Most trials of the search and its finals; a race follows.
    pub trials: u32,
    /// No trial of the search begins after this time.
    pub time: Option<Duration>,
    pub seed: u64,
    /// Where trials are stored as they are measured; None: nowhere.
    pub checkpoint: Option<CheckpointOptions>,
    pub max_pairs: u32,
    /// The smallest gain worth a change (0.05 is 5 %).
    pub min_gain: f64,
    pub recycling_warm_up: Duration,
    pub settling: Duration,
    /// Also measure KeepAlive for clients that keep their connections, if the load itself does not.
    pub advise_keepalive: bool,
}

/// Result of examining the servers with their present settings under the load.
#[derive(Debug, Clone, Default)]
pub struct InitialFindings {
    /// Findings that suggest settings.
    pub clues: Vec<Clue>,
    /// Advised number of workers of each pool.
    pub workers: Vec<WorkersAdvice>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// Examines the servers with their present settings under the load.
pub type ExamineBefore<'a> = &'a mut dyn FnMut(&mut Lab<'_>) -> Result<InitialFindings, LabError>;

/// Finds what limits the servers.
pub type ExamineAfter<'a> = &'a mut dyn FnMut(&mut Lab<'_>) -> Result<RemainingLimit, LabError>;

/// Share of unanswered requests that does not spoil a trial; if the baseline has more, the baseline's share plus a
/// margin.
const MOST_UNANSWERED: f64 = 0.01;
/// Role of a trial that only shows roughly what the server can do with its present settings.
const PROBE: &str = "probe";
/// Blocks are lengthened automatically up to this.
const LONGEST_BLOCK: Duration = Duration::from_secs(60);
/// Time of a trial in addition to its load: servers restart or reload and are warmed up.
const RESTART: Duration = Duration::from_secs(2);
/// With this many trials the finals have room for three settings, with half as many for two.
const TRIALS_FOR_THREE: usize = 16;

/// How long the tune waits for visitors, and for how many requests of theirs.
const LOOK_FOR_VISITORS: Duration = Duration::from_secs(5);
const SOME_VISITORS: u64 = 5;

/// Tunes servers; if `visitors` use them, in small steps that are judged by the visitors' latency. Returns the document
/// whenever something was measured. The servers are restored, or keep the winner if that was requested and proven.
/// `before` examines them for settings worth trying, unless a resumed tune has done so. `after` examines them with the
/// winner's settings.
///
/// # Errors
/// When a server cannot be restored, or nothing could be measured at all.
pub fn tune(
    lab: &mut Lab<'_>,
    mut stack: Stack,
    order: &TuneOptions,
    before: Option<ExamineBefore<'_>>,
    after: Option<ExamineAfter<'_>>,
    visitors: Option<Visitors>,
) -> Result<TuneDocument, LabError> {
    let mut document = TuneDocument::new(stack.name(), order.plan.url.to_string(), order.goal);
    document.notes.clone_from(&stack.original().notes);
    let mut hints =
        Hints { proposals: order.proposals.clone(), clues: order.clues.clone(), workers: order.workers.clone() };
    let resumes = order.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.resume);
    match look_before(lab, &stack, order, before.filter(|_| !resumes)) {
        Ok(looked) => {
            hints.clues.extend(looked.clues);
            hints.workers.extend(looked.workers);
            document.notes.extend(looked.notes);
        }
        Err(e) => {
            restore(lab, &mut stack, &mut document)?;
            if !matches!(e, LabError::Interrupted) {
                return Err(e);
            }
            document.interrupted = true;
            return Ok(document);
        }
    }
    let (checkpoint, seed, hints) = match order.checkpoint.as_ref().filter(|_| !order.dry_run) {
        Some(checkpoint) => {
            let fingerprint = order.fingerprint(&document.server);
            Checkpoint::open(checkpoint, &document.server, &fingerprint, order.seed, &hints)?
        }
        None => (Checkpoint::default(), order.seed, hints),
    };
    let workers = hints.workers;
    (document.proposals, document.clues) = (hints.proposals, hints.clues);
    let plan = Plan { seed, ..order.plan.clone() };
    let mut tuning = Tuning {
        lab,
        stack: &mut stack,
        order,
        plan,
        seed,
        document: &mut document,
        checkpoint,
        workers,
        early_stop: None,
        repeated: 0,
        visits: None,
    };
    let outcome = tuning.carry_out(after, visitors);
    let Tuning { checkpoint, visits, plan, .. } = tuning;
    document.notes.extend(checkpoint.trouble.clone());
    if checkpoint.used > 0 {
        document.notes.push(format!("{} trials are those of the tune that was ended", checkpoint.used));
    }
    if outcome.is_ok() {
        checkpoint.close();
    }
    let improved = matches!(outcome, Ok(())) && document.verdict == TuneVerdict::Improved;
    if order.keep && improved && !lab.stopped() {
        let settings = document.winner.as_ref().map(|w| w.settings.clone()).unwrap_or_default();
        lab.tell(&Event::Keeping { settings: Cow::Borrowed(&settings) });
        let kept = match order.watch {
            None => Some(stack.keep(&settings)?),
            Some(time) => {
                let whose = visits.unwrap_or(UserMetricSource::Load);
                watch::keep_if_good(lab, &mut stack, order, &plan, &settings, whose, time, &mut document)?
            }
        };
        match kept {
            Some(kept) => {
                document.kept = true;
                let places: Vec<String> = kept.iter().map(ToString::to_string).collect();
                document.kept_in = Some(places.join(", "));
            }
            None => restore(lab, &mut stack, &mut document)?,
        }
    } else {
        restore(lab, &mut stack, &mut document)?;
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

/// Checks for refusals before any load is generated, then examines the servers. If the examination fails, the search
/// goes on without clues.
fn look_before(
    lab: &mut Lab<'_>,
    stack: &Stack,
    order: &TuneOptions,
    before: Option<ExamineBefore<'_>>,
) -> Result<InitialFindings, LabError> {
    stack.check_changeable()?;
    order.constraints.settled(stack)?;
    let Some(before) = before else { return Ok(Default::default()) };
    let (observe, repeats, find_chain) = (lab.observe, lab.repeats, lab.find_chain);
    let looked = before(lab);
    (lab.observe, lab.repeats, lab.find_chain, lab.looks) = (observe, repeats, find_chain, None);
    match looked {
        Ok(found) => Ok(found),
        Err(LabError::Interrupted) => Err(LabError::Interrupted),
        Err(e) => Ok(InitialFindings {
            notes: vec![format!("the look before the search found nothing out: {e}")],
            ..InitialFindings::default()
        }),
    }
}

fn restore(lab: &mut Lab<'_>, stack: &mut Stack, document: &mut TuneDocument) -> Result<(), LabError> {
    lab.tell(&Event::Restoring);
    let restored = stack.restore()?;
    document.restored = true;
    document.notes.extend(restored.iter().flat_map(RestoreReport::notes));
    Ok(())
}

struct Tuning<'a, 'b> {
    lab: &'a mut Lab<'b>,
    stack: &'a mut Stack,
    order: &'a TuneOptions,
    /// The load of one block, lengthened as needed.
    plan: Plan,
    seed: u64,
    document: &'a mut TuneDocument,
    checkpoint: Checkpoint,
    /// Advised number of workers of each pool from the examination.
    workers: Vec<WorkersAdvice>,
    /// The best so far, which a trial of the search has to be able to reach.
    early_stop: Option<EarlyStop>,
    /// How many trials of too few answers were made again in longer blocks.
    repeated: usize,
    /// Source of the user metric, with the visitors' metrics before the tune.
    visits: Option<UserMetricSource>,
}

impl TuneOptions {
    /// Returns true if each trial searches the highest rate that meets the objectives.
    fn searches_rates(&self) -> bool {
        let closed = self.plan.phases.iter().all(|p| matches!(p.load, Load::Closed { .. }));
        closed && self.goal == Goal::Throughput && bounds_a_rate(&self.plan.objectives)
    }

    /// Describes the objectives.
    fn objectives(&self) -> String {
        self.plan.objectives.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Describes what a ratio compares.
    fn times(&self) -> String {
        if self.searches_rates() {
            return format!("the rate that meets {}", self.objectives());
        }
        self.goal.times().into()
    }

    /// Returns a digest of everything that decides which trials there are, except the seed.
    fn fingerprint(&self, server: &str) -> String {
        let plan = Plan { seed: 0, ..self.plan.clone() };
        let what = (server, plan, self.goal, self.memory, &self.constraints, self.recycling_warm_up, self.settling);
        digest(&format!("{what:?}"))
    }
}

/// What is known before anything is tried.
struct SearchSetup {
    /// Sizes of the pools by the index of their server in the stack.
    sizes: Vec<(usize, SizeDocument)>,
    constraints: SearchConstraints,
    prepared: PreparedSearch,
}

const NOTHING_TO_TRY: &str = "there was nothing to try: see beside each setting why; --only SETTING tries one all the same, and \
                              lastdrop knobs lists them";

impl Tuning<'_, '_> {
    /// Tunes by the visitors' latency if there are visitors, otherwise under a load of ours.
    fn carry_out(&mut self, after: Option<ExamineAfter<'_>>, visitors: Option<Visitors>) -> Result<(), LabError> {
        self.stack.check_changeable()?;
        if self.order.dry_run {
            return self.only_plan(visitors.is_some());
        }
        let Some(mut visitors) = visitors else { return self.run(after) };
        // Requests until now include our own health checks.
        visitors.look();
        let (began, mut seen) = (Stopwatch::start(self.lab.clock), Experience::default());
        while seen.requests < SOME_VISITORS && began.elapsed() < LOOK_FOR_VISITORS {
            self.lab.check_stop()?;
            self.lab.clock.sleep(LOOK_FOR_VISITORS / 50);
            seen.add(&visitors.look());
        }
        if seen.requests >= SOME_VISITORS && seen.latency.count() > 0 {
            return self.steps(visitors);
        }
        let seconds = LOOK_FOR_VISITORS.as_secs();
        let (by, of) = (visitors.by(), seen.requests);
        let lacks = if of > 0 { "without the time that they took" } else { "of visitors" };
        self.document.notes.push(format!("{by}: {of} requests in {seconds} s {lacks}: tuned under a load of ours"));
        self.run(after)
    }

    /// Examines the servers and decides what is worth a trial. None if not even one worker fits; the document says so.
    fn ready(&mut self) -> Result<Option<SearchSetup>, LabError> {
        // Sizes matter if a pool has a size that can be set.
        let mut sizes: Vec<(usize, SizeDocument)> = Vec::new();
        for (_, _, server) in self.stack.knobs(Role::PoolSize) {
            if sizes.iter().all(|(place, _)| *place != server.place()) {
                let place = server.place();
                let mut size = size_of_server(server, self.order.memory)?;
                // The memory of a worker that has served nothing does not show how many fit.
                if size.fits.is_none() {
                    self.lab.warm_twice(&self.plan, size.workers.count as usize);
                    size = size_of_server(server, self.order.memory)?;
                }
                let called = self.stack.called(place).unwrap_or_default();
                if let Some(need) = self.workers.iter().find(|w| w.server == called && w.need.is_some()) {
                    // The need depends on the load, the ceilings on this budget.
                    let ceilings = size.workers_advice.as_ref().map(|advice| &advice.ceilings);
                    size.workers_advice = Some(capped(need.clone(), ceilings.unwrap_or(&need.ceilings).clone()));
                }
                if let Some(advice) = &size.workers_advice {
                    let several = self.stack.is_several();
                    let server = if several { called.to_string() } else { String::new() };
                    self.document.workers_advice = Some(WorkersAdvice { server, ..advice.clone() });
                }
                sizes.push((place, size));
            }
        }
        for (_, size) in &sizes {
            self.lab.tell(&Event::Sized { size: Cow::Borrowed(size) });
            if size.fitting() == 0 {
                self.document.verdict = TuneVerdict::Infeasible;
                self.document.reason = format!("not even one worker fits into {}", show_bytes(size.budget_bytes));
                return Ok(None);
            }
        }
        let constraints = self.order.constraints.settled(self.stack)?;
        let (mut proposals, mut notes) = (Vec::new(), Vec::new());
        for p in &self.document.proposals {
            match self.stack.settings(&p.settings) {
                Ok(settings) => proposals.push(Proposal { settings, ..p.clone() }),
                Err(e) => notes.push(format!("{} is not tried: {e}", p.finding)),
            }
        }
        self.document.notes.append(&mut notes);
        self.document.proposals.clone_from(&proposals);
        let facts = SearchFacts {
            stack: self.stack,
            plan: &self.plan,
            present: &self.stack.original().settings,
            sizes: &sizes,
            constraints: &constraints,
            proposals: &proposals,
            clues: &self.document.clues,
            goal: self.order.goal,
            trials: self.order.trials,
        };
        let prepared = prepare(&facts);
        self.document.searched.clone_from(&prepared.searched);
        Ok(Some(SearchSetup { sizes, constraints, prepared }))
    }

    /// Reports what would be tried and how long that would take.
    fn only_plan(&mut self, by_visitors: bool) -> Result<(), LabError> {
        let Some(SearchSetup { prepared, .. }) = self.ready()? else { return Ok(()) };
        let planned = if by_visitors { self.plan_steps() } else { self.plan_search(&prepared.space) };
        self.document.verdict = TuneVerdict::Planned;
        self.document.reason = self.planned_words(planned, &prepared.space);
        self.document.planned = Some(planned);
        Ok(())
    }

    /// Estimates the duration of a trial: the longest it may take.
    fn trial_time(&self) -> Duration {
        let blocks = if self.order.searches_rates() { MOST_STEPS as u32 } else { 1 };
        RESTART + self.order.settling + self.block() * blocks
    }

    /// Returns the most trials and time that a search takes, with its finals and the race.
    fn plan_search(&self, space: &Space) -> TuneEstimate {
        let most = self.order.trials as usize;
        let trials = match space.all(most) {
            // The baseline is measured again now and then.
            Some(points) if points.len() <= 1 => 0,
            Some(points) => most.min(
                points.len()
                    + points.len() / search::BASELINE_EVERY
                    + self.kept_for_finals(f64::INFINITY)
                    + self.kept_for_advice(),
            ),
            None => most,
        };
        let each = self.trial_time();
        let search = each * trials as u32;
        let search = self.order.time.map_or(search, |time| search.min(time + each));
        let race = each * 2 * self.order.max_pairs;
        TuneEstimate { trials: trials as u64, seconds: if trials == 0 { 0 } else { (search + race).as_secs() } }
    }

    /// Returns the most trials and time that steps under visitors take.
    fn plan_steps(&self) -> TuneEstimate {
        let step = self.block() * 2 * self.order.max_pairs;
        let steps = step * self.order.trials;
        let steps = self.order.time.map_or(steps, |time| steps.min(time + step));
        TuneEstimate { trials: u64::from(self.order.trials), seconds: (steps + step).as_secs() }
    }

    fn planned_words(&self, planned: TuneEstimate, space: &Space) -> String {
        if planned.trials == 0 {
            return NOTHING_TO_TRY.into();
        }
        let names: Vec<&str> = space.parameters.iter().map(|p| p.name.as_str()).collect();
        let (most, time) = (planned.trials, Duration::from_secs(planned.seconds));
        let each = self.trial_time();
        let mut words = format!(
            "at most {most} trials of {} and a race, about {} in all: {}",
            show_duration(Duration::from_secs(each.as_secs())),
            show_duration(time),
            names.join(", ")
        );
        if let Some(time) = self.order.time.filter(|time| *time < each * 2) {
            words.push_str(&format!(
                "; --time {} may end before another setting is tried: a trial of the server as it is comes first",
                show_duration(time)
            ));
        }
        words
    }

    /// Returns the trials reserved for the finals, with so much noise of a trial.
    fn kept_for_finals(&self, noise: f64) -> usize {
        match self.order.trials as usize {
            _ if noise < search::QUIET => 0,
            n if n >= TRIALS_FOR_THREE => trials_of_finals(3),
            n if n >= TRIALS_FOR_THREE / 2 => trials_of_finals(2),
            _ => 0,
        }
    }

    /// Returns the trials reserved for measuring KeepAlive.
    fn kept_for_advice(&self) -> usize {
        let is_advised = self.order.advise_keepalive && self.plan.keepalive == KeepAlive::Off;
        let few = (self.order.trials as usize) < TRIALS_FOR_THREE / 2;
        if is_advised && !few && self.stack.knob(Role::KeepAlive).is_some() { search::ADVICE_TRIALS } else { 0 }
    }

    /// Returns how many of the allowed trials are left. Those of the race do not count, nor those that were too short.
    fn trials_left(&self) -> usize {
        let done = self.document.trials.iter().filter(|t| t.role != "race").count();
        (self.order.trials as usize).saturating_sub(done - self.repeated)
    }

    /// Explains why only the baseline was measured.
    fn nothing_tried(&self, space_is_empty: bool, elapsed: Duration) -> String {
        let each = self.trial_time();
        match self.order.time.filter(|time| elapsed >= *time) {
            _ if space_is_empty => NOTHING_TO_TRY.into(),
            Some(time) => {
                let planned = self.document.planned.unwrap_or_default();
                format!(
                    "--time {} was over before another setting could be tried: the server as it is took {} s; all trials and the race \
                     take about {}, a first one {}",
                    show_duration(time),
                    elapsed.as_secs(),
                    show_duration(Duration::from_secs(planned.seconds)),
                    show_duration(Duration::from_secs((elapsed + each).as_secs()))
                )
            }
            None => format!("--trials {} leaves none for another setting", self.order.trials),
        }
    }

    fn run(&mut self, after: Option<ExamineAfter<'_>>) -> Result<(), LabError> {
        let effective = self.stack.original().clone();
        let pool = self.stack.pool().ok_or_else(|| LabError::Other("there is no server to tune".into()))?;
        // Memory settles with the second request; before the first, a worker shares nearly everything.
        for _ in 0..2 {
            let _ = self.lab.warm_each(&self.order.plan, pool.count_workers());
        }
        let Some(SearchSetup { sizes, constraints, prepared }) = self.ready()? else { return Ok(()) };
        let planned = self.plan_search(&prepared.space);
        let what = self.planned_words(planned, &prepared.space);
        self.lab.tell(&Event::Experiment { what: what.into() });
        self.document.planned = Some(planned);
        self.lab.tell(&Event::Stage { stage: Stage::Search });
        let budget = sizes.first().map(|(_, size)| size.budget_bytes);
        let (began, space_is_empty) = (Stopwatch::start(self.lab.clock), prepared.space.parameters.is_empty());
        let challenger = self.search(prepared, &constraints.fixed, &effective, budget)?;
        let Some(challenger) = challenger else {
            let elapsed = began.elapsed();
            let tried = self.document.trials.iter().any(|t| !t.settings.is_empty());
            (self.document.verdict, self.document.reason) = if self.document.trials.iter().any(|t| t.cut_short) {
                let reason = "all other settings that could be measured fell short of the server as it is";
                (TuneVerdict::NoGain, reason.into())
            } else if tried {
                (TuneVerdict::Infeasible, "no other settings could be measured; see why in the trials".into())
            } else {
                (TuneVerdict::Inconclusive, self.nothing_tried(space_is_empty, elapsed))
            };
            return Ok(());
        };
        let settings = self.stack.complete(&challenger)?;
        if self.order.advise_keepalive {
            self.advise_keepalive(&settings, &effective.settings)?;
        }
        let expected_memory = self.predict_memory(&sizes, &settings);
        self.race(&settings, &effective)?;
        if let Some(expected_memory) = expected_memory {
            self.compare_memory(expected_memory, &settings);
        }
        match after.filter(|_| self.document.verdict == TuneVerdict::Improved) {
            Some(after) => self.look_after(&settings, after),
            None => Ok(()),
        }
    }

    /// Examines the servers with the winner's settings. If that fails, the proven result stands.
    fn look_after(&mut self, settings: &Settings, after: ExamineAfter<'_>) -> Result<(), LabError> {
        self.stack.apply(settings)?;
        match after(self.lab) {
            Ok(limit) => self.document.limit_after = Some(limit),
            Err(LabError::Interrupted) => return Err(LabError::Interrupted),
            Err(e) => self.document.notes.push(format!("what holds it back now was not found out: {e}")),
        }
        Ok(())
    }

    fn measure(
        &mut self,
        settings: &Settings,
        role: &str,
        plan: &Plan,
        budget: Option<u64>,
    ) -> Result<TrialResult, LabError> {
        let beginning = self.beginning(settings, role);
        self.measure_from(settings, role, plan, budget, beginning)
    }

    /// Like `measure`, with the start of the search for the highest rate; None measures the load as it is.
    fn measure_from(
        &mut self,
        settings: &Settings,
        role: &str,
        plan: &Plan,
        budget: Option<u64>,
        beginning: Option<RateStart>,
    ) -> Result<TrialResult, LabError> {
        let label = format!("tune {role}: {}", describe(settings));
        let order = TrialSpec {
            plan,
            change: settings.into(),
            label,
            role,
            recycling_warm_up: self.order.recycling_warm_up,
            settling: self.order.settling,
            until_grown: true,
            budget,
            most_unanswered: self.most_unanswered(),
            early_stop: self.early_stop.filter(|_| role == "search"),
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
        let known = self.checkpoint.recall(|t| t.settings == *settings && t.role == role);
        let measured = match (known, beginning) {
            (Some(trial), _) => {
                self.lab.check_stop()?;
                TrialResult { trial, run: None }
            }
            (None, Some(beginning)) => rate_trial(self.lab, self.stack, &order, beginning)?,
            (None, None) => trial(self.lab, self.stack, &order)?,
        };
        self.checkpoint.write(&measured.trial);
        let outcome = Outcome::Tune { trial: Cow::Borrowed(&measured.trial) };
        self.lab.tell(&Event::TrialDone { outcome });
        self.document.trials.push(measured.trial.clone());
        Ok(measured)
    }

    /// Returns where a trial begins to search the highest rate; None for a trial that measures the load as it is.
    fn beginning(&self, settings: &Settings, role: &str) -> Option<RateStart> {
        if !self.order.searches_rates() || !matches!(role, "baseline" | "search" | "final" | "race") {
            return None;
        }
        let of = |t: &&Trial| t.valid && !t.steps.is_empty();
        let known = self.document.trials.iter().rev().filter(of).find(|t| t.settings == *settings);
        let best = self.document.trials.iter().filter(of).map(|t| t.objective).reduce(f64::max);
        let guess = self.document.trials.iter().find(|t| t.role == PROBE).map_or(1.0, |t| t.objective.max(1.0));
        Some(match (known, best) {
            // Rates are found in steps. With a different start each time, their mean approaches the true rate.
            (Some(known), _) => RateStart::Known { rate: known.objective * self.dither() },
            (None, Some(rate)) if role == "search" => RateStart::Best { rate },
            _ => RateStart::Nothing { rate: guess },
        })
    }

    /// Returns a number near one that differs for each trial.
    fn dither(&self) -> f64 {
        // The fractional parts of multiples of the golden ratio are spread evenly, however many there are.
        let part = (self.document.trials.len() as f64 * 0.618_033_988_75 + self.seed as f64 * 0.1).fract();
        1.0 + 0.06 * (part - 0.5)
    }

    /// Reports a deviation from the plan now, and in the document.
    fn decided(&mut self, what: ExperimentDecision, reason: String) {
        self.lab.tell(&Event::Decided { what, reason: reason.as_str().into() });
        self.document.notes.push(reason);
    }

    /// Returns the share of requests that may go unanswered.
    fn most_unanswered(&self) -> f64 {
        if !self.order.searches_rates() {
            return MOST_UNANSWERED.max(self.baseline_unanswered() + 0.005);
        }
        // An error objective of the user takes precedence.
        let errors = self.plan.objectives.iter().filter(|o| o.class.is_none() && o.metric == Metric::Errors);
        errors.map(|o| o.limit).reduce(f64::max).unwrap_or(MOST_UNANSWERED)
    }

    /// Returns the share of unanswered requests in the baseline: other settings need not be better.
    fn baseline_unanswered(&self) -> f64 {
        let Some(t) = self.document.trials.iter().rev().find(|t| t.role == "baseline") else { return 1.0 };
        let answered = self.answers(t.objective) as f64;
        t.unanswered as f64 / (t.unanswered as f64 + answered).max(1.0)
    }

    fn block(&self) -> Duration {
        self.plan.phases[0].duration.unwrap_or(LONGEST_BLOCK)
    }

    /// Returns the responses in a block at a rate.
    fn answers(&self, rate: f64) -> u64 {
        (rate * self.block().as_secs_f64()).round() as u64
    }
}
