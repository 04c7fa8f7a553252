//! The TOML file that defines a kind of server. The structures here are its format; its JSON schema is generated from
//! them.

use std::path::Path;
use std::str::FromStr;

use lastdrop_model::{DatabaseService, toml_error};
use lastdrop_probe::status::PageFormat;
use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::change_method_file::ChangeFile;
use crate::kind::{AdapterName, Kind, LeaveMethod, NameSource, Status};
use crate::knob_file::KnobFile;

/// A kind of server: how it is found, looked at and asked to let one worker go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KindFile {
    /// Other names that the command line takes.
    #[serde(default)]
    aliases: Vec<String>,
    /// As people write it [default: the name of the file].
    title: Option<String>,
    /// Names of its programs; a star at the end of one stands for anything: "php-fpm*".
    #[serde(default)]
    programs: Vec<String>,
    /// First argument of the program, or the name of the file that it is, where only that makes it this kind: "gunicorn*".
    argument: Option<String>,
    /// Any word of its command line, where only that makes it this kind.
    word: Option<String>,
    /// How titles begin that its processes write over their command lines.
    #[serde(default)]
    titles: Vec<String>,
    /// How its configuration file is told from its command line; without it two servers of the kind are told apart only by
    /// where they listen.
    config: Option<ConfigFile>,
    /// What may follow the colon of its name, as help shows it.
    example: Option<String>,
    /// What to try where none is found [default: "start it, or name it by pid:1234"].
    advice: Option<String>,
    status: Option<StatusFile>,
    /// What makes its status page tell of each worker, where it does not do so by itself.
    tells_each: Option<String>,
    leave: Option<LeaveFile>,
    /// Children that are no workers, by their titles.
    #[serde(default)]
    helpers: Vec<HelperFile>,
    /// A worker is a process that serves one request at a time.
    #[serde(default)]
    one_request_a_worker: bool,
    /// What it speaks, where it is a database: watch asks it by its own views. It has no [change].
    database: Option<DatabaseService>,
    /// Takes lines of its own language beside settings.
    #[serde(default)]
    directives: bool,
    /// The part of lastdrop that reads and changes its settings.
    adapter: Option<AdapterName>,
    /// How its settings are changed, where no part of lastdrop knows it.
    change: Option<ChangeFile>,
    /// The settings that can be changed so.
    #[serde(default)]
    knobs: Vec<KnobFile>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    /// The word after this flag of its command line, or what follows one that ends with '=': "-c", "--datadir=".
    flag: Option<String>,
    /// The same in a title that it writes over its command line.
    title_flag: Option<String>,
    /// The file where `title_flag` is not given.
    otherwise: Option<String>,
    /// In brackets in its title.
    title_brackets: bool,
    /// It is not a file but the folder that it works in, that of its data; `flag` goes before.
    working_folder: bool,
    /// Files that it reads where its command line names no other; with `working_folder`.
    files: Vec<String>,
    /// It is not a file but the id of a process.
    process_id: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatusFile {
    format: StatusFormat,
    /// Where it is by habit; of a stats socket the configuration tells.
    #[serde(default)]
    paths: Vec<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StatusFormat {
    ModStatus,
    StubStatus,
    /// PHP-FPM's, by FastCGI.
    Fpm,
    /// HAProxy's stats socket.
    StatsSocket,
}

/// How one worker alone is asked to go.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LeaveFile {
    /// At this signal a worker finishes what it does and leaves, and its master puts another in its place.
    signal: Option<String>,
    /// Only of workers of one request each; of others this bounds their age.
    otherwise: Option<String>,
    /// Why it cannot be done.
    never: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HelperFile {
    begins: String,
    #[serde(default)]
    ends: String,
}

/// Leaks the text: a kind lives as long as the program and is read once.
pub(crate) fn keep(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

pub(crate) fn keep_all(texts: Vec<String>) -> &'static [&'static str] {
    Box::leak(texts.into_iter().map(keep).collect::<Vec<_>>().into_boxed_slice())
}

/// Reads the kind called `name` from a file's text.
///
/// # Errors
/// In words: the first mistake, with its line if known, and what to do about it.
pub fn parse(text: &str, name: String) -> Result<Kind, String> {
    let file: KindFile = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        format!("line {line}: {}; see: lastdrop knobs --kind-schema", toml_error::what(&e))
    })?;
    let process_id = file.config.as_ref().is_some_and(|c| c.process_id);
    if file.programs.is_empty() && !process_id && file.adapter != Some(AdapterName::Host) {
        return Err("it says no programs; write: programs = [\"name-of-the-program\"]".into());
    }
    if file.programs.iter().chain(&file.titles).any(|p| p.trim_end_matches('*').is_empty()) {
        return Err("a program or title without a name would fit everything; write its name".into());
    }
    let named_by = file.config.map_or(Ok(NameSource::Nothing), named_by)?;
    let status = file.status.map_or(Ok(Status::Nowhere), status)?;
    let leave = file.leave.map_or(Ok(LeaveMethod::Unknown), leave)?;
    let helpers: Vec<(&'static str, &'static str)> =
        file.helpers.into_iter().map(|h| (keep(h.begins), keep(h.ends))).collect();
    if helpers.iter().any(|(begins, _)| begins.is_empty()) {
        return Err("a helper's title needs a beginning; write: helpers = [{ begins = \"name: cache\" }]".into());
    }
    let means = match (file.adapter, file.change) {
        (None, Some(change)) => Some(change.read(file.knobs)?),
        (None, None) if file.knobs.is_empty() => None,
        (None, None) => return Err("it has knobs, and no [change] that says how they are changed".into()),
        (Some(_), None) if file.knobs.is_empty() => None,
        (Some(_), _) => return Err("an adapter has its own knobs and changes; leave [change] and knobs out".into()),
    };
    if file.database.is_some() && (file.adapter.is_some() || means.is_some()) {
        return Err("a database is looked at and never changed; leave adapter, [change] and knobs out".into());
    }
    let title = file.title.unwrap_or_else(|| {
        let stem = Path::new(&name).file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    });
    Ok(Kind {
        name: keep(name),
        aliases: keep_all(file.aliases),
        title: keep(title),
        programs: keep_all(file.programs),
        argument: file.argument.map(keep),
        word: file.word.map(keep),
        titles: keep_all(file.titles),
        named_by,
        example: file.example.map(keep),
        advice: file.advice.map_or("start it, or name it by pid:1234", keep),
        status,
        tells_each: file.tells_each.map(keep),
        leave,
        helpers: Box::leak(helpers.into_boxed_slice()),
        one_request_a_worker: file.one_request_a_worker,
        database: file.database,
        directives: file.directives,
        adapter: file.adapter.or(means.as_ref().map(|_| AdapterName::Described)),
        means,
    })
}

