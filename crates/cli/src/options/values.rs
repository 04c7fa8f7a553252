//! Parsers for values that several options share.

use lastdrop_model::Objective;
use lastdrop_model::bounds::{Bound, BoundError, BoundedNumber};
use lastdrop_report::Format;
use lastdrop_report::formats::FORMATS;

/// Reads an option by its row in the table of bounds.
pub fn within<T: BoundedNumber>(
    bound: &'static Bound,
) -> impl Fn(&str) -> Result<T, BoundError> + Clone + Send + Sync + 'static {
    move |text| bound.read(text)
}

/// Like [`within`], for a value that is passed on as the user wrote it.
pub fn written<T: BoundedNumber>(
    bound: &'static Bound,
) -> impl Fn(&str) -> Result<String, BoundError> + Clone + Send + Sync + 'static {
    move |text| bound.read::<T>(text).map(|_| text.to_string())
}

pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err(format!("'{text}' is not a field; write 'name=value'")),
    }
}

/// A list of objectives. Not a bare `Vec`, which clap takes for an option that may be given several times.
#[derive(Debug, Clone)]
pub struct Objectives(pub Vec<Objective>);

pub fn objectives(text: &str) -> Result<Objectives, String> {
    Objective::list(text).map(Objectives)
}

/// The format of a report.
///
/// # Errors
/// Lists the formats for an unknown name.
pub fn format(text: &str) -> Result<Format, String> {
    Format::named(text).ok_or_else(|| format!("there are {}", FORMATS.map(|(name, _)| name).join(", ")))
}
