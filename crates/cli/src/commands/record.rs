//! `lastdrop record --to URL` and `lastdrop record --host NAME…`

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{ArgGroup, Args};
use lastdrop_load::files::Files;
use lastdrop_load::tls_configs;
use lastdrop_model::Url;
use lastdrop_model::plan::{HttpOptions, TlsOptions};
use lastdrop_model::printable::line;
use lastdrop_proxy::{Authority, Notice, Proxy, ProxyMode, Recorder, ServerTls, ask_without_cookies, remove_leftovers};
use lastdrop_traffic::recording::{
    PlanOptions, RecordedAnswer, RecordedExchange, pages_with_cookies, plan_with_progress,
};
use lastdrop_wire::loopback;

use super::import::{PlanFiles, Progress};
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;
use crate::stdio::{note, say};

const DEFAULT_OUTPUT: &str = "plan.toml";
const DEFAULT_PORT: u16 = 8888;
/// How often to check for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// Limits of the pages that are requested again without cookies: their number and the total time.
const MOST_ASKED: usize = 40;
const LONGEST_ASKING: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("way").required(true).args(["to", "host"])),
    after_help = "Listens on loopback alone. Ctrl-C ends it and writes the plan, and beside it the passwords and tokens that were entered.\n\nExamples:\n  lastdrop record --to https://shop.example/           open http://127.0.0.1:8888/ in a browser: it stands for the shop\n  lastdrop record --host shop.example api.shop.example -o shop.toml     as the proxy of a browser, only to these hosts\n  lastdrop run plan.toml -c 50 -d 1m                   and then"
)]
pub struct RecordArgs {
    /// The server that the proxy stands for
    #[arg(long, value_name = "URL", value_parser = str::parse::<Url>)]
    pub to: Option<Url>,
    /// A host that a browser may reach, with this as its proxy; several may be given
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', value_parser = host)]
    pub host: Vec<String>,
    /// Address of this machine alone, and port; port 0 takes a free one [default: 127.0.0.1:8888, or that port of ::1 where there is only IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// The plan; values that were entered go to FILE with the ending .csv beside it, both of mode 0600 [default: a new plan.toml]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// TLS: any certificate of a server is good
    #[arg(short = 'k', long)]
    pub insecure: bool,
    /// TLS: trust the authorities in this PEM file besides the system's
    #[arg(long, visible_alias = "cacert", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// No text while it records
    #[arg(short, long)]
    pub quiet: bool,
}

/// A name of a host without port.
fn host(text: &str) -> Result<String, String> {
    let plain = text.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let is_name = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if plain.parse::<IpAddr>().is_ok() || is_name(&plain) {
        Ok(plain)
    } else {
        Err(format!("'{text}' is no name of a host; write shop.example, without scheme and port"))
    }
}

