//! `lastdrop profile SERVER`

use std::time::Duration;

use anyhow::Result;
use lastdrop_experiment::LabError;
use lastdrop_experiment::profile::profile as run_profile;
use lastdrop_model::{KeepAlive, Plan};
use lastdrop_report::{flame_graph, profile_text};

use crate::args::{LoadArgs, ProfileArgs};
use crate::commands::{print_report, write_json, write_text};
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;

/// The load goes on a little longer than the samples: it is ended when they are.
const BEYOND: Duration = Duration::from_secs(30);

pub fn profile(args: &ProfileArgs) -> Result<Exit> {
    if args.url.is_none() && (args.users.is_some() || args.rate.is_some()) {
        return Err(UsageError("a load wants something to ask for: --url".into()).into());
    }
    let plan: Option<Plan> = args.url.as_ref().map(|url| {
        let load = LoadArgs {
            users: args.users,
            rate: args.rate,
            headers: args.headers.clone(),
            drain: Some(Duration::ZERO),
            ..LoadArgs::default()
        };
        load.plan(url.clone(), args.duration + BEYOND, KeepAlive::On)
    });
    let stop = Stop::on_signals(false)?;
    let profiled = match run_profile(&args.server, plan.as_ref(), args.duration, &stop.flag) {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    let document = &profiled.document;
    let mut text = profile_text(document);
    if let Some(file) = &args.flame {
        if profiled.stacks.is_empty() {
            text.push_str("note: without stacks there is no flame graph\n");
        } else {
            let title = format!("{}: {} samples by {}", document.server, document.samples, document.how);
            write_text(file, &flame_graph(&title, &profiled.stacks))?;
            text.push_str(&format!("flame graph: {file} (open it in a browser)\n"));
        }
    }
    print_report(&text, args.json.as_deref(), args.quiet);
    if let Some(to) = &args.json {
        write_json(to, document)?;
    }
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}
