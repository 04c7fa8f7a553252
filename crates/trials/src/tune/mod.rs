//! From a server as it is to settings that are proven better: baseline, search, race, verdict, and everything back.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use lastdrop_analyze::workers::capped;
use lastdrop_looks::visitors::Visitors;
use lastdrop_model::documents::{
    Clue, Goal, Proposal, RemainingLimit, SizeDocument, TUNE_SCHEMA, Trial, TuneDocument, TuneEstimate, TuneVerdict,
    WorkersAdvice,
};
use lastdrop_model::event::{Document, ExperimentDecision, Outcome, Stage, TrialBegan};
use lastdrop_model::objective::Metric;
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_duration};
use lastdrop_model::{Event, Experience, KeepAlive, Load, Plan, Role, Settings};
use lastdrop_server::{RestoreReport, Stack};

use crate::bar::Bar;
use crate::rate::{Beginning, MOST_STEPS, bounds_a_rate, rate_trial};
use crate::size::{size_of_server, warm_twice};
use crate::trial::{Measured, TrialOrder, trial};
use lastdrop_lab::warm::warm_each;
use lastdrop_lab::{Lab, LabError};
use lastdrop_tune::{Space, trials_of_finals};

mod diary;
mod meets;
mod memory;
mod race;
mod search;
mod space;
mod steps;
mod visits;
mod watch;

pub use self::diary::DiaryOrder;
use self::diary::{Diary, Hints, digest};
pub use self::space::Wishes;
use self::space::{Facts, Prepared, prepare};
use self::visits::Whose;

/// What to tune for.
#[derive(Debug, Clone)]
pub struct TuneOrder {
    /// The load of one block; its measured phase alone. A trial that misses one of its objectives does not count. With most throughput as the
    /// goal and users that wait for their answers, each trial searches the highest rate that meets the objectives.
    pub plan: Plan,
    pub goal: Goal,
    pub memory: Option<u64>,
    pub keep: bool,
    /// How long servers are watched after they were given the better settings, which are put back when it gets worse.
    pub watch: Option<Duration>,
    /// Visitors who use the servers meanwhile are judged by their own latency, and this is the load that is put on beside them; None:
    /// none is.
    pub beside_visitors: Option<Plan>,
    pub wishes: Wishes,
    /// What is tried first.
    pub proposals: Vec<Proposal>,
    /// What was seen of the servers under the load before: settings that are worth trying for it are searched.
    pub clues: Vec<Clue>,
    /// How many workers the pools should have by what was seen then.
    pub workers: Vec<WorkersAdvice>,
    /// Only what would be tried is asked: nothing is changed and nothing measured.
    pub dry_run: bool,
    /// Trials of the search and its finals, at most; a race follows.
    pub trials: u32,
    /// No trial of the search begins after this.
    pub time: Option<Duration>,
    pub seed: u64,
    /// Where trials are written down as they are measured; None: nowhere.
    pub diary: Option<DiaryOrder>,
    pub max_pairs: u32,
    /// The smallest gain worth a change (0.05 is 5 %).
    pub min_gain: f64,
    pub recycling_warm_up: Duration,
    pub settling: Duration,
    /// Try what KeepAlive is worth to clients that keep their connections, where the load itself does not.
    pub advise_keepalive: bool,
}

/// What a look at the servers as they are, under the load, has shown.
#[derive(Debug, Clone, Default)]
pub struct FirstLook {
    /// What it points to.
    pub clues: Vec<Clue>,
    /// How many workers each pool should have.
    pub workers: Vec<WorkersAdvice>,
    /// What else is worth a note.
    pub notes: Vec<String>,
}

