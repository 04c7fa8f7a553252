//! `lastdrop replay LOG… --to URL`

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_experiment::lab::{Lab, LabError};
use lastdrop_load::share::Shard;
use lastdrop_load::{Arrivals, PreparedPlan, Profile, Tape};
use lastdrop_model::bounds::{CONNECTIONS, DRAIN, DURATION, RATE, REQUESTS, SEED, SPEED, TIMEOUT, USERS};
use lastdrop_model::class::OTHERS;
use lastdrop_model::plan::{Pace, Replay, ServerTimeFrom};
use lastdrop_model::request::{RequestSpec, ThinkTime, header_line};
use lastdrop_model::{Arrival, KeepAlive, Load, Phase, Plan, Url};
use lastdrop_report::export::Runs;
use lastdrop_report::run_text;
use lastdrop_traffic::{Format, LogEntries, LogOptions, SessionKey};
use regex::Regex;

use crate::commands::analyse::analyse;
use crate::commands::run::exit_of;
use crate::commands::{Report, observers_of, open_store};
use crate::exit::{Exit, UsageError};
use crate::options::{NetworkArgs, Objectives, OutputArgs, RunsOnArgs, objectives, within};
use crate::replay::feed::{Feed, LogSample, Pacing, StartAt, sample};
use crate::replay::recording::Recording;
use crate::replay::spread::Spread;
use crate::replay::target::{Host, Targets};
use crate::signals::Stop;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop replay access.log --to http://127.0.0.1:8080/\n  lastdrop replay access.log.2.gz access.log.1 access.log --to http://127.0.0.1:8080/ --speed 10\n  lastdrop replay access.log --to http://127.0.0.1:8080/ -r 500 -d 5m\n  lastdrop replay access.log --to http://127.0.0.1:8080/ -c 20 --sessions address\n  lastdrop replay access.log --to http://127.0.0.1:8080/ --from 2026-01-31T12:00:00Z -d 10m --rewrite 's#^/old/#/new/#'\n  lastdrop replay access.log --to http://10.0.0.5/ --speed 10 --fleet all\n  lastdrop replay access.log* --analyse\n  lastdrop replay access.log --analyse --format '%h %l %u %t \"%r\" %>s %b %D' --json -\n  lastdrop replay access.log --analyse --to http://127.0.0.1:8080/ -o plan.toml      and then: lastdrop run plan.toml"
)]
pub struct ReplayArgs {
    /// Access logs, plain, gzip or zstd; several are merged by time
    #[arg(value_name = "LOG", required = true)]
    pub logs: Vec<PathBuf>,
    /// The only server that gets requests, whatever the logs name. A path of it is put before theirs
    #[arg(long, value_name = "URL", value_parser = str::parse::<Url>, required_unless_present = "analyse")]
    pub to: Option<Url>,
    /// Print what is in the logs (rates, mix, times, sessions, clients), and send nothing
    #[arg(long, conflicts_with_all = ["speed", "rate", "users", "requests", "duration", "from", "rewrite", "objective", "who"])]
    pub analyse: bool,
    /// With --analyse: write a plan that looks like the logs, for the server of --to (and FILE with the ending .urls beside it)
    #[arg(short = 'o', long = "output", value_name = "FILE", requires_all = ["analyse", "to"])]
    pub output_plan: Option<String>,
    /// How many times as fast as the log [default: 1]
    #[arg(long, value_name = "N", value_parser = within::<f64>(SPEED), conflicts_with_all = ["rate", "users"])]
    pub speed: Option<f64>,
    /// Requests per second instead of the log's times, in the log's order
    #[arg(short, long, value_name = "R", conflicts_with = "users", value_parser = within::<f64>(RATE))]
    pub rate: Option<f64>,
    /// How the arrivals of --rate are spread: uniform, poisson, or 'jitter 10%' [default: uniform]
    #[arg(long, value_name = "HOW", requires = "rate", value_parser = str::parse::<Arrival>)]
    pub arrivals: Option<Arrival>,
    /// Users who each wait for their answer before they send their next request (closed loop)
    #[arg(short = 'c', long, value_name = "N", requires = "sessions", value_parser = within::<u32>(USERS))]
    pub users: Option<u32>,
    /// What requests of one user have in common: address, cookie:NAME or field:N (of the log's format)
    #[arg(long, value_name = "KEY", requires = "users", value_parser = str::parse::<SessionKey>)]
    pub sessions: Option<SessionKey>,
    /// Pause of each user between an answer and the next request: 2s, 1s-3s (uniform) or 'exp 2s' (exponential)
    #[arg(long, value_name = "TIME", requires = "users", value_parser = str::parse::<ThinkTime>)]
    pub think: Option<ThinkTime>,
    /// Stop after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = within::<u64>(REQUESTS))]
    pub requests: Option<u64>,
    /// Stop after this long
    #[arg(short, long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub duration: Option<Duration>,
    /// Begin after so many requests of the log, or at a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub from: Option<StartAt>,
    /// Most connections open at once [default: 256; with -c one for each user]
    #[arg(long, value_name = "N", value_parser = within::<u32>(CONNECTIONS))]
    pub connections: Option<u32>,
    /// A request without an answer after this long has timed out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(TIMEOUT))]
    pub timeout: Option<Duration>,
    /// How long requests in flight may take after the last one came due [default: the timeout]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DRAIN))]
    pub drain: Option<Duration>,
    /// Keep connections: on, off, or a number of requests on each [default: on]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    pub keepalive: Option<KeepAlive>,
    /// Seed of everything random [default: random]
    #[arg(long, value_name = "N", value_parser = within::<u32>(SEED))]
    pub seed: Option<u32>,

