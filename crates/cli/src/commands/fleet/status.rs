//! `lastdrop fleet status`

use anyhow::Result;
use clap::Args;
use lastdrop_fleet::{Agent, Refusals};
use serde::Serialize;

use crate::commands::Report;
use crate::exit::Exit;
use crate::options::FleetArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Clocks are compared by the shortest of 20 round trips; ± is half of it. A run begins at one instant on all of them.\n\nExamples:\n  lastdrop fleet status\n  LASTDROP_TOKEN=ldt1.… lastdrop fleet status --nats tls://10.0.0.1:4222 --json -"
)]
pub struct StatusArgs {
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

/// `lastdrop.fleet/1`
#[derive(Debug, Serialize)]
struct FleetDocument<'a> {
    schema: &'static str,
    /// Sorted by name.
    agents: Vec<AgentRow<'a>>,
    /// Runs with records that wait in the broker.
    waiting: Vec<WaitingRun>,
}

#[derive(Debug, Serialize)]
struct AgentRow<'a> {
    name: &'a str,
    cores: u32,
    version: &'a str,
    address: &'a str,
    /// The agent's clock minus this machine's, in microseconds, ± `error_us`.
    offset_us: i64,
    error_us: u64,
    looks: &'a [String],
    allow: &'a [String],
    act: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_time_s: Option<f64>,
    /// The run that it carries out, or null.
    run: Option<&'a str>,
    refused: Refusals,
}

#[derive(Debug, Serialize)]
struct WaitingRun {
    run: String,
    messages: u64,
}

pub fn status(args: &StatusArgs) -> Result<Exit> {
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let fleet = args.fleet.connect()?;
    let agents = fleet.agents()?;
    let waiting = fleet.waiting()?.into_iter().map(|w| WaitingRun { run: w.run, messages: w.messages }).collect();
    let document = FleetDocument { schema: "lastdrop.fleet/1", agents: agents.iter().map(row).collect(), waiting };
    report.give(&text(&document), &document)?;
    Ok(Exit::Done)
}

fn row(agent: &Agent) -> AgentRow<'_> {
    AgentRow {
        name: &agent.name,
        cores: agent.cores,
        version: &agent.version,
        address: &agent.address,
        offset_us: agent.offset_us,
        error_us: agent.error_us,
        looks: &agent.looks,
        allow: &agent.limits.allow,
        act: agent.limits.act,
        max_rate: agent.limits.max_rate,
        max_time_s: agent.limits.max_time.map(|t| t.as_secs_f64()),
        run: agent.busy.as_deref(),
        refused: agent.refused,
    }
}

fn text(document: &FleetDocument<'_>) -> String {
    let mut lines = vec![match document.agents.len() {
        0 => "no agents: start some with `lastdrop agent URL`, or `lastdrop fleet ssh HOST…`".to_owned(),
        1 => "1 agent".to_owned(),
        n => format!("{n} agents"),
    }];
    let width = document.agents.iter().map(|a| a.name.len()).max().unwrap_or(0);
    for agent in &document.agents {
        let mut line = format!(
            "  {:width$}  {} cores  lastdrop {}  {}  clock {} ± {}",
            agent.name,
            agent.cores,
            agent.version,
            agent.address,
            milliseconds(agent.offset_us),
            milliseconds(agent.error_us as i64).trim_start_matches('+'),
        );
        if !agent.looks.is_empty() {
            let how = if agent.act { "looks at and changes" } else { "looks at" };
            line.push_str(&format!("  {how} {}", agent.looks.join(", ")));
        }
        if let Some(run) = agent.run {
            line.push_str(&format!("  at run {run}"));
        }
        if agent.refused.total() > 0 {
            line.push_str(&format!("  refused {} orders", agent.refused.total()));
        }
        lines.push(line);
    }
    for waiting in &document.waiting {
        lines.push(format!("  {} messages of run {} wait that nobody has taken", waiting.messages, waiting.run));
    }
    lines.join("\n") + "\n"
}

fn milliseconds(us: i64) -> String {
    format!("{:+.3} ms", us as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_fleet_says_what_to_do() {
        let document = FleetDocument { schema: "lastdrop.fleet/1", agents: Vec::new(), waiting: Vec::new() };
        assert!(text(&document).contains("lastdrop agent URL"));
    }
}
