//! Text generated from the program's own tables, for packages and the manual: shell completions, man pages, and the pages of
//! findings, settings and options. Help does not list these commands, because a package contains their output.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Arg, Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use lastdrop_diagnose::findings::{FindingKind, finding_kinds};
use lastdrop_model::documents::Severity;
use lastdrop_server::{KnobTable, knob_tables};

use crate::args::Cli;
use crate::exit::Exit;
use crate::help::arranged;
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
    /// The options of each command, written into the pages of a folder
    Commands,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop chapter findings > docs/findings.md\n  lastdrop chapter commands docs/commands"
)]
pub struct ChapterArgs {
    pub chapter: Chapter,
    /// The folder with a page for each command
    #[arg(required_if_eq("chapter", "commands"))]
    pub folder: Option<PathBuf>,
}

/// The visible commands.
fn shown() -> clap::Command {
    let all = arranged(Cli::command());
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
    match args.chapter {
        Chapter::Findings => stdio::out(findings_page(finding_kinds(), &knob_tables())),
        Chapter::Knobs => stdio::out(knobs_page(&knob_tables())),
        Chapter::Commands => write_options(args.folder.as_deref().context("there is a folder")?)?,
    }
    Ok(Exit::Done)
}

/// Marks the beginning of the generated part of a command's page.
const MARK: &str = "<!-- From here on: lastdrop chapter commands docs/commands -->\n";

/// Writes the options of each command at the end of its page; creates missing pages.
fn write_options(folder: &Path) -> Result<()> {
    let mut shown = shown();
    shown.build();
    for command in shown.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = command.get_name();
        let path = folder.join(format!("{name}.md"));
        let page = match fs::read_to_string(&path) {
            Ok(page) => page,
            Err(e) if e.kind() == ErrorKind::NotFound => format!("# {name}\n"),
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        };
        let by_hand = page.split(MARK).next().unwrap_or_default().trim_end();
        let page = format!("{by_hand}\n\n{MARK}{}", options_section(command, name));
        fs::write(&path, page).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Markdown: a table for each group of options, and the same for each subcommand.
fn options_section(command: &clap::Command, name: &str) -> String {
    let mut page = format!("\n## Options of {name}\n");
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in command.get_arguments().filter(|a| !a.is_hide_set() && a.get_id() != "help") {
        let heading = arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" });
        match groups.iter_mut().find(|(group, _)| *group == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    for (heading, args) in groups {
        let _ = write!(page, "\n**{heading}**\n\n| option | what it does |\n|---|---|\n");
        for arg in args {
            let _ = writeln!(page, "| {} | {} |", spelling(arg), meaning(arg));
        }
    }
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        page.push_str(&options_section(inner, &format!("{name} {}", inner.get_name())));
    }
    page
}

/// `-c`, `--users N`
fn spelling(arg: &Arg) -> String {
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default().join(" ");
    let names: Vec<String> =
        arg.get_short().map(|c| format!("-{c}")).into_iter().chain(arg.get_long().map(|l| format!("--{l}"))).collect();
    let code = |text: &str| format!("`{}`", text.trim().replace('|', "\\|"));
    match names.split_last() {
        None => code(&value),
        Some((last, before)) => {
            let mut all: Vec<String> = before.iter().map(|n| code(n)).collect();
            // A value that may be left out.
            let is_optional = arg.is_require_equals_set() && arg.get_num_args().is_some_and(|n| n.min_values() == 0);
            all.push(code(&if is_optional { format!("{last}[={value}]") } else { format!("{last} {value}") }));
            all.join(", ")
        }
    }
}

/// The help of an option, with its values and its default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    if !arg.is_hide_possible_values_set() && arg.get_action().takes_values() {
        let values: Vec<String> =
            arg.get_possible_values().iter().filter(|v| !v.is_hide_set()).map(|v| v.get_name().to_string()).collect();
        if !values.is_empty() {
            let _ = write!(text, " [{}]", values.join(", "));
        }
    }
    if !arg.is_hide_default_value_set() && arg.get_action().takes_values() {
        let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        if !defaults.is_empty() {
            let _ = write!(text, " [default: {}]", defaults.join(" "));
        }
    }
    plain(&text)
}

/// Returns Markdown with a section for each finding, limits first.
fn findings_page(all: &[FindingKind], tables: &[KnobTable]) -> String {
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
                plain(about.criterion),
                plain(about.look_alikes)
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
         is in [Kinds of servers](servers.md).\n",
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
            let mut what = capital(knob.effect);
            if !knob.constraint.is_empty() {
                let _ = write!(what, ". {}", capital(knob.constraint));
            }
            if let Some((other, values)) = knob.when {
                let _ = write!(what, ". Only with `{other}` {}", values.join(", "));
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
    // nginx is written in lower case also at the beginning of a sentence.
    if text.starts_with("nginx") {
        return text;
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Text with escaped markup.
fn plain(text: &str) -> String {
    text.replace('<', "&lt;").replace('|', "\\|").replace('*', "\\*").replace("_", "\\_")
}