    /// Format of the logs, if it is not recognised. It is a name (common, combined, ingress-nginx, haproxy, squid), json or logfmt with units
    /// and keys (`json,duration:ms,client=from`), or the text of Apache's LogFormat, nginx's log_format, HAProxy's log-format or Squid's
    /// logformat
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Format>, help_heading = "The log")]
    pub format: Option<Format>,
    /// How far lines may be out of order; a line beyond that is counted and sent at once [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DURATION), help_heading = "The log")]
    pub window: Option<Duration>,

    /// Also send methods that may change something: POST, PUT, DELETE … (without a body, because no log has one)
    #[arg(long = "unsafe", help_heading = "Requests")]
    pub unsafe_methods: bool,
    /// The Host field: a name, or 'log' for the log's [default: the server of --to]
    #[arg(long, value_name = "NAME", value_parser = host, help_heading = "Requests")]
    pub host: Option<Host>,
    /// Replace what a regex finds in path and query: 's/REGEX/REPLACEMENT/', with any sign for the slashes and $1 for a group; may be
    /// given several times
    #[arg(long, value_name = "RULE", value_parser = rule, help_heading = "Requests")]
    pub rewrite: Vec<(Regex, String)>,
    /// A request header, 'Name: value'; it replaces a header of lastdrop's with the same name
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line, help_heading = "Requests")]
    pub headers: Vec<(String, String)>,
    /// Where the server says its own time of a request: auto, header:NAME, header:NAME:UNIT (s, ms, us) or
    /// `log:FILE[,FORMAT]` (its access log, joined by X-Request-Id)
    #[arg(long, value_name = "WHERE", value_parser = str::parse::<ServerTimeFrom>, help_heading = "Requests")]
    pub server_time: Option<ServerTimeFrom>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    /// What the run has to keep: 'p99<300ms,checkout.p99<1s'. Exit code 3 if it does not
    #[arg(long, value_name = "WHAT", value_parser = objectives, help_heading = "Output")]
    pub objective: Option<Objectives>,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ReplayArgs {
    pub fn log_options(&self) -> LogOptions {
        let default = LogOptions::default();
        LogOptions { format: self.format.clone(), window: self.window.unwrap_or(default.window) }
    }
}

