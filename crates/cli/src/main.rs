//! lastdrop: load-tests a web server, says what limits it, finds better settings, and proves that they help.

mod args;
mod commands;
mod exit;
mod export;
mod fleet;
mod help;
mod junit;
mod narrator;
mod options;
mod outfile;
mod personality;
mod replay;
mod resolver;
mod run_plan;
#[cfg(test)]
mod sentences;
mod signals;
mod stdio;
mod title;
#[cfg(test)]
mod type_names;
mod view;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use args::Command;
use clap::error::{ContextKind, ContextValue};
use exit::{Exit, UsageError};
use lastdrop_experiment::lab::LabError;
use lastdrop_load::LoadError;
use signal_hook::consts::SIGHUP;

fn main() -> ExitCode {
    resolver::use_linked_resolvers();
    stdio::begin();
    signals::survive_large_files();
    let args: Vec<OsString> = std::env::args_os().collect();
    // A copy of this program that answers one question in a container. It comes first, while there is one thread.
    if args.len() == 2 && args[1] == lastdrop_server::VISIT {
        lastdrop_server::visit();
    }
    let personality = personality::programs::chosen(&args);
    title::hide_secrets(personality.as_ref().map(|p| p.name), &args);
    if let Some(chosen) = personality {
        return personality::programs::run(&chosen);
    }
    let exit = run(&args);
    match exit {
        // The work is done and stored, but the terminal is gone: end as by SIGHUP, whatever the command returned.
        Exit::Done | Exit::Missed | Exit::Invalid | Exit::Signal(_)
            if signals::is_hung_up() || stdio::has_lost_terminal() =>
        {
            Exit::Signal(SIGHUP).into()
        }
        // A report that could not be written is a failure.
        Exit::Done | Exit::Missed | Exit::Invalid if stdio::lost_something() => Exit::Failed.into(),
        exit => exit.into(),
    }
}

/// Whether a command does not know the option of the HTTP version.
fn is_about_http(e: &clap::Error) -> bool {
    let unknown = e.get(ContextKind::InvalidArg);
    e.kind() == clap::error::ErrorKind::UnknownArgument
        && unknown.is_some_and(|arg| matches!(arg, ContextValue::String(name) if name == "--http"))
}

