//! One file for each command. Each is thin: it turns options into a plan, runs an experiment, and prints a report.

pub mod agent;
pub mod analyse;
pub mod capacity;
pub mod compare;
pub mod demo;
pub mod doctor;
pub mod export;
pub mod fleet;
pub mod guard;
pub mod headroom;
pub mod history;
pub mod import;
pub mod knobs;
pub mod profile;
pub mod record;
pub mod reference;
pub mod replay;
pub mod report;
pub mod restore;
pub mod run;
pub mod size;
pub mod sweep;
pub mod target;
pub mod top;
pub mod trace;
pub mod tune;
pub mod ui;
pub mod watch;
pub mod watchdog;

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use lastdrop_experiment::doctor::{DoctorOptions, Site, sample_channel};
use lastdrop_experiment::lab::observers::Keeper;
use lastdrop_experiment::lab::{Lab, Observer};
use lastdrop_experiment::machine::Machine;
use lastdrop_model::Url;
use lastdrop_model::documents::DocumentList;
use lastdrop_report::export::Runs;
use lastdrop_report::{Format, ReportDocument, formatted};
use lastdrop_server::{Change, ServerError, ServerRef, Stack, left_at};
use lastdrop_store::Store;

use crate::exit::UsageError;
use crate::export::exports;
use crate::options::{FormatArgs, OutputArgs};
use crate::outfile::Outfile;
use crate::signals::Stop;
use crate::stdio::{self, note};
use crate::view::Progress;

/// The default path of the store.
pub fn default_store() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = std::env::var_os("HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    data.or_else(|| home.map(|h| h.join(".local/share"))).map(|d| d.join("lastdrop/runs.sqlite"))
}

/// Opens the store of the options. A store that the user names has to work; without the default one lastdrop only warns.
pub fn open_store(output: &OutputArgs) -> Result<Option<Store>> {
    if output.no_store {
        return Ok(None);
    }
    if let Some(path) = &output.store {
        return Ok(Some(Store::open(path)?));
    }
    let Some(path) = default_store() else {
        note!("note: there is no home folder to keep runs in; this one is not kept (--store FILE keeps it)");
        return Ok(None);
    };
    match Store::open(&path) {
        Ok(store) => Ok(Some(store)),
        Err(e) => {
            note!("note: this run is not kept: {e}");
            Ok(None)
        }
    }
}

/// The servers' machine as a doctor examines it, with samples for the lab's observers.
///
/// # Errors
/// When an agent cannot be asked.
pub fn site_of(
    machine: &dyn Machine,
    order: &DoctorOptions<'_>,
    lab: &mut Lab<'_>,
) -> Result<Box<dyn Site>, ServerError> {
    machine.site(order.servers, &order.databases, sample_channel(lab))
}

/// Checks that all servers of a doctor are on one machine, or all of them on the same machines.
///
/// # Errors
/// Names two servers on different machines.
pub fn check_same_machines(servers: &[ServerRef]) -> Result<(), UsageError> {
    let Some(elsewhere) = servers.iter().find(|server| server.is_elsewhere()) else { return Ok(()) };
    let Some(other) = servers.iter().find(|other| other.agents() != elsewhere.agents()) else { return Ok(()) };
    Err(UsageError(format!(
        "a doctor examines the servers of one machine, or the same servers of several: '{elsewhere}' and '{other}' are on different \
         ones; examine one after the other, such as lastdrop doctor {elsewhere} --url URL"
    )))
}

/// Checks that the directives of a change name no code, unless that is allowed.
///
/// # Errors
/// With those that do.
pub fn check_code(stack: &Stack, change: &Change, allowed: bool) -> Result<()> {
    let code = stack.code_in(change)?;
    if allowed || code.is_empty() {
        return Ok(());
    }
    Err(UsageError(format!(
        "'{}': a directive that names a program, module, library, user, pid file or a file to be written is code of the server; \
         --allow-code allows it",
        code.join("'; '")
    ))
    .into())
}

