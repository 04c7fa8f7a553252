//! What a tune searches: the knobs of a stack that have a reason to move, with values worth trying, and why the others stay.

use lastdrop_model::documents::{Proposal, Searched, SizeDocument};
use lastdrop_model::settings::Takes;
use lastdrop_model::{KeepAlive, Knob, Plan, Role, Setting, Settings};
use lastdrop_server::{Server, ServerError, Stack};
use lastdrop_tune::{Limit, Parameter, Point, Space};

/// What the user says of settings, by their names.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Nothing else is searched; empty: what has a reason.
    pub only: Vec<String>,
    pub not: Vec<String>,
    /// Searched between these numbers.
    pub ranges: Vec<(String, u64, u64)>,
    /// In every trial but those of the server as it is.
    pub fixed: Settings,
}

impl Wishes {
    /// The same by the names that settings have in a stack.
    ///
    /// # Errors
    /// With the setting that is nobody's, or a value that it cannot have.
    pub fn settled(&self, stack: &Stack) -> Result<Wishes, ServerError> {
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
        Ok(Wishes {
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

/// Recycling below this costs more than it saves; above it the cost of a new worker is spread over enough requests.
const CHURN: u64 = 1000;
/// Ages that still bound a leak; of the larger one the cost is not measurable.
const CALM: [u64; 2] = [1000, 10_000];
/// Seconds that a connection is kept, worth trying.
const KEPT_S: [u64; 5] = [1, 2, 5, 15, 60];
/// A number that is searched by its name alone goes so many times below and above where it stands.
const AROUND: u64 = 8;
/// Workers for each processor that leave room for slow clients, which a load from next door does not have.
pub(super) const ROOM: u64 = 4;

/// A space with what an expert would try first, and what was decided of each setting.
#[derive(Debug)]
pub(super) struct Prepared {
    pub space: Space,
    pub moves: Vec<Point>,
    pub searched: Vec<Searched>,
}

/// What is known of the stack that is tuned.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub stack: &'a Stack,
    pub plan: &'a Plan,
    /// All present settings.
    pub present: &'a Settings,
    /// How often workers fit into memory, by the place of their server in the stack.
    pub sizes: &'a [(usize, SizeDocument)],
    pub wishes: &'a Wishes,
    pub proposals: &'a [Proposal],
}

/// A setting with what is searched of it, or why it is not.
type Considered = Result<(Parameter, String), String>;

impl Facts<'_> {
    /// Requests that can be in flight at once: more workers than that stay idle.
    fn concurrency(&self) -> u64 {
        self.plan.phases.iter().map(|p| u64::from(p.load.most_concurrent())).max().unwrap_or(1)
    }

    fn present(&self, name: &str, knob: &Knob) -> Setting {
        self.present.get(name).cloned().unwrap_or_else(|| knob.default.into())
    }

    fn size(&self, place: Option<usize>) -> Option<&SizeDocument> {
        self.sizes.iter().find(|(of, _)| Some(*of) == place).map(|(_, size)| size)
    }

    fn consider(&self, name: &str, knob: &Knob, place: Option<usize>) -> Considered {
        if let Some(value) = self.wishes.fixed.get(name) {
            return Err(format!("it is {value} in every trial (--fix)"));
        }
        if self.wishes.not.iter().any(|n| n == name) {
            return Err("it is left out (--not)".into());
        }
        if self.wishes.names(name) {
            return Ok((self.named(name, knob, place)?, "it is asked for".into()));
        }
        if !self.wishes.only.is_empty() {
            return Err("it is not among those that are asked for (--only)".into());
        }
        match (self.by_role(name, knob, place), self.proposals.iter().find(|p| p.settings.contains_key(name))) {
            (Err(_), Some(p)) => Ok((self.named(name, knob, place)?, format!("a look found: {}", p.because))),
            (considered, _) => considered,
        }
    }

    /// What the search tries by itself.
    fn by_role(&self, name: &str, knob: &Knob, place: Option<usize>) -> Considered {
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
            (Some(Role::Recycle), _) => Err("workers live long enough for a new one to cost next to nothing".into()),
            (Some(Role::KeepAlive), _) if self.plan.keepalive == KeepAlive::Off => {
                Err("this load opens a connection for each request (--keepalive on)".into())
            }
            (Some(Role::KeepAlive), _) => {
                let other = knob.switched(!present.is_on());
                Ok((Parameter::kinds(name, vec![present, other], 0), "clients keep their connections".into()))
            }
            (Some(Role::KeepAliveTimeout), Some(seconds)) if self.plan.keepalive != KeepAlive::Off => {
                let pauses = self.plan.think.is_some() || self.plan.page.is_some();
                if !pauses {
                    return Err("users make no pause in which a connection would be kept (--think)".into());
                }
                Ok((numbers(name, &KEPT_S, seconds), "users pause, and an idle connection may hold a worker".into()))
            }
            _ => Err(format!("nothing of this load points to it; --only {name} tries it")),
        }
    }

    fn pool(&self, name: &str, present: u64, place: Option<usize>) -> Parameter {
        let size = self.size(place);
        let (fits, granule) =
            size.map_or((u64::MAX, 1), |s| (s.fits.independent * s.threads_per_worker, s.threads_per_worker));
        // A pool larger than the load can use is no better, one larger than memory worse than any.
        let largest = self.concurrency().max(granule).min(fits.max(1));
        let cores = place.and_then(|place| self.stack.server(place)).map_or(1, Server::cores);
        let smallest = cores.min(largest).min(present.max(1));
        Parameter::sizes(name, smallest, largest, granule, present)
    }

    /// One that the user has named.
    fn named(&self, name: &str, knob: &Knob, place: Option<usize>) -> Result<Parameter, String> {
        let present = self.present(name, knob);
        let count = present.count().and_then(|n| u64::try_from(n).ok());
        let granule =
            if knob.role == Some(Role::PoolSize) { self.size(place).map_or(1, |s| s.threads_per_worker) } else { 1 };
        match (knob.takes, self.wishes.range(name), count) {
            (Takes::Count(..) | Takes::CountOr(..), Some((low, high)), Some(n)) => {
                let p = Parameter::sizes(name, low, high, granule, n);
                Ok(if low == 0 && n != 0 { with_kind(&p, Setting::Count(0)) } else { p })
            }
            (Takes::Count(..), None, Some(n)) if knob.role == Some(Role::PoolSize) => Ok(self.pool(name, n, place)),
            (Takes::Count(least, most), None, Some(n)) => {
                let (least, most) = (least.max(0) as u64, most.max(0) as u64);
                let low = (n / AROUND).max(least);
                let high = (n.max(1) * AROUND).min(most);
                let p = Parameter::sizes(name, low, high, granule, n);
                let zero = (least == 0 && n != 0).then_some(Setting::Count(0));
                // Often a word of its own: never, or without a limit.
                Ok(match zero {
                    Some(zero) => with_kind(&p, zero),
                    None => p,
                })
            }
            (Takes::Switch { .. }, None, _) => {
                let other = knob.switched(!present.is_on());
                Ok(Parameter::kinds(name, vec![present, other], 0))
            }
            (Takes::Choice(words), None, _) => Ok(kinds(name, words.iter().map(|w| Setting::read(w)), present)),
            (Takes::CountOr(.., word), None, _) => {
                let numbers = count.map_or_else(Vec::new, |n| vec![(n / 2).max(1), n, n * 2]);
                let numbers = numbers.into_iter().map(Setting::from).filter(|n| knob.check(n).is_ok());
                Ok(kinds(name, numbers.chain([Setting::Text(word.into())]), present))
            }
            (_, Some(_), _) => Err(format!("it is {present}, which is no number: it has no --range")),
            _ => Err("it is two numbers, which are not searched; a sweep tries given ones".into()),
        }
    }
}

/// Numbers with the present one among them.
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

/// The same with one more value that is on no line with the others; a line has no place for it but beyond its end.
fn with_kind(p: &Parameter, value: Setting) -> Parameter {
    let mut levels = p.levels.clone();
    levels.push(value);
    Parameter::steps(&p.name, levels, p.present)
}

/// Considers all settings of a stack.
pub(super) fn prepare(facts: &Facts<'_>) -> Prepared {
    let mut all = facts.stack.all_knobs();
    // Those that others depend on come first; else in the order in which they usually matter.
    let rank = |knob: &Knob| match knob.role {
        Some(Role::Recycle) => 0,
        Some(Role::PoolSize) => 1,
        Some(Role::KeepAlive) => 2,
        _ => 3,
    };
    all.sort_by_key(|(_, knob, _)| (knob.when.is_some(), rank(knob)));
    let mut space = Space::default();
    let mut searched = Vec::new();
    let mut roles: Vec<(Option<Role>, Option<usize>)> = Vec::new();
    for (name, knob, server) in all {
        let place = server.map(Server::place);
        let considered = facts.consider(&name, knob, place).and_then(|(p, because)| {
            if p.levels.len() < 2 {
                return Err("there is no other value that could be tried".into());
            }
            Ok((on_condition(&space, facts.present, knob, &name, p)?, because))
        });
        let (values, because) = match considered {
            Ok((parameter, because)) => {
                let values = parameter.levels.iter().map(ToString::to_string).collect();
                roles.push((knob.role, place));
                space.parameters.push(parameter);
                (values, because)
            }
            Err(because) => (Vec::new(), because),
        };
        searched.push(Searched { name, values, because });
    }
    for (place, size) in facts.sizes {
        let of = roles.iter().enumerate().filter(|(_, of)| **of == (Some(Role::PoolSize), Some(*place)));
        let each = of.map(|(parameter, _)| (parameter, 1.0)).collect();
        let most = (size.fits.independent * size.threads_per_worker) as f64;
        space.limits.push(Limit { each, most });
    }
    let proposed = facts.proposals.iter().filter_map(|p| at(&space, &p.settings));
    let moves = proposed.chain(moves(&space, facts, &roles)).collect();
    Prepared { space, moves, searched }
}

/// A parameter that does nothing unless another has some values.
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

/// The point that is as near to settings as the space allows; None where one of them is not searched, or nothing would be changed.
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

/// What an expert would try first: workers that live, pools as large as the load can use and half of that, keep-alive the other way.
fn moves(space: &Space, facts: &Facts<'_>, roles: &[(Option<Role>, Option<usize>)]) -> Vec<Point> {
    let of = |role: Role| (0..roles.len()).filter(move |p| roles[*p].0 == Some(role));
    let mut best = space.start();
    let mut moves = Vec::new();
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
    moves
}
