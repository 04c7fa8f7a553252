//! Defines what a tune searches: the knobs of a stack that have a reason to move, with values worth trying, and why the
//! others stay.

use std::cmp::Reverse;

use lastdrop_model::documents::{Clue, Goal, Proposal, SearchedSetting, SizeDocument};
use lastdrop_model::settings::KnobValues;
use lastdrop_model::{KeepAlive, Knob, Plan, ReloadClass, Role, Setting, Settings};
use lastdrop_server::{Server, ServerError, Stack};
use lastdrop_tune::{Limit, Parameter, Point, Space};

/// The user's constraints on settings, by name.
#[derive(Debug, Clone, Default)]
pub struct SearchConstraints {
    /// Search nothing else; empty: everything with a reason.
    pub only: Vec<String>,
    pub not: Vec<String>,
    /// Search between these numbers.
    pub ranges: Vec<(String, u64, u64)>,
    /// Set in every trial except those of the baseline.
    pub fixed: Settings,
}

impl SearchConstraints {
    /// Returns the same constraints with the names that settings have in a stack.
    ///
    /// # Errors
    /// With a setting that no server has, or a value that it cannot take.
    pub fn settled(&self, stack: &Stack) -> Result<SearchConstraints, ServerError> {
        let name = |name: &String| {
            let settled = stack.settings(&Settings::from([(name.clone(), Setting::Count(0))]))?;
            let name = settled.into_keys().next().unwrap_or_else(|| name.clone());
            if stack.all_knobs().iter().any(|(known, ..)| *known == name) {
                return Ok(name);
            }
            Err(ServerError::Setting(format!("there is no setting '{name}' (see lastdrop knobs)")))
        };
        let names = |all: &[String]| all.iter().map(name).collect::<Result<Vec<_>, _>>();
        let fixed = stack.settings(&self.fixed)?;
        stack.check_names(&fixed)?;
        let ranges = self.ranges.iter().map(|(of, low, high)| Ok((name(of)?, *low, *high)));
        Ok(SearchConstraints {
            only: names(&self.only)?,
            not: names(&self.not)?,
            ranges: ranges.collect::<Result<_, ServerError>>()?,
            fixed,
        })
    }

    pub(super) fn range(&self, name: &str) -> Option<(u64, u64)> {
        self.ranges.iter().find(|(of, ..)| of == name).map(|(_, low, high)| (*low, *high))
    }

    pub(super) fn names(&self, name: &str) -> bool {
        self.only.iter().any(|n| n == name) || self.range(name).is_some()
    }
}

/// Recycling below this number of requests costs more than it saves; above, the cost of a new worker is spread over
/// enough requests.
const CHURN: u64 = 1000;
/// Ages that still limit a leak; the cost of the larger one is not measurable.
const CALM: [u64; 2] = [1000, 10_000];
/// Keep-alive timeouts worth trying, in seconds.
const KEPT_S: [u64; 5] = [1, 2, 5, 15, 60];
/// A number searched only by its name ranges from the present value divided by this factor to its multiple.
const AROUND: u64 = 8;
/// Most and fewest settings that are searched because of clues, and the trials that each takes.
const MOST_SEEN: usize = 6;
const LEAST_SEEN: usize = 2;
const TRIALS_EACH: u32 = 3;
/// Most settings that are searched without any clue, if nothing else is.
const MOST_PROMISING: usize = 4;
/// The most frequent limits of servers, the commonest first: a setting that helps against one of these is the most
/// promising.
const COMMONEST: &[&str] = &[
    "workers-exhausted",
    "fpm-children-exhausted",
    "sync-workers-waiting",
    "single-worker-cpu",
    "single-process",
    "cpu-saturated",
    "compression-bound",
    "keepalive-off",
    "upstream-connect-per-request",
    "access-log-unbuffered",
    "tls-bound",
];
/// Findings about memory, which justify a setting only if memory is the goal.
const OF_MEMORY: &[&str] = &["memory-overcommit", "memory-leak", "unshared-memory"];
/// Findings of a server in which one process or thread does all the work; settings against these are numbers of
/// processes.
const OF_PROCESSES: &[&str] = &["single-worker-cpu", "single-process"];
/// Workers per processor that leave room for slow clients, which a load from nearby does not have.
pub(super) const ROOM: u64 = 4;

