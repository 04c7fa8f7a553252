//! `lastdrop target`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_model::bounds::{BACKLOG, BODY, EVERY, PLANTED, SEED, SERVICE, STRETCH, WORKERS};
use lastdrop_target::{Layers, MasterError, STATUS_PATH};

use crate::exit::{Exit, UsageError};
use crate::options::{within, written};
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "SIGHUP reads the settings again, SIGUSR2 opens the listener anew too, SIGTERM ends it.\nThe status page is /server-status?auto (as mod_status) and /server-status?json (all counts).\n\nExamples:\n  lastdrop target --listen 127.0.0.1:8080 --workers 8 --service 'exp 20ms'\n  lastdrop target --config target.toml\n  lastdrop target --reset-every 10 --hang-every 50"
)]
pub struct TargetArgs {
    /// Settings from a TOML file (the same names as the options, with underscores)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A second file, read last: it wins over the first and over the options
    #[arg(long, value_name = "FILE")]
    pub overlay: Option<PathBuf>,
    /// Write the master's process id here
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Test the settings and end
    #[arg(long)]
    pub test: bool,
    /// End when the process that started it ends
    #[arg(long, hide = true)]
    pub end_with_parent: bool,
    /// Address and port; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Worker processes [default: 4]
    #[arg(long, value_name = "N", value_parser = within::<i64>(WORKERS))]
    pub workers: Option<i64>,
    /// Time of a request: '20ms', 'exp 20ms' or 'cpu 5ms' [default: 0]
    #[arg(long, value_name = "TIME", value_parser = service)]
    pub service: Option<String>,
    /// Contention of the Universal Scalability Law between busy workers [default: 0]
    #[arg(long, value_name = "SIGMA", value_parser = within::<f64>(STRETCH))]
    pub contention: Option<f64>,
    /// Coherency cost of the Universal Scalability Law; plants a best pool size [default: 0]
    #[arg(long, value_name = "KAPPA", value_parser = within::<f64>(STRETCH))]
    pub coherency: Option<f64>,
    /// How many times as long service takes with so many busy workers: '4:1, 12:3, 20:1.5', straight lines between
    #[arg(long, value_name = "N:FACTOR,…", value_parser = slowdown)]
    pub slowdown: Option<String>,
    /// Length of an answer's body [default: 100]
    #[arg(long, value_name = "SIZE", value_parser = written::<u64>(BODY))]
    pub body: Option<String>,
    /// Private memory of each worker [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = written::<u64>(PLANTED))]
    pub memory: Option<String>,
    /// Memory that all workers share [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = written::<u64>(PLANTED))]
    pub shared_memory: Option<String>,
    /// Private memory that each request adds to its worker [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = written::<u64>(PLANTED))]
    pub leak: Option<String>,
    /// Shared memory that each request unshares in its worker [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = written::<u64>(PLANTED))]
    pub unshare: Option<String>,
    /// Time a new worker needs before it serves [default: 0]
    #[arg(long, value_name = "TIME", value_parser = written::<Duration>(SERVICE))]
    pub startup: Option<String>,
    /// Replace a worker after this many requests; 0 is never [default: 0]
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub max_requests_per_worker: Option<i64>,
    /// Keep connections [default: true]
    #[arg(long, value_name = "BOOL")]
    pub keepalive: Option<bool>,
    /// How long an idle kept connection holds its worker [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = written::<Duration>(SERVICE))]
    pub keepalive_timeout: Option<String>,
    /// Requests on one connection; 0 is any number [default: 0]
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub max_keepalive_requests: Option<i64>,
    /// Listen backlog [default: 511]
    #[arg(long, value_name = "N", value_parser = within::<i64>(BACKLOG))]
    pub backlog: Option<i64>,
    /// Answer nothing from this long after the first request …
    #[arg(long, value_name = "TIME", value_parser = written::<Duration>(SERVICE))]
    pub stall_at: Option<String>,
    /// … for this long [default: 0]
    #[arg(long, value_name = "TIME", value_parser = written::<Duration>(SERVICE))]
    pub stall_for: Option<String>,
    /// Answer every Nth request with 500; 0 is none [default: 0]
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub error_every: Option<i64>,
    /// Close every Nth request's connection without an answer
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub close_every: Option<i64>,
    /// Reset every Nth request's connection
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub reset_every: Option<i64>,
    /// Leave every Nth request hanging
    #[arg(long, value_name = "N", value_parser = within::<i64>(EVERY))]
    pub hang_every: Option<i64>,
    /// Seed of random service times
    #[arg(long, value_name = "N", value_parser = within::<i64>(SEED))]
    pub seed: Option<i64>,
    /// Say in each answer when the worker began with its request and how long it took [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub server_time: Option<bool>,
    /// Write a line for each answer: when (microseconds since 1970), status, path
    #[arg(long, value_name = "FILE")]
    pub log: Option<String>,
}

fn slowdown(text: &str) -> Result<String, String> {
    text.parse::<lastdrop_target::Slowdown>().map(|_| text.to_string())
}

fn service(text: &str) -> Result<String, String> {
    text.parse::<lastdrop_target::Service>().map(|_| text.to_string())
}

pub fn target(args: TargetArgs) -> Result<Exit> {
    if args.end_with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    }
    let mut flags = toml::Table::new();
    macro_rules! flag {
        ($($name:ident),*) => {
            $(if let Some(value) = args.$name {
                flags.insert(stringify!($name).into(), toml::Value::from(value));
            })*
        };
    }
    flag!(
        listen,
        workers,
        service,
        contention,
        coherency,
        slowdown,
        body,
        memory,
        shared_memory,
        leak,
        unshare,
        startup,
        max_requests_per_worker,
        keepalive,
        keepalive_timeout,
        max_keepalive_requests,
        backlog,
        stall_at,
        stall_for,
        error_every,
        close_every,
        reset_every,
        hang_every,
        seed,
        server_time
    );
    // A restart may happen in another working directory.
    let absolute = |path: Option<std::path::PathBuf>| path.map(|p| std::path::absolute(&p).unwrap_or(p));
    let log = absolute(args.log.map(Into::into));
    if let Some(log) = log {
        flags.insert("log".into(), log.to_string_lossy().into_owned().into());
    }
    let layers = Layers { file: absolute(args.config), flags, overlay: absolute(args.overlay) };
    if args.test {
        layers.load().map_err(|e| UsageError(e.to_string()))?;
        return Ok(Exit::Done);
    }
    let result = lastdrop_target::run(layers, absolute(args.pid_file), |address, config| {
        note!(
            "lastdrop target: http://{address}/ with {} workers; status at http://{address}{STATUS_PATH}?auto; Ctrl-C ends it",
            config.workers
        );
    });
    match result {
        Err(MasterError::Config(e)) => Err(UsageError(e.to_string()).into()),
        other => Ok(other.map(|()| Exit::Done)?),
    }
}
