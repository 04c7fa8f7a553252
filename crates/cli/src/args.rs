//! The command line: one table of options, from which help and checks come.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lastdrop_model::plan::{Arrival, KeepAlive, Load, Phase, Plan, Proxy, Url};
use lastdrop_model::plan_file::Bandwidth;
use lastdrop_model::request::{Expectation, Think, header_line};
use lastdrop_model::units::{parse_bytes, parse_duration};
use lastdrop_model::{Objective, ServerRef};
use lastdrop_report::watch::SortBy;

use crate::exit;

const EXAMPLES: &str = "\
Examples:
  lastdrop demo                                      see the whole thing work on a server of its own
  lastdrop run http://127.0.0.1:8080/ -c 50 -d 30s   50 users for 30 s
  lastdrop capacity http://127.0.0.1/ --objective 'p99<300ms'   how much it can take
  lastdrop compare --live http://127.0.0.1:8080/ http://127.0.0.1:8081/   which is faster
  lastdrop watch apache                              processes, memory, queues, kernel events, live
  lastdrop size apache --memory 400M                 how many workers fit
  lastdrop tune apache --url http://127.0.0.1/app    find better settings and prove them
  lastdrop restore                                   undo what a killed tune left
  lastdrop ab -n 1000 -c 10 http://127.0.0.1/        as ab, siege, httperf, http_load, lwp-bench or wrk: their flags and reports
";

#[derive(Debug, Parser)]
#[command(
    name = "lastdrop",
    version,
    about = "Measures a web server honestly, finds better settings, and proves that they help",
    after_help = format!("Also ab, siege, httperf, http_load, lwp-bench and wrk, by their own flags: lastdrop ab -h\n\n{}", exit::HELP),
    after_long_help = format!("{EXAMPLES}\n{}", exit::HELP),
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put load on a URL and report what happened
    Run(Box<RunArgs>),
    /// Find the highest rate that meets an objective, and throughput against users
    Capacity(Box<CapacityArgs>),
    /// Is B faster or slower than A? Two runs, or two URLs or plans in interleaved blocks
    Compare(Box<CompareArgs>),
    /// Find better settings for a server, prove them against the present ones, and put the old ones back
    Tune(Box<TuneArgs>),
    /// Run a matrix of settings, users, requests and URLs from a plan file
    Sweep(SweepArgs),
    /// Real memory of a server's workers and how many fit
    Size(SizeArgs),
    /// A server's processes, states, memory, queues and kernel events, live
    Watch(Box<WatchArgs>),
    /// Which system calls a request is made of, what they cost, and what would spare them
    Trace(Box<TraceArgs>),
    /// Where a server's CPU goes while it is under load: functions, libraries, a flame graph
    Profile(Box<ProfileArgs>),
    /// Replace workers that are too large, too old or stuck, gracefully, a few at a time
    Guard(Box<GuardArgs>),
    /// Put back what a killed tune or sweep changed
    Restore(RestoreArgs),
    /// List the runs kept in the store
    History(HistoryArgs),
    /// Show a kept run again
    Show(ShowArgs),
    /// A newcomer's first minute: tune an embedded server whose best setting is known
    Demo(DemoArgs),
    /// A web server of exactly known behaviour
    Target(Box<TargetArgs>),
}

