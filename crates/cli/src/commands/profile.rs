//! `lastdrop profile SERVER…`

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::observe::code::{CodeOptions, profile_code};
use lastdrop_experiment::observe::memory::{MemoryOptions, profile_memory};
use lastdrop_experiment::observe::profile::profile as run_profile;
use lastdrop_model::bounds::{DURATION, RATE, USERS};
use lastdrop_model::documents::PROFILE_SCHEMA;
use lastdrop_model::request::header_line;
use lastdrop_model::{KeepAlive, Plan};
use lastdrop_report::{flame_graph, profile_text};
use lastdrop_server::code::{Clock, Language};
use lastdrop_server::{Kind, ServerRef, check_called_apart, kinds};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, within};
use crate::outfile::Outfile;
use crate::run_plan;
use crate::signals::Stop;

#[derive(Debug, Args)]
#[command(
    after_help = "Uses perf where it is installed and allowed, otherwise /proc, and says so. Without --url the server's\nown visitors are the load.\n\nExamples:\n  lastdrop profile apache --url http://127.0.0.1/app -c 8 --flame app.svg\n  lastdrop profile nginx php-fpm --url http://127.0.0.1/app\n  lastdrop profile apache --code --url http://127.0.0.1/app    functions of Perl or PHP\n  lastdrop profile gunicorn --code --wall --url http://127.0.0.1/app   functions of Python\n  lastdrop profile node --code --url http://127.0.0.1:3000/api          functions of JavaScript\n  lastdrop profile pid:1234 --code --url http://127.0.0.1:8080/shop     functions of Java\n  lastdrop profile php-fpm --url shop.toml -c 8          pages behind a login\n  lastdrop profile php-fpm -d 30s\n  lastdrop profile gunicorn --memory --url shop.toml     the request class that makes workers grow\n  lastdrop profile pid:1234 --json -"
)]
pub struct ProfileArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), one after the other: {} …",
        kinds::list(Kind::is_program)
    ))]
    pub servers: Vec<ServerRef>,
    /// Load this while the server is profiled; of a plan its requests and sessions, not its load
    #[arg(long, value_name = "URL|PLAN")]
    pub url: Option<String>,
    /// Users of that load [default: 10; with --memory one per worker]
    #[arg(short = 'c', long, value_name = "N", value_parser = within::<u32>(USERS))]
    pub users: Option<u32>,
    /// Requests per second instead of users
    #[arg(short, long, value_name = "R", conflicts_with = "users", value_parser = within::<f64>(RATE))]
    pub rate: Option<f64>,
    /// How long to sample
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = within::<Duration>(DURATION))]
    pub duration: Duration,
    /// Functions of its own language: perl, php, node (on a second instance), python, java, ruby
    #[arg(long, value_name = "LANGUAGE", num_args = 0..=1, require_equals = true, requires = "url")]
    pub code: Option<Option<Language>>,
    /// With --code: time that passes, waits included, not CPU time
    #[arg(long, requires = "code")]
    pub wall: bool,
    /// Growth of workers by request class and mapping, not CPU time
    #[arg(long, requires = "url", conflicts_with_all = ["code", "wall", "flame", "rate"])]
    pub memory: bool,
    /// Write a flame graph (SVG) to this file; with several servers one file each, FILE.NAME.svg
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

/// The load is planned longer than the sampling, which ends it.
const BEYOND: Duration = Duration::from_secs(30);

pub fn profile(args: &ProfileArgs) -> Result<Exit> {
    if args.url.is_none() && (args.users.is_some() || args.rate.is_some()) {
        return Err(UsageError("a load wants something to ask for: --url".into()).into());
    }
    let plan_for = |target: &String| -> Result<Plan> {
        let load = LoadArgs {
            users: args.users.or(args.code.is_some().then(few_users).filter(|_| args.rate.is_none())),
            rate: args.rate,
            headers: args.headers.clone(),
            drain: Some(Duration::ZERO),
            ..LoadArgs::default()
        };
        let most = Duration::from_secs_f64(DURATION.most);
        run_plan::with_load(target, &load, (args.duration + BEYOND).min(most), Some(KeepAlive::On))
    };
    let plan = args.url.as_ref().map(plan_for).transpose()?;
    check_called_apart(&args.servers).map_err(UsageError)?;
    let mut report = Report::open(args.json.as_deref(), args.quiet)?;
    let mut flames = Vec::new();
    for server in &args.servers {
        let name = args.flame.as_deref().map(|file| flame_of(file, server, args.servers.len() > 1));
        let file = Outfile::wanted(name.as_deref())?;
        report.make_room_for(file.as_ref())?;
        flames.push(file.zip(name));
    }
    let stop = Stop::on_signals(false)?;
    let mut profiles = Vec::new();
    // One server at a time, so that each has its own load.
    for (server, flame) in args.servers.iter().zip(flames) {
        let profiled = match (args.code, &plan) {
            (Some(language), Some(plan)) => {
                let clock = if args.wall { Clock::Wall } else { Clock::Cpu };
                let options = CodeOptions { language, clock, time: args.duration };
                profile_code(server, plan, &options, &stop.flag)
            }
            (None, Some(plan)) if args.memory => {
                let options = MemoryOptions { users: args.users, time: args.duration };
                profile_memory(server, plan, &options, &stop.flag)
            }
            _ => run_profile(server, plan.as_ref(), args.duration, &stop.flag),
        };
        let mut profiled = match profiled {
            Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
            other => other?,
        };
        profiled.document.server = server.naming(&profiled.document.server);
        let document = profiled.document;
        let mut text = profile_text(&document);
        if let Some((file, name)) = flame {
            if profiled.stacks.is_empty() {
                text.push_str("note: without stacks there is no flame graph\n");
            } else {
                let title =
                    format!("{}: {} {} by {}", document.server, document.samples, document.counted(), document.how);
                file.text(&flame_graph(&title, &profiled.stacks, document.unit()))?;
                text.push_str(&format!("flame graph: {name} (open it in a browser)\n"));
            }
        }
        profiles.push((text, document));
        if stop.signal().is_some() {
            break;
        }
    }
    report.give_each(PROFILE_SCHEMA, profiles)?;
    Ok(stop.signal().map_or(Exit::Done, Exit::Signal))
}

/// Users of a load under which code is profiled: with more, requests would wait for a processor.
fn few_users() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(4) as u32)
}

/// The file of a server's flame graph. With several servers, the name of the server goes before the extension.
fn flame_of(file: &str, server: &ServerRef, of_several: bool) -> String {
    if !of_several {
        return file.into();
    }
    let path = Path::new(file);
    let end = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    let called = server.called().replace('/', "-");
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}.{called}{end}")).display().to_string()
}
