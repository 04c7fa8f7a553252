//! Options about HTTP, from the table in `model::http_options`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use lastdrop_model::http_options::{HTTP_OPTIONS, HttpOption, HttpOptionValues, OptionKind, OptionValue};

use super::values::within;

/// The HTTP options that the user gave.
#[derive(Debug, Clone, Default)]
pub struct HttpArgs(pub HttpOptionValues);

fn arg(option: &HttpOption) -> Arg {
    let arg = Arg::new(option.flag).long(option.flag).help(option.help);
    match option.takes {
        OptionKind::Switch => arg.action(ArgAction::SetTrue),
        OptionKind::Number(bound) => arg.value_name(option.value_name).value_parser(within::<u32>(bound)),
        OptionKind::Word(words) => arg.value_name(option.value_name).value_parser(words.to_vec()),
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
        for option in HTTP_OPTIONS {
            let given = match option.takes {
                OptionKind::Switch => Some(OptionValue::Switch(true)).filter(|_| matches.get_flag(option.flag)),
                OptionKind::Number(_) => matches.get_one::<u32>(option.flag).copied().map(OptionValue::Number),
                OptionKind::Word(_) => matches.get_one::<String>(option.flag).cloned().map(OptionValue::Word),
            };
            if let Some(given) = given {
                self.0.add(option, given);
            }
        }
        Ok(())
    }
}
