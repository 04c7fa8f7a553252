//! Options about HTTP, from the table in `model::http_options`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use lastdrop_model::http_options::{HTTP_OPTIONS, HttpOption, HttpOptionValues, OptionKind, OptionValue};
use lastdrop_model::plan::Plan;

use super::values::within;

/// The HTTP options that the user gave.
#[derive(Debug, Clone, Default)]
pub struct HttpArgs(pub HttpOptionValues);

/// The options about the version of HTTP, for commands that choose requests and load by other means.
#[derive(Debug, Clone, Default)]
pub struct VersionArgs(pub HttpOptionValues);

impl VersionArgs {
    /// Sets the version of a plan; the options win over a plan file.
    pub fn set(&self, plan: &mut Plan) {
        self.0.set(&mut plan.http, |_| true);
    }
}

/// Keys of the options about the version.
const VERSION_KEYS: [&str; 3] = ["version", "streams", "window"];

fn version_options() -> impl Iterator<Item = &'static HttpOption> {
    HTTP_OPTIONS.iter().filter(|option| VERSION_KEYS.contains(&option.key))
}

fn arg(option: &HttpOption) -> Arg {
    let arg = Arg::new(option.flag).long(option.flag).help(option.help);
    match option.takes {
        OptionKind::Switch => arg.action(ArgAction::SetTrue),
        OptionKind::Number(bound) => arg.value_name(option.value_name).value_parser(within::<u32>(bound)),
        OptionKind::Word(words) => arg.value_name(option.value_name).value_parser(words.to_vec()),
    }
}

fn read(matches: &ArgMatches, options: impl Iterator<Item = &'static HttpOption>, all: &mut HttpOptionValues) {
    for option in options {
        let given = match option.takes {
            OptionKind::Switch => Some(OptionValue::Switch(true)).filter(|_| matches.get_flag(option.flag)),
            OptionKind::Number(_) => matches.get_one::<u32>(option.flag).copied().map(OptionValue::Number),
            OptionKind::Word(_) => matches.get_one::<String>(option.flag).cloned().map(OptionValue::Word),
        };
        if let Some(given) = given {
            all.add(option, given);
        }
    }
}

impl Args for HttpArgs {
    fn augment_args(command: Command) -> Command {
        command.args(HTTP_OPTIONS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        HttpArgs::augment_args(command)
    }
}

impl FromArgMatches for HttpArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<HttpArgs, clap::Error> {
        let mut all = HttpArgs::default();
        all.update_from_arg_matches(matches)?;
        Ok(all)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        read(matches, HTTP_OPTIONS.iter(), &mut self.0);
        Ok(())
    }
}

impl Args for VersionArgs {
    fn augment_args(command: Command) -> Command {
        command.args(version_options().map(|option| arg(option).help_heading("Requests")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        VersionArgs::augment_args(command)
    }
}

impl FromArgMatches for VersionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<VersionArgs, clap::Error> {
        let mut all = VersionArgs::default();
        all.update_from_arg_matches(matches)?;
        Ok(all)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        read(matches, version_options(), &mut self.0);
        Ok(())
    }
}
