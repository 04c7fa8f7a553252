//! A small search over pool size, recycling and keep-alive, one thing at a time, in the order of what usually matters.
//!
//! A point is settings by the names of the server's own knobs, of which the search knows what they are for; empty is the
//! server as it is. What follows from them (spares, limits) is the adapter's to add.
//!
//! Several servers, or several pools of one, have each their turn at a knob, with what was best of those before.
//!
//! Trials are few and noisy: a point has to be better by a margin to become the best so far, so that noise does not
//! walk the settings about; what is left of luck is taken out by the race that follows.

use lastdrop_model::{Knob, Role, Setting, Settings};

/// A knob that may be turned, and where it stands.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What the setting is called in points: the knob's name, after that of its server where there are several.
    pub name: String,
    pub knob: &'static Knob,
    pub present: Setting,
    /// Most workers that fit into memory, where it is the size of a pool.
    pub fits: u64,
    /// That pool comes in multiples of this (threads of a process).
    pub granule: u64,
}

impl Axis {
    fn is_of(&self, role: Role) -> bool {
        self.knob.role == Some(role)
    }
}

/// What may be searched.
#[derive(Debug, Clone)]
pub struct Space {
    /// Those of one role in the order in which they are searched; none where no server has one, or where this load cannot
    /// tell the difference.
    pub axes: Vec<Axis>,
    /// Requests that can be in flight at once: more workers than that stay idle.
    pub concurrency: u64,
    /// The smallest pool worth trying. A load from next door makes a pool of a few workers look best, because it has no
    /// slow clients: four workers a CPU leave room for those that wait.
    pub smallest: u64,
}

impl Space {
    /// Can the load keep the present pool of an axis busy? One that cannot says nothing about what the size is good for.
    #[must_use]
    pub fn load_fills(&self, pool: &Axis) -> bool {
        count(&pool.present).is_none_or(|present| self.concurrency >= present.min(pool.fits))
    }

    /// The pools whose present size the load cannot fill: name and size.
    pub fn idle_pools(&self) -> impl Iterator<Item = (&str, u64)> {
        let pools = self.axes.iter().filter(|a| a.is_of(Role::PoolSize) && !self.load_fills(a));
        pools.filter_map(|a| Some((a.name.as_str(), count(&a.present)?)))
    }

    fn of(&self, role: Role) -> impl Iterator<Item = usize> {
        self.axes.iter().enumerate().filter(move |(_, a)| a.is_of(role)).map(|(index, _)| index)
    }
}

fn count(setting: &Setting) -> Option<u64> {
    setting.count().map(|n| n.max(0) as u64)
}

/// Recycling below this costs more than it saves; above it the cost of a new worker is spread over enough requests.
const CHURN: u64 = 1000;
/// An age that still bounds a leak and whose cost is not measurable.
const CALM: u64 = 10_000;
/// What a point must be better by to replace the best so far: about the noise of one trial.
const MARGIN: f64 = 1.02;
/// Pool sizes on the first look, from the largest down in factors of two.
const SIZES: u32 = 5;

/// What is proposed together; of an axis, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Recycle(usize),
    Pool(usize),
    Refine(usize),
    KeepAlive(usize),
    Again,
}

#[derive(Debug)]
pub struct Search {
    space: Space,
    /// Those that are left, the next one last.
    stages: Vec<Stage>,
    queue: Vec<Settings>,
    /// Scores of each point tried; none where no trial of it counted.
    tried: Vec<(Settings, Vec<f64>)>,
    best: Settings,
}

impl Search {
    #[must_use]
    pub fn new(space: Space) -> Search {
        let pools = space.of(Role::PoolSize).flat_map(|axis| [Stage::Pool(axis), Stage::Refine(axis)]);
        let stages = space.of(Role::Recycle).map(Stage::Recycle).chain(pools);
        let mut stages: Vec<Stage> = stages.chain(space.of(Role::KeepAlive).map(Stage::KeepAlive)).collect();
        stages.push(Stage::Again);
        stages.reverse();
        Search { space, stages, queue: vec![Settings::new()], tried: Vec::new(), best: Settings::new() }
    }

    /// The next point to try; None when the search is over.
    pub fn next_point(&mut self) -> Option<Settings> {
        loop {
            if let Some(point) = self.queue.pop() {
                return Some(point);
            }
            let stage = self.stages.pop()?;
            self.propose(stage);
        }
    }