fn run(args: &[OsString]) -> Exit {
    let cli = match args::read(args) {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            stdio::err(e.to_string());
            if is_about_http(&e) {
                stdio::note!("note: this command has no --http; a plan file may say it, [http] version = \"2\"");
            }
            return Exit::Usage;
        }
        Err(help) => {
            stdio::printed(help.print());
            return Exit::Done;
        }
    };
    if let Err(why) = check_abilities(&cli) {
        stdio::note!("lastdrop: {why}");
        return Exit::Failed;
    }
    if let Err(why) = cli.trust.iter().try_for_each(|user| lastdrop_server::execution::trust_user(user)) {
        stdio::note!("lastdrop: {why}");
        return Exit::Usage;
    }
    let has_proc = Path::new("/proc/self/stat").exists();
    if needs_proc(&cli.command) && !has_proc {
        stdio::note!(
            "lastdrop: /proc is not mounted, and processes, memory and sockets are read there: mount -t proc proc /proc"
        );
        return Exit::Failed;
    }
    if matches!(cli.command, Command::Run(_)) && !has_proc {
        stdio::note!(
            "note: /proc is not mounted: what else this machine does beside the load is not seen, and the run is not checked for it"
        );
    }
    let result = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Replay(args) => commands::replay::replay(&args),
        Command::Record(args) => commands::record::record(&args),
        Command::Import(args) => commands::import::import(&args),
        Command::Capacity(args) => commands::capacity::capacity(&args),
        Command::Headroom(args) => commands::headroom::headroom(&args),
        Command::Compare(args) => commands::compare::compare(&args),
        Command::History(args) => commands::history::history(args),
        Command::Export(args) => commands::export::export(args),
        Command::Report(args) => commands::report::report(&args),
        Command::Ui(args) => commands::ui::ui(args),
        Command::Show(args) => commands::history::show(args),
        Command::Target(args) => commands::target::target(*args),
        Command::Doctor(args) => commands::doctor::doctor(*args),
        Command::Tune(args) => commands::tune::tune(*args),
        Command::Sweep(args) => commands::sweep::sweep(args),
        Command::Knobs(args) => commands::knobs::knobs(&args),
        Command::Size(args) => commands::size::size(args),
        Command::Watch(args) => commands::watch::watch(&args),
        Command::Top(args) => commands::top::top(&args),
        Command::Trace(args) => commands::trace::trace(&args),
        Command::Profile(args) => commands::profile::profile(&args),
        Command::Guard(args) => commands::guard::guard(&args),
        Command::Watchdog(args) => commands::watchdog::watchdog(args),
        Command::Completions(args) => commands::reference::completions(&args),
        Command::Man(args) => commands::reference::man(&args),
        Command::Chapter(args) => commands::reference::chapter(&args),
        Command::Fleet(args) => commands::fleet::fleet(&args),
        Command::Agent(args) => commands::agent::agent(&args),
        Command::Restore(args) => commands::restore::restore(args),
        Command::Demo(args) => commands::demo::demo(args),
    };
    match result {
        Ok(exit) => exit,
        Err(e) => {
            stdio::note!("lastdrop: {}", explain(&e));
            let usage = e.downcast_ref::<UsageError>().is_some() || is_wrong_plan(&e);
            match e.downcast_ref::<LabError>() {
                _ if usage => Exit::Usage,
                Some(LabError::Interrupted) if signals::is_hung_up() => Exit::Signal(SIGHUP),
                _ => Exit::Failed,
            }
        }
    }
}

/// True if a command reads processes or sockets of this machine; the others only read and write files.
fn needs_proc(command: &Command) -> bool {
    match command {
        // Load without `--server` also works in a container without /proc.
        Command::Run(args) => args.server.is_some(),
        Command::Import(_)
        | Command::Compare(_)
        | Command::History(_)
        | Command::Export(_)
        | Command::Report(_)
        | Command::Ui(_)
        | Command::Show(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Chapter(_) => false,
        _ => true,
    }
}

/// Fails if the administrator of this machine has turned this command off. Changes of settings are checked where they are
/// made.
fn check_abilities(cli: &args::Cli) -> Result<(), String> {
    use lastdrop_server::abilities::{Abilities, FILE};
    let abilities = Abilities::load()?;
    let off = |what: &str, key: &str| Err(format!("{what} is turned off on this machine ({FILE}: {key} = false)"));
    match &cli.command {
        _ if !cli.trust.is_empty() && !abilities.trust => off("--trust", "trust"),
        Command::Agent(_) | Command::Fleet(_) if !abilities.agents => off("a fleet", "agents"),
        Command::Guard(args) if args.act && !abilities.changes => off("guard --act", "changes"),
        Command::Watch(args) if !abilities.databases => args.database.first().map_or(Ok(()), |o| off(o, "databases")),
        Command::Doctor(args) if !abilities.databases => args.database.first().map_or(Ok(()), |o| off(o, "databases")),
        _ => Ok(()),
    }
}

/// True for a mistake in the plan that shows only when it is carried out: a missing file, a wrong certificate.
fn is_wrong_plan(error: &anyhow::Error) -> bool {
    let load = match error.downcast_ref::<LabError>() {
        Some(LabError::Load(e)) => Some(e),
        _ => error.downcast_ref::<LoadError>(),
    };
    matches!(load, Some(LoadError::Plan(_) | LoadError::File(_) | LoadError::Request { .. } | LoadError::Tls(_)))
}

/// The error and its causes, each once: our own errors already contain their cause.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