/// A space with the first moves of an expert, and the decision about each setting.
#[derive(Debug)]
pub(super) struct PreparedSearch {
    pub space: Space,
    pub moves: Vec<Point>,
    pub searched: Vec<SearchedSetting>,
}

/// What is known about the stack that is tuned.
#[derive(Debug)]
pub(super) struct SearchFacts<'a> {
    pub stack: &'a Stack,
    pub plan: &'a Plan,
    /// All present settings.
    pub present: &'a Settings,
    /// Sizes of the pools by the index of their server in the stack.
    pub sizes: &'a [(usize, SizeDocument)],
    pub constraints: &'a SearchConstraints,
    pub proposals: &'a [Proposal],
    pub clues: &'a [Clue],
    pub goal: Goal,
    /// Most trials of the search.
    pub trials: u32,
}

/// A setting with its values to search and the reason, or why it is not searched.
type SearchDecision = Result<(Parameter, String), ExclusionReason>;

/// Why a setting is not searched.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ExclusionReason {
    /// Something speaks against it.
    Because(String),
    /// Nothing suggests it.
    NoReason,
}

impl From<String> for ExclusionReason {
    fn from(because: String) -> ExclusionReason {
        ExclusionReason::Because(because)
    }
}

impl ExclusionReason {
    fn words(self, name: &str) -> String {
        match self {
            ExclusionReason::Because(because) => because,
            ExclusionReason::NoReason => format!("nothing that was seen points to it; --only {name} tries it"),
        }
    }
}

/// What makes a setting worth a trial, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SearchReason {
    /// The user's request, the setting's role, or a proposal: such settings are always searched.
    Given,
    /// Number of clues, and the index of the first of them among all.
    Seen(Reverse<usize>, usize),
}