fn place(text: &str) -> Result<StartAt, String> {
    if let Ok(n) = text.parse() {
        return Ok(StartAt::Number(n));
    }
    let wrong =
        |_| format!("'{text}' is no place in a log; write a number of requests, or a time as 2026-01-31T12:00:00Z");
    let time = humantime::parse_rfc3339_weak(text).map_err(wrong)?;
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| format!("'{text}' is before 1970"))?;
    Ok(StartAt::Time(since.as_micros() as i64))
}

fn host(text: &str) -> Result<Host, String> {
    match text {
        "log" => Ok(Host::Log),
        _ => lastdrop_model::request::check_header("Host", text).map(|()| Host::Named(text.into())),
    }
}

fn rule(text: &str) -> Result<(Regex, String), String> {
    let parts = || {
        let sign = text.strip_prefix('s')?.chars().next().filter(|c| !c.is_alphanumeric())?;
        let inner = text[1..].strip_prefix(sign)?.strip_suffix(sign)?;
        inner.split_once(sign).filter(|(from, to)| !from.is_empty() && !to.contains(sign))
    };
    let (from, to) =
        parts().ok_or_else(|| format!("'{text}' is no rule; write s/REGEX/REPLACEMENT/ or s#REGEX#REPLACEMENT#"))?;
    let regex = regex::RegexBuilder::new(from).size_limit(1 << 20).build().map_err(|e| format!("'{from}': {e}"))?;
    Ok((regex, to.into()))
}

/// The plan of a replay, without the log itself.
fn plan_of(args: &ReplayArgs, to: &Url, sample: &LogSample) -> Plan {
    let mut plan =
        Plan::new(to.clone(), u64::from(args.seed.unwrap_or_else(lastdrop_experiment::lab::runs::random_u32)));
    let class = |name: &str, method: &str, weight: u64| RequestSpec {
        name: name.into(),
        method: method.into(),
        headers: args.headers.clone(),
        weight: weight as f64,
        literal: true,
        ..RequestSpec::get(to.clone())
    };
    plan.requests = sample.classes.iter().map(|c| class(&c.name, &c.method, c.count)).collect();
    plan.requests.push(class(OTHERS, "GET", 0));
    // The log's own rate, estimated from its beginning.
    let own_rps = sample.requests as f64 * 1e6 / sample.lasted_us.max(1_000_000) as f64 * args.speed.unwrap_or(1.0);
    let rate = args.rate.unwrap_or(own_rps).clamp(RATE.least, RATE.most);
    let mut load = match args.users {
        Some(users) => Load::closed(users),
        None => Load::open(rate, args.arrivals.unwrap_or(Arrival::Uniform), 256),
    };
    if let Some(connections) = args.connections {
        load.limit_connections(connections);
    }
    // Without -n and -d, the run ends with the log.
    let requests = args.requests.or(args.duration.is_none().then_some(REQUESTS.most as u64));
    plan.phases = vec![Phase { name: "main".into(), measured: true, load, requests, duration: args.duration }];
    plan.timeout = args.timeout.unwrap_or(plan.timeout);
    plan.drain = args.drain.unwrap_or(plan.timeout);
    plan.keepalive = args.keepalive.unwrap_or(plan.keepalive);
    plan.think = args.think;
    plan.server_time.clone_from(&args.server_time);
    plan.objectives = args.objective.as_ref().map(|o| o.0.clone()).unwrap_or_default();
    plan.keep_secrets = args.output.keep_secrets;
    args.network.fill(&mut plan);
    plan
}

