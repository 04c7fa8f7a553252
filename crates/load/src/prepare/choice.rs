//! Which request is next, with which values, and after which think time.

use std::path::Path;
use std::time::Duration;

use lastdrop_model::request::{RowScope, ThinkTime};
use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::error::LoadError;
use crate::files::Files;
use crate::template::Names;

/// Rows of the data file.
#[derive(Debug)]
pub struct Rows {
    pub rows: Vec<Vec<Vec<u8>>>,
    pub per: RowScope,
    pub random: bool,
    /// Number of columns; they are the first of a user's values.
    pub columns: usize,
}

/// How the next request is chosen.
#[derive(Debug)]
pub enum Choice {
    Only,
    Weighted(Vec<f64>),
    Order,
    Session,
    /// Several sessions: the index of each one's first request.
    Sessions(Vec<usize>),
}

impl Choice {
    /// Chooses a request by weight; `sums` are running sums of the weights.
    pub fn by_weight(sums: &[f64], rng: &mut Xoshiro256PlusPlus) -> usize {
        let total = sums.last().copied().unwrap_or(0.0);
        let at = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        sums.partition_point(|sum| *sum <= at).min(sums.len().saturating_sub(1))
    }
}

/// Rows of fields, and the names of the columns.
type Table = (Vec<Vec<Vec<u8>>>, Names);

pub(super) fn read_rows(path: &Path, files: &Files) -> Result<Table, LoadError> {
    let wrong = |what: String| LoadError::File(format!("the data file {}: {what}", path.display()));
    let bytes = files.read(path).map_err(|e| wrong(e.to_string()))?;
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::Headers).comment(Some(b'#')).from_reader(bytes.as_slice());
    let mut names = Names::default();
    for (column, name) in reader.headers().map_err(|e| wrong(e.to_string()))?.iter().enumerate() {
        if names.add(name) != column {
            return Err(wrong(format!("two columns have the name '{name}'")));
        }
    }
    let mut rows = Vec::new();
    for record in reader.byte_records() {
        let record = record.map_err(|e| wrong(e.to_string()))?;
        rows.push(record.iter().map(<[u8]>::to_vec).collect());
    }
    if rows.is_empty() {
        return Err(wrong("it has no rows below the line of names".into()));
    }
    Ok((rows, names))
}

/// Draws a think time.
#[must_use]
pub fn draw(think: Option<ThinkTime>, rng: &mut Xoshiro256PlusPlus) -> Duration {
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    match think {
        None => Duration::ZERO,
        Some(ThinkTime::Fixed(d)) => d,
        Some(ThinkTime::Uniform(low, high)) => low + (high - low).mul_f64(uniform()),
        Some(ThinkTime::Exponential(mean)) => mean.mul_f64(-(1.0 - uniform()).ln()),
    }
}