/// Options about the load, the same for every command that puts on load.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Users who each wait for their answer before asking again (closed loop) [default: 10]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub users: Option<u32>,
    /// Requests per second, whatever the server does (open loop)
    #[arg(short, long, value_name = "R", value_parser = rate, conflicts_with = "users")]
    pub rate: Option<f64>,
    /// How the arrivals of an open loop are spread: uniform, poisson, or 'jitter 10%' [default: uniform]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<Arrival>)]
    pub arrivals: Option<Arrival>,
    /// So many arrive together in an open loop [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub burst: Option<u32>,
    /// Rate of an open loop, or users, at the end: they change in a straight line from -r or -c to this
    #[arg(long, value_name = "N", value_parser = rate)]
    pub ramp_to: Option<f64>,
    /// The ramp of a rate has this many steps
    #[arg(long, value_name = "N", requires = "ramp_to", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub ramp_steps: Option<u32>,
    /// Most connections open at once in an open loop [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: Option<u32>,
    /// Stop after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Stop after this long [default: 10s, or no limit with -n]
    #[arg(short, long, value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Load before the measurement, outside its numbers
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub warm_up: Option<Duration>,
    /// Load threads [default: 1]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// A request without an answer after this long has timed out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub timeout: Option<Duration>,
    /// How long requests in flight may take once nothing more comes due [default: the timeout]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub drain: Option<Duration>,
    /// Keep connections: on, off, or a number of requests on each [default: on; tune: off]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    pub keepalive: Option<KeepAlive>,
    /// Seed of everything random; printed, so that a run can be repeated [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u32>,
    /// Another request header, 'Name: value'; replaces one of ours with the same name
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
}

/// Options about what is kept and shown.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write the result as JSON to a file, or to stdout with '-' (then everything else is on stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
    /// Do not keep the run
    #[arg(long)]
    pub no_store: bool,
    /// No progress, no text: only errors, and JSON where asked for
    #[arg(short, long)]
    pub quiet: bool,
}

/// What is sent, for `run`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Request method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_parser = method)]
    pub method: Option<String>,
    /// Request body; '@FILE' is a file's content
    #[arg(long, value_name = "TEXT")]
    pub body: Option<String>,
    /// A field of a form body, 'name=value'; may be given several times
    #[arg(long = "form", value_name = "FIELD", value_parser = pair, conflicts_with = "body")]
    pub form: Vec<(String, String)>,
    /// A part of a multipart body, 'name=value' or 'name=@FILE'; may be given several times
    #[arg(long = "part", value_name = "PART", value_parser = pair, conflicts_with_all = ["body", "form"])]
    pub parts: Vec<(String, String)>,
    /// URLs from a file, in the format of siege or http_load
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "target")]
    pub urls: Option<PathBuf>,
    /// Take them in turn instead of at random
    #[arg(long, requires = "urls")]
    pub in_order: bool,
    /// Basic authentication
    #[arg(long, value_name = "USER:PASSWORD", value_parser = credentials)]
    pub basic: Option<(String, String)>,
    /// Digest authentication
    #[arg(long, value_name = "USER:PASSWORD", value_parser = credentials, conflicts_with = "basic")]
    pub digest: Option<(String, String)>,
    /// Bearer authentication
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["basic", "digest"])]
    pub bearer: Option<String>,
    /// What an answer has to be: status=200, length=1234, text=Hello, no-text=Error, checksum=sha256:…, checksum=same
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<Expectation>)]
    pub expect: Vec<Expectation>,
    /// Pause between an answer and the next request: 2s, 1s-3s (uniform) or 'exp 2s' (exponential)
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Think>)]
    pub think: Option<Think>,
    /// Rows for {{name}} in URL, headers and body: CSV with a line of names
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Follow this many redirects
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub redirects: Option<u32>,
    /// Each user keeps its cookies
    #[arg(long)]
    pub cookies: bool,
    /// Load the page as a browser does: HTML, then what it embeds, over up to 6 connections a host
    #[arg(long)]
    pub page: bool,
    /// With --page: a user fetches what may be cached once
    #[arg(long, requires = "page")]
    pub page_cache: bool,
    /// Ask for gzip and brotli
    #[arg(long)]
    pub compressed: bool,
    /// Undo gzip and brotli, and count what comes out
    #[arg(long)]
    pub decode: bool,
    /// Version of HTTP: 1.1 or 1.0
    #[arg(long, value_name = "VERSION", value_parser = ["1.0", "1.1"])]
    pub http: Option<String>,
    /// Requests in flight on one connection
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pipeline: Option<u32>,
    /// Send bodies in chunks of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub chunked: Option<u64>,
    /// Send bodies only after '100 Continue', or a second without it
    #[arg(long)]
    pub expect_continue: bool,
}

