//! `lastdrop replay LOG… --analyse`

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lastdrop_model::secrets;
use lastdrop_report::log_text;
use lastdrop_traffic::analysis::URLS;
use lastdrop_traffic::{Analysis, Imitation, LogEntries, LogOptions};

use crate::commands::Report;
use crate::commands::replay::ReplayArgs;
use crate::exit::{Exit, UsageError};
use crate::outfile::Outfile;
use crate::signals::Stop;
use crate::stdio::note;

/// Window for sorting requests. It is shorter than for a replay: the analysis depends little on their order, and a minute of a
/// busy log does not fit into a processor's caches.
const WINDOW: Duration = Duration::from_secs(2);
/// Requests between two checks for a signal.
const BETWEEN_LOOKS: u64 = 4096;

/// Reports what is in the logs. A signal ends the reading; the report then covers what has been read.
pub fn analyse(args: &ReplayArgs) -> Result<Exit> {
    let plan = args.output_plan.as_deref().map(PlanFiles::open).transpose()?;
    let report = Report::of(&args.output)?;
    let stop = Stop::on_signals(true)?;
    let window = args.window.unwrap_or(WINDOW);
    let mut entries = LogEntries::open(&args.logs, &LogOptions { window, ..args.log_options() })?;
    let mut analysis = Analysis::default();
    let mut count = 0u64;
    while let Some(entry) = entries.next() {
        analysis.take(entry);
        count += 1;
        if count.is_multiple_of(BETWEEN_LOOKS) && stop.signal().is_some() {
            break;
        }
    }
    if let (Some(files), Some(to)) = (plan, &args.to) {
        let base = format!("{}{}", to.origin(), to.path.trim_end_matches('/'));
        match analysis.imitate(&base) {
            Some(imitation) => files.write(imitation)?,
            None => note!("note: no plan is written: the logs have no GET and no HEAD"),
        }
    }
    let mut document = analysis.finish(&entries);
    if !args.output.keep_secrets {
        document.rejected.iter_mut().for_each(|r| r.text = secrets::url(&r.text).into_owned());
    }
    let nothing = document.requests == 0;
    report.give(&log_text(&document), &document)?;
    match stop.signal() {
        Some(signal) => Ok(Exit::Signal(signal)),
        None if nothing => Ok(Exit::Failed),
        None => Ok(Exit::Done),
    }
}

/// A plan, and the file of URLs beside it. Only its owner may read that file, because queries in a log contain tokens.
struct PlanFiles {
    plan: Outfile,
    urls: Outfile,
    urls_name: String,
}

impl PlanFiles {
    fn open(name: &str) -> Result<PlanFiles> {
        let beside = Path::new(name).with_extension("urls");
        let urls_name = beside.file_name().map(|n| n.to_string_lossy().into_owned());
        let urls_name = urls_name
            .filter(|n| {
                name != "-" && Path::new(name).extension().is_none_or(|e| e != "urls") && !n.contains(['"', '\\'])
            })
            .ok_or_else(|| UsageError(format!("'{name}' is no name for a plan; write plan.toml")))?;
        let urls = Outfile::open(&beside.to_string_lossy())?.private(true);
        Ok(PlanFiles { plan: Outfile::open(name)?, urls, urls_name })
    }

    fn write(self, imitation: Imitation) -> Result<()> {
        self.urls.text(&imitation.urls)?;
        self.plan.text(&imitation.plan.replace(URLS, &self.urls_name))
    }
}
