//! `lastdrop fleet config`: a fleet with the user's own nats-server.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_files::input;
use lastdrop_fleet::{Token, authorization_of, is_agent_name};

use crate::exit::{Exit, UsageError};
use crate::options::TokenArgs;
use crate::stdio::say;

#[derive(Debug, Args)]
#[command(
    after_help = "What is written to FILE has passwords and what each user may do; include it in the server's configuration, which also needs `tls` with that \
                  certificate and `jetstream`. Printed are the token (starts runs: keep it) and the agent-token. With --token-file the fleet is one that is \
                  there already: more agents come in.\n\nExamples:\n  lastdrop fleet config --certificate server.pem -o users.conf web-1 web-2"
)]
pub struct ConfigArgs {
    /// Agents that the server lets in, by their names
    #[arg(value_name = "NAME", required = true)]
    pub agents: Vec<String>,
    /// The certificate that the server shows (PEM)
    #[arg(long, value_name = "FILE")]
    pub certificate: PathBuf,
    /// Where the users are written
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub token: TokenArgs,
}

pub fn config(args: &ConfigArgs) -> Result<Exit> {
    if let Some(name) = args.agents.iter().find(|name| !is_agent_name(name)) {
        let why =
            format!("'{name}' is no name of an agent: letters, digits, - and _, at most 64, and not digits alone");
        return Err(UsageError(why).into());
    }
    let path = args.certificate.display();
    let certificate = input::read(&args.certificate).with_context(|| format!("cannot read the certificate {path}"))?;
    let token = match args.token.text()? {
        None => Token::of_pem(&certificate).with_context(|| format!("cannot use the certificate {path}"))?,
        Some(text) => {
            let token = Token::parse(&text).map_err(|e| UsageError(e.to_string()))?;
            if !token.is_for_pem(&certificate).with_context(|| format!("cannot use the certificate {path}"))? {
                return Err(UsageError(format!(
                    "the token is for another certificate than that in {path}: without it a new one is made"
                ))
                .into());
            }
            token
        }
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&args.output)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    file.write_all(authorization_of(&token, &args.agents).as_bytes())
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    say!("token {token}");
    say!("agent-token {}", token.agent_token());
    Ok(Exit::Done)
}