/// How connections are made, for `run`, `compare --live` and `capacity`.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Connections")]
pub struct NetworkArgs {
    /// Connect to this unix socket instead of to the URL's host
    #[arg(long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Addresses to connect from, in turn: 127.0.0.2,127.0.0.3
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub source: Vec<IpAddr>,
    /// Go through a proxy, http://host:port (or http://USER:PASSWORD@host:port); https by CONNECT
    #[arg(long, value_name = "URL", value_parser = str::parse::<Proxy>)]
    pub proxy: Option<Proxy>,
    /// CONNECT for http too
    #[arg(long, requires = "proxy")]
    pub proxy_tunnel: bool,
    /// Only IPv4 addresses
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Only IPv6 addresses
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Resolve names again this often [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub dns_refresh: Option<Duration>,
    /// What each connection reads and writes at most: 33.6kbit, 10Mbit, or bytes a second as in 100k
    #[arg(long, value_name = "RATE", value_parser = str::parse::<Bandwidth>)]
    pub bandwidth: Option<Bandwidth>,
    /// Size of each socket's receive buffer
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub receive_buffer: Option<u64>,
    /// Size of each socket's send buffer
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub send_buffer: Option<u64>,
    /// TLS: any certificate is good
    #[arg(short = 'k', long)]
    pub insecure: bool,
    /// TLS: trust the authorities in this PEM file besides the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// TLS: our own certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// TLS: its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// TLS: the name to ask for and to verify [default: the URL's host]
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// TLS: only this version, 1.2 or 1.3
    #[arg(long, value_name = "VERSION", value_parser = ["1.2", "1.3"])]
    pub tls: Option<String>,
    /// TLS: a full handshake for each connection
    #[arg(long)]
    pub no_resumption: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop run http://127.0.0.1:8080/ -c 50 -d 30s\n  lastdrop run http://[::1]/ -n 10000 --keepalive off --json run.json\n  lastdrop run http://127.0.0.1/ -r 500 --arrivals poisson\n  lastdrop run http://127.0.0.1/ -r 100 --ramp-to 2000 -d 5m\n  lastdrop run https://127.0.0.1:8443/ --ca ca.pem -c 50\n  lastdrop run -f urls.txt -c 20 --think 1s-3s\n  lastdrop run plan.toml --dry-run"
)]
pub struct RunArgs {
    /// What to load: a URL, or a plan file (*.toml)
    #[arg(required_unless_present_any = ["urls", "plan_schema"], value_name = "URL|PLAN")]
    pub target: Option<String>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the JSON schema of plan files
    #[arg(long)]
    pub plan_schema: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What has to be reached: 'p99<300ms,errors<0.1%,rate>500'; exit code 3 where it is not
    #[arg(long, value_name = "WHAT", value_parser = objectives, help_heading = "Output")]
    pub objective: Option<Objectives>,
    /// Write the objectives and whether they were met as JUnit XML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<String>,
    /// Look at this server beside the load, with its status page: apache, nginx, php-fpm, pid:1234 … [default: the one
    /// that listens at the URL, if it is on this machine, from outside]
    #[arg(long, value_name = "SERVER", value_parser = str::parse::<ServerRef>, help_heading = "Output")]
    pub server: Option<ServerRef>,
    /// Write a line for each request (CSV): when it was due, sent, answered, and its fate
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub log: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quit, p pause, s sort by the next column, r reverse, arrows scroll.\nPrivate, shared and PSS are read in turn, each at most 15 s old.\n\nExamples:\n  lastdrop watch apache\n  lastdrop watch nginx@http://127.0.0.1/nginx_status --sort private\n  lastdrop watch pid:1234 --once --json -\n  lastdrop watch php-fpm --record night.jsonl -d 8h      and later: lastdrop watch --replay night.jsonl"
)]
pub struct WatchArgs {
    /// The server: apache, apache:/path/apache2.conf, nginx, php-fpm, target, pid:1234, each with @URL
    #[arg(value_parser = str::parse::<ServerRef>, required_unless_present = "replay")]
    pub server: Option<ServerRef>,
    /// Time between two looks, and what differences cover
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive_duration)]
    pub interval: Duration,
    /// One look, then end
    #[arg(long)]
    pub once: bool,
    /// End after this long
    #[arg(short, long, value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Sort workers by cpu, private, rss, requests, age or pid
    #[arg(long, value_name = "COLUMN", default_value = "cpu", value_parser = str::parse::<SortBy>)]
    pub sort: SortBy,
    /// The other way round
    #[arg(long)]
    pub reverse: bool,
    /// Add each look to this file, a JSON document a line
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub record: Option<String>,
    /// Show a recording instead of a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "record"])]
    pub replay: Option<PathBuf>,
    /// Write looks as JSON to a file, or to stdout with '-'; without --once a document a line
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub json: Option<String>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Needs strace, and root or the server's user. Tracing slows the traced workers down while it lasts; on a server in\nuse it also counts what visitors do.\n\nExamples:\n  lastdrop trace apache --url http://127.0.0.1/app/list\n  lastdrop trace apache --url http://127.0.0.1/ --json before.json\n  (change something) lastdrop trace apache --url http://127.0.0.1/ --against before.json\n  lastdrop trace apache --url http://127.0.0.1/ --with '<Directory />; AllowOverride None; </Directory>'"
)]
pub struct TraceArgs {
    /// The server: apache, nginx, php-fpm, target, pid:1234 …
    #[arg(value_parser = str::parse::<ServerRef>)]
    pub server: ServerRef,
    /// What is asked for while it is traced
    #[arg(long)]
    pub url: Url,
    /// How many requests are traced
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub requests: u64,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    /// A request without an answer after this long has timed out
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub timeout: Duration,
    /// Show an earlier trace (its --json FILE) beside this one
    #[arg(long, value_name = "FILE", conflicts_with = "with")]
    pub against: Option<PathBuf>,
    /// Trace again with these directives of Apache (';' between them), show both, and put the server back
    #[arg(long, value_name = "DIRECTIVES")]
    pub with: Option<String>,
    /// The server is in use: change it by a graceful reload where that is enough
    #[arg(long, requires = "with")]
    pub live: bool,
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

#[derive(Debug, Args)]
#[command(
    after_help = "Without --act it only says what it would do. A worker is asked to leave when it is idle, finishes what it has begun, and\nits master starts another; only one that is stuck is ended against its will. Apache has to be prefork.\n\nExamples:\n  lastdrop guard apache --max-private 60M\n  lastdrop guard apache --memory 2G --stuck 5m --act --log /var/log/lastdrop-guard.log\n  lastdrop guard php-fpm --max-size 200M --max-age 6h --share 5 --every 30s --act"
)]
pub struct GuardArgs {
    /// The server: apache (prefork), php-fpm, nginx, target, with a configuration or @URL where there are several
    #[arg(value_parser = str::parse::<ServerRef>)]
    pub server: ServerRef,
    /// Replace workers whose resident size is above this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Limits")]
    pub max_size: Option<u64>,
    /// Replace workers with more private memory than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Limits")]
    pub max_private: Option<u64>,
    /// Replace workers that share less than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Limits")]
    pub min_shared: Option<u64>,
    /// Replace workers that have used more CPU time than this
    #[arg(long, value_name = "TIME", value_parser = positive_duration, help_heading = "Limits")]
    pub max_cpu: Option<Duration>,
    /// Replace workers that are older than this
    #[arg(long, value_name = "TIME", value_parser = positive_duration, help_heading = "Limits")]
    pub max_age: Option<Duration>,
    /// End workers that are at one request for longer than this (needs a status page)
    #[arg(long, value_name = "TIME", value_parser = positive_duration, help_heading = "Limits")]
    pub stuck: Option<Duration>,
    /// Real memory of the whole server: from nine tenths of it on, the largest workers are replaced
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Limits")]
    pub memory: Option<u64>,
    /// Time between two checks
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub every: Duration,
    /// At most this part of the pool is replaced at a time, percent (but one worker always may be)
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = pool_share)]
    pub share: f64,
    /// Ask workers that are at work too; they finish their request first
    #[arg(long)]
    pub even_busy: bool,
    /// Replace workers, not only say which
    #[arg(long)]
    pub act: bool,
    /// End after this long
    #[arg(short, long, value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Add a line for each event to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// No text
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Uses perf where it is installed and allowed; otherwise it looks at /proc and says so. Without --url the server's own\nvisitors are the load.\n\nExamples:\n  lastdrop profile apache --url http://127.0.0.1/app -c 8 --flame app.svg\n  lastdrop profile php-fpm -d 30s\n  lastdrop profile pid:1234 --json -"
)]
pub struct ProfileArgs {
    /// The server: apache, nginx, php-fpm, target, pid:1234 …
    #[arg(value_parser = str::parse::<ServerRef>)]
    pub server: ServerRef,
    /// Put load on this while it is profiled
    #[arg(long)]
    pub url: Option<Url>,
    /// Users of that load [default: 10]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub users: Option<u32>,
    /// Requests per second instead of users
    #[arg(short, long, value_name = "R", value_parser = rate, conflicts_with = "users")]
    pub rate: Option<f64>,
    /// How long samples are taken
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
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

/// 1 to 100 percent, as a share.
fn pool_share(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("'{text}' is no number"))?;
    if (1.0..=100.0).contains(&value) { Ok(value / 100.0) } else { Err("1 to 100 percent".into()) }
}

