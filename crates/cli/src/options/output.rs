//! Options about what lastdrop stores and shows.

use std::path::PathBuf;

use clap::Args;

use lastdrop_report::Format;

use crate::export::{self, ExportTo, export_to};
use crate::options::values::format;
use crate::view::{Progress, View};

/// Options about what lastdrop stores and shows.
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
    /// Keep passwords, tokens, cookies, forms and bodies in the store and in documents, instead of ***
    #[arg(long)]
    pub keep_secrets: bool,
    /// How progress is shown: full (the whole screen), lines, or auto (full if stdout and stderr are a terminal)
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = str::parse::<View>)]
    pub view: View,
    #[arg(long, value_name = "FORM:WHERE", value_parser = export_to, help = export::help())]
    pub export: Vec<ExportTo>,
    /// No progress, no text: only errors, and JSON where asked for
    #[arg(short, long)]
    pub quiet: bool,
}

impl OutputArgs {
    /// How to show progress.
    pub fn progress(&self) -> Progress {
        Progress { view: self.view, quiet: self.quiet, document: self.json.as_deref() == Some("-") }
    }
}

/// The format of what a command prints.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct FormatArgs {
    /// What is printed: text, json, csv, md (Markdown) or junit [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub format: Option<Format>,
}
