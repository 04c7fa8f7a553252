//! Servers as measured: the grids of `./x lab tune`, in which each point is a combination of settings with its requests
//! per second. A value between them counts as the nearest point, as in the lab's scoring.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lastdrop_model::Setting;
use lastdrop_tune::{Parameter, Space};
use serde::Deserialize;
use serde_json::Value;

use super::{Surface, Values};

#[derive(Deserialize)]
struct Grid {
    name: String,
    start: BTreeMap<String, Value>,
    points: Vec<GridPoint>,
}

#[derive(Deserialize)]
struct GridPoint {
    settings: BTreeMap<String, Value>,
    /// None if it failed.
    rps: Option<f64>,
}

fn setting(value: &Value) -> Setting {
    match value {
        Value::String(word) => Setting::read(word),
        other => Setting::read(&other.to_string()),
    }
}

/// Number of doublings between numbers; between other values, any fixed distance will do.
fn distance(a: &Setting, b: &Setting) -> f64 {
    match (a.count(), b.count()) {
        (Some(a), Some(b)) => ((a + 1) as f64 / (b + 1) as f64).log2().abs(),
        _ if a.to_string().eq_ignore_ascii_case(&b.to_string()) => 0.0,
        _ => 8.0,
    }
}

/// Returns the values of one setting in the grid's order, as a tune would search them: numbers over their whole range.
fn parameter(grid: &Grid, name: &str) -> Parameter {
    let mut levels: Vec<Setting> = Vec::new();
    for point in &grid.points {
        let level = setting(&point.settings[name]);
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    let start = setting(&grid.start[name]);
    let counts: Option<Vec<u64>> = levels.iter().map(|l| l.count().and_then(|n| u64::try_from(n).ok())).collect();
    match counts {
        Some(counts) => {
            let least = counts.iter().copied().min().expect("a value");
            let most = counts.iter().copied().max().expect("a value");
            let present = start.count().expect("a number") as u64;
            let sizes = Parameter::sizes(name, least, most, 1, present);
            if least == 0 && present != 0 { with_zero(&sizes) } else { sizes }
        }
        None => {
            let present = levels.iter().position(|l| distance(l, &start) == 0.0).expect("it starts in the grid");
            Parameter::kinds(name, levels, present)
        }
    }
}

/// Zero often has a meaning of its own (never, without a limit): on a line it can only be placed beyond the end.
fn with_zero(sizes: &Parameter) -> Parameter {
    let levels = sizes.levels.iter().cloned().chain([Setting::Count(0)]).collect();
    Parameter::steps(&sizes.name, levels, sizes.present)
}

fn surface(grid: Grid) -> Surface {
    let names: Vec<String> = grid.start.keys().cloned().collect();
    let space = Space { parameters: names.iter().map(|name| parameter(&grid, name)).collect(), limits: Vec::new() };
    let points: Vec<(Vec<Setting>, Option<f64>)> =
        grid.points.iter().map(|p| (names.iter().map(|name| setting(&p.settings[name])).collect(), p.rps)).collect();
    let name = grid.name.clone();
    let of = move |v: &Values<'_>| {
        let here: Vec<&Setting> = names.iter().map(|name| v.value(name)).collect();
        let far = |at: &[Setting]| at.iter().zip(&here).map(|(a, b)| distance(a, b)).sum::<f64>();
        let nearest = points.iter().min_by(|a, b| far(&a.0).total_cmp(&far(&b.0)));
        nearest.and_then(|(_, rps)| *rps)
    };
    Surface { name, space, of: Box::new(of) }
}

/// Returns all stored grids.
pub fn all() -> Vec<Surface> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs/tuning/grids");
    let mut files: Vec<_> = fs::read_dir(&folder).expect("grids").map(|f| f.expect("a file").path()).collect();
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let text = fs::read_to_string(file).expect("a grid");
        surface(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
    };
    let all: Vec<Surface> = files.iter().map(read).collect();
    assert!(all.len() >= 14, "{} grids", all.len());
    all
}
