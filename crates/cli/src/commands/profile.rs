//! `lastdrop profile SERVER`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_lab::LabError;
use lastdrop_looks::profile::profile as run_profile;
use lastdrop_model::bounds::{DURATION, RATE, USERS};
use lastdrop_model::request::header_line;
use lastdrop_model::{KeepAlive, Plan, Url};
use lastdrop_report::{flame_graph, profile_text};
use lastdrop_server::ServerRef;
use lastdrop_server::{Kind, kinds};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, within};
use crate::outfile::Outfile;
use crate::signals::Stop;

#[derive(Debug, Args)]
#[command(
    after_help = "Uses perf where it is installed and allowed; otherwise it looks at /proc and says so. Without --url the server's own\nvisitors are the load.\n\nExamples:\n  lastdrop profile apache --url http://127.0.0.1/app -c 8 --flame app.svg\n  lastdrop profile php-fpm -d 30s\n  lastdrop profile pid:1234 --json -"
)]
pub struct ProfileArgs {
    #[arg(value_parser = str::parse::<ServerRef>, help = format!("The server: {} …", kinds::list(Kind::is_program)))]
    pub server: ServerRef,
    /// Put load on this while it is profiled
    #[arg(long)]
    pub url: Option<Url>,
    /// Users of that load [default: 10]
    #[arg(short = 'c', long, value_name = "N", value_parser = within::<u32>(USERS))]
    pub users: Option<u32>,
    /// Requests per second instead of users
    #[arg(short, long, value_name = "R", conflicts_with = "users", value_parser = within::<f64>(RATE))]
    pub rate: Option<f64>,
    /// How long samples are taken
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = within::<Duration>(DURATION))]
    pub duration: Duration,
    /// Write a flame graph (SVG) to this file
    #[arg(long, value_name = "FILE")]
    pub flame: Option<String>,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

/// The load goes on a little longer than the samples: it is ended when they are.
const BEYOND: Duration = Duration::from_secs(30);

pub fn profile(args: &ProfileArgs) -> Result<Exit> {
    if args.url.is_none() && (args.users.is_some() || args.rate.is_some()) {
        return Err(UsageError("a load wants something to ask for: --url".into()).into());
    }
    let plan_for = |url: &Url| -> Result<Plan, UsageError> {
        let load = LoadArgs {
            users: args.users,
            rate: args.rate,
            headers: args.headers.clone(),
            drain: Some(Duration::ZERO),
            ..LoadArgs::default()
        };
        let most = Duration::from_secs_f64(DURATION.most);
        load.plan(url.clone(), (args.duration + BEYOND).min(most), KeepAlive::On)
    };
    let plan = args.url.as_ref().map(plan_for).transpose()?;
    let mut report = Report::open(args.json.as_deref(), args.quiet)?;
    let flame = Outfile::wanted(args.flame.as_deref())?;
    report.make_room_for(flame.as_ref());
    let stop = Stop::on_signals(false)?;
    let profiled = match run_profile(&args.server, plan.as_ref(), args.duration, &stop.flag) {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    let document = &profiled.document;
    let mut text = profile_text(document);
    if let (Some(file), Some(name)) = (flame, &args.flame) {
        if profiled.stacks.is_empty() {
            text.push_str("note: without stacks there is no flame graph\n");
        } else {
            let title = format!("{}: {} samples by {}", document.server, document.samples, document.how);
            file.text(&flame_graph(&title, &profiled.stacks))?;
            text.push_str(&format!("flame graph: {name} (open it in a browser)\n"));
        }
    }
    report.give(&text, document)?;
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}