fn named_by(c: ConfigFile) -> Result<NameSource, String> {
    let others = [c.title_brackets, c.working_folder, c.process_id];
    match (c.flag, c.title_flag, c.otherwise, others) {
        (Some(flag), None, None, [false, false, false]) => Ok(NameSource::Flag(keep(flag))),
        (Some(flag), None, None, [false, true, false]) => {
            Ok(NameSource::Folder { flag: keep(flag), files: keep_all(c.files) })
        }
        (None, Some(flag), Some(otherwise), [false, false, false]) => {
            Ok(NameSource::TitleFlag { flag: keep(flag), otherwise: keep(otherwise) })
        }
        (None, None, None, [true, false, false]) => Ok(NameSource::TitleBrackets),
        (None, None, None, [false, false, true]) => Ok(NameSource::ProcessId),
        _ => Err(
            "config is one of: flag, flag with working_folder, title_flag with otherwise, title_brackets, process_id"
                .into(),
        ),
    }
}

fn status(s: StatusFile) -> Result<Status, String> {
    let asks_for_a_path = !matches!(s.format, StatusFormat::StatsSocket);
    if (asks_for_a_path && s.paths.is_empty()) || s.paths.iter().any(|p| !p.starts_with('/')) {
        return Err("status.paths begin with '/', and there is at least one".into());
    }
    let paths = keep_all(s.paths);
    Ok(match s.format {
        StatusFormat::ModStatus => Status::Http { format: PageFormat::ModStatus, paths },
        StatusFormat::StubStatus => Status::Http { format: PageFormat::StubStatus, paths },
        StatusFormat::Fpm => Status::FastCgi { path: paths[0] },
        StatusFormat::StatsSocket => Status::StatsSocket,
    })
}

fn leave(l: LeaveFile) -> Result<LeaveMethod, String> {
    match (l.signal, l.otherwise, l.never) {
        (Some(signal), otherwise, None) => {
            let signal = Signal::from_str(&signal)
                .map_err(|_| format!("leave.signal is the name of a signal such as \"SIGQUIT\", not '{signal}'"))?;
            Ok(match otherwise {
                Some(otherwise) => LeaveMethod::IfOneRequest { signal, otherwise: keep(otherwise) },
                None => LeaveMethod::Gracefully(signal),
            })
        }
        (None, None, Some(never)) => Ok(LeaveMethod::Never(keep(never))),
        _ => Err("leave is a signal (with otherwise, if it may be), or never with the reason".into()),
    }
}