    /// What came of a point: its score (higher is better), or None if it does not count.
    pub fn learn(&mut self, point: Settings, score: Option<f64>) {
        let index = match self.tried.iter().position(|(p, _)| *p == point) {
            Some(index) => index,
            None => {
                self.tried.push((point.clone(), Vec::new()));
                self.tried.len() - 1
            }
        };
        self.tried[index].1.extend(score);
        let ahead = match (self.score(&point), self.score(&self.best)) {
            (Some(new), Some(best)) => new > best * MARGIN,
            (Some(_), None) => true,
            _ => false,
        };
        if ahead {
            self.best = point;
        }
    }

    /// The point to race against the baseline: the best that is not the baseline itself.
    #[must_use]
    pub fn challenger(&self) -> Option<Settings> {
        self.ranked().into_iter().find(|p| !p.is_empty())
    }

    /// Mean score of a point.
    #[must_use]
    pub fn score(&self, point: &Settings) -> Option<f64> {
        let (_, scores) = self.tried.iter().find(|(p, _)| p == point)?;
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Points that count, best first.
    fn ranked(&self) -> Vec<Settings> {
        let mut all: Vec<(Settings, f64)> =
            self.tried.iter().filter_map(|(p, _)| Some((p.clone(), self.score(p)?))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.into_iter().map(|(p, _)| p).collect()
    }

    fn propose(&mut self, stage: Stage) {
        self.queue = match stage {
            Stage::Recycle(axis) => self.recycling(axis),
            Stage::Pool(axis) => self.pool_sizes(axis),
            Stage::Refine(axis) => self.between(axis),
            Stage::KeepAlive(axis) => self.other_keepalive(axis),
            Stage::Again => self.once_more(),
        };
        self.queue.reverse();
        if stage != Stage::Again {
            self.queue.retain(|point| !self.tried.iter().any(|(p, _)| p == point));
        }
    }

    /// The best so far with the knob of an axis turned.
    fn with(&self, axis: usize, value: impl Into<Setting>) -> Settings {
        let mut point = self.best.clone();
        point.insert(self.space.axes[axis].name.clone(), value.into());
        point
    }

    /// The size of a pool at a point; None where the point says nothing about it.
    fn pool_of(&self, axis: usize, point: &Settings) -> Option<u64> {
        count(point.get(&self.space.axes[axis].name)?)
    }

    fn recycling(&self, axis: usize) -> Vec<Settings> {
        let churns = count(&self.space.axes[axis].present).is_some_and(|age| age > 0 && age < CHURN);
        if churns { vec![self.with(axis, CALM)] } else { Vec::new() }
    }

    fn pool_sizes(&self, axis: usize) -> Vec<Settings> {
        let pool = &self.space.axes[axis];
        let Some(present) = count(&pool.present) else { return Vec::new() };
        let (fits, granule) = (pool.fits, pool.granule.max(1));
        if !self.space.load_fills(pool) {
            return vec![self.with(axis, present)];
        }
        // A pool larger than the load can use is no better; one larger than memory is worse than any.
        let largest = self.space.concurrency.max(1).min(fits);
        let mut sizes: Vec<u64> =
            (0..SIZES).map(|halvings| (largest >> halvings).div_ceil(granule) * granule).filter(|n| *n > 0).collect();
        if present <= fits {
            // The present size too, in its all-alive form: spawning may be what costs.
            sizes.push(present);
        }
        let smallest = self.space.smallest.min(present).min(largest);
        sizes.retain(|n| *n <= fits.max(granule) && *n >= smallest.max(1));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().rev().map(|n| self.with(axis, n)).collect()
    }

    /// Sizes half way (in ratio) between the best and its neighbours.
    fn between(&self, axis: usize) -> Vec<Settings> {
        let Some(best) = self.pool_of(axis, &self.best) else { return Vec::new() };
        let granule = self.space.axes[axis].granule.max(1);
        let mut sizes: Vec<u64> = self.tried.iter().filter_map(|(p, _)| self.pool_of(axis, p)).collect();
        sizes.sort_unstable();
        let below = sizes.iter().rev().find(|n| **n < best);
        let above = sizes.iter().find(|n| **n > best);
        [below, above]
            .into_iter()
            .flatten()
            .map(|n| (((best * n) as f64).sqrt() / granule as f64).round() as u64 * granule)
            .filter(|n| *n > 0 && *n != best && !sizes.contains(n))
            .map(|n| self.with(axis, n))
            .collect()
    }

    fn other_keepalive(&self, axis: usize) -> Vec<Settings> {
        let Axis { knob, present, .. } = &self.space.axes[axis];
        vec![self.with(axis, knob.switched(!present.is_on()))]
    }

    /// The two best once more: the luckiest of many is not the best of many.
    fn once_more(&self) -> Vec<Settings> {
        self.ranked().into_iter().filter(|p| !p.is_empty()).take(2).collect()
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::ReloadClass;
    use lastdrop_model::settings::{Takes, describe, knob_for};

    use super::*;

    const fn knob(name: &'static str, role: Role, takes: Takes) -> Knob {
        let role = Some(role);
        Knob { role, ..Knob::new(name, takes, "0", ReloadClass::Reload, "", "") }
    }

    static KNOBS: &[Knob] = &[
        knob("workers", Role::PoolSize, Takes::Count(1, 9999)),
        knob("recycle", Role::Recycle, Takes::Count(0, 99_999)),
        knob("keepalive", Role::KeepAlive, Takes::Switch { on: "On", off: "Off" }),
    ];

    fn axes(present: &[(Role, Setting)]) -> Vec<Axis> {
        let axis = |(role, present): &(Role, Setting)| {
            let knob = knob_for(KNOBS, *role).expect("a knob");
            Axis { name: knob.name.into(), knob, present: present.clone(), fits: 1000, granule: 1 }
        };
        present.iter().map(axis).collect()
    }

    fn pool_and_age(pool: u64, age: u64) -> Vec<Axis> {
        axes(&[(Role::PoolSize, pool.into()), (Role::Recycle, age.into())])
    }

    fn space() -> Space {
        Space { axes: pool_and_age(4, 10), concurrency: 64, smallest: 4 }
    }

    /// The same axes of a pool that fits so often, and comes in such pieces.
    fn pooled(axes: Vec<Axis>, fits: u64, granule: u64) -> Vec<Axis> {
        axes.into_iter().map(|axis| Axis { fits, granule, ..axis }).collect()
    }

    fn pool(point: &Settings) -> Option<u64> {
        point.get("workers").and_then(count)
    }

    /// Runs a search on a server without noise; gives all that it tried.
    fn search(space: Space, score: impl Fn(&Settings) -> Option<f64>) -> (Search, Vec<String>) {
        let mut s = Search::new(space);
        let mut trials = Vec::new();
        while let Some(p) = s.next_point() {
            trials.push(describe(&p));
            assert!(trials.len() < 30, "it ends");
            let score = score(&p);
            s.learn(p, score);
        }
        (s, trials)
    }

    /// X(w) of the USL with its peak at 16.
    fn usl(workers: f64) -> f64 {
        workers / (1.0 + workers * (workers - 1.0) / 256.0)
    }

    #[test]
    fn the_planted_best_is_found() {
        // Half of it lost to recycling.
        let (s, trials) = search(space(), |p| {
            let x = usl(pool(p).unwrap_or(4) as f64);
            Some(if p.contains_key("recycle") { x } else { x / 2.0 })
        });
        let p = s.challenger().expect("one");
        assert!((12..=23).contains(&pool(&p).expect("a pool")), "{p:?}");
        assert_eq!(p["recycle"], Setting::Count(10_000));
        assert!(trials.len() <= 14, "{trials:?}");
    }

    #[test]
    fn the_same_measurements_lead_to_the_same_proposals() {
        let mut all = axes(&[(Role::KeepAlive, "On".into())]);
        all.extend(pool_and_age(4, 10));
        let (s, trials) = search(Space { axes: all, ..space() }, |p| {
            let calm = if p.contains_key("recycle") { 1.0 } else { 0.5 };
            let closing = if p.contains_key("keepalive") { 1.1 } else { 1.0 };
            Some(usl(pool(p).unwrap_or(4) as f64) * calm * closing)
        });
        let sizes = [64, 32, 16, 8, 4, 11, 23].map(|n| format!("recycle 10000, workers {n}"));
        let mut expected = vec!["as it is".to_string(), "recycle 10000".into()];
        expected.extend(sizes);
        let best = "keepalive Off, recycle 10000, workers 16";
        expected.extend([best, best, "recycle 10000, workers 16"].map(String::from));
        assert_eq!((trials, describe(&s.challenger().expect("one")).as_str()), (expected, best));

        let threads = Space { axes: pooled(pool_and_age(150, 0), 1000, 25), concurrency: 400, smallest: 8 };
        let (_, trials) = search(threads, |p| {
            let workers = pool(p).unwrap_or(150) as f64;
            (workers < 350.0).then(|| usl(workers / 8.0))
        });
        let sizes = [400, 200, 150, 100, 50, 25, 150, 100].map(|n| format!("workers {n}"));
        assert_eq!(trials[1..], sizes);

        let no_pool = axes(&[(Role::Recycle, 10_u64.into()), (Role::KeepAlive, "Off".into())]);
        let (_, trials) =
            search(Space { axes: no_pool, ..space() }, |p| Some(if p.contains_key("recycle") { 2.0 } else { 1.0 }));
        let (calm, both) = ("recycle 10000", "keepalive On, recycle 10000");
        assert_eq!(trials, ["as it is", calm, both, calm, both]);
    }

    #[test]
    fn every_pool_of_several_is_searched_with_the_best_of_those_before() {
        let mut all = pool_and_age(4, 10);
        let named = |axis: Axis, of: &str| Axis { name: format!("{of}.{}", axis.name), ..axis };
        all.extend(pool_and_age(8, 0));
        let all = all.into_iter().zip(["a", "a", "b", "b"]).map(|(axis, of)| named(axis, of)).collect();
        let size = |p: &Settings, name: &str, present: u64| p.get(name).and_then(count).unwrap_or(present) as f64;
        let mut s = Search::new(Space { axes: all, ..space() });
        let mut trials = 0;
        while let Some(p) = s.next_point() {
            trials += 1;
            let calm = if p.contains_key("a.recycle") { 1.0 } else { 0.5 };
            let score = calm * usl(size(&p, "a.workers", 4)) * usl(size(&p, "b.workers", 8) / 2.0);
            s.learn(p, Some(score));
        }
        let p = s.challenger().expect("one");
        assert!((12..=23).contains(&count(&p["a.workers"]).expect("a size")), "{p:?}");
        assert!((24..=46).contains(&count(&p["b.workers"]).expect("a size")), "{p:?}");
        assert!(p.contains_key("a.recycle") && !p.contains_key("b.recycle") && trials <= 24, "{trials}: {p:?}");
    }

    #[test]
    fn a_server_that_is_at_its_best_keeps_its_size() {
        let at_best = Space { axes: pool_and_age(16, 0), ..space() };
        let (s, _) = search(at_best, |p| Some(if p.is_empty() { 100.0 } else { 100.5 }));
        assert_eq!(s.best, Settings::new());
        assert!(s.challenger().is_some(), "there is still something to race");
    }

    #[test]
    fn candidates_that_do_not_count_never_win() {
        let (s, _) = search(space(), |p| if pool(p).is_some() { None } else { Some(1.0) });
        assert_eq!(pool(&s.challenger().expect("recycling alone")), None);
    }

    #[test]
    fn a_server_without_knobs_is_measured_and_left_alone() {
        let (s, trials) = search(Space { axes: Vec::new(), ..space() }, |_| Some(1.0));
        assert_eq!((trials, s.challenger()), (vec!["as it is".to_string()], None));
    }

    #[test]
    fn a_small_load_does_not_shrink_a_large_pool() {
        let light = Space { axes: pool_and_age(150, 0), concurrency: 10, ..space() };
        search(light, |p| {
            assert!(pool(p).is_none_or(|n| n == 150), "{p:?}");
            Some(1.0)
        });
    }

    #[test]
    fn no_pool_is_larger_than_memory_allows() {
        let small = Space { axes: pooled(pool_and_age(50, 10), 10, 1), ..space() };
        search(small, |p| {
            assert!(pool(p).is_none_or(|n| n <= 10), "{p:?}");
            Some(1.0)
        });
    }

    #[test]
    fn pools_of_threads_come_whole() {
        let threads = Space { concurrency: 100, axes: pooled(pool_and_age(150, 10), 1000, 25), ..space() };
        search(threads, |p| {
            assert!(pool(p).is_none_or(|n| n % 25 == 0), "{p:?}");
            Some(1.0)
        });
    }
}
