//! `lastdrop trace SERVER --url URL`

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lastdrop_experiment::LabError;
use lastdrop_experiment::trace::{trace as run_trace, trace_with};
use lastdrop_model::documents::{TRACE_SCHEMA, TraceDocument};
use lastdrop_model::{KeepAlive, ServerKind};
use lastdrop_report::{trace_compare_text, trace_text};

use crate::args::{LoadArgs, TraceArgs};
use crate::commands::{print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;

/// Longest that the requests may take.
const LIMIT: Duration = Duration::from_secs(120);

pub fn trace(args: &TraceArgs) -> Result<Exit> {
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
    let plan = load.plan(args.url.clone(), LIMIT, KeepAlive::Off);
    let traced = match &args.with {
        None => run_trace(&args.server, &plan, &stop.flag).map(|after| (before, after)),
        Some(_) if args.server.kind != ServerKind::Apache => {
            return Err(UsageError("--with takes directives of Apache; other servers have none yet".into()).into());
        }
        Some(directives) => {
            trace_with(&args.server, &plan, directives, args.live, &stop.flag).map(|(b, a)| (Some(b), a))
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
    print_report(&text, args.json.as_deref(), args.quiet);
    if let Some(to) = &args.json {
        write_json(to, &document)?;
    }
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}

fn read(path: &Path) -> Result<TraceDocument> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: TraceDocument = serde_json::from_str(&text)
        .with_context(|| format!("{} is no trace that --json has written", path.display()))?;
    anyhow::ensure!(document.schema == TRACE_SCHEMA, "{} is no {TRACE_SCHEMA}", path.display());
    Ok(document)
}
