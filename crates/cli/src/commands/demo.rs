//! `lastdrop demo`: tunes an embedded server whose best setting is known.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::lab::runs::random_u32;
use lastdrop_experiment::trials::demo as plan;
use lastdrop_experiment::trials::tune::tune;
use lastdrop_model::documents::TuneVerdict;
use lastdrop_probe::tool;
use lastdrop_report::tune_text;
use lastdrop_server::{OtherTrafficPolicy, ServerRef, Stack, discover};

use crate::commands::{Report, observers};
use crate::exit::Exit;
use crate::signals::Stop;
use crate::view::{Progress, View};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop demo\n  lastdrop demo --json demo.json      and then: lastdrop report demo.json"
)]
pub struct DemoArgs {
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

/// A port that was free may be taken before the demo's server listens on it.
const ATTEMPTS: u32 = 3;

/// The web server of the demo; ends on drop.
struct Target(Child);

impl Target {
    /// Starts one on a free port, which it returns.
    fn start(config: &Path) -> Result<(Target, u16)> {
        for _ in 0..ATTEMPTS {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).context("no free port")?.port();
            std::fs::write(config, format!("{}listen = '127.0.0.1:{port}'\n", plan::SETTINGS))
                .with_context(|| format!("cannot write {}", config.display()))?;
            let child = tool::ourselves("the demo's web server")
                .args(["target", "--end-with-parent", "--config"])
                .arg(config)
                // Ctrl-C must not reach the server: the demo restores it first and then ends it.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot start the target")?;
            let mut target = Target(child);
            if target.listens(port)? {
                return Ok((target, port));
            }
        }
        bail!("the demo's web server ended at once, {ATTEMPTS} times; try: lastdrop target")
    }

    /// Waits until it listens; false if it has ended.
    fn listens(&mut self, port: u16) -> Result<bool> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if self.0.try_wait()?.is_some() {
                return Ok(false);
            }
            if Instant::now() > deadline {
                bail!("the target does not listen on 127.0.0.1:{port}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Let the connection above close, or it would count as a visitor. A server that lost its port has ended by then.
        std::thread::sleep(Duration::from_millis(100));
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

pub fn demo(args: DemoArgs) -> Result<Exit> {
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let stop = Stop::on_signals(false)?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let config = folder.path().join("target.toml");
    // The demo has a journal of its own, so that it and other tunes do not disturb each other.
    // SAFETY: the process has one thread so far.
    unsafe { std::env::set_var("LASTDROP_STATE", folder.path().join("state")) };
    let (workers, rps) = plan::planted()?;
    let (_target, port) = Target::start(&config)?;
    report.text(&format!(
        "lastdrop demo: a web server of ours runs on 127.0.0.1:{port} with a bad setting: 4 workers, each replaced\n\
         after 10 requests. Its best is planted and known: {workers} workers that stay, {rps:.0} answers/s. lastdrop is\n\
         told none of that. It measures the server as it is, tries other settings, races the best against what was\n\
         there, and puts everything back. This takes about a minute.\n\n"
    ));
    let url: lastdrop_model::Url = format!("http://127.0.0.1:{port}/").parse()?;
    let mut server: ServerRef = "target".parse().map_err(anyhow::Error::msg)?;
    server.config = Some(config);
    let stack = Stack::open(std::slice::from_ref(&server), Some(&url), &OtherTrafficPolicy::default())?;
    let progress = Progress { view: View::Auto, quiet: args.quiet, document: args.json.as_deref() == Some("-") };
    let mut lab = Lab::new(&stop.flag, observers(progress, None, lastdrop_report::export::Runs::Several, &stop));
    let document = tune(&mut lab, stack, &plan::order(url, u64::from(random_u32())), None, None, None)?;
    // The restarts have replaced the process that was started here.
    end_restarted(&server);
    let mut text = format!("\n{}", tune_text(&document, false));
    if !document.interrupted {
        let found = document.winner.as_ref().map_or(0.0, |w| w.objective);
        text.push_str(&format!(
            "\nThe winner reaches {:.0} % of the planted best ({found:.0} of {rps:.0} answers/s).\n\n\
             Next, on a real server (as root, so that its processes can be looked at and restarted):\n  \
             lastdrop size apache                                     how many workers fit into memory\n  \
             lastdrop tune apache --url http://127.0.0.1/your/page    the same as here, on your Apache\n  \
             lastdrop run http://127.0.0.1/your/page -c 50 -d 30s     only measure\n",
            found / rps * 100.0
        ));
    }
    report.give(&text, &document)?;
    if document.interrupted {
        return Ok(Exit::Signal(stop.signal().unwrap_or(2)));
    }
    Ok(if document.verdict == TuneVerdict::Improved { Exit::Done } else { Exit::Failed })
}

fn end_restarted(server: &ServerRef) {
    if let Ok(adapter) = discover(server) {
        let pid = nix::unistd::Pid::from_raw(adapter.facts().birth.pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    }
}