/// Returns the JSON schema of such a file.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(KindFile).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_told_with_what_to_do() {
        for (text, words) in [
            ("programs = ['x']\nprogams = ['y']", "line 2: unknown field `progams`"),
            ("programs = 5", "line 1: programs: "),
            ("programs = ['x'", "line 1: "),
            ("title = 'x'", "programs = ["),
            ("programs = ['*']", "fit everything"),
            ("programs = ['x']\nconfig = { flag = '-f', title_brackets = true }", "config is one of"),
            ("programs = ['x']\nconfig = { title_flag = '-f' }", "config is one of"),
            ("programs = ['x']\nconfig = { working_folder = true }", "config is one of"),
            ("programs = ['x']\nstatus = { format = 'json', paths = ['/s'] }", "unknown variant `json`"),
            ("programs = ['x']\nstatus = { format = 'mod_status', paths = [] }", "at least one"),
            ("programs = ['x']\nleave = { signal = 'TERM' }", "SIGQUIT"),
            ("programs = ['x']\nleave = { signal = 'SIGTERM', never = 'why' }", "or never"),
            ("programs = ['x']\nhelpers = [{ begins = '' }]", "beginning"),
            ("programs = ['x']\nadapter = 'iis'", "unknown variant `iis`"),
            ("programs = ['x']\nadapter = 'nginx'\n[change]\nenvironment = true", "an adapter has its own"),
            ("programs = ['x']\n[[knobs]]\nname = 'N'\ncount = [1, 2]\ndefault = 1\neffect = ''", "no [change]"),
            ("programs = ['x']\ndatabase = 'oracle'", "unknown variant `oracle`"),
            ("programs = ['x']\ndatabase = 'mysql'\nadapter = 'nginx'", "never changed"),
            ("programs = ['x']\n[change]", "[change] is one of"),
            ("programs = ['x']\n[change]\nenvironment = true", "no knobs"),
            ("programs = ['x']\n[change]\nenvironment = true\nreload = 'HUP'", "SIGHUP"),
            ("programs = ['x']\n[change]\nenvironment = true\ntest = 'x -t'", "line 4: change.test: "),
            ("programs = ['x']\n[change]\nenvironment = true\ntest = ['{confg}']", "{confg}"),
            ("programs = ['x']\n[change]\nlines = {}\ntemplate = 'x.in'", "[change] is one of"),
            ("programs = ['x']\n[change]\nlines = { line = '{name}' }", "{name} and {value}"),
        ] {
            let error = parse(text, "x".into()).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn every_mistake_in_a_knob_is_told_with_its_name() {
        let with = |knob: &str| {
            let text = format!("programs = ['x']\n[change]\ncommand_line = true\n[[knobs]]\neffect = 'e'\n{knob}");
            parse(&text, "x".into())
        };
        for (knob, words) in [
            ("name = 'a b'\ncount = [1, 2]\ndefault = 1", "no spaces"),
            ("name = 'N'\ndefault = 1", "knob N: it takes one of"),
            ("name = 'N'\ncount = [1, 2]\nchoice = ['x']\ndefault = 1", "knob N: it takes one of"),
            ("name = 'N'\ncount = [3, 2]\ndefault = 3", "smallest number second"),
            ("name = 'N'\ncount = [1, '2 * cores']\ndefault = 1", "'2 * cores' is none of processors"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 7\noption = '-n'", "its default: N is a number from 1 to 2"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 1\noption = '-n'\nneeds = 'reload'", "no signal for one"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 1", "it has no option"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 1\noption = '-n'\nline = 'x'", "no {value}"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 1\noption = '-n'\nrole = 'pool'", "unknown variant `pool`"),
            ("name = 'N'\ncount = [1, 2]\ndefault = 1\noption = '-n'\nwhen = { name = 'M', is = ['x'] }", "no knob M"),
        ] {
            let error = with(knob).expect_err(knob);
            assert!(error.contains(words), "{knob}: {error}");
        }
        let twice = "name = 'N'\ncount = [1, 2]\ndefault = 1\noption = '-n'\n";
        let error = with(&format!("{twice}[[knobs]]\neffect = 'e'\n{twice}")).expect_err("twice");
        assert!(error.contains("two knobs are called N"), "{error}");
        assert!(with(twice).is_ok_and(|k| k.can_change()));
    }

    #[test]
    fn what_is_not_said_is_the_least() {
        let kind = parse("programs = ['site*']", "custom:/srv/site.toml".into()).expect("a kind");
        assert_eq!((kind.name, kind.title), ("custom:/srv/site.toml", "site"));
        assert!(matches!((&kind.status, &kind.leave, kind.adapter), (Status::Nowhere, LeaveMethod::Unknown, None)));
    }
}
