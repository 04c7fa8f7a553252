//! `lastdrop size SERVER`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::{Lab, LabError};
use lastdrop_experiment::trials::fit::{FitOptions, fit};
use lastdrop_experiment::trials::size::size_under_load;
use lastdrop_model::bounds::{MEMORY, PER_WORKER, POOL};
use lastdrop_model::documents::{SIZE_SCHEMA, SizeDocument};
use lastdrop_model::request::header_line;
use lastdrop_model::{Knob, Role};
use lastdrop_report::export::Runs;
use lastdrop_report::size_text;
use lastdrop_server::{Change, Directives, ServerRef, Session, check_called_apart, discover, kinds};

use crate::commands::{Report, observers};
use crate::exit::{Exit, UsageError};
use crate::options::{FormatArgs, LoadArgs, OthersArgs, pair, within};
use crate::run_plan;
use crate::signals::Stop;
use crate::view::{Progress, View};

#[derive(Debug, Args)]
#[command(
    after_help = "size alone only looks. --fit and --variant restart the server several times with other settings and put it\nback; what a killed one leaves, lastdrop restore undoes. Of several servers each is changed while the others stay.\n\nExamples:\n  lastdrop size apache\n  lastdrop size apache:/srv/www/apache2.conf --memory 400M --json -\n  lastdrop size apache --fit --url http://127.0.0.1/app --memory 2G\n  lastdrop size apache --url http://127.0.0.1/app --variant plain= --variant 'preloaded=PerlModule POSIX; PerlModule CGI'\n  lastdrop size nginx php-fpm --fit --url http://127.0.0.1/app --variant 'plain=php-fpm.opcache.enable off'\n  lastdrop size php-fpm --fit --url shop.toml            pages behind a login: the sessions of a plan"
)]
pub struct SizeArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), each by itself, with @URL of its listener. Kinds: {}. lastdrop watch shows the workers of \
         other kinds",
        kinds::list_with_files(|k| k.can_change() && k.is_program())
    ))]
    pub servers: Vec<ServerRef>,
    /// Memory that the server's workers may use together [default: what the machine or the server's control group has left]
    #[arg(long, value_name = "SIZE", value_parser = within::<u64>(MEMORY))]
    pub memory: Option<u64>,
    /// Try several pool sizes and let workers grow older; fit a model, with intervals
    #[arg(long, requires = "url")]
    pub fit: bool,
    /// What workers serve while they are measured; of a plan its requests and sessions, not its load. Without --fit each worker gets
    /// some requests first. A few seconds of load then tell what a request takes and how many workers are needed
    #[arg(long, value_name = "URL|PLAN")]
    pub url: Option<String>,
    /// Pool sizes to try, in worker processes: 4,8,16 [default: four up to the present one]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', requires = "fit", value_parser = within::<u64>(POOL))]
    pub sizes: Vec<u64>,
    /// Requests per worker, to see whether it grows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = within::<u64>(PER_WORKER))]
    pub requests_per_worker: u64,
    #[arg(long = "variant", value_name = "NAME=LINES", requires = "url", value_parser = pair, help = format!(
        "Show what these settings do to the size of a worker: 'NAME=DIRECTIVE; DIRECTIVE' of {}, 'NAME=SETTING VALUE; SETTING \
         VALUE' of others. Of several servers each line begins with its server's name, SERVER.SETTING. May be given several times",
        kinds::titles(|k| k.directives)
    ))]
    pub variants: Vec<(String, String)>,
    #[command(flatten)]
    pub others: OthersArgs,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[command(flatten)]
    pub form: FormatArgs,
    #[arg(short, long)]
    pub quiet: bool,
}

/// Timeout of a request; it is long because the pool was just started.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn size(args: SizeArgs) -> Result<Exit> {
    check_called_apart(&args.servers).map_err(UsageError)?;
    let report = Report::open(args.json.as_deref(), args.quiet)?.with_format(args.form)?;
    let mut documents = Vec::new();
    for (server, variants) in args.servers.iter().zip(variants_of(&args)?) {
        let document = match &args.url {
            Some(url) => match measure(&args, server, url, variants)? {
                Ok(document) => document,
                Err(exit) => return Ok(exit),
            },
            _ => lastdrop_experiment::trials::size::size(server, args.memory)?,
        };
        documents.push(named(document, server, args.servers.len() > 1));
    }
    report.give_each(SIZE_SCHEMA, documents.into_iter().map(|d| (size_text(&d), d)).collect())?;
    Ok(Exit::Done)
}