pub fn record(args: &RecordArgs) -> Result<Exit> {
    let output = args.output.as_deref().unwrap_or(DEFAULT_OUTPUT);
    if args.output.is_none() && Path::new(output).exists() {
        return Err(UsageError(format!("{output} exists already; -o FILE names another, or that one")).into());
    }
    remove_leftovers();
    let files = PlanFiles::open(output)?;
    let ca = args.ca.as_deref().map(std::path::absolute).transpose()?;
    let tls = TlsOptions { insecure: args.insecure, ca: ca.clone(), ..TlsOptions::default() };
    let tls = tls_configs(&tls, &HttpOptions::default(), 1, &Files::Disk)?.remove(0);
    // Catch signals before the authority's files exist, which have to be deleted.
    let stop = Stop::on_signals(false)?;
    let authority = if args.to.is_none() { Some(Authority::new(&args.host)?) } else { None };
    let (way, hosts) = match (&args.to, &authority) {
        (Some(url), _) => (ProxyMode::Reverse(url.clone()), vec![url.host.clone()]),
        (None, Some(authority)) => (ProxyMode::forward(authority), args.host.clone()),
        (None, None) => return Err(UsageError("--to URL or --host NAME says what is recorded".into()).into()),
    };
    let (recorder, told) = Recorder::new();
    let addresses = args.listen.map_or_else(|| loopback(DEFAULT_PORT).to_vec(), |address| vec![address]);
    let proxy =
        Proxy::start(&addresses, way, ServerTls::clone(&tls), recorder).map_err(|e| UsageError(e.to_string()))?;
    introduce(args, &proxy, authority.as_ref(), output);
    listen(&told, &stop, args.quiet);
    let recorder = proxy.end();
    // Delete the key first: what follows may take a moment.
    drop(authority);
    let (exchanges, troubles) = recorder.finish();
    if exchanges.iter().all(|e| e.is_part) {
        note!("lastdrop: nothing was recorded, and no plan is written");
        return Ok(Exit::Failed);
    }
    let strangers = without_cookies(&exchanges, &hosts, &tls);
    if !strangers.is_empty() {
        note!(
            "note: {} pages were asked for once more without cookies, to know what only this user sees",
            strangers.len()
        );
    }
    let options = PlanOptions {
        hosts,
        without_cookies: strangers,
        data_file: files.data_name.clone(),
        insecure: args.insecure,
        ca: ca.map(|path| path.to_string_lossy().into_owned()),
        ..PlanOptions::default()
    };
    let mut progress = Progress::new(exchanges.len(), args.quiet);
    let recorded = plan_with_progress(exchanges, &options, &mut |percent| progress.show(percent))?;
    let requests = recorded.plan.matches("\n[[request]]").count();
    let values = recorded.plan.matches("\nextract.").count();
    for (what, times) in troubles {
        note!("note: {}{}", line(&what), if times > 1 { format!(" ({times} times)") } else { String::new() });
    }
    recorded.notes.iter().for_each(|n| note!("note: {}", line(n)));
    files.write(&recorded)?;
    say!("{}: {requests} requests, {values} values taken from answers", line(output));
    say!("fifty users do the same by: lastdrop run {} -c 50 -d 1m", line(output));
    Ok(Exit::Done)
}

/// Requests the recorded pages once without cookies, by GET. Stops at the first missing response.
fn without_cookies(
    exchanges: &[RecordedExchange],
    hosts: &[String],
    tls: &ServerTls,
) -> HashMap<String, RecordedAnswer> {
    let began = Instant::now();
    pages_with_cookies(exchanges, hosts)
        .into_iter()
        .take(MOST_ASKED)
        .take_while(|_| began.elapsed() < LONGEST_ASKING)
        .map_while(|page| Some((page.url.in_full(), ask_without_cookies(page, tls)?)))
        .collect()
}

/// Prints how to use the proxy with a browser.
fn introduce(args: &RecordArgs, proxy: &Proxy, authority: Option<&Authority>, output: &str) {
    let address = proxy.address;
    match &args.to {
        Some(url) => {
            say!("recording: http://{address}{} stands for {}", line(&url.with_path(&url.path).path), url.origin());
        }
        None => say!("recording: http://{address} is a proxy to {}", line(&args.host.join(", "))),
    }
    if args.quiet {
        return;
    }
    if let Some(authority) = authority {
        let certificate = authority.certificate.display().to_string();
        note!("https is signed by an authority of this recording, for these hosts alone: {}", line(&certificate));
        note!(
            "  curl      curl --proxy http://{address} --cacert {} https://{}/",
            line(&certificate),
            line(&args.host[0])
        );
        note!(
            "  Chromium  chromium --user-data-dir=$(mktemp -d) --proxy-server=http://{address} --proxy-bypass-list='<-loopback>' \
             --ignore-certificate-errors-spki-list={}",
            authority.fingerprint
        );
        note!("  Firefox   a new profile; the proxy and the authority are among its settings");
    }
    note!("Ctrl-C ends it and writes {}", line(output));
}

/// Prints recorded exchanges until a signal comes.
fn listen(told: &Receiver<Notice>, stop: &Stop, quiet: bool) {
    while !stop.flag.load(Ordering::Relaxed) {
        match told.recv_timeout(LOOK) {
            Ok(_) if quiet => {}
            Ok(Notice::Recorded { number, what, status, pause }) => {
                let status = status.map_or_else(|| "no answer".into(), |s| s.to_string());
                let pause = match pause.as_millis() {
                    0..100 => String::new(),
                    ms => format!("  after {:.1} s", ms as f64 / 1e3),
                };
                note!("{number:4}  {}  {status}{pause}", line(&what));
            }
            Ok(Notice::Trouble(what)) => note!("note: {}", line(&what)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
