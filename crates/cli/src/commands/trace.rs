//! `lastdrop trace SERVER… --url URL`

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::observe::trace::{trace as run_trace, trace_with};
use lastdrop_files::input;
use lastdrop_model::bounds::{TIMEOUT, TRACED};
use lastdrop_model::documents::{TRACE_SCHEMA, TraceDocument};
use lastdrop_model::request::header_line;
use lastdrop_model::{KeepAlive, Plan};
use lastdrop_report::{trace_compare_text, trace_text};
use lastdrop_server::{Kind, OtherTrafficPolicy, ServerRef, check_called_apart, kinds};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, OthersArgs, within};
use crate::run_plan;
use crate::signals::Stop;

#[derive(Debug, Args)]
#[command(
    after_help = "Needs strace, and root or the server's user. Tracing slows the traced workers down while it lasts; on a server in\nuse it also counts what visitors do.\n\nExamples:\n  lastdrop trace apache --url http://127.0.0.1/app/list\n  lastdrop trace apache --url http://127.0.0.1/ --json before.json\n  (change something) lastdrop trace apache --url http://127.0.0.1/ --against before.json\n  lastdrop trace apache --url http://127.0.0.1/ --with '<Directory />; AllowOverride None; </Directory>'\n  lastdrop trace php-fpm --url shop.toml -n 40          pages behind a login: a session of a plan"
)]
pub struct TraceArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), one after the other: {} …",
        kinds::list(Kind::is_program)
    ))]
    pub servers: Vec<ServerRef>,
    /// What is requested while the server is traced; of a plan its requests and sessions, not its load
    #[arg(long, value_name = "URL|PLAN")]
    pub url: String,
    /// Number of traced requests
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = within::<u64>(TRACED))]
    pub requests: u64,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    /// A request without an answer after this long has timed out
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = within::<Duration>(TIMEOUT))]
    pub timeout: Duration,
    /// Show an earlier trace (its --json FILE) beside this one
    #[arg(long, value_name = "FILE", conflicts_with = "with")]
    pub against: Option<PathBuf>,
    #[arg(long, value_name = "DIRECTIVES", help = format!(
        "Trace again with these directives of {} (';' between them), show both, and restore the server",
        kinds::titles(|k| k.directives)
    ))]
    pub with: Option<String>,
    #[command(flatten)]
    pub others: OthersArgs,
    /// Show every call, not only the costliest
    #[arg(long)]
    pub all: bool,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

/// Timeout of all requests together.
const LIMIT: Duration = Duration::from_secs(120);

pub fn trace(args: &TraceArgs) -> Result<Exit> {
    if args.with.is_none() && OtherTrafficPolicy::from(&args.others) != OtherTrafficPolicy::default() {
        return Err(UsageError("--live and --ignore-source are about changing a server: --with says how".into()).into());
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let before = args.against.as_deref().map(read).transpose()?;
    let stop = Stop::on_signals(false)?;
    let load = LoadArgs {
        users: Some(1),
        requests: Some(args.requests),
        duration: Some(LIMIT),
        timeout: Some(args.timeout),
        headers: args.headers.clone(),
        ..LoadArgs::default()
    };
    let plan = run_plan::with_load(&args.url, &load, LIMIT, Some(KeepAlive::Off))?;
    let [server] = args.servers.as_slice() else {
        if args.with.is_some() || before.is_some() {
            return Err(UsageError("--with and --against are about one server: name that alone".into()).into());
        }
        return trace_each(args, &plan, report, &stop);
    };
    let traced = match &args.with {
        None => run_trace(server, &plan, &stop.flag).map(|after| (before, after)),
        Some(_) if !server.kind.directives => {
            let title = kinds::titles(|k| k.directives);
            return Err(UsageError(format!("--with takes directives of {title}; other servers have none yet")).into());
        }
        Some(directives) => {
            trace_with(server, &plan, directives, &(&args.others).into(), &stop.flag).map(|(b, a)| (Some(b), a))
        }
    };
    let (before, document) = match traced {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    let mut text = trace_text(&document, args.all);
    if let Some(before) = &before {
        text.push_str(&trace_compare_text(before, &document));
    }
    report.give(&text, &document)?;
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}

/// Traces the same requests in each of several servers, one at a time because a traced program is slow.
fn trace_each(args: &TraceArgs, plan: &Plan, report: Report, stop: &Stop) -> Result<Exit> {
    let mut traced = Vec::new();
    for server in &args.servers {
        let mut document = match run_trace(server, plan, &stop.flag) {
            Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
            other => other?,
        };
        document.server = server.naming(&document.server);
        traced.push((trace_text(&document, args.all), document));
    }
    report.give_each(TRACE_SCHEMA, traced)?;
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}

fn read(path: &Path) -> Result<TraceDocument> {
    let text = input::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: TraceDocument = lastdrop_model::read_json(&text)
        .with_context(|| format!("{} is no trace that --json has written", path.display()))?;
    anyhow::ensure!(document.schema == TRACE_SCHEMA, "{} is no {TRACE_SCHEMA}", path.display());
    Ok(document)
}