/// A list of objectives; clap would take a `Vec` for an option that is given several times.
#[derive(Debug, Clone)]
pub struct Objectives(pub Vec<Objective>);

fn objectives(text: &str) -> Result<Objectives, String> {
    Objective::list(text).map(Objectives)
}

#[derive(Debug, Args)]
#[command(
    after_help = "What it does: a staircase of users in a closed loop, then open-loop trials that bracket the highest rate from\nbelow, narrow it, and hold it. New connections for each request unless --keepalive says otherwise.\n\nExamples:\n  lastdrop capacity http://127.0.0.1:8080/ --objective 'p99<300ms,errors<0.1%'\n  lastdrop capacity http://127.0.0.1/ --objective 'p99.9<1s' --arrivals poisson --keepalive on --max-time 10m\n  lastdrop capacity plan.toml --objective 'p95<50ms' --no-staircase -r 200"
)]
pub struct CapacityArgs {
    /// What to load: a URL, or a plan file (*.toml) for its requests
    #[arg(value_name = "URL|PLAN")]
    pub target: String,
    /// What a rate has to meet: 'p99<300ms,errors<0.1%'
    #[arg(long, value_name = "WHAT", value_parser = objectives)]
    pub objective: Option<Objectives>,
    /// The first rate [default: found by the staircase]
    #[arg(short, long, value_name = "R", value_parser = rate)]
    pub rate: Option<f64>,
    /// No rate above this
    #[arg(long, value_name = "R", value_parser = rate, default_value_t = 1_000_000.0)]
    pub max_rate: f64,
    /// The answer is held at least so long
    #[arg(short = 'd', long, value_name = "TIME", value_parser = positive_duration, default_value = "15s")]
    pub hold: Duration,
    /// All of it ends by then
    #[arg(long, value_name = "TIME", value_parser = positive_duration, default_value = "115s")]
    pub max_time: Duration,
    /// By so much the answer may be too low, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.5, value_parser = percent)]
    pub precision: f64,
    /// Most users of the staircase
    #[arg(short = 'c', long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub max_users: u32,
    /// No staircase of users: no knee, no scalability law
    #[arg(long)]
    pub no_staircase: bool,
    /// How arrivals are spread: uniform or poisson
    #[arg(long, value_name = "HOW", value_parser = str::parse::<Arrival>, default_value = "uniform")]
    pub arrivals: Arrival,
    /// Most connections open at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// Keep connections: on, off, or a number of requests on each [default: off; with a plan file: what it says]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    pub keepalive: Option<KeepAlive>,
    /// Load threads [default: 1]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// A request without an answer after this long has timed out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub timeout: Option<Duration>,
    /// Seed of everything random [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u32>,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("duration", |a| a.help("Length of each stretch of load [default: 520ms]")),
    mut_arg("warm_up", |a| a.help("Load before each stretch, outside its numbers [default: 50ms]")),
    mut_arg("requests", |a| a.help("Requests of each stretch, instead of a length")),
    after_help = "Stored runs tell of the noise within them, not of what changed on the machine between them; for a decision use\n--live. A block is a stretch of load at A and one at B. Ratios are B / A.\n\nExamples:\n  lastdrop compare 3fa2 last                                      two runs of the store (see lastdrop history)\n  lastdrop compare before.json after.json --fail-on-worse         two exported runs\n  lastdrop compare --live http://127.0.0.1:8080/ http://127.0.0.1:8081/ -c 20\n  lastdrop compare --live old.toml new.toml --blocks 20 -d 2s --fail-on-worse\n  lastdrop compare --live http://127.0.0.1:8080/ --aa             the noise of this machine"
)]
pub struct CompareArgs {
    /// What was before: a run's id, an exported run (JSON); with --live a URL or a plan file
    #[arg(value_name = "A")]
    pub a: String,
    /// What came after
    #[arg(value_name = "B", required_unless_present = "aa")]
    pub b: Option<String>,
    /// Put load on both now, in interleaved blocks
    #[arg(long)]
    pub live: bool,
    /// A against itself: the noise of this machine, kept for comparisons of stored runs
    #[arg(long, requires = "live", conflicts_with = "b")]
    pub aa: bool,
    /// Blocks, at most; it ends early when the answer is clear
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(4..=1000))]
    pub blocks: u32,
    /// Exit code 3 when B is worse in anything
    #[arg(long)]
    pub fail_on_worse: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop tune apache --url http://127.0.0.1/perl/page.pl -c 50\n  lastdrop tune apache:/srv/www/apache2.conf --url http://127.0.0.1:8080/ --memory 400M --keep\n  lastdrop tune target:target.toml --url http://127.0.0.1:8080/"
)]
pub struct TuneArgs {
    /// The server: apache, apache:/path/apache2.conf, target:/path/target.toml, each with @URL of its listener
    pub server: ServerRef,
    /// What to load; healthy means that it answers as it does at the start
    #[arg(long)]
    pub url: Url,
    /// Memory that the server's workers may use together [default: what the machine has left]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Leave the better settings in force
    #[arg(long)]
    pub keep: bool,
    /// Tune a server that other people are using now
    #[arg(long)]
    pub live: bool,
    /// Pairs of blocks in the race, at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(4..=100))]
    pub blocks: u32,
    /// The smallest gain worth a change, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub min_gain: f64,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop sweep examples/tuning-table.toml\n  lastdrop sweep plan.toml --csv table.csv --json table.json\n  lastdrop sweep examples/variants.toml --rounds 5 --sort avtime"
)]
pub struct SweepArgs {
    /// The plan: see examples/ and docs/manual.md
    pub plan: PathBuf,
    /// Measure every row so often, in interleaved rounds; shows an interval [default: what the plan says, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Sort by a column, best first: rps, avtime, p50, p99, completed, failed, or one of those that vary
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// Write the table as CSV to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub csv: Option<String>,
    /// Change a server that other people are using now
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "size alone only looks. --fit and --variant restart the server several times with other settings and put it back;\nwhat a killed one leaves, lastdrop restore undoes.\n\nExamples:\n  lastdrop size apache\n  lastdrop size apache:/srv/www/apache2.conf --memory 400M --json -\n  lastdrop size apache --fit --url http://127.0.0.1/app --memory 2G\n  lastdrop size apache --url http://127.0.0.1/app --variant plain= --variant 'preloaded=PerlModule POSIX; PerlModule CGI'"
)]
pub struct SizeArgs {
    /// The server: apache, apache:/path/apache2.conf, target:/path/target.toml
    pub server: ServerRef,
    /// Memory that the server's workers may use together [default: what the machine or the server's control group has left]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Try several pool sizes and let workers grow older; fits a model and says how sure it is
    #[arg(long, requires = "url")]
    pub fit: bool,
    /// What workers are asked for while they are measured
    #[arg(long)]
    pub url: Option<Url>,
    /// Pool sizes to try, in worker processes: 4,8,16 [default: four up to the present one]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', requires = "fit", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub sizes: Vec<u64>,
    /// Requests that each worker serves to see whether it grows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(4..=1_000_000))]
    pub requests_per_worker: u64,
    /// Directives whose effect on the size of a worker is wanted: 'NAME=DIRECTIVE; DIRECTIVE' (Apache); may be given
    /// several times
    #[arg(long = "variant", value_name = "NAME=DIRECTIVES", requires = "url", value_parser = pair)]
    pub variants: Vec<(String, String)>,
    /// Do it although other people use the server
    #[arg(long)]
    pub live: bool,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Show what would be put back and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// How many runs to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A run: its id, the beginning of it, or 'last'
    pub id: String,
    /// Write it as JSON to a file, or to stdout (the default when no FILE is given)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

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
    /// End when the process that started it ends
    #[arg(long, hide = true)]
    pub end_with_parent: bool,
    /// Address and port; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Worker processes [default: 4]
    #[arg(long, value_name = "N")]
    pub workers: Option<i64>,
    /// Time of a request: '20ms', 'exp 20ms' or 'cpu 5ms' [default: 0]
    #[arg(long, value_name = "TIME")]
    pub service: Option<String>,
    /// Contention of the Universal Scalability Law between busy workers [default: 0]
    #[arg(long, value_name = "SIGMA")]
    pub contention: Option<f64>,
    /// Coherency cost of the Universal Scalability Law; plants a best pool size [default: 0]
    #[arg(long, value_name = "KAPPA")]
    pub coherency: Option<f64>,
    /// Length of an answer's body [default: 100]
    #[arg(long, value_name = "SIZE")]
    pub body: Option<String>,
    /// Private memory of each worker [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Memory that all workers share [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub shared_memory: Option<String>,
    /// Private memory that each request adds to its worker [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub leak: Option<String>,
    /// Shared memory that each request makes its worker's own [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub unshare: Option<String>,
    /// Time a new worker needs before it serves [default: 0]
    #[arg(long, value_name = "TIME")]
    pub startup: Option<String>,
    /// Replace a worker after this many requests; 0 is never [default: 0]
    #[arg(long, value_name = "N")]
    pub max_requests_per_worker: Option<i64>,
    /// Keep connections [default: true]
    #[arg(long, value_name = "BOOL")]
    pub keepalive: Option<bool>,
    /// How long an idle kept connection holds its worker [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub keepalive_timeout: Option<String>,
    /// Requests on one connection; 0 is any number [default: 0]
    #[arg(long, value_name = "N")]
    pub max_keepalive_requests: Option<i64>,
    /// Listen backlog [default: 511]
    #[arg(long, value_name = "N")]
    pub backlog: Option<i64>,
    /// Answer nothing from this long after the first request …
    #[arg(long, value_name = "TIME")]
    pub stall_at: Option<String>,
    /// … for this long [default: 0]
    #[arg(long, value_name = "TIME")]
    pub stall_for: Option<String>,
    /// Answer every Nth request with 500; 0 is none [default: 0]
    #[arg(long, value_name = "N")]
    pub error_every: Option<i64>,
    /// Close every Nth request's connection without an answer
    #[arg(long, value_name = "N")]
    pub close_every: Option<i64>,
    /// Reset every Nth request's connection
    #[arg(long, value_name = "N")]
    pub reset_every: Option<i64>,
    /// Leave every Nth request hanging
    #[arg(long, value_name = "N")]
    pub hang_every: Option<i64>,
    /// Seed of random service times
    #[arg(long, value_name = "N")]
    pub seed: Option<i64>,
    /// Write a line for each answer: when (microseconds since 1970), status, path
    #[arg(long, value_name = "FILE")]
    pub log: Option<String>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(r) if r > 0.0 && r <= 10_000_000.0 => Ok(r),
        _ => Err(format!("'{text}' is not a rate; write requests per second, such as 500")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(p) if (0.0..=1000.0).contains(&p) => Ok(p),
        _ => Err(format!("'{text}' is not a percentage")),
    }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    let d = parse_duration(text)?;
    // A year: beyond it sums of times would no longer be sure to fit.
    if d.is_zero() || d > Duration::from_secs(366 * 86_400) {
        return Err(format!("'{text}' must be more than 0 and at most a year"));
    }
    Ok(d)
}

