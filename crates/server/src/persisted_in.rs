//! The result of a session whose settings are meant to stay.

use std::path::PathBuf;

/// Where settings that are meant to stay are stored.
#[derive(Debug, Clone)]
pub enum PersistedIn {
    /// In a file that the server's configuration is or includes.
    InFile(PathBuf),
    /// In a file of lastdrop's that only this command line names: another start would not use it.
    OnFile { file: PathBuf, argv: Vec<String> },
    /// In the running server alone: this command line and these environment variables.
    Running { argv: Vec<String>, environment: Vec<(String, String)> },
    /// On other machines, in words.
    Elsewhere(String),
}

impl std::fmt::Display for PersistedIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PersistedIn::Elsewhere(words) => f.write_str(words),
            PersistedIn::InFile(file) => write!(f, "{}", file.display()),
            PersistedIn::OnFile { file, argv } => write!(f, "{} (started with: {})", file.display(), argv.join(" ")),
            PersistedIn::Running { argv, environment } => {
                let variables = environment.iter().map(|(name, value)| format!("{name}={value} "));
                write!(
                    f,
                    "the running server alone; start it always with: {}{}",
                    variables.collect::<String>(),
                    argv.join(" ")
                )
            }
        }
    }
}
