//! Defines what may be searched: parameters with their possible values, their present values, and limits across them.
//!
//! A point has one level per parameter. Points with the same effective settings are one point: a parameter that has no
//! effect keeps its present level (`Space::canonical`).

use lastdrop_model::{Setting, Settings};
use rand_core::Rng;

/// How the levels of a parameter relate to each other.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// On a line, each at its place from 0 to 1.
    Places(Vec<f64>),
    /// All equally far from each other.
    Kinds,
}

/// A setting that may be changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    /// Its possible values, without duplicates.
    pub levels: Vec<Setting>,
    pub scale: Scale,
    /// The present level of the server.
    pub present: usize,
    /// Another parameter and its levels with which this one has an effect.
    pub when: Option<(usize, Vec<usize>)>,
}

/// Smallest factor between neighbouring sizes: a trial cannot tell closer sizes apart.
const STEP: f64 = 1.19;

impl Parameter {
    /// Returns a parameter whose values are equally far from each other.
    #[must_use]
    pub fn kinds(name: &str, levels: Vec<Setting>, present: usize) -> Parameter {
        Parameter { name: name.into(), levels, scale: Scale::Kinds, present, when: None }
    }

    /// Returns a parameter whose values lie on a line in their order, equally spaced.
    #[must_use]
    pub fn steps(name: &str, levels: Vec<Setting>, present: usize) -> Parameter {
        let last = (levels.len().max(2) - 1) as f64;
        let places = (0..levels.len()).map(|i| i as f64 / last).collect();
        Parameter { scale: Scale::Places(places), ..Parameter::kinds(name, levels, present) }
    }

    /// Returns a parameter of whole numbers from `least` to `most` in multiples of `granule`, evenly spaced by ratio,
    /// including the present one.
    #[must_use]
    pub fn sizes(name: &str, least: u64, most: u64, granule: u64, present: u64) -> Parameter {
        let (least, granule) = (least.max(1), granule.max(1));
        let most = most.max(least);
        let whole = |n: f64| ((n / granule as f64).round() as u64).max(1) * granule;
        let steps = ((most as f64 / least as f64).ln() / STEP.ln()).floor().max(1.0);
        let ratio = (most as f64 / least as f64).powf(1.0 / steps);
        let mut sizes: Vec<u64> = (0..=steps as i32).map(|i| whole(least as f64 * ratio.powi(i))).collect();
        sizes.retain(|n| *n <= most.max(granule));
        sizes.push(present);
        sizes.sort_unstable();
        sizes.dedup();
        let place = sizes.iter().position(|n| *n == present).unwrap_or(0);
        // Zero is as far from one as two is.
        let log = |n: u64| if n == 0 { -std::f64::consts::LN_2 } else { (n as f64).ln() };
        let (low, high) = (log(sizes[0]), log(sizes[sizes.len() - 1]));
        let places = sizes.iter().map(|n| (log(*n) - low) / (high - low).max(1e-9)).collect();
        let levels = sizes.into_iter().map(Setting::from).collect();
        Parameter { name: name.into(), levels, scale: Scale::Places(places), present: place, when: None }
    }

    /// Restricts the parameter's effect to these levels of another parameter.
    #[must_use]
    pub fn only_with(self, parameter: usize, levels: Vec<usize>) -> Parameter {
        Parameter { when: Some((parameter, levels)), ..self }
    }

    /// Returns the distance between two levels, from 0 to 1.
    #[must_use]
    pub fn distance(&self, a: usize, b: usize) -> f64 {
        match &self.scale {
            Scale::Places(places) => (places[a] - places[b]).abs(),
            Scale::Kinds => f64::from(u8::from(a != b)),
        }
    }
}

/// An upper limit on a weighted sum of numbers, such as workers in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The weight of each parameter.
    pub each: Vec<(usize, f64)>,
    pub most: f64,
}

/// Levels, one for each parameter.
pub type Point = Vec<usize>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Space {
    /// A parameter in another one's `when` comes before that one.
    pub parameters: Vec<Parameter>,
    pub limits: Vec<Limit>,
}

impl Space {
    /// Returns the point of the present settings.
    #[must_use]
    pub fn start(&self) -> Point {
        self.parameters.iter().map(|p| p.present).collect()
    }

    /// Returns true if a parameter has an effect at a point.
    #[must_use]
    pub fn matters(&self, point: &Point, parameter: usize) -> bool {
        match &self.parameters[parameter].when {
            Some((other, levels)) => levels.contains(&point[*other]) && self.matters(point, *other),
            None => true,
        }
    }

    /// Resets the parameters without effect to their present levels.
    #[must_use]
    pub fn canonical(&self, mut point: Point) -> Point {
        for parameter in 0..point.len() {
            if !self.matters(&point, parameter) {
                point[parameter] = self.parameters[parameter].present;
            }
        }
        point
    }