fn method(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        Ok(text.to_ascii_uppercase())
    } else {
        Err(format!("'{text}' is not a request method"))
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err(format!("'{text}' is not a field; write 'name=value'")),
    }
}

fn credentials(text: &str) -> Result<(String, String), String> {
    text.split_once(':')
        .map(|(user, password)| (user.to_string(), password.to_string()))
        .ok_or_else(|| "write USER:PASSWORD".to_string())
}

impl LoadArgs {
    /// Does it say how much load there is to be?
    #[must_use]
    pub fn says_load(&self) -> bool {
        self.users.is_some() || self.rate.is_some() || self.ramp_to.is_some() || self.warm_up.is_some()
    }

    /// The load that these options ask for, in phases. `duration` is the default without -n and -d.
    #[must_use]
    pub fn phases(&self, duration: Duration) -> Vec<Phase> {
        let load = match self.rate {
            Some(rate_rps) => Load::Open {
                rate_rps,
                to_rps: None,
                steps: None,
                arrivals: self.arrivals.unwrap_or(Arrival::Uniform),
                burst: self.burst.unwrap_or(1),
                connections: self.connections.unwrap_or(256),
            },
            None => Load::closed(self.users.unwrap_or(10)),
        };
        let mut phases = Vec::new();
        if let Some(warm_up) = self.warm_up {
            phases.push(Phase {
                name: "warm-up".into(),
                measured: false,
                load: load.clone(),
                requests: None,
                duration: Some(warm_up),
            });
        }
        let load = match (load, self.ramp_to) {
            (Load::Closed { users, .. }, Some(to)) => Load::Closed { users, to_users: Some(to as u32) },
            (Load::Open { rate_rps, arrivals, burst, connections, .. }, Some(to)) => {
                Load::Open { rate_rps, to_rps: Some(to), steps: self.ramp_steps, arrivals, burst, connections }
            }
            (load, None) => load,
        };
        let ramp = self.ramp_to.is_some();
        phases.push(Phase {
            name: "main".into(),
            measured: true,
            load,
            requests: self.requests,
            duration: self.duration.or(if self.requests.is_some() && !ramp { None } else { Some(duration) }),
        });
        phases
    }

