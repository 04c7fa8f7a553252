//! lastdrop: what a web server can do, what holds it back, which settings are better, and whether they helped.

mod args;
mod commands;
mod exit;
mod narrator;
mod signals;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use exit::{Exit, UsageError};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::History(args) => commands::history::history(args),
        Command::Show(args) => commands::history::show(args),
        Command::Target(args) => commands::target::target(*args),
        Command::Tune(args) => commands::tune::tune(args),
        Command::Sweep(args) => commands::sweep::sweep(args),
        Command::Size(args) => commands::size::size(args),
        Command::Restore(args) => commands::restore::restore(args),
        Command::Demo(args) => commands::demo::demo(args),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(e) => {
            eprintln!("lastdrop: {}", explain(&e));
            let usage = e.downcast_ref::<UsageError>().is_some();
            if usage { Exit::Usage } else { Exit::Failed }.into()
        }
    }
}

/// The error and its causes, each said once: our own errors name their cause already.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