/// The name of a server without a change.
pub const AS_IT_IS: &str = "as it is";

/// Prints a change of a server's configuration before it is made.
pub fn tell_change(name: &str, lines: &str, preview: &[String]) {
    note!("{name}: {lines}");
    preview.iter().for_each(|line| note!("   {line}"));
    if preview.is_empty() && lines != AS_IT_IS {
        note!("   (the configuration says so already)");
    }
}

/// The folder of the tunes' checkpoints, beside the store; None without a store.
pub fn diary_folder(output: &OutputArgs) -> Option<PathBuf> {
    let store = output.store.clone().or_else(default_store).filter(|_| !output.no_store)?;
    Some(store.with_extension("tunes"))
}

/// The observers that every command with runs has.
pub fn observers(progress: Progress, store: Option<Store>, runs: Runs, stop: &Stop) -> Vec<Box<dyn Observer>> {
    // First of all, so that an event is on disk before another observer gets it.
    let keeper = store.map(|store| -> Box<dyn Observer> {
        Box::new(match runs {
            Runs::One => Keeper::new(store),
            Runs::Several => Keeper::of_experiment(store),
        })
    });
    keeper.into_iter().chain([progress.observer(stop)]).collect()
}

/// The observers of a command with output options, exports included.
///
/// # Errors
/// When an export cannot be started.
pub fn observers_of(
    output: &OutputArgs,
    store: Option<Store>,
    runs: Runs,
    stop: &Stop,
) -> Result<Vec<Box<dyn Observer>>> {
    let mut all = observers(output.progress(), store, runs, stop);
    all.extend(exports(&output.export, runs, output.keep_secrets, output.quiet)?);
    Ok(all)
}

/// Timeout of the connection attempt of [`hint_of_restore`].
const HINT_LIMIT: Duration = Duration::from_millis(500);

/// Prints a hint if nothing listens at a URL and a killed tune may have left its server stopped.
pub fn hint_of_restore(url: &Url) {
    // A timeout means that something is there; without one the kernel would try for two minutes.
    let connects = |address: SocketAddr| match TcpStream::connect_timeout(&address, HINT_LIMIT) {
        Err(e) => e.kind() == std::io::ErrorKind::TimedOut,
        Ok(_) => true,
    };
    let nobody = lastdrop_load::resolve(url).is_ok_and(|address| !connects(address));
    if let Some(server) = left_at(url).filter(|_| nobody) {
        note!("lastdrop: a run on {server} was killed and may have left it stopped: lastdrop restore");
    }
}

/// Milliseconds since 1970, UTC.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Prints a document in a format other than text and JSON.
///
/// # Errors
/// When the document does not have this format.
pub fn print_formatted(document: &str, format: Format) -> Result<()> {
    let shown = ReportDocument::read(document).map_err(UsageError)?;
    stdio::out(formatted(&shown, format).map_err(UsageError)?);
    Ok(())
}

/// The output of a command: text, and a JSON document on request. It is created before the work begins, so that a file that
/// cannot be written is noticed then.
#[derive(Debug)]
pub struct Report {
    json: Option<Outfile>,
    /// stdout is used for a document, so text goes to stderr.
    beside: bool,
    quiet: bool,
    /// The format of what is printed.
    format: Format,
}

impl Report {
    /// Opens the output.
    ///
    /// # Errors
    /// When the document could not be written.
    pub fn open(json: Option<&str>, quiet: bool) -> Result<Report> {
        let json = Outfile::wanted(json)?;
        Ok(Report { beside: json.as_ref().is_some_and(Outfile::is_stdout), json, quiet, format: Format::Text })
    }

    /// Sets the format.
    ///
    /// # Errors
    /// When stdout already has a document.
    pub fn with_format(self, args: FormatArgs) -> Result<Report> {
        let report = Report { format: args.format.unwrap_or_default(), ..self };
        report.check_stdout()?;
        Ok(report)
    }