    /// Seed for everything random: the one that was asked for, or any.
    #[must_use]
    pub fn seed(&self) -> u64 {
        u64::from(self.seed.unwrap_or_else(lastdrop_experiment::lab::random_u32))
    }

    /// The plan that these options ask for. `duration` is the default without -n and -d.
    #[must_use]
    pub fn plan(&self, url: Url, duration: Duration, keepalive: KeepAlive) -> Plan {
        let mut plan = Plan::new(url, self.seed());
        plan.phases = self.phases(duration);
        plan.keepalive = keepalive;
        self.adjust(&mut plan);
        for request in &mut plan.requests {
            request.headers = self.headers.clone();
        }
        plan
    }

    /// Puts those options into a plan that may also be said beside a plan file.
    pub fn adjust(&self, plan: &mut Plan) {
        if let Some(threads) = self.threads {
            plan.threads = threads;
        }
        if let Some(timeout) = self.timeout {
            plan.timeout = timeout;
            plan.drain = timeout;
        }
        if let Some(drain) = self.drain {
            plan.drain = drain;
        }
        if let Some(keepalive) = self.keepalive {
            plan.keepalive = keepalive;
        }
        if let Some(seed) = self.seed {
            plan.seed = u64::from(seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_table_of_options_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn header_lines_cannot_smuggle_others() {
        assert!(header_line("X: a\r\nY: b").is_err());
        assert!(header_line("no colon").is_err());
        assert_eq!(header_line("X-A:  b "), Ok(("X-A".into(), "b".into())));
    }
}
