//! Options that name a fleet and its token. A token is a secret: it comes by the environment or a file. On a command line
//! lastdrop accepts it with a warning, because every user of a machine can read all command lines.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_fleet::{AgentToken, Fleet, Token};

use crate::exit::UsageError;
use crate::options::secret::first_line;
use crate::stdio::note;

/// The file in which `fleet up` leaves the address of its broker, for commands on the same machine.
pub const URL_FILE: &str = "url";

#[derive(Debug, Clone, Args)]
pub struct TokenArgs {
    /// The token. Everybody on this machine can read a command line: use LASTDROP_TOKEN or --token-file instead
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// A file that holds the token in its first line; '-' is stdin
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The token from the options or the environment, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn text(&self) -> Result<Option<String>> {
        if let Some(token) = &self.token {
            note!(
                "lastdrop: a token on the command line can be seen by others on this machine; LASTDROP_TOKEN or --token-file keeps it to you"
            );
            return Ok(Some(token.clone()));
        }
        match &self.token_file {
            Some(path) if path.as_os_str() == "-" => first_line_of_stdin().map(Some),
            Some(path) => read_token(path).map(Some),
            None => Ok(std::env::var("LASTDROP_TOKEN").ok().filter(|t| !t.is_empty())),
        }
    }

    /// The token for an agent to join with.
    ///
    /// # Errors
    /// When there is none.
    pub fn for_agents(&self) -> Result<AgentToken> {
        let text = self.text()?.ok_or_else(|| {
            UsageError("an agent needs a token: LASTDROP_TOKEN=…, or --token-file FILE, with the agent-token that `lastdrop fleet up` prints".into())
        })?;
        AgentToken::parse(&text).map_err(|e| UsageError(e.to_string()).into())
    }
}

/// Reads a byte at a time: what follows the line is for another reader.
fn first_line_of_stdin() -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    let mut stdin = io::stdin().lock();
    while line.len() < 4096
        && stdin.read(&mut byte).context("cannot read the token from stdin")? == 1
        && byte[0] != b'\n'
    {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

fn read_token(path: &Path) -> Result<String> {
    let line = first_line(path).with_context(|| format!("cannot read the token from {}", path.display()))?;
    Ok(line.trim().to_owned())
}

#[derive(Debug, Clone, Args)]
pub struct FleetArgs {
    /// The fleet's broker, as `lastdrop fleet up` prints it [default: the one on this machine]
    #[arg(long, value_name = "URL", env = "LASTDROP_NATS")]
    pub nats: Option<String>,
    #[command(flatten)]
    pub token: TokenArgs,
}

impl FleetArgs {
    /// The broker's address and the token that starts runs; by default those of the broker of this machine.
    ///
    /// # Errors
    /// When one is missing, or the token only lets agents join.
    pub fn whose(&self) -> Result<(String, Token)> {
        let token = self.token.text()?;
        let (url, token) = match (&self.nats, token) {
            (Some(url), Some(token)) => (url.clone(), token),
            (None, None) => of_this_machine()?,
            (Some(_), None) => {
                return Err(
                    UsageError("--nats needs the fleet's token: LASTDROP_TOKEN=… or --token-file FILE".into()).into()
                );
            }
            (None, Some(_)) => {
                return Err(UsageError(
                    "the token needs the fleet's broker: --nats tls://HOST:PORT, or LASTDROP_NATS".into(),
                )
                .into());
            }
        };
        Ok((url, Token::parse(&token).map_err(|e| UsageError(e.to_string()))?))
    }

    /// Connects to the fleet.
    ///
    /// # Errors
    /// As [`FleetArgs::whose`], and when the broker refuses the connection.
    pub fn connect(&self) -> Result<Fleet> {
        Ok(self.connect_to()?.1)
    }

    /// Connects to the fleet; also returns the broker's address.
    ///
    /// # Errors
    /// As [`FleetArgs::connect`].
    pub fn connect_to(&self) -> Result<(String, Fleet)> {
        let (url, token) = self.whose()?;
        let fleet = Fleet::connect(&url, &token, env!("CARGO_PKG_VERSION"))?;
        Ok((url, fleet))
    }
}

/// The default folder of a broker.
///
/// # Errors
/// When there is no folder for state.
pub fn default_folder() -> Result<PathBuf> {
    Ok(lastdrop_server::state_folder()?.join("fleet"))
}

fn of_this_machine() -> Result<(String, String)> {
    let folder = default_folder()?;
    match (first_line(&folder.join(URL_FILE)), first_line(&folder.join("token"))) {
        (Ok(url), Ok(token)) => Ok((url.trim().to_owned(), token.trim().to_owned())),
        (Err(e), _) | (_, Err(e)) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).context("cannot read what the broker of this machine left")
        }
        _ => Err(UsageError(
            "which fleet? Give --nats tls://HOST:PORT and its token (LASTDROP_TOKEN=… or --token-file FILE); `lastdrop fleet up` starts one and prints both".into(),
        )
        .into()),
    }
}