pub fn replay(args: &ReplayArgs) -> Result<Exit> {
    let to = match &args.to {
        Some(to) if !args.analyse => to,
        _ => return analyse(args),
    };
    // A missing file is reported when it is read.
    if let Some(log) =
        args.logs.iter().find(|log| std::fs::metadata(log).map_or(log.as_os_str() == "-", |m| !m.is_file()))
    {
        let what = "is no file, and a log that is played is read twice: write it to a file first";
        return Err(UsageError(format!("{} {what}", log.display())).into());
    }
    let options = args.log_options();
    let targets = Targets {
        prefix: to.path.trim_end_matches('/').into(),
        rewrites: args.rewrite.clone(),
        unsafe_methods: args.unsafe_methods,
        host: args.host.clone().unwrap_or_default(),
    };
    let sample = sample(&args.logs, &options, &targets)?;
    if sample.requests == 0 {
        anyhow::bail!(
            "no request of {} can be sent; `lastdrop replay … --unsafe` sends POST and others, too",
            args.logs.iter().map(|l| l.display().to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    let mut plan = plan_of(args, to, &sample);
    let names = args.logs.iter().map(|l| l.display().to_string()).collect();
    let (pace, pacing) = match (&args.sessions, args.rate) {
        (Some(key), _) => (Pace::Sessions { by: describe(key) }, Pacing::Sessions(key.clone())),
        (None, Some(rate)) => {
            let how = args.arrivals.unwrap_or(Arrival::Uniform);
            (
                Pace::Rate,
                Pacing::Rate(Box::new(Arrivals::new(how, Profile::constant(rate), 1, plan.seed, Shard::whole()))),
            )
        }
        (None, None) => {
            let speed = args.speed.unwrap_or(1.0);
            (Pace::Original { speed }, Pacing::Original(Spread::new(speed)))
        }
    };
    let usual = sample.classes.iter().map(|c| c.answers.usual()).collect();
    plan.replay = Some(Replay { logs: names, pace, tape: None, usual });
    let recording = if args.on.is_fleet() { Some(Recording::new(&mut plan)?) } else { None };
    let report = Report::of(&args.output)?;
    let stop = Stop::on_signals(true)?;
    let store = open_store(&args.output)?;
    let carrier = args.on.carrier(&[&plan], store.as_ref())?;
    let prepared = PreparedPlan::new(&plan)?;
    let classes: HashMap<String, u32> =
        sample.classes.iter().enumerate().map(|(i, c)| (c.name.clone(), i as u32)).collect();
    let feed = Feed {
        entries: LogEntries::open(&args.logs, &options)?,
        targets,
        others: classes.len() as u32,
        classes,
        from: args.from.unwrap_or(StartAt::Number(0)),
        pacing,
    };
    let (played, running) = feed.start().context("cannot start a thread that reads the log")?;
    let behind = Arc::new(AtomicU64::new(0));
    let (prepared, recorded) = match recording {
        None => (prepared.playing(Tape::new(played, Arc::clone(&behind))), None),
        Some(recording) => match recording.record(played, &plan, args.requests, &stop.flag)? {
            Some(recorded) => (prepared, Some(recorded)),
            None => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        },
    };
    let observers = observers_of(&args.output, store.clone(), Runs::One, &stop)?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let mut run = match lab.run_prepared(&plan, Some(prepared), "") {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    let trouble = lab.trouble();
    drop(lab);
    let mut tally = running.finish().map_err(anyhow::Error::msg)?;
    let next = recorded.map_or_else(|| behind.load(Ordering::Relaxed), |recorded| recorded.next(&run));
    tally.next = next.max(tally.skipped);
    run.replay = Some(tally);
    let kept = store.map(|store| store.finish(&run).and_then(|()| store.check_reads()));
    report.give(&run_text(&run), &run)?;
    let unkept = || kept.and_then(Result::err).map(|e| format!("could not be kept: {e}"));
    let trouble: Vec<String> = trouble.into_iter().chain(unkept()).collect();
    if !trouble.is_empty() {
        anyhow::bail!("the run was made but {}", trouble.join("; it "));
    }
    Ok(exit_of(&run, &stop))
}

fn describe(key: &SessionKey) -> String {
    match key {
        SessionKey::Address => "address".into(),
        SessionKey::Cookie(name) => format!("cookie {name}"),
        SessionKey::Field(n) => format!("field {n}"),
    }
}