/// Looks at the servers as they are, under the load.
pub type Before<'a> = &'a mut dyn FnMut(&mut Lab<'_>) -> Result<FirstLook, LabError>;

/// Says what holds servers back.
pub type After<'a> = &'a mut dyn FnMut(&mut Lab<'_>) -> Result<RemainingLimit, LabError>;

/// Requests without an answer up to this share do not spoil a trial, or as many more than the baseline's.
const MOST_UNANSWERED: f64 = 0.01;
/// What a trial is for that only shows about how much the server as it is can do.
const PROBE: &str = "probe";
/// Blocks get no longer than this by themselves.
const LONGEST_BLOCK: Duration = Duration::from_secs(60);
/// What a trial takes beside its load: servers that start or reload and are warmed.
const RESTART: Duration = Duration::from_secs(2);
/// Finals have room for three where there are so many trials, and for two with half as many.
const TRIALS_FOR_THREE: usize = 16;

/// How long it is waited for visitors, and for how many.
const LOOK_FOR_VISITORS: Duration = Duration::from_secs(5);
const SOME_VISITORS: u64 = 5;

/// Tunes servers. Where `visitors` use them, in small steps that these judge. The document comes back in every case in which something was measured; the servers are as they were
/// found, or keep the winner if that was asked for and proven. `before` looks at them for what is worth trying, unless an earlier tune
/// that is gone on with has looked; `after` looks at them while they have the winner's settings.
///
/// # Errors
/// When a server cannot be brought back, or nothing could be measured at all.
pub fn tune(
    lab: &mut Lab<'_>,
    mut stack: Stack,
    order: &TuneOrder,
    before: Option<Before<'_>>,
    after: Option<After<'_>>,
    visitors: Option<Visitors>,
) -> Result<TuneDocument, LabError> {
    let mut document = TuneDocument {
        schema: TUNE_SCHEMA.into(),
        server: stack.name(),
        url: order.plan.url.to_string(),
        goal: order.goal,
        verdict: TuneVerdict::Inconclusive,
        reason: "it was ended before there was a result".into(),
        baseline: None,
        winner: None,
        searched: Vec::new(),
        proposals: Vec::new(),
        clues: Vec::new(),
        workers_advice: None,
        planned: None,
        limit_after: None,
        visited: None,
        watch: None,
        trials: Vec::new(),
        undominated: Vec::new(),
        effects: Vec::new(),
        race: Vec::new(),
        diff: Vec::new(),
        kept: false,
        kept_in: None,
        restored: false,
        interrupted: false,
        notes: stack.original().notes.clone(),
    };
    let mut hints =
        Hints { proposals: order.proposals.clone(), clues: order.clues.clone(), workers: order.workers.clone() };
    let resumes = order.diary.as_ref().is_some_and(|diary| diary.resume);
    match look_before(lab, &stack, order, before.filter(|_| !resumes)) {
        Ok(looked) => {
            hints.clues.extend(looked.clues);
            hints.workers.extend(looked.workers);
            document.notes.extend(looked.notes);
        }
        Err(e) => {
            put_back(lab, &mut stack, &mut document)?;
            if !matches!(e, LabError::Interrupted) {
                return Err(e);
            }
            document.interrupted = true;
            return Ok(document);
        }
    }
    let (diary, seed, hints) = match order.diary.as_ref().filter(|_| !order.dry_run) {
        Some(diary) => {
            let fingerprint = order.fingerprint(&document.server);
            Diary::open(diary, &document.server, &fingerprint, order.seed, &hints)?
        }
        None => (Diary::default(), order.seed, hints),
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
        diary,
        workers,
        bar: None,
        visits: None,
    };
    let outcome = tuning.carry_out(after, visitors);
    let Tuning { diary, visits, plan, .. } = tuning;
    document.notes.extend(diary.trouble.clone());
    if diary.used > 0 {
        document.notes.push(format!("{} trials are those of the tune that was ended", diary.used));
    }
    if outcome.is_ok() {
        diary.close();
    }
    let improved = matches!(outcome, Ok(())) && document.verdict == TuneVerdict::Improved;
    if order.keep && improved && !lab.stopped() {
        let settings = document.winner.as_ref().map(|w| w.settings.clone()).unwrap_or_default();
        lab.tell(&Event::Keeping { settings: Cow::Borrowed(&settings) });
        let kept = match order.watch {
            None => Some(stack.keep(&settings)?),
            Some(time) => {
                let whose = visits.unwrap_or(Whose::Load);
                watch::keep_if_good(lab, &mut stack, order, &plan, &settings, whose, time, &mut document)?
            }
        };
        match kept {
            Some(kept) => {
                document.kept = true;
                let places: Vec<String> = kept.iter().map(ToString::to_string).collect();
                document.kept_in = Some(places.join(", "));
            }
            None => put_back(lab, &mut stack, &mut document)?,
        }
    } else {
        put_back(lab, &mut stack, &mut document)?;
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

/// What would be refused is refused before any load is put on. A look that fails leaves the search without clues, which is no failure.
fn look_before(
    lab: &mut Lab<'_>,
    stack: &Stack,
    order: &TuneOrder,
    before: Option<Before<'_>>,
) -> Result<FirstLook, LabError> {
    stack.check_changeable()?;
    order.wishes.settled(stack)?;
    let Some(before) = before else { return Ok(Default::default()) };
    let (observe, repeats, find_chain) = (lab.observe, lab.repeats, lab.find_chain);
    let looked = before(lab);
    (lab.observe, lab.repeats, lab.find_chain, lab.looks) = (observe, repeats, find_chain, None);
    match looked {
        Ok(found) => Ok(found),
        Err(LabError::Interrupted) => Err(LabError::Interrupted),
        Err(e) => Ok(FirstLook {
            notes: vec![format!("the look before the search found nothing out: {e}")],
            ..FirstLook::default()
        }),
    }
}

fn put_back(lab: &mut Lab<'_>, stack: &mut Stack, document: &mut TuneDocument) -> Result<(), LabError> {
    lab.tell(&Event::Restoring);
    let restored = stack.restore()?;
    document.restored = true;
    document.notes.extend(restored.iter().flat_map(RestoreReport::notes));
    Ok(())
}

struct Tuning<'a, 'b> {
    lab: &'a mut Lab<'b>,
    stack: &'a mut Stack,
    order: &'a TuneOrder,
    /// The load of one block, as long as it has to be.
    plan: Plan,
    seed: u64,
    document: &'a mut TuneDocument,
    diary: Diary,
    /// How many workers each pool should have by the look before.
    workers: Vec<WorkersAdvice>,
    /// What a trial of the search has to be able to reach.
    bar: Option<Bar>,
    /// The visitors that it was judged by, with what they saw of the servers as they were.
    visits: Option<Whose>,
}

impl TuneOrder {
    /// Is each trial a search for the highest rate that meets the objectives?
    fn searches_rates(&self) -> bool {
        let closed = self.plan.phases.iter().all(|p| matches!(p.load, Load::Closed { .. }));
        closed && self.goal == Goal::Throughput && bounds_a_rate(&self.plan.objectives)
    }

    /// The objectives in words.
    fn objectives(&self) -> String {
        self.plan.objectives.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// What a ratio is a number of times of.
    fn times(&self) -> String {
        if self.searches_rates() {
            return format!("the rate that meets {}", self.objectives());
        }
        self.goal.times().into()
    }

    /// What decides which trials there are, but for the seed.
    fn fingerprint(&self, server: &str) -> String {
        let plan = Plan { seed: 0, ..self.plan.clone() };
        let what = (server, plan, self.goal, self.memory, &self.wishes, self.recycling_warm_up, self.settling);
        digest(&format!("{what:?}"))
    }
}

/// What is known before anything is tried.
struct Ready {
    /// How often workers fit into memory, by the place of their server in the stack.
    sizes: Vec<(usize, SizeDocument)>,
    wishes: Wishes,
    prepared: Prepared,
}

const NOTHING_TO_TRY: &str = "there was nothing to try: see beside each setting why; --only SETTING tries one all the same, and \
                              lastdrop knobs lists them";

impl Tuning<'_, '_> {
    /// By the visitors where there are some, else under a load of ours.
    fn carry_out(&mut self, after: Option<After<'_>>, visitors: Option<Visitors>) -> Result<(), LabError> {
        self.stack.check_changeable()?;
        if self.order.dry_run {
            return self.only_plan(visitors.is_some());
        }
        let Some(mut visitors) = visitors else { return self.run(after) };
        // Until here it was us who asked whether the servers are well.
        visitors.look();
        let (began, mut seen) = (Instant::now(), Experience::default());
        while seen.requests < SOME_VISITORS && began.elapsed() < LOOK_FOR_VISITORS {
            self.lab.check_stop()?;
            std::thread::sleep(LOOK_FOR_VISITORS / 50);
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

    /// Looks at the servers, and decides what is worth a trial; None where nothing fits, and the document says so.
    fn ready(&mut self) -> Result<Option<Ready>, LabError> {
        // What fits is of interest where there is a pool of which the size can be set.
        let mut sizes: Vec<(usize, SizeDocument)> = Vec::new();
        for (_, _, server) in self.stack.knobs(Role::PoolSize) {
            if sizes.iter().all(|(place, _)| *place != server.place()) {
                let place = server.place();
                let mut size = size_of_server(server, self.order.memory)?;
                // What a worker that has served nothing takes says nothing of how many fit.
                if size.fits.is_none() {
                    warm_twice(&self.plan, size.workers.count as usize);
                    size = size_of_server(server, self.order.memory)?;
                }
                let called = self.stack.called(place).unwrap_or_default();
                if let Some(need) = self.workers.iter().find(|w| w.server == called && w.need.is_some()) {
                    // The need is the load's, the ceilings are those of this budget.
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
        let wishes = self.order.wishes.settled(self.stack)?;
        let (mut proposals, mut notes) = (Vec::new(), Vec::new());
        for p in &self.document.proposals {
            match self.stack.settings(&p.settings) {
                Ok(settings) => proposals.push(Proposal { settings, ..p.clone() }),
                Err(e) => notes.push(format!("{} is not tried: {e}", p.finding)),
            }
        }
        self.document.notes.append(&mut notes);
        self.document.proposals.clone_from(&proposals);
        let facts = Facts {
            stack: self.stack,
            plan: &self.plan,
            present: &self.stack.original().settings,
            sizes: &sizes,
            wishes: &wishes,
            proposals: &proposals,
            clues: &self.document.clues,
            goal: self.order.goal,
            trials: self.order.trials,
        };
        let prepared = prepare(&facts);
        self.document.searched.clone_from(&prepared.searched);
        Ok(Some(Ready { sizes, wishes, prepared }))
    }

    /// Says what would be tried and how long that would take.
    fn only_plan(&mut self, by_visitors: bool) -> Result<(), LabError> {
        let Some(Ready { prepared, .. }) = self.ready()? else { return Ok(()) };
        let planned = if by_visitors { self.plan_steps() } else { self.plan_search(&prepared.space) };
        self.document.verdict = TuneVerdict::Planned;
        self.document.reason = self.planned_words(planned, &prepared.space);
        self.document.planned = Some(planned);
        Ok(())
    }

    /// How long a trial takes, about: the longest that it may.
    fn trial_time(&self) -> Duration {
        let blocks = if self.order.searches_rates() { MOST_STEPS as u32 } else { 1 };
        RESTART + self.order.settling + self.block() * blocks
    }

    /// What a search takes at most, with its finals and the race.
    fn plan_search(&self, space: &Space) -> TuneEstimate {
        let most = self.order.trials as usize;
        let trials = match space.all(most) {
            // The server as it is is measured again now and then.
            Some(points) if points.len() <= 1 => 0,
            Some(points) => most.min(
                points.len() + points.len() / search::BASELINE_EVERY + self.kept_for_finals() + self.kept_for_advice(),
            ),
            None => most,
        };
        let each = self.trial_time();
        let search = each * trials as u32;
        let search = self.order.time.map_or(search, |time| search.min(time + each));
        let race = each * 2 * self.order.max_pairs;
        TuneEstimate { trials: trials as u64, seconds: if trials == 0 { 0 } else { (search + race).as_secs() } }
    }

    /// What steps beside visitors take at most.
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

    /// Trials that are kept for the finals.
    fn kept_for_finals(&self) -> usize {
        match self.order.trials as usize {
            n if n >= TRIALS_FOR_THREE => trials_of_finals(3),
            n if n >= TRIALS_FOR_THREE / 2 => trials_of_finals(2),
            _ => 0,
        }
    }

    /// Trials that are kept to see what KeepAlive is worth.
    fn kept_for_advice(&self) -> usize {
        let is_advised = self.order.advise_keepalive && self.plan.keepalive == KeepAlive::Off;
        let few = (self.order.trials as usize) < TRIALS_FOR_THREE / 2;
        if is_advised && !few && self.stack.knob(Role::KeepAlive).is_some() { search::ADVICE_TRIALS } else { 0 }
    }

    /// Trials that are left of those that the user allows. Those of the race come after them.
    fn trials_left(&self) -> usize {
        let done = self.document.trials.iter().filter(|t| t.role != "race").count();
        (self.order.trials as usize).saturating_sub(done)
    }

    /// Why nothing but the server as it is was measured.
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

    fn run(&mut self, after: Option<After<'_>>) -> Result<(), LabError> {
        let effective = self.stack.original().clone();
        let pool = self.stack.pool().ok_or_else(|| LabError::Other("there is no server to tune".into()))?;
        // Memory settles with the second request; before the first a worker shares nearly everything.
        for _ in 0..2 {
            let _ = warm_each(&self.order.plan, pool.count_workers());
        }
        let Some(Ready { sizes, wishes, prepared }) = self.ready()? else { return Ok(()) };
        let planned = self.plan_search(&prepared.space);
        let what = self.planned_words(planned, &prepared.space);
        self.lab.tell(&Event::Experiment { what: what.into() });
        self.document.planned = Some(planned);
        self.lab.tell(&Event::Stage { stage: Stage::Search });
        let budget = sizes.first().map(|(_, size)| size.budget_bytes);
        let (began, space_is_empty) = (Instant::now(), prepared.space.parameters.is_empty());
        let challenger = self.search(prepared, &wishes.fixed, &effective, budget)?;
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
        let foretold = self.foretell(&sizes, &settings);
        self.race(&settings, &effective)?;
        if let Some(foretold) = foretold {
            self.compare_memory(foretold, &settings);
        }
        match after.filter(|_| self.document.verdict == TuneVerdict::Improved) {
            Some(after) => self.look_after(&settings, after),
            None => Ok(()),
        }
    }

    /// Has the servers looked at with the winner's settings. What is proven stays so where that fails.
    fn look_after(&mut self, settings: &Settings, after: After<'_>) -> Result<(), LabError> {
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
    ) -> Result<Measured, LabError> {
        let beginning = self.beginning(settings, role);
        self.measure_from(settings, role, plan, budget, beginning)
    }

    /// The same, with where it begins to search the highest rate; None: it puts on the load as it is.
    fn measure_from(
        &mut self,
        settings: &Settings,
        role: &str,
        plan: &Plan,
        budget: Option<u64>,
        beginning: Option<Beginning>,
    ) -> Result<Measured, LabError> {
        let label = format!("tune {role}: {}", describe(settings));
        let order = TrialOrder {
            plan,
            settings: settings.clone(),
            label,
            role,
            recycling_warm_up: self.order.recycling_warm_up,
            settling: self.order.settling,
            budget,
            most_unanswered: self.most_unanswered(),
            bar: self.bar.filter(|_| role == "search"),
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
        let known = self.diary.recall(|t| t.settings == *settings && t.role == role);
        let measured = match (known, beginning) {
            (Some(trial), _) => {
                self.lab.check_stop()?;
                Measured { trial, run: None }
            }
            (None, Some(beginning)) => rate_trial(self.lab, self.stack, &order, beginning)?,
            (None, None) => trial(self.lab, self.stack, &order)?,
        };
        self.diary.write(&measured.trial);
        let outcome = Outcome::Tune { trial: Cow::Borrowed(&measured.trial) };
        self.lab.tell(&Event::TrialDone { outcome });
        self.document.trials.push(measured.trial.clone());
        Ok(measured)
    }

    /// Where a trial begins to search the highest rate; None for one that puts on the load as it is.
    fn beginning(&self, settings: &Settings, role: &str) -> Option<Beginning> {
        if !self.order.searches_rates() || !matches!(role, "baseline" | "search" | "final" | "race") {
            return None;
        }
        let of = |t: &&Trial| t.valid && !t.steps.is_empty();
        let known = self.document.trials.iter().rev().filter(of).find(|t| t.settings == *settings);
        let best = self.document.trials.iter().filter(of).map(|t| t.objective).reduce(f64::max);
        let guess = self.document.trials.iter().find(|t| t.role == PROBE).map_or(1.0, |t| t.objective.max(1.0));
        Some(match (known, best) {
            // Rates lie in steps: begun elsewhere each time, they come to the true one in the mean.
            (Some(known), _) => Beginning::Known { rate: known.objective * self.dither() },
            (None, Some(rate)) if role == "search" => Beginning::Best { rate },
            _ => Beginning::Nothing { rate: guess },
        })
    }

    /// A number near one, another one for each trial.
    fn dither(&self) -> f64 {
        // The golden ratio's fractions spread evenly, however many there are.
        let part = (self.document.trials.len() as f64 * 0.618_033_988_75 + self.seed as f64 * 0.1).fract();
        1.0 + 0.06 * (part - 0.5)
    }

    /// Something is done otherwise than expected: told now, and in the document.
    fn decided(&mut self, what: ExperimentDecision, reason: String) {
        self.lab.tell(&Event::Decided { what, reason: reason.as_str().into() });
        self.document.notes.push(reason);
    }

    /// Share of requests that may have no answer.
    fn most_unanswered(&self) -> f64 {
        if !self.order.searches_rates() {
            return MOST_UNANSWERED.max(self.baseline_unanswered() + 0.005);
        }
        // Where the user says how many may go wrong, that is it.
        let errors = self.plan.objectives.iter().filter(|o| o.class.is_none() && o.metric == Metric::Errors);
        errors.map(|o| o.limit).reduce(f64::max).unwrap_or(MOST_UNANSWERED)
    }

    /// Share of requests without an answer that the server has as it is: others are not held to more.
    fn baseline_unanswered(&self) -> f64 {
        let Some(t) = self.document.trials.iter().rev().find(|t| t.role == "baseline") else { return 1.0 };
        let answered = self.answers(t.objective) as f64;
        t.unanswered as f64 / (t.unanswered as f64 + answered).max(1.0)
    }

    fn block(&self) -> Duration {
        self.plan.phases[0].duration.unwrap_or(LONGEST_BLOCK)
    }

    /// Answers in a block at a rate.
    fn answers(&self, rate: f64) -> u64 {
        (rate * self.block().as_secs_f64()).round() as u64
    }
}