/// The document with the server's name.
fn named(mut document: SizeDocument, server: &ServerRef, of_several: bool) -> SizeDocument {
    document.server = server.naming(&document.server);
    if of_several {
        document.notes.push("so many fit while the other servers stay as they are".into());
    }
    document
}

/// The variants of each server. With several servers, each line names its server; an empty variant applies to all.
fn variants_of(args: &SizeArgs) -> Result<Vec<Vec<(String, String)>>, UsageError> {
    let [first, _, ..] = args.servers.as_slice() else { return Ok(vec![args.variants.clone()]) };
    let mut all = vec![Vec::new(); args.servers.len()];
    for (name, text) in &args.variants {
        let lines = Directives::read(text);
        let mut own = vec![Vec::new(); args.servers.len()];
        for line in lines.lines() {
            let of = |server: &ServerRef| line.strip_prefix(server.called())?.strip_prefix('.');
            let found = args.servers.iter().enumerate().filter_map(|(i, server)| Some((i, of(server)?)));
            let (server, rest) = found.min_by_key(|(_, rest)| rest.len()).ok_or_else(|| {
                let example = format!("{}.{line}", first.called());
                UsageError(format!("'{line}' of variant {name} does not say which server it is of, such as {example}"))
            })?;
            own[server].push(rest);
        }
        for (i, own) in own.into_iter().enumerate().filter(|(_, own)| !own.is_empty() || lines.lines().is_empty()) {
            all[i].push((name.clone(), own.join("; ")));
        }
    }
    Ok(all)
}

fn progress(args: &SizeArgs) -> Progress {
    Progress { view: View::Auto, quiet: args.quiet, document: args.json.as_deref() == Some("-") }
}

/// Warms the workers, measures what a request takes, and tries pool sizes and variants on request. Returns an exit code
/// instead of a document if the user ended it.
fn measure(
    args: &SizeArgs,
    server: &ServerRef,
    target: &str,
    variants: Vec<(String, String)>,
) -> Result<Result<SizeDocument, Exit>> {
    if let 1..=2 = args.sizes.len() {
        let few = args.sizes.len();
        return Err(UsageError(format!(
            "--sizes has {few}; a line with an interval needs three or more: --sizes 4,8,16"
        ))
        .into());
    }
    let load = LoadArgs {
        users: Some(1),
        requests: Some(1),
        timeout: Some(TIMEOUT),
        headers: args.headers.clone(),
        ..LoadArgs::default()
    };
    let adapter = discover(server)?;
    let knobs: Vec<&Knob> = adapter.knobs().iter().collect();
    for (_, text) in &variants {
        Change::read(text, server.kind.directives, &knobs).map_err(UsageError)?;
    }
    let plan = run_plan::with_load(target, &load, TIMEOUT, None)?;
    let url = plan.url.clone();
    let order = FitOptions {
        plan,
        memory: args.memory,
        sizes: args.sizes.clone(),
        requests_per_worker: args.requests_per_worker,
        // Of several servers, one without a pool is only measured.
        fit: args.fit && (args.servers.len() == 1 || adapter.knob(Role::PoolSize).is_some()),
        variants,
    };
    if !order.fit && order.variants.is_empty() {
        let stop = Stop::on_signals(false)?;
        let mut lab = Lab::new(&stop.flag, observers(progress(args), None, Runs::Several, &stop));
        return match size_under_load(&mut lab, adapter.as_ref(), &order.plan, args.memory) {
            Err(LabError::Interrupted) => Ok(Err(Exit::Signal(stop.signal().unwrap_or(2)))),
            other => Ok(Ok(other?)),
        };
    }
    let stop = Stop::on_signals(false)?;
    let session = Session::open(adapter, Some(&url), &(&args.others).into())?;
    let mut lab = Lab::new(&stop.flag, observers(progress(args), None, Runs::Several, &stop));
    match fit(&mut lab, session, &order) {
        Err(LabError::Interrupted) => Ok(Err(Exit::Signal(stop.signal().unwrap_or(2)))),
        other => Ok(Ok(other?)),
    }
}