impl SearchFacts<'_> {
    /// Returns how many requests can be in flight at once; more workers would stay idle.
    fn concurrency(&self) -> u64 {
        self.plan.phases.iter().map(|p| u64::from(p.load.most_concurrent())).max().unwrap_or(1)
    }

    fn present(&self, name: &str, knob: &Knob) -> Setting {
        self.present.get(name).cloned().unwrap_or_else(|| knob.default.into())
    }

    fn size(&self, place: Option<usize>) -> Option<&SizeDocument> {
        self.sizes.iter().find(|(of, _)| Some(*of) == place).map(|(_, size)| size)
    }

    fn consider(&self, name: &str, knob: &Knob, place: Option<usize>) -> (SearchReason, SearchDecision) {
        if let Some(value) = self.constraints.fixed.get(name) {
            return (SearchReason::Given, Err(format!("it is {value} in every trial (--fix)").into()));
        }
        if self.constraints.not.iter().any(|n| n == name) {
            return (SearchReason::Given, Err("it is left out (--not)".to_string().into()));
        }
        let named = |because: String| Ok((self.named(name, knob, place)?, because));
        if self.constraints.names(name) {
            return (SearchReason::Given, named("it is asked for".into()));
        }
        if !self.constraints.only.is_empty() {
            return (SearchReason::Given, Err("it is not among those that are asked for (--only)".to_string().into()));
        }
        let by_role = self.by_role(name, knob, place);
        if by_role.is_ok() {
            return (SearchReason::Given, by_role);
        }
        if let Some(p) = self.proposals.iter().find(|p| p.settings.contains_key(name)) {
            return (SearchReason::Given, named(format!("a look found: {}", p.reason)));
        }
        let clues = self.clues(name, knob, place);
        let Some((at, clue)) = clues.first().filter(|_| by_role == Err(ExclusionReason::NoReason)) else {
            return (SearchReason::Given, by_role);
        };
        if let Err(why) = self.may_be_tried(name, knob) {
            return (SearchReason::Given, Err(why.into()));
        }
        (SearchReason::Seen(Reverse(clues.len()), *at), named(format!("{} ({})", clue.reason, clue.finding)))
    }

    /// Returns the clues that suggest a setting, with their indices among all.
    fn clues(&self, name: &str, knob: &Knob, place: Option<usize>) -> Vec<(usize, &Clue)> {
        let of_memory = |c: &Clue| OF_MEMORY.contains(&c.finding.as_str()) && self.goal != Goal::Memory;
        // In a stack, the server's name precedes the setting's; settings of the host affect all servers.
        let server = name.strip_suffix(knob.name).and_then(|server| server.strip_suffix('.'));
        let is_of = |c: &Clue| c.server.is_empty() || place.is_none() || server.is_none_or(|s| s == c.server);
        let points = |c: &Clue| knob.findings.contains(&c.finding.as_str()) && is_of(c) && !of_memory(c);
        self.clues.iter().enumerate().filter(|(_, clue)| points(clue)).collect()
    }

    /// Checks whether a search may try the setting without the user naming it.
    fn may_be_tried(&self, name: &str, knob: &Knob) -> Result<(), String> {
        let by_name = |why: &str| Err(format!("{why}; --only {name} tries it"));
        let present = self.present(name, knob).count();
        match (knob.by_name, knob.role) {
            (Some(why), _) => by_name(why),
            (_, Some(Role::ThreadsPerWorker)) if present.is_none_or(|n| n <= 1) => {
                by_name("the application has to be safe for threads")
            }
            (_, Some(Role::PoolStart | Role::SpareMin | Role::SpareMax)) => {
                by_name("it follows from the size of the pool")
            }
            (_, Some(Role::Timeout)) => by_name("it decides which requests are given up, not how fast others are"),
            _ => Ok(()),
        }
    }

    /// Proposes one of the settings that are most often worth a trial, if no clue suggests any.
    fn promising(&self, name: &str, knob: &Knob, place: Option<usize>) -> Option<(usize, Parameter, String)> {
        let at = COMMONEST.iter().position(|finding| knob.findings.contains(finding))?;
        let wanted = self.constraints.only.is_empty() && knob.needs != ReloadClass::Sysctl;
        if !wanted || self.may_be_tried(name, knob).is_err() {
            return None;
        }
        let because =
            format!("nothing that was seen points to any setting; this one is often worth it ({})", COMMONEST[at]);
        Some((at, self.named(name, knob, place).ok()?, because))
    }

    /// Returns the values that the search tries because of the setting's role.
    fn by_role(&self, name: &str, knob: &Knob, place: Option<usize>) -> SearchDecision {
        let present = self.present(name, knob);
        let count = present.count().and_then(|n| u64::try_from(n).ok());
        match (knob.role, count) {
            (Some(Role::PoolSize), Some(n)) if place.is_some() => {
                let users = self.concurrency();
                Ok((self.pool(name, n, place), format!("a pool of {n} under {users} users at once")))
            }
            (Some(Role::Recycle), Some(age)) if age > 0 && age < CHURN => {
                let levels: Vec<Setting> = [age].into_iter().chain(CALM).map(Setting::from).collect();
                Ok((Parameter::steps(name, levels, 0), format!("each worker is replaced after {age} requests")))
            }
            (Some(Role::Recycle), _) => {
                Err("workers live long enough for a new one to cost next to nothing".to_string().into())
            }
            (Some(Role::KeepAlive), _) if self.plan.keepalive == KeepAlive::Off => {
                Err("this load opens a connection for each request (--keepalive on)".to_string().into())
            }
            (Some(Role::KeepAlive), _) => {
                let other = knob.switched(!present.is_on());
                Ok((Parameter::kinds(name, vec![present, other], 0), "clients keep their connections".into()))
            }
            (Some(Role::KeepAliveTimeout), Some(seconds)) if self.plan.keepalive != KeepAlive::Off => {
                let pauses = self.plan.think.is_some() || self.plan.page.is_some();
                if !pauses {
                    return Err("users make no pause in which a connection would be kept (--think)".to_string().into());
                }
                Ok((numbers(name, &KEPT_S, seconds), "users pause, and an idle connection may hold a worker".into()))
            }
            _ => Err(ExclusionReason::NoReason),
        }
    }

    fn pool(&self, name: &str, present: u64, place: Option<usize>) -> Parameter {
        let size = self.size(place);
        let (fits, granule) =
            size.map_or((u64::MAX, 1), |s| (s.fitting() * s.threads_per_worker, s.threads_per_worker));
        // A pool larger than the load can use is no better; one larger than memory is worse than any.
        let largest = self.concurrency().max(granule).min(fits.max(1));
        let cores = place.and_then(|place| self.stack.server(place)).map_or(1, Server::cores);
        let smallest = cores.min(largest).min(present.max(1));
        Parameter::sizes(name, smallest, largest, granule, present)
    }

    /// Returns the values to search for a setting that the user, a proposal or a clue has named.
    fn named(&self, name: &str, knob: &Knob, place: Option<usize>) -> Result<Parameter, ExclusionReason> {
        let present = self.present(name, knob);
        let count = present.count().and_then(|n| u64::try_from(n).ok());
        let granule =
            if knob.role == Some(Role::PoolSize) { self.size(place).map_or(1, |s| s.threads_per_worker) } else { 1 };
        let usual = knob.usual.iter().filter_map(|n| u64::try_from(*n).ok());
        let usual: Vec<u64> = usual.filter(|n| knob.check(&Setting::from(*n)).is_ok()).collect();
        let is_of_processes = OF_PROCESSES.iter().any(|finding| knob.findings.contains(finding));
        let cores = place.and_then(|place| self.stack.server(place)).map_or(1, Server::cores);
        match (knob.takes, self.constraints.range(name), count) {
            (KnobValues::Count(..) | KnobValues::CountOr(..), Some((low, high)), Some(n)) => {
                let p = Parameter::sizes(name, low, high, granule, n);
                Ok(if low == 0 && n != 0 { with_kind(&p, Setting::Count(0)) } else { p })
            }
            (KnobValues::Count(..), None, Some(n)) if knob.role == Some(Role::PoolSize) => {
                Ok(self.pool(name, n, place))
            }
            (KnobValues::Count(..), None, Some(n)) if !usual.is_empty() => Ok(numbers(name, &usual, n)),
            // More of them than processors only take turns.
            (KnobValues::Count(least, most), None, Some(n)) if is_of_processes => {
                let (least, most) = (least.max(1) as u64, most.max(1) as u64);
                Ok(Parameter::sizes(name, least, (2 * cores).max(n).clamp(least, most), 1, n))
            }
            (KnobValues::Count(least, most), None, Some(n)) => {
                let (least, most) = (least.max(0) as u64, most.max(0) as u64);
                let low = (n / AROUND).max(least);
                let high = (n.max(1) * AROUND).min(most);
                let p = Parameter::sizes(name, low, high, granule, n);
                let zero = (least == 0 && n != 0).then_some(Setting::Count(0));
                // Zero often has a meaning of its own: never, or without a limit.
                Ok(match zero {
                    Some(zero) => with_kind(&p, zero),
                    None => p,
                })
            }
            (KnobValues::Switch { .. }, None, _) => {
                let other = knob.switched(!present.is_on());
                Ok(Parameter::kinds(name, vec![present, other], 0))
            }
            (KnobValues::Choice(words), None, _) => Ok(kinds(name, words.iter().map(|w| Setting::read(w)), present)),
            (KnobValues::CountOr(.., word), None, _) => {
                let around = count.map_or_else(Vec::new, |n| vec![(n / 2).max(1), n, n * 2]);
                let numbers = if is_of_processes { vec![1, cores.div_ceil(2), cores] } else { around };
                let numbers = numbers.into_iter().map(Setting::from).filter(|n| knob.check(n).is_ok());
                Ok(kinds(name, numbers.chain([Setting::Text(word.into())]), present))
            }
            (_, Some(_), _) => Err(format!("it is {present}, which is no number: it has no --range").into()),
            _ => Err("it is two numbers, which are not searched; a sweep tries given ones".to_string().into()),
        }
    }
}

