//! What is kept and shown.

use std::path::PathBuf;

use clap::Args;

use crate::view::{Progress, View};

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
    /// Keep passwords, tokens, cookies, forms and bodies with the run and in documents, instead of marks in their place
    #[arg(long)]
    pub keep_secrets: bool,
    /// How progress is shown: full (the whole screen), lines, or auto: full where stdout and stderr are a terminal
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = str::parse::<View>)]
    pub view: View,
    /// No progress, no text: only errors, and JSON where asked for
    #[arg(short, long)]
    pub quiet: bool,
}

impl OutputArgs {
    /// How progress is to be shown.
    pub fn progress(&self) -> Progress {
        Progress { view: self.view, quiet: self.quiet, document: self.json.as_deref() == Some("-") }
    }
}
