//! Options of one side of a live comparison: `--a '--http 1.1' --b '--http 2 --connections 4'`.

use clap::error::ErrorKind;
use clap::{Args, Command, FromArgMatches};
use lastdrop_model::bounds::CONNECTIONS;
use lastdrop_model::plan::{KeepAlive, Plan};
use lastdrop_model::request::header_line;

use super::http::HttpArgs;
use super::values::within;
use crate::exit::UsageError;

/// What the two sides may differ in: how requests are sent. Users, rate and requests are the same for both.
#[derive(Debug, Default, Args)]
pub struct SideArgs {
    /// Most connections open at once
    #[arg(long, value_name = "N", value_parser = within::<u32>(CONNECTIONS))]
    connections: Option<u32>,
    /// Keep connections: on, off, or a number of requests on each
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    keepalive: Option<KeepAlive>,
    /// A request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    headers: Vec<(String, String)>,
    #[command(flatten)]
    http: HttpArgs,
}

impl SideArgs {
    /// Reads the options of a side from one argument.
    ///
    /// # Errors
    /// [`UsageError`] for an option that a side does not have.
    pub fn read(text: &str) -> Result<SideArgs, UsageError> {
        let wrong = |what: String| UsageError(format!("the options '{text}' of one side: {what}"));
        let words = split(text).map_err(wrong)?;
        let command = SideArgs::augment_args(Command::new("side").no_binary_name(true).disable_help_flag(true));
        let matches = command.try_get_matches_from(words).map_err(|e| match e.kind() {
            ErrorKind::UnknownArgument => wrong(
                "a side has --http, --streams, --window, --connections, --keepalive, -H and the other options of HTTP; users and rate are the \
                 same for both"
                    .into(),
            ),
            _ => wrong(e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_string()),
        })?;
        SideArgs::from_arg_matches(&matches).map_err(|e| wrong(e.to_string()))
    }

    /// Sets the options in the plan of this side.
    pub fn set(&self, plan: &mut Plan) {
        self.http.0.set(&mut plan.http, |_| true);
        plan.keepalive = self.keepalive.unwrap_or(plan.keepalive);
        if let Some(connections) = self.connections {
            plan.phases.iter_mut().for_each(|p| p.load.limit_connections(connections));
        }
        for request in &mut plan.requests {
            request.headers.extend(self.headers.iter().cloned());
        }
    }

    /// Whether the text of the options may be shown: header fields may be secrets.
    pub fn may_be_shown(&self) -> bool {
        self.headers.is_empty()
    }
}

/// Splits words as a shell does, with quotes but without variables.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.map_or(Ok(words), |q| Err(format!("a {q} without its end")))
}

#[cfg(test)]
mod tests {
    use lastdrop_model::http_options::Version;

    use super::*;

    #[test]
    fn a_side_has_options_about_how_requests_are_sent() {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        let side = SideArgs::read("--http 2 --streams 7 --connections 3 -H 'X-A: b c' --keepalive 10").expect("valid");
        side.set(&mut plan);
        assert_eq!((plan.http.version, plan.http.streams), (Version::Http2, Some(7)));
        assert_eq!(plan.keepalive, KeepAlive::Requests(10));
        assert_eq!(plan.requests[0].headers, [("X-A".to_string(), "b c".to_string())]);
        assert!(!side.may_be_shown());
        for (text, why) in [("-c 3", "users and rate"), ("--http 4", "invalid value"), ("-H 'X", "without its end")] {
            let UsageError(what) = SideArgs::read(text).expect_err("wrong");
            assert!(what.contains(why), "{what}");
        }
    }
}
