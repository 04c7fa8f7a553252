//! `--export FORM:WHERE`: passes events of a run on to other programs while it goes on.
//!
//! The observer makes a piece of each event. A thread of its own waits for a slow disk, a scraper or a collector. Pieces
//! that it cannot take are dropped, counted, and reported at the end.

mod file;
mod post;
mod serve;
mod thread;

use anyhow::{Context, Result};
use lastdrop_experiment::lab::Observer;
use lastdrop_model::Event;
use lastdrop_report::export::{EXPORTERS, Encoder, Exporter, Framing, Runs, exporter};

pub use self::post::{collector, post_all};

/// An export: its format and its destination.
#[derive(Debug, Clone)]
pub struct ExportTo {
    pub exporter: &'static dyn Exporter,
    /// A file, an address to listen at, or a URL to post to.
    pub to: String,
}

/// Reads `csv:FILE`.
///
/// # Errors
/// Lists the possible values.
pub fn export_to(text: &str) -> Result<ExportTo, String> {
    let forms = || EXPORTERS.map(|e| format!("{}:{}", e.name(), place(e))).join(", ");
    let (name, to) =
        text.split_once(':').filter(|(_, to)| !to.is_empty()).ok_or_else(|| format!("write {}", forms()))?;
    let exporter = exporter(name).ok_or_else(|| format!("there is no '{name}'; there are {}", forms()))?;
    match exporter.pieces() {
        Framing::Lines if to == "-" => Err("stdout is for the report; name a file".into()),
        Framing::Lines => Ok(()),
        Framing::State => serve::addresses(to).map(|_| ()),
        Framing::Messages => collector(to).map(|_| ()),
    }?;
    Ok(ExportTo { exporter, to: to.to_string() })
}

/// The destination of an exporter, as help shows it.
fn place(exporter: &dyn Exporter) -> &'static str {
    match exporter.pieces() {
        Framing::Lines => "FILE",
        Framing::State => "[ADDRESS:]PORT",
        Framing::Messages => "http://HOST:PORT",
    }
}

/// The help of the option.
pub fn help() -> String {
    let form = |e: &dyn Exporter| format!("{}:{} is {}.", e.name(), place(e), e.about());
    format!(
        "Give what happens to other programs while it happens. May be given several times. {}",
        EXPORTERS.map(form).join(" ")
    )
}

/// Destination of pieces.
trait Sink: std::fmt::Debug {
    /// Takes a piece without waiting.
    fn take(&self, piece: Vec<u8>);
    /// Ends the export. Returns a text that begins with the number of lost pieces, if any were lost.
    fn close(&self) -> Option<String>;
}

/// An observer that exports events.
#[derive(Debug)]
struct Export {
    name: String,
    form: Box<dyn Encoder>,
    sink: Box<dyn Sink>,
}

impl Observer for Export {
    fn on_event(&mut self, event: &Event<'_>) {
        if let Some(piece) = self.form.encode(event) {
            self.sink.take(piece);
        }
    }

    fn error(&self) -> Option<String> {
        self.sink.close().map(|what| format!("could not be exported whole: {}: {what}", self.name))
    }
}

/// Returns an observer for each export.
///
/// # Errors
/// When a file cannot be written, or an address is not available.
pub fn exports(wanted: &[ExportTo], runs: Runs, private: bool, quiet: bool) -> Result<Vec<Box<dyn Observer>>> {
    let open = |ExportTo { exporter, to }: &ExportTo| -> Result<Box<dyn Observer>> {
        let name = format!("{}:{}", exporter.name(), lastdrop_model::secrets::url(to));
        let sink: Box<dyn Sink> = match exporter.pieces() {
            Framing::Lines => Box::new(file::LineFile::open(to, private)?),
            Framing::State => Box::new(serve::Server::open(to, quiet).with_context(|| format!("cannot serve {name}"))?),
            Framing::Messages => Box::new(post::Poster::open(to)?),
        };
        Ok(Box::new(Export { name, form: exporter.begin(runs), sink }))
    };
    wanted.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_says_its_form_and_where_it_goes() {
        let ok = |text: &str| export_to(text).map(|e| (e.exporter.name(), e.to));
        assert_eq!(ok("csv:a:b.csv"), Ok(("csv", "a:b.csv".into())));
        assert_eq!(ok("prometheus:9464"), Ok(("prometheus", "9464".into())));
        for wrong in ["csv", "csv:", "xml:file", "hdr:-", "prometheus:everywhere", "otlp:https://h:1", "otlp:ftp://h"] {
            assert!(ok(wrong).is_err(), "{wrong}");
        }
    }
}
