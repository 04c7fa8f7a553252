//! `lastdrop size SERVER`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_lab::{Lab, LabError};
use lastdrop_model::bounds::{MEMORY, PER_WORKER, POOL};
use lastdrop_model::documents::{SIZE_SCHEMA, SizeDocument};
use lastdrop_model::request::header_line;
use lastdrop_model::{KeepAlive, Url};
use lastdrop_report::size_text;
use lastdrop_server::{ServerRef, Session, check_called_apart, discover, kinds};
use lastdrop_trials::fit::{FitOrder, fit};

use crate::commands::{Report, observers};
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, OthersArgs, pair, within};
use crate::signals::Stop;

#[derive(Debug, Args)]
#[command(
    after_help = "size alone only looks. --fit and --variant (Apache only) restart the server several times with other\nsettings and put it back; what a killed one leaves, lastdrop restore undoes.\n\nExamples:\n  lastdrop size apache\n  lastdrop size apache:/srv/www/apache2.conf --memory 400M --json -\n  lastdrop size apache --fit --url http://127.0.0.1/app --memory 2G\n  lastdrop size apache --url http://127.0.0.1/app --variant plain= --variant 'preloaded=PerlModule POSIX; PerlModule CGI'"
)]
pub struct SizeArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), each by itself: {}, each with @URL of its listener; the workers of other kinds are shown by lastdrop watch",
        kinds::list_with_files(|k| k.can_change() && k.is_program())
    ))]
    pub servers: Vec<ServerRef>,
    /// Memory that the server's workers may use together [default: what the machine or the server's control group has left]
    #[arg(long, value_name = "SIZE", value_parser = within::<u64>(MEMORY))]
    pub memory: Option<u64>,
    /// Try several pool sizes and let workers grow older; fits a model and says how sure it is
    #[arg(long, requires = "url")]
    pub fit: bool,
    /// What workers are asked for while they are measured
    #[arg(long)]
    pub url: Option<Url>,
    /// Pool sizes to try, in worker processes: 4,8,16 [default: four up to the present one]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', requires = "fit", value_parser = within::<u64>(POOL))]
    pub sizes: Vec<u64>,
    /// Requests that each worker serves to see whether it grows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = within::<u64>(PER_WORKER))]
    pub requests_per_worker: u64,
    #[arg(long = "variant", value_name = "NAME=DIRECTIVES", requires = "url", value_parser = pair, help = format!(
        "Directives whose effect on the size of a worker is wanted: 'NAME=DIRECTIVE; DIRECTIVE' ({}); may be given several \
         times",
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
    #[arg(short, long)]
    pub quiet: bool,
}

/// A request of a server that is being sized may take this long: its pool was just started.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn size(args: SizeArgs) -> Result<Exit> {
    check_called_apart(&args.servers).map_err(UsageError)?;
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let documents = match (&args.url, args.servers.as_slice()) {
        (Some(url), [server]) if args.fit || !args.variants.is_empty() => match measure(&args, server, url)? {
            Ok(document) => vec![document],
            Err(exit) => return Ok(exit),
        },
        (Some(_), _) if args.fit || !args.variants.is_empty() => {
            return Err(UsageError("--fit and --variant change the pool of one server: name that alone".into()).into());
        }
        (_, servers) => {
            servers.iter().map(|server| alone(server, args.memory, servers.len() > 1)).collect::<Result<_>>()?
        }
    };
    report.give_each(SIZE_SCHEMA, documents.into_iter().map(|d| (size_text(&d), d)).collect())?;
    Ok(Exit::Done)
}

/// Looks at one server, perhaps of several.
fn alone(server: &ServerRef, memory: Option<u64>, of_several: bool) -> Result<SizeDocument> {
    let mut document = lastdrop_trials::size::size(server, memory)?;
    document.server = server.naming(&document.server);
    if of_several {
        document.notes.push("so many fit while the other servers stay as they are".into());
    }
    Ok(document)
}

/// Tries pool sizes and variants; an exit instead of a document when the user ended it.
fn measure(args: &SizeArgs, server: &ServerRef, url: &Url) -> Result<Result<SizeDocument, Exit>> {
    if args.variants.iter().any(|(_, d)| !d.is_empty()) && !server.kind.directives {
        let title = kinds::titles(|k| k.directives);
        return Err(UsageError(format!("variants are directives of {title}; other servers have none yet")).into());
    }
    let load = LoadArgs {
        users: Some(1),
        requests: Some(1),
        timeout: Some(TIMEOUT),
        headers: args.headers.clone(),
        ..LoadArgs::default()
    };
    let order = FitOrder {
        plan: load.plan(url.clone(), TIMEOUT, KeepAlive::Off)?,
        memory: args.memory,
        sizes: args.sizes.clone(),
        requests_per_worker: args.requests_per_worker,
        variants: args.variants.clone(),
        fit: args.fit,
    };
    let stop = Stop::on_signals(false)?;
    let session = Session::open(discover(server)?, Some(url), &(&args.others).into())?;
    let mut lab = Lab::new(&stop.flag, observers(args.quiet, None));
    match fit(&mut lab, session, &order) {
        Err(LabError::Interrupted) => Ok(Err(Exit::Signal(stop.signal().unwrap_or(2)))),
        other => Ok(Ok(other?)),
    }
}
