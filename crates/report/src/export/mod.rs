//! The seconds of a run for other programs: a file a form, all behind one trait.

mod csv;
mod hdr_log;

use lastdrop_model::Run;

/// A form in which seconds are handed on.
pub trait Exporter: std::fmt::Debug + Sync {
    /// As it is asked for.
    fn name(&self) -> &'static str;
    /// What reads it.
    fn about(&self) -> &'static str;
    /// The lines of a run, without their ends, made as they are taken: a run may last for days.
    fn lines<'a>(&self, run: &'a Run) -> Box<dyn Iterator<Item = String> + 'a>;
}

/// All of them; the first is the usual one.
pub const EXPORTERS: [&dyn Exporter; 2] = [&csv::Csv, &hdr_log::HdrLog];

/// The one of a name.
#[must_use]
pub fn exporter(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|e| e.name() == name)
}
