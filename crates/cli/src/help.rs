//! What `-h` shows: one screen for each command, with the options that most people need. `--help`, man pages and the
//! manual show all options. Each option stands under its own heading, with the default of the command at hand.

use clap::{Arg, Command};

/// Options that `-h` shows, by command. A command that is not here shows all of its options.
const SHORT: &[(&str, &[&str])] = &[
    ("run", &["users", "rate", "duration", "requests", "warm_up", "keepalive", "server", "objective", "json"]),
    ("replay", &["to", "analyse", "output_plan", "speed", "rate", "users", "sessions", "duration", "objective"]),
    ("capacity", &["objective", "rate", "hold", "max_time", "max_users", "arrivals", "keepalive", "json"]),
    (
        "headroom",
        &[
            "log",
            "per_day",
            "size",
            "peak",
            "url",
            "capacity",
            "reserve",
            "burst",
            "workers",
            "objective",
            "max_time",
            "json",
        ],
    ),
    ("compare", &["live", "aa", "blocks", "fail_on_worse", "users", "rate", "duration", "json"]),
    (
        "doctor",
        &["url", "users", "rate", "duration", "gentle", "observe", "confirm", "keep", "explain", "from", "json"],
    ),
    ("tune", &["url", "goal", "objective", "users", "keep", "watch", "live", "only", "trials", "time", "dry_run"]),
    ("sweep", &["rounds", "sort", "csv", "live", "json", "format"]),
    ("size", &["memory", "url", "fit", "sizes", "variants", "live", "json"]),
    ("watch", &["interval", "once", "duration", "sort", "record", "replay", "db", "json"]),
    ("trace", &["url", "requests", "against", "with", "live", "all", "json"]),
    (
        "target",
        &["config", "listen", "workers", "service", "slowdown", "memory", "leak", "stall_at", "stall_for", "log"],
    ),
];

/// Headings and their options; no other option stands under them.
const HEADINGS: &[(&str, &[&str])] =
    &[("Fleet", &["who", "fleet", "nats", "token", "token_file"]), ("Database", &["db", "db_password_file", "db_ca"])];

/// Options whose help differs from the same option of other commands.
const OWN: &[(&str, &str, &str)] = &[
    ("tune", "users", "Users who each wait for their answer before asking again [default: 10; 64 with --objective]"),
    ("tune", "duration", "Length of one block [default: 5s]"),
    ("tune", "warm_up", "Load before each block, outside its numbers [default: 1s; 15s if workers are recycled fast]"),
    ("tune", "keepalive", "Keep connections: on, off, or a number of requests on each [default: off; on with --page]"),
];

/// Options that a command refuses and does not list.
const REFUSED: &[(&str, &[&str])] = &[("tune", &["requests", "ramp_to", "ramp_steps", "urls"])];

const SERVER: &str = "The server, or several: apache, nginx, php-fpm, haproxy … (--help has all kinds)";

/// The command line, arranged for its help.
pub fn arranged(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let name = command.get_name().to_string();
        command.mut_args(|arg| arrange(&name, arg))
    })
}

fn arrange(command: &str, mut arg: Arg) -> Arg {
    let id = arg.get_id().to_string();
    let of = |table: &[(&str, &[&str])]| table.iter().any(|(name, ids)| *name == command && ids.contains(&id.as_str()));
    match HEADINGS.iter().find(|(_, ids)| ids.contains(&id.as_str())) {
        Some((heading, _)) => arg = arg.help_heading(*heading),
        None if HEADINGS.iter().any(|(heading, _)| arg.get_help_heading() == Some(*heading)) => {
            arg = arg.help_heading(None::<&'static str>);
        }
        None => {}
    }
    if let Some((_, _, help)) = OWN.iter().find(|(name, own, _)| *name == command && *own == id) {
        arg = arg.help(*help);
    }
    if of(REFUSED) {
        return arg.hide(true);
    }
    let names_a_server = arg.get_value_names().is_some_and(|n| n.iter().any(|n| n.as_str() == "SERVER"));
    if arg.is_positional() {
        if let Some(help) = arg.get_help().filter(|_| names_a_server).cloned() {
            arg = arg.long_help(help).help(SERVER);
        }
        return arg;
    }
    if !SHORT.iter().any(|(name, _)| *name == command) {
        return arg;
    }
    if !of(SHORT) {
        return arg.hide_short_help(true);
    }
    let full = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
    match first_sentence(&full.to_string()) {
        Some(first) => arg.long_help(full).help(first),
        None => arg,
    }
}

/// The first of several sentences, with the default that the last one may end with.
fn first_sentence(help: &str) -> Option<String> {
    let (first, rest) = help.split_once(". ")?;
    let default = rest.rfind("[default: ").filter(|_| rest.ends_with(']')).map(|at| &rest[at..]);
    Some(match default {
        Some(default) => format!("{first} {default}"),
        None => first.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// A terminal of usual size.
    const LINES: usize = 40;
    const COLUMNS: usize = 100;

    #[test]
    fn short_help_fits_one_screen() {
        let mut command = arranged(Cli::command()).term_width(COLUMNS);
        command.build();
        let mut too_long = Vec::new();
        for inner in command.get_subcommands_mut().filter(|c| !c.is_hide_set()) {
            let lines = inner.render_help().to_string().lines().count();
            if lines > LINES {
                too_long.push(format!("{} -h has {lines} lines", inner.get_name()));
            }
        }
        assert!(too_long.is_empty(), "{}", too_long.join("\n"));
    }

    #[test]
    fn every_option_of_the_tables_exists() {
        let command = Cli::command();
        let has = |name: &str, id: &str| {
            let inner = command.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}"));
            inner.get_arguments().any(|a| a.get_id() == id)
        };
        for (name, ids) in SHORT.iter().chain(REFUSED) {
            for id in *ids {
                assert!(has(name, id), "{name} has no {id}");
            }
        }
        for (name, id, _) in OWN {
            assert!(has(name, id), "{name} has no {id}");
        }
    }
}
