//! `lastdrop size SERVER`

use std::time::Duration;

use anyhow::Result;
use lastdrop_experiment::fit::{FitOrder, fit};
use lastdrop_experiment::{Lab, LabError};
use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{KeepAlive, ServerKind, Url};
use lastdrop_report::size_text;
use lastdrop_server::{Session, discover};

use crate::args::{LoadArgs, SizeArgs};
use crate::commands::{print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::signals::Stop;

/// A request of a server that is being sized may take this long: its pool was just started.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn size(args: SizeArgs) -> Result<Exit> {
    let document = match &args.url {
        Some(url) if args.fit || !args.variants.is_empty() => match measure(&args, url)? {
            Ok(document) => document,
            Err(exit) => return Ok(exit),
        },
        _ => lastdrop_experiment::size::size(&args.server, args.memory)?,
    };
    print_report(&size_text(&document), args.json.as_deref(), args.quiet);
    if let Some(to) = &args.json {
        write_json(to, &document)?;
    }
    Ok(Exit::Done)
}

/// Tries pool sizes and variants; an exit instead of a document when the user ended it.
fn measure(args: &SizeArgs, url: &Url) -> Result<Result<SizeDocument, Exit>> {
    if args.variants.iter().any(|(_, d)| !d.is_empty()) && args.server.kind != ServerKind::Apache {
        return Err(UsageError("variants are directives of Apache; other servers have none yet".into()).into());
    }
    let load = LoadArgs {
        users: Some(1),
        requests: Some(1),
        timeout: Some(TIMEOUT),
        headers: args.headers.clone(),
        ..LoadArgs::default()
    };
    let order = FitOrder {
        plan: load.plan(url.clone(), TIMEOUT, KeepAlive::Off),
        memory: args.memory,
        sizes: args.sizes.clone(),
        requests_per_worker: args.requests_per_worker,
        variants: args.variants.clone(),
        fit: args.fit,
    };
    let stop = Stop::on_signals(false)?;
    let mut terminal = Terminal::new(args.quiet);
    let session = Session::open(discover(&args.server)?, Some(url), args.live)?;
    let mut lab = Lab::new(None, &stop.flag, &mut terminal);
    match fit(&mut lab, session, &order) {
        Err(LabError::Interrupted) => Ok(Err(Exit::Signal(stop.signal().unwrap_or(2)))),
        other => Ok(Ok(other?)),
    }
}
