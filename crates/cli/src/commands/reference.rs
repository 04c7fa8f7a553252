//! What is made of the program's own tables for those who package it and for the manual: completions of shells, man pages,
//! the chapters of findings and settings. Hidden from help: a package has them already.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use lastdrop_diagnose::findings::{About, all_about};
use lastdrop_model::documents::Severity;
use lastdrop_server::{KnobTable, knob_tables};

use crate::args::Cli;
use crate::exit::Exit;
use crate::stdio;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop completions bash > /usr/share/bash-completion/completions/lastdrop")]
pub struct CompletionsArgs {
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop man /usr/share/man/man1")]
pub struct ManArgs {
    /// The folder into which lastdrop.1 goes, and a page for each command
    pub folder: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Chapter {
    /// What the doctor can name
    Findings,
    /// The settings of all kinds of servers
    Knobs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop chapter findings > docs/findings.md")]
pub struct ChapterArgs {
    pub chapter: Chapter,
}

/// The commands that a person may give.
fn shown() -> clap::Command {
    let all = Cli::command();
    let visible: Vec<clap::Command> = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect();
    let shown = clap::Command::new("lastdrop").version(env!("CARGO_PKG_VERSION")).subcommand_required(true);
    let text = |styled: Option<&clap::builder::StyledStr>| styled.cloned().unwrap_or_default();
    shown.about(text(all.get_about())).after_long_help(text(all.get_after_long_help())).subcommands(visible)
}

pub fn completions(args: &CompletionsArgs) -> Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown(), "lastdrop", &mut text);
    stdio::out(String::from_utf8(text).context("completions are text")?);
    Ok(Exit::Done)
}

/// Pages of section 1, as troff: `lastdrop.1`, `lastdrop-run.1` …
pub fn man(args: &ManArgs) -> Result<Exit> {
    let at = |path: &PathBuf| format!("{}", path.display());
    fs::create_dir_all(&args.folder).with_context(|| at(&args.folder))?;
    clap_mangen::generate_to(shown(), &args.folder).with_context(|| at(&args.folder))?;
    Ok(Exit::Done)
}

pub fn chapter(args: &ChapterArgs) -> Result<Exit> {
    stdio::out(match args.chapter {
        Chapter::Findings => findings_page(all_about(), &knob_tables()),
        Chapter::Knobs => knobs_page(&knob_tables()),
    });
    Ok(Exit::Done)
}

/// Markdown: a section for each finding, limits first.
fn findings_page(all: &[About], tables: &[KnobTable]) -> String {
    let mut page = String::from(
        "# Findings\n\nWhat `lastdrop doctor` can name. Made of the program's own table (`lastdrop chapter findings`), which `--list` and\n\
         `--explain ID` show, too. A *limit* bounds throughput now; a *waste* costs without being the bound; a *risk* will bite.\n",
    );
    let parts = [(Severity::Limit, "Limits"), (Severity::Waste, "Wastes"), (Severity::Risk, "Risks")];
    for (severity, heading) in parts {
        let _ = write!(page, "\n## {heading}\n");
        for about in all.iter().filter(|a| a.severity == severity) {
            let _ = write!(
                page,
                "\n### {}\n\n{}.\n\n* decided by: {}\n* looks like it: {}\n",
                about.id,
                capital(about.what),
                plain(about.decides),
                plain(about.unlike)
            );
            let worth = worth_trying(about.id, tables);
            if !worth.is_empty() {
                let _ = writeln!(page, "* settings worth trying ([all](knobs.md)): {worth}");
            }
        }
    }
    page
}

/// `Apache X, Y; nginx Z`: the settings that a finding makes worth trying.
fn worth_trying(finding: &str, tables: &[KnobTable]) -> String {
    let mut worth: Vec<(&str, Vec<String>)> = Vec::new();
    for table in tables {
        for row in table.rows.iter().filter(|r| r.knob.findings.contains(&finding)) {
            let name = format!("`{}`", row.knob.name);
            match worth.iter_mut().find(|(title, _)| *title == table.title) {
                Some((_, names)) if names.contains(&name) => {}
                Some((_, names)) => names.push(name),
                None => worth.push((table.title, vec![name])),
            }
        }
    }
    worth.iter().map(|(title, names)| format!("{title} {}", names.join(", "))).collect::<Vec<_>>().join("; ")
}

/// Markdown: a table for each kind.
fn knobs_page(tables: &[KnobTable]) -> String {
    let mut page = String::from(
        "# Settings\n\nWhat `sweep` and `tune` can change, and `lastdrop knobs SERVER` reads from a running server. Made of the program's own\n\
         tables (`lastdrop chapter knobs`). *Needs* is what a change takes to come into force; where a kind has its own ways\n\
         is in [the manual](manual.md#kinds-of-servers).\n",
    );
    for table in tables {
        let of = if table.of.is_empty() { String::new() } else { format!(" ({})", table.of) };
        let _ = write!(
            page,
            "\n## {}{of}\n\nNamed `{}`.\n\n| setting | may be | default | needs | what it does |\n|---|---|---|---|---|\n",
            table.title, table.kind
        );
        for row in &table.rows {
            let knob = &row.knob;
            let mut what = plain(knob.effect);
            if !knob.constraint.is_empty() {
                let _ = write!(what, "; {}", plain(knob.constraint));
            }
            if let Some((other, values)) = knob.when {
                let _ = write!(what, "; only with `{other}` {}", values.join(", "));
            }
            if !knob.findings.is_empty() {
                let links: Vec<String> = knob.findings.iter().map(|f| format!("[{f}](findings.md#{f})")).collect();
                let _ = write!(what, ". Worth trying for {}", links.join(", "));
            }
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {what} |",
                knob.name,
                plain(&row.may_be),
                if row.default.is_empty() { "–".into() } else { plain(&row.default) },
                knob.needs.name()
            );
        }
    }
    page
}

fn capital(text: &str) -> String {
    let text = plain(text);
    // A name that is written so begins a sentence so.
    if text.starts_with("nginx") {
        return text;
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Text that is no markup.
fn plain(text: &str) -> String {
    text.replace('<', "&lt;").replace('|', "\\|").replace('*', "\\*").replace("_", "\\_")
}