/// Returns a parameter of numbers, including the present one.
fn numbers(name: &str, all: &[u64], present: u64) -> Parameter {
    let mut all = [all, &[present]].concat();
    all.sort_unstable();
    all.dedup();
    let place = all.iter().position(|n| *n == present).unwrap_or(0);
    Parameter::steps(name, all.into_iter().map(Setting::from).collect(), place)
}

fn kinds(name: &str, all: impl Iterator<Item = Setting>, present: Setting) -> Parameter {
    let mut levels = vec![present];
    for level in all {
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    Parameter::kinds(name, levels, 0)
}

/// Adds a value that is not on the numeric scale; on a line, it can only be placed beyond the end.
fn with_kind(p: &Parameter, value: Setting) -> Parameter {
    let mut levels = p.levels.clone();
    levels.push(value);
    Parameter::steps(&p.name, levels, p.present)
}

/// Considers all settings of a stack.
pub(super) fn prepare(facts: &SearchFacts<'_>) -> PreparedSearch {
    let mut all = facts.stack.all_knobs();
    // Settings that others depend on come first; otherwise in the order in which they usually matter.
    let rank = |knob: &Knob| match knob.role {
        Some(Role::Recycle) => 0,
        Some(Role::PoolSize) => 1,
        Some(Role::KeepAlive) => 2,
        _ => 3,
    };
    all.sort_by_key(|(_, knob, _)| (knob.when.is_some(), rank(knob)));
    let place = |server: &Option<Server<'_>>| server.map(Server::place);
    let mut considered: Vec<(SearchReason, SearchDecision)> =
        all.iter().map(|(name, knob, server)| facts.consider(name, knob, place(server))).collect();
    if considered.iter().all(|(_, c)| c.is_err()) {
        let open = considered.iter().enumerate().filter(|(_, (_, c))| *c == Err(ExclusionReason::NoReason));
        let promising = open.filter_map(|(i, _)| {
            let (name, knob, server) = &all[i];
            facts.promising(name, knob, place(server)).map(|(at, p, because)| (at, i, (p, because)))
        });
        let mut promising: Vec<_> = promising.collect();
        promising.sort_by_key(|(at, i, _)| (*at, *i));
        for (at, i, chosen) in promising.into_iter().take(MOST_PROMISING) {
            considered[i] = (SearchReason::Seen(Reverse(0), at), Ok(chosen));
        }
    }
    leave_out_the_least(&mut considered, facts.trials);
    let mut space = Space::default();
    let mut searched = Vec::new();
    let mut chosen: Vec<SpaceParameter> = Vec::new();
    for ((name, knob, server), (reason, considered)) in all.into_iter().zip(considered) {
        let considered = considered.map_err(|left| left.words(&name)).and_then(|(p, because)| {
            if p.levels.len() < 2 {
                return Err("there is no other value that could be tried".into());
            }
            Ok((on_condition(&space, facts.present, knob, &name, p)?, because))
        });
        let (values, because) = match considered {
            Ok((parameter, because)) => {
                let values = parameter.levels.iter().map(ToString::to_string).collect();
                let favoured = favoured(&parameter, knob, server).filter(|_| reason != SearchReason::Given);
                chosen.push(SpaceParameter { role: knob.role, place: place(&server), favoured });
                space.parameters.push(parameter);
                (values, because)
            }
            Err(because) => (Vec::new(), because),
        };
        searched.push(SearchedSetting { name, values, reason: because });
    }
    for (place, size) in facts.sizes {
        let is_pool = |c: &SpaceParameter| c.role == Some(Role::PoolSize) && c.place == Some(*place);
        let of = chosen.iter().enumerate().filter(|(_, c)| is_pool(c));
        let each = of.map(|(parameter, _)| (parameter, 1.0)).collect();
        let most = (size.fitting() * size.threads_per_worker) as f64;
        space.limits.push(Limit { each, most });
    }
    let proposed = facts.proposals.iter().filter_map(|p| at(&space, &p.settings));
    let moves = proposed.chain(moves(&space, facts, &chosen)).collect();
    PreparedSearch { space, moves, searched }
}

/// What a parameter of the space stands for.
#[derive(Debug)]
struct SpaceParameter {
    role: Option<Role>,
    place: Option<usize>,
    /// The level that an expert would try in response to the clues.
    favoured: Option<usize>,
}

/// Returns the value that usually helps: the first of the usual values, one process per processor, or the other of two
/// values.
fn favoured(p: &Parameter, knob: &Knob, server: Option<Server<'_>>) -> Option<usize> {
    let level = |wanted: Setting| p.levels.iter().position(|level| *level == wanted).filter(|i| *i != p.present);
    let usual = || knob.usual.iter().find_map(|n| level(Setting::Count(*n)));
    let is_of_processes = OF_PROCESSES.iter().any(|finding| knob.findings.contains(finding));
    let processes = || level(Setting::from(server.filter(|_| is_of_processes)?.cores()));
    let other = || (p.levels.len() == 2).then(|| 1 - p.present);
    usual().or_else(processes).or_else(other)
}

/// Of the settings suggested by clues, keeps as many as there are trials for: those with the most clues.
fn leave_out_the_least(considered: &mut [(SearchReason, SearchDecision)], trials: u32) {
    let most = (trials.saturating_sub(1) / TRIALS_EACH) as usize;
    let most = most.clamp(LEAST_SEEN, MOST_SEEN);
    let mut seen: Vec<(SearchReason, usize)> = considered
        .iter()
        .enumerate()
        .filter(|(_, (reason, c))| *reason != SearchReason::Given && c.as_ref().is_ok_and(|(p, _)| p.levels.len() > 1))
        .map(|(i, (reason, _))| (*reason, i))
        .collect();
    seen.sort_unstable();
    for (_, i) in seen.into_iter().skip(most) {
        let because =
            format!("{trials} trials are too few for it beside the others: --trials N, or name it with --only");
        considered[i].1 = Err(because.into());
    }
}

/// Adds the condition of a parameter that has no effect unless another has certain values.
fn on_condition(space: &Space, present: &Settings, knob: &Knob, name: &str, p: Parameter) -> Result<Parameter, String> {
    let Some((other, values)) = knob.when else { return Ok(p) };
    let beside = name.strip_suffix(knob.name).unwrap_or_default();
    let other = format!("{beside}{other}");
    let fits = |level: &Setting| values.iter().any(|v| level.to_string().eq_ignore_ascii_case(v));
    match space.parameters.iter().position(|p| p.name == other) {
        Some(parameter) => {
            let levels = space.parameters[parameter].levels.iter().enumerate().filter(|(_, level)| fits(level));
            Ok(p.only_with(parameter, levels.map(|(i, _)| i).collect()))
        }
        None if present.get(&other).is_none_or(fits) => Ok(p),
        None => Err(format!("it does nothing unless {other} is {}", values.join(" or "))),
    }
}

/// Returns the point of the space nearest to settings; None if one of them is not searched, or the point would change
/// nothing.
fn at(space: &Space, settings: &Settings) -> Option<Point> {
    let mut point = space.start();
    for (name, wanted) in settings {
        let parameter = space.parameters.iter().position(|p| p.name == *name)?;
        let levels = &space.parameters[parameter].levels;
        let alike = |level: &Setting| level.to_string().eq_ignore_ascii_case(&wanted.to_string());
        let distance =
            |level: &Setting| Some((level.count()?.max(1) as f64 / wanted.count()?.max(1) as f64).ln().abs());
        let nearest = || {
            let all = levels.iter().enumerate().filter_map(|(i, level)| Some((distance(level)?, i)));
            all.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
        };
        point[parameter] = levels.iter().position(alike).or_else(nearest)?;
    }
    (point != space.start()).then_some(point)
}

/// Returns the first moves of an expert. First, everything that usually helps against the clues, together. Then
/// long-lived workers; pools as large as advised, as the load can use, and half of that; keep-alive switched. Finally,
/// each helpful setting by itself.
fn moves(space: &Space, facts: &SearchFacts<'_>, chosen: &[SpaceParameter]) -> Vec<Point> {
    let of = |role: Role| (0..chosen.len()).filter(move |p| chosen[*p].role == Some(role));
    let favoured = || chosen.iter().enumerate().filter_map(|(parameter, c)| Some((parameter, c.favoured?)));
    let mut best = space.start();
    let mut moves = Vec::new();
    let mut together = best.clone();
    favoured().for_each(|(parameter, level)| together[parameter] = level);
    moves.push(together);
    for parameter in of(Role::Recycle) {
        best[parameter] = space.parameters[parameter].levels.len() - 1;
        moves.push(best.clone());
    }
    let nearest = |parameter: usize, wanted: u64| {
        let distance = |level: &Setting| (level.count().unwrap_or(0) - wanted as i64).abs();
        let levels = space.parameters[parameter].levels.iter().enumerate();
        levels.min_by_key(|(_, level)| distance(level)).map_or(0, |(level, _)| level)
    };
    let cores = facts.stack.pool().map_or(1, Server::cores);
    // The advised size of each pool, if known.
    let mut advised = best.clone();
    for parameter in of(Role::PoolSize) {
        let advice = facts.size(chosen[parameter].place).and_then(|size| size.workers_advice.as_ref());
        if let Some(advice) = advice.filter(|advice| advice.need.is_some()) {
            advised[parameter] = nearest(parameter, advice.number);
        }
    }
    if advised != best {
        moves.push(advised);
    }
    for wanted in [facts.concurrency(), facts.concurrency().div_ceil(2), ROOM * cores] {
        let mut point = best.clone();
        for parameter in of(Role::PoolSize) {
            point[parameter] = nearest(parameter, wanted);
        }
        moves.push(point);
    }
    for parameter in of(Role::KeepAlive) {
        let mut point = moves.last().cloned().unwrap_or_else(|| best.clone());
        point[parameter] = 1;
        moves.push(point);
    }
    for (parameter, level) in favoured() {
        let mut point = space.start();
        point[parameter] = level;
        moves.push(point);
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(clues: usize, at: usize, name: &str) -> (SearchReason, SearchDecision) {
        let p = Parameter::kinds(name, vec!["on".into(), "off".into()], 0);
        (SearchReason::Seen(Reverse(clues), at), Ok((p, "seen".into())))
    }

    #[test]
    fn with_few_trials_those_with_the_most_clues_are_searched_and_what_is_given_always() {
        let given = (SearchReason::Given, Ok((Parameter::sizes("workers", 1, 8, 1, 4), "a pool".to_string())));
        let names = ["sendfile", "cache", "level", "processes"];
        let clues = [(1, 2), (1, 2), (2, 2), (2, 0)];
        let all = || {
            let seen = clues.iter().zip(names).map(|((n, at), name)| seen(*n, *at, name));
            seen.chain([given.clone()]).collect::<Vec<_>>()
        };
        let kept = |trials: u32| {
            let mut all = all();
            leave_out_the_least(&mut all, trials);
            all.into_iter().filter_map(|(_, c)| c.ok()).map(|(p, _)| p.name).collect::<Vec<_>>()
        };
        assert_eq!(kept(2), ["level", "processes", "workers"]);
        assert_eq!(kept(10), ["sendfile", "level", "processes", "workers"]);
        assert_eq!(kept(25).len(), 5);
        let mut all = all();
        leave_out_the_least(&mut all, 2);
        assert!(matches!(&all[1].1, Err(ExclusionReason::Because(why)) if why.contains("--trials")), "{:?}", all[1]);
    }

    #[test]
    fn what_usually_helps_is_tried_first() {
        let level = Knob::by_reload("level", KnobValues::Count(1, 9), "1", "", "").usually(&[1, 4]);
        let p = numbers("level", &[1, 4], 9);
        assert_eq!(p.levels.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1", "4", "9"]);
        assert_eq!(favoured(&p, &level, None), Some(0));
        // The present value is the first usual one, so the next is used.
        assert_eq!(favoured(&numbers("level", &[1, 4], 1), &level, None), Some(1));
        let switch = Knob::by_reload("cache", KnobValues::Switch { on: "on", off: "off" }, "off", "", "");
        assert_eq!(favoured(&Parameter::kinds("cache", vec!["off".into(), "on".into()], 0), &switch, None), Some(1));
        let plain = Knob::by_reload("n", KnobValues::Count(1, 100), "9", "", "");
        assert_eq!(favoured(&Parameter::sizes("n", 1, 100, 1, 9), &plain, None), None);
    }
}