    /// Opens the output for the options of a command with a store.
    ///
    /// # Errors
    /// As [`Report::open`].
    pub fn of(output: &OutputArgs) -> Result<Report> {
        let mut report = Report::open(output.json.as_deref(), output.quiet)?;
        report.json = report.json.map(|file| file.private(output.keep_secrets));
        Ok(report)
    }

    /// Takes into account that another document may go to stdout.
    ///
    /// # Errors
    /// When both would go there.
    pub fn make_room_for(&mut self, other: Option<&Outfile>) -> Result<()> {
        self.beside |= other.is_some_and(Outfile::is_stdout);
        self.check_stdout()
    }

    fn check_stdout(&self) -> Result<()> {
        if self.format != Format::Text && self.beside {
            return Err(UsageError("stdout has one document; what --format prints goes there".into()).into());
        }
        Ok(())
    }

    /// Prints text to stdout, or to stderr if stdout has a document; prints nothing if quiet.
    pub fn text(&self, text: &str) {
        match (self.quiet, self.beside) {
            (true, _) => {}
            (_, true) => stdio::err(text),
            (_, false) => stdio::out(text),
        }
    }

    /// Prints and writes the documents of one or several servers; several become a list.
    ///
    /// # Errors
    /// When the document cannot be written.
    pub fn give_each<T: serde::Serialize>(self, schema: &str, each: Vec<(String, T)>) -> Result<()> {
        let (texts, servers): (Vec<String>, Vec<T>) = each.into_iter().unzip();
        let text = texts.join("\n");
        match <[T; 1]>::try_from(servers) {
            Ok([one]) => self.give(&text, &one),
            Err(servers) => self.give(&text, &DocumentList { schema: schema.into(), servers }),
        }
    }

    /// Stores the document of an experiment with several runs, if there is a store, and prints it with its id.
    ///
    /// # Errors
    /// As [`Report::give`]. If the document cannot be stored, lastdrop only prints a note.
    pub fn keep_and_give(self, store: Option<&Store>, text: &str, document: &impl serde::Serialize) -> Result<()> {
        let Some(store) = store else { return self.give(text, document) };
        let kept = with_executed(document)?;
        let schema = kept["schema"].as_str().unwrap_or_default();
        // The document has the id of the experiment, as its runs have.
        let id = store.experiment()?;
        let line = match store.keep_document(&id, unix_ms(), schema, &kept.to_string()) {
            Ok(()) => format!("kept as {id}; a page of it: lastdrop report {id}\n"),
            Err(e) => format!("note: it could not be kept: {e}\n"),
        };
        self.give(&format!("{text}{line}"), document)
    }

    /// Prints the text and writes the document.
    ///
    /// # Errors
    /// When the document cannot be written.
    pub fn give(self, text: &str, document: &impl serde::Serialize) -> Result<()> {
        // Write the file even if the document does not have the format of --format.
        let printed = match self.format {
            Format::Text => {
                self.text(text);
                Ok(())
            }
            Format::Json => Outfile::open("-")?.json(&with_executed(document)?),
            format => print_formatted(&serde_json::to_string(document)?, format),
        };
        self.json.map_or(Ok(()), |file| file.json(&with_executed(document)?)).and(printed)
    }
}

/// Adds to a document the programs that lastdrop has executed.
fn with_executed(document: &impl serde::Serialize) -> Result<serde_json::Value> {
    let mut document = serde_json::to_value(document)?;
    if let Some(fields) = document.as_object_mut() {
        let environment = fields.entry("environment").or_insert_with(|| serde_json::json!({}));
        if let Some(environment) = environment.as_object_mut() {
            environment.insert("executed".into(), serde_json::to_value(lastdrop_probe::tool::executed())?);
        }
    }
    Ok(document)
}