    /// Returns true if a point may be tried. The present settings are always allowed.
    #[must_use]
    pub fn allows(&self, point: &Point) -> bool {
        let number = |parameter: usize| self.parameters[parameter].levels[point[parameter]].count().unwrap_or(0) as f64;
        let cost = |limit: &Limit| limit.each.iter().map(|(parameter, each)| each * number(*parameter)).sum::<f64>();
        *point == self.start() || self.limits.iter().all(|limit| cost(limit) <= limit.most)
    }

    /// Returns the settings that differ from the present ones.
    #[must_use]
    pub fn settings(&self, point: &Point) -> Settings {
        let changed = self.parameters.iter().zip(point).filter(|(parameter, level)| parameter.present != **level);
        changed.map(|(parameter, level)| (parameter.name.clone(), parameter.levels[*level].clone())).collect()
    }

    /// Returns the points that differ from one point in one parameter.
    pub fn beside<'a>(&'a self, point: &'a Point) -> impl Iterator<Item = Point> + 'a {
        let turned = move |parameter: usize, level: usize| {
            let mut other = point.clone();
            other[parameter] = level;
            self.canonical(other)
        };
        let all = (0..point.len()).filter(|p| self.matters(point, *p)).flat_map(move |parameter| {
            let levels = 0..self.parameters[parameter].levels.len();
            levels.filter(move |level| *level != point[parameter]).map(move |level| turned(parameter, level))
        });
        all.filter(|p| self.allows(p))
    }

    /// Returns all points if there are at most this many combinations.
    #[must_use]
    pub fn all(&self, most: usize) -> Option<Vec<Point>> {
        let count =
            self.parameters.iter().try_fold(1usize, |n, p| n.checked_mul(p.levels.len()).filter(|n| *n <= most))?;
        let mut points = Vec::with_capacity(count);
        for mut rest in 0..count {
            let level = |p: &Parameter| {
                let level = rest % p.levels.len();
                rest /= p.levels.len();
                level
            };
            let point: Point = self.parameters.iter().map(level).collect();
            if self.allows(&point) && self.canonical(point.clone()) == point {
                points.push(point);
            }
        }
        Some(points)
    }

    /// Returns a random allowed point.
    pub fn any(&self, rng: &mut impl Rng) -> Point {
        for _ in 0..100 {
            let level = |p: &Parameter| (rng.next_u64() % p.levels.len() as u64) as usize;
            let point = self.canonical(self.parameters.iter().map(level).collect());
            if self.allows(&point) {
                return point;
            }
        }
        self.start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(p: &Parameter) -> Vec<i64> {
        p.levels.iter().filter_map(Setting::count).collect()
    }

    #[test]
    fn sizes_are_even_in_their_ratio_and_have_the_present_one() {
        let p = Parameter::sizes("workers", 4, 64, 1, 20);
        let all = numbers(&p);
        assert_eq!((all[0], *all.last().expect("one"), all[p.present]), (4, 64, 20));
        assert!(all.windows(2).all(|w| w[0] < w[1] && w[1] <= w[0] * 5 / 4 + 1), "{all:?}");
        let whole = Parameter::sizes("threads", 25, 400, 25, 150);
        assert!(numbers(&whole).iter().all(|n| n % 25 == 0), "{whole:?}");
        let one = Parameter::sizes("one", 7, 7, 1, 7);
        assert_eq!((numbers(&one), one.present), (vec![7], 0));
        // The present value lies outside the range.
        let out = Parameter::sizes("out", 4, 8, 1, 100);
        assert_eq!((numbers(&out).last(), out.levels[out.present].count()), (Some(&100), Some(100)));
        assert!((p.distance(0, p.levels.len() - 1) - 1.0).abs() < 1e-9);
    }

    fn conditional() -> Space {
        let words = |all: &[&str]| all.iter().map(|w| Setting::from(*w)).collect();
        let keep = Parameter::kinds("KeepAlive", words(&["On", "Off"]), 0);
        let timeout = Parameter::steps("KeepAliveTimeout", [1u64, 5, 15].map(Setting::from).into(), 1);
        let workers = Parameter::sizes("workers", 1, 8, 1, 4);
        let limits = vec![Limit { each: vec![(2, 10.0)], most: 45.0 }];
        Space { parameters: vec![keep, timeout.only_with(0, vec![0]), workers], limits }
    }

    #[test]
    fn what_does_nothing_stays_where_it_stands_and_what_does_not_fit_is_not_tried() {
        let space = conditional();
        assert_eq!(space.canonical(vec![1, 2, 0]), vec![1, 1, 0]);
        let all = space.all(1000).expect("few");
        let mut tried: Vec<Settings> = all.iter().map(|p| space.settings(p)).collect();
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), all.len(), "each is another");
        let workers = |p: &Point| space.parameters[2].levels[p[2]].count().unwrap_or(0);
        assert!(all.iter().all(|p| workers(p) <= 4) && all.iter().any(|p| workers(p) == 4));
        assert!(space.settings(&space.start()).is_empty() && space.all(10).is_none());
        for other in space.beside(&space.start()) {
            assert!(all.contains(&other) && other != space.start(), "{other:?}");
        }
    }
}
