//! `lastdrop import FILE -o plan.toml`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lastdrop_load::files;
use lastdrop_model::Url;
use lastdrop_model::printable::line;
use lastdrop_traffic::recording::{
    ImportedFile, PlanOptions, RUNS_ANOTHER, RecordedPlan, RecordingError, plan_with_progress, read_curl, read_har,
    read_siege, read_wlog, read_wsesslog,
};

use crate::exit::{Exit, UsageError};
use crate::outfile::Outfile;
use crate::stdio::{note, say};

#[derive(Debug, Args)]
#[command(
    after_help = "Opens no other file, no URL and runs no shell: commands of curl are read as text.\n\nExamples:\n  lastdrop import shop.har -o plan.toml              what a browser's network view saves, with contents\n  lastdrop import copied.txt -o plan.toml            curl commands, as browsers copy them\n  lastdrop import urls.txt -o plan.toml              a file of URLs of siege\n  lastdrop import sess.log --as wsesslog --to http://127.0.0.1:8080/ -o plan.toml\n  lastdrop run plan.toml -c 50 -d 1m                 and then"
)]
pub struct ImportArgs {
    /// What was recorded: a HAR file, curl commands, a file of URLs, a workload of httperf
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The plan; values that the user entered go to FILE with the ending .csv beside it, of mode 0600
    #[arg(short, long, value_name = "FILE")]
    pub output: String,
    /// What the file is [default: recognised]
    #[arg(long = "as", value_name = "KIND", value_enum)]
    pub kind: Option<Kind>,
    /// The server of a workload that names none
    #[arg(long, value_name = "URL", value_parser = str::parse::<Url>)]
    pub to: Option<Url>,
    /// A host that the plan may ask; may be given several times [default: that of the first request; of a file of URLs all]
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// HTTP Archive, of browsers and proxies
    Har,
    /// Commands of curl
    Curl,
    /// URLs, a line each (siege, http_load)
    Siege,
    /// Paths between zero bytes (httperf --wlog)
    Wlog,
    /// Sessions of bursts (httperf --wsesslog)
    Wsesslog,
}

impl Kind {
    /// Recognizes the kind of a text.
    fn of(text: &str) -> Kind {
        let first = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#')).unwrap_or_default();
        match first.trim_start_matches('\u{feff}') {
            _ if text.contains('\0') => Kind::Wlog,
            l if l.starts_with('{') => Kind::Har,
            l if l.starts_with('/') && !is_curl(l) => Kind::Wsesslog,
            // Lines before the command may set variables.
            _ if text.lines().any(|l| is_curl(l.trim())) => Kind::Curl,
            _ => Kind::Siege,
        }
    }
}

/// True for a line with a command of curl, also after a prompt, a variable or a command that runs it. Similar programs count,
/// too: the reader then reports that they are not curl.
fn is_curl(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}');
    let line = line.strip_prefix("$ ").unwrap_or(line).trim_start();
    let is_before = |word: &&str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        let is_variable = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        is_variable || RUNS_ANOTHER.contains(word)
    };
    let program = line.split_whitespace().find(|word| !is_before(word)).unwrap_or_default();
    matches!(program, "curl" | "curl.exe" | "wget" | "http" | "xh") || program.ends_with("/bin/curl")
}

pub fn import(args: &ImportArgs) -> Result<Exit> {
    let text = files::read_text(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let kind = args.kind.unwrap_or_else(|| Kind::of(&text));
    let files = PlanFiles::open(&args.output)?;
    let independent = matches!(kind, Kind::Siege | Kind::Wlog);
    let in_file = |e: RecordingError| UsageError(format!("{}: {e}", args.file.display()));
    let imported = read(&text, kind, args.to.as_ref())?.map_err(in_file)?;
    let options = PlanOptions {
        hosts: args.host.clone(),
        data_file: files.data_name.clone(),
        independent,
        settings: imported.settings,
        left_out: imported.left_out,
        ..PlanOptions::default()
    };
    let mut progress = Progress::new(imported.exchanges.len(), args.quiet);
    let recorded =
        plan_with_progress(imported.exchanges, &options, &mut |percent| progress.show(percent)).map_err(in_file)?;
    let steps = recorded.plan.matches("\n[[request]]").count();
    let values = recorded.plan.matches("\nextract.").count();
    if !args.quiet {
        say!("{}: {steps} requests, {values} values taken from answers", line(&args.output));
        recorded.notes.iter().for_each(|n| note!("note: {}", line(n)));
    }
    files.write(&recorded)?;
    Ok(Exit::Done)
}

/// Reads the exchanges of a text.
fn read(text: &str, kind: Kind, to: Option<&Url>) -> Result<Result<ImportedFile, RecordingError>, UsageError> {
    let server = || to.ok_or_else(|| UsageError("a workload of httperf names no server: --to URL does".into()));
    Ok(match kind {
        Kind::Har => read_har(text),
        Kind::Curl => read_curl(text),
        Kind::Siege => read_siege(text).map(ImportedFile::from),
        Kind::Wlog => read_wlog(text, server()?).map(ImportedFile::from),
        Kind::Wsesslog => read_wsesslog(text, server()?).map(ImportedFile::from),
    })
}

/// Prints the progress on a long recording.
#[derive(Debug)]
pub struct Progress {
    requests: usize,
    quiet: bool,
    told: Instant,
}

impl Progress {
    /// Time between two lines.
    const EACH: Duration = Duration::from_secs(1);

    pub fn new(requests: usize, quiet: bool) -> Progress {
        Progress { requests, quiet, told: Instant::now() }
    }

    pub fn show(&mut self, percent: u8) {
        if !self.quiet && self.told.elapsed() >= Progress::EACH {
            self.told = Instant::now();
            note!("finding values of {} requests: {percent} % done", self.requests);
        }
    }
}

/// A plan, and the data file beside it, which only its owner may read.
pub struct PlanFiles {
    plan: Outfile,
    data_path: PathBuf,
    pub data_name: String,
}

impl PlanFiles {
    /// # Errors
    /// When one of them cannot be written.
    pub fn open(name: &str) -> Result<PlanFiles> {
        let data_path = Path::new(name).with_extension("csv");
        let data_name = data_path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if name == "-" || data_path == Path::new(name) || data_name.is_empty() {
            return Err(UsageError(format!("'{name}' is no name for a plan; write plan.toml")).into());
        }
        Ok(PlanFiles { plan: Outfile::open(name)?, data_path, data_name })
    }

    /// # Errors
    /// When one of them cannot be written.
    pub fn write(self, recorded: &RecordedPlan) -> Result<()> {
        if let Some(data) = &recorded.data {
            Outfile::open(&self.data_path.to_string_lossy())?.private(true).text(data)?;
        }
        // Bodies of a recording may be private, too.
        self.plan.private(true).text(&recorded.plan)
    }
}
