//! Synthetic servers: throughput by settings, with a known optimum.

use lastdrop_model::Setting;
use lastdrop_tune::{Limit, Parameter, Point, Space};

pub mod grids;

pub struct Surface {
    pub name: String,
    pub space: Space,
    of: Throughput,
}

/// Throughput; None if the server fails.
type Throughput = Box<dyn Fn(&Values<'_>) -> Option<f64>>;

/// Values of a point by the names of its parameters.
pub struct Values<'a> {
    space: &'a Space,
    point: &'a Point,
}

impl Values<'_> {
    fn value(&self, name: &str) -> &Setting {
        let parameter = self.space.parameters.iter().position(|p| p.name == name).expect("a parameter");
        &self.space.parameters[parameter].levels[self.point[parameter]]
    }

    fn number(&self, name: &str) -> f64 {
        self.value(name).count().expect("a number") as f64
    }

    fn is(&self, name: &str, word: &str) -> bool {
        *self.value(name) == Setting::from(word)
    }
}

impl Surface {
    pub fn throughput(&self, point: &Point) -> Option<f64> {
        (self.of)(&Values { space: &self.space, point })
    }

    /// Returns the best value of all points.
    pub fn best(&self) -> f64 {
        let all = self.space.all(3_000_000).expect("not too many");
        all.iter().filter_map(|p| self.throughput(p)).fold(0.0, f64::max)
    }
}

/// Gunther's law: n workers that hinder each other, with the peak at `peak`.
fn usl(n: f64, peak: f64) -> f64 {
    n / (1.0 + n * (n - 1.0) / (peak * peak))
}

/// The sum of the workers until another resource is full, then slightly less with each more.
fn plateau(n: f64, full: f64) -> f64 {
    n.min(full) * (1.0 - 0.0005 * (n - full).max(0.0))
}

fn switch(name: &str, present: usize) -> Parameter {
    Parameter::kinds(name, vec!["On".into(), "Off".into()], present)
}

fn numbers(name: &str, all: &[u64], present: usize) -> Parameter {
    Parameter::steps(name, all.iter().map(|n| Setting::from(*n)).collect(), present)
}

fn space(parameters: Vec<Parameter>) -> Space {
    Space { parameters, limits: Vec::new() }
}

#[expect(clippy::too_many_lines, reason = "it is a table")]
pub fn all() -> Vec<Surface> {
    let workers = |present| Parameter::sizes("workers", 4, 256, 1, present);
    let surface =
        |name: &str, space, of: fn(&Values<'_>) -> Option<f64>| Surface { name: name.into(), space, of: Box::new(of) };
    vec![
        surface(
            "a processor and a pool that churns",
            space(vec![workers(4), numbers("age", &[10, 100, 1000, 10_000], 0)]),
            |v| Some(usl(v.number("workers"), 16.0) / (1.0 + 30.0 / v.number("age"))),
        ),
        surface("a pool that waits for others, and memory", space(vec![workers(150), switch("KeepAlive", 0)]), |v| {
            let n = v.number("workers");
            (n <= 200.0).then(|| plateau(n, 48.0) * if v.is("KeepAlive", "On") { 0.8 } else { 1.0 })
        }),
        surface("two peaks", space(vec![workers(8)]), |v| {
            let at = |peak: f64, width: f64| (-((v.number("workers") / peak).ln() / width).powi(2)).exp();
            Some(0.3 + 0.6 * at(8.0, 0.5) + 0.7 * at(110.0, 0.6))
        }),
        surface(
            "two pools in a chain that share a processor",
            space(vec![
                Parameter::sizes("front", 1, 64, 1, 4),
                Parameter::sizes("back", 2, 128, 1, 8),
                switch("gzip", 0),
            ]),
            |v| {
                let (front, back) = (v.number("front"), v.number("back"));
                let both = (front * 12.0).min(back * 4.0).min(150.0);
                let crowd = 1.0 + ((front + back - 40.0).max(0.0) / 120.0).powi(2);
                Some(both / crowd * if v.is("gzip", "On") { 0.93 } else { 1.0 })
            },
        ),
        surface(
            "keep-alive that holds workers",
            space(vec![
                switch("KeepAlive", 0),
                numbers("KeepAliveTimeout", &[1, 2, 5, 15, 60], 3).only_with(0, vec![0]),
                workers(50),
            ]),
            |v| {
                let n = v.number("workers");
                if v.is("KeepAlive", "Off") {
                    return Some(0.75 * plateau(n, 40.0));
                }
                let held = (4.0 * v.number("KeepAliveTimeout")).min(0.9 * n);
                Some(plateau(n - held, 40.0))
            },
        ),
        surface(
            "eight settings of which two matter",
            space(
                [workers(64), numbers("backlog", &[128, 511, 1024, 4096], 1), switch("sendfile", 1)]
                    .into_iter()
                    .chain(["a", "b", "c"].map(|name| numbers(name, &[1, 2, 4, 8], 1)))
                    .chain(["x", "y"].map(|name| switch(name, 0)))
                    .collect(),
            ),
            |v| {
                let nothing: f64 = ["a", "b", "c"].iter().map(|n| 0.002 * v.number(n)).sum();
                let sendfile = if v.is("sendfile", "On") { 1.15 } else { 1.0 };
                Some(usl(v.number("workers"), 24.0) * sendfile * (1.0 + nothing))
            },
        ),
        surface(
            "nothing matters",
            space(vec![workers(32), switch("KeepAlive", 1), numbers("age", &[0, 1000], 0)]),
            |_| Some(1000.0),
        ),
        surface(
            "a manager of processes and what only some of its ways need",
            space(vec![
                Parameter::kinds("pm", ["static", "dynamic", "ondemand"].map(Setting::from).into(), 2),
                Parameter::sizes("max_children", 2, 128, 1, 5),
                numbers("min_spare", &[1, 2, 4, 8, 16], 0).only_with(0, vec![1]),
                numbers("idle_timeout", &[1, 10, 60], 1).only_with(0, vec![2]),
            ]),
            |v| {
                let pool = plateau(v.number("max_children"), 30.0);
                let spawning = if v.is("pm", "static") {
                    1.0
                } else if v.is("pm", "dynamic") {
                    0.9 + 0.005 * v.number("min_spare")
                } else {
                    0.7 + 0.001 * v.number("idle_timeout")
                };
                Some(pool * spawning)
            },
        ),
        surface(
            "processes and threads of which the product counts",
            space(vec![
                numbers("processes", &[1, 2, 3, 4, 6, 8, 12, 16], 1),
                Parameter::sizes("threads", 4, 128, 1, 25),
            ]),
            |v| {
                let (p, t) = (v.number("processes"), v.number("threads"));
                // Threads of one process hinder each other.
                Some(usl(p * t, 120.0) / (1.0 + t / 80.0) / (1.0 + p / 30.0))
            },
        ),
        surface(
            "memory for one of two pools",
            Space {
                parameters: vec![Parameter::sizes("pages", 2, 64, 1, 4), Parameter::sizes("api", 2, 64, 1, 30)],
                limits: vec![Limit { each: vec![(0, 50.0), (1, 20.0)], most: 1500.0 }],
            },
            |v| Some(v.number("pages").min(22.0) * 3.0 + v.number("api").min(15.0)),
        ),
    ]
}
