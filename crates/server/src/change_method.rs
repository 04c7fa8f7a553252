//! How the settings of a kind that is described by data alone are changed: where they are written, and what makes the
//! server use them.

use std::path::Path;

use lastdrop_model::Knob;
use nix::sys::signal::Signal;

/// How a server takes a change. Of `command_line`, `environment` and files, those that a kind has are tried in this
/// order.
#[derive(Debug)]
pub struct ChangeMethods {
    /// True if settings are command line options. Used only if the command line is visible.
    pub command_line: bool,
    /// True if settings are environment variables. Used only if the environment is visible.
    pub environment: bool,
    pub written: Option<SettingsFile>,
    /// The signal at which the server reads its configuration again and replaces its workers.
    pub reload: Option<Signal>,
    /// True if the master executes itself at that signal.
    pub executes_itself: bool,
    /// The signal at which the whole server ends.
    pub stop: Signal,
    /// Command line words with which the server detaches itself from the process that starts it.
    pub detached_by: &'static [&'static str],
    /// Command line words without which the server detaches itself; empty for a server that never does.
    pub attached_by: &'static [&'static str],
    /// The command that tests a configuration. It fails with the reason on its standard error.
    pub test: &'static [&'static str],
    /// Words in the output of a passing test which mean that the server would not use a value as it is.
    pub clamps: &'static [&'static str],
    /// The command that prints `name = value` for every setting as the server would use it.
    pub tells: &'static [&'static str],
    /// The same for a configuration file alone, for a server whose command line is not visible.
    pub tells_file: &'static [&'static str],
    pub knobs: &'static [Knob],
    /// Spelling of each knob, in the order of `knobs`.
    pub spelled: &'static [Spelling],
}

impl ChangeMethods {
    /// True if this is the command line of a server that only tests or prints its configuration. A killed lastdrop may
    /// have left such a process running.
    pub fn is_asked(&self, argv: &[String]) -> bool {
        [self.test, self.tells].iter().any(|words| match words {
            ["{argv}", more @ ..] if !more.is_empty() => more.iter().all(|word| argv.iter().any(|a| a == word)),
            _ => false,
        })
    }
}

/// Where settings are written.
#[derive(Debug)]
pub enum SettingsFile {
    /// Lines of the server's own configuration file.
    Lines(LineFormat),
    /// Lines of a file of ours that its configuration includes; relative to the folder of the configuration.
    Included { file: &'static Path, lines: LineFormat },
    /// A file of lastdrop's on which the server runs instead of its own; the line `head` includes the original.
    OwnFile { head: &'static str, lines: LineFormat },
    /// The configuration file is generated from this template, in which `{{name}}` stands for a value. Relative to the
    /// folder of the configuration.
    Template(&'static Path),
}

/// How a knob is spelled in each place where it can be changed.
#[derive(Debug, Clone)]
pub struct Spelling {
    pub option: Option<&'static str>,
    pub also: &'static [&'static str],
    pub option_off: Option<&'static str>,
    pub variable: &'static str,
    pub line: Option<&'static str>,
    /// Other names of the knob in the configuration.
    pub aliases: &'static [&'static str],
}

/// How a setting is written as a line.
#[derive(Debug, Clone)]
pub struct LineFormat {
    /// `{name} = {value}`.
    pub line: &'static str,
    /// The section of an INI file that contains it.
    pub section: Option<&'static str>,
    /// The characters that begin a comment.
    pub comment: &'static str,
    /// The quote around a value that is a word.
    pub quote: &'static str,
    /// The file to use if no command line flag names one; relative to the folder in which the server was started.
    pub otherwise: Option<&'static Path>,
    /// Names of lines that include another file.
    pub includes: &'static [&'static str],
    /// The file is a program: its text does not show the settings, and a change is a line at its end.
    pub is_code: bool,
}

/// Deepest nesting of included files that is read.
pub const MOST_DEPTH: usize = 8;

/// A setting and its position in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingPosition {
    /// Byte range of the line, without its line end.
    pub bytes: std::ops::Range<usize>,
    /// Line number, from 1.
    pub number: usize,
    pub value: String,
}

impl LineFormat {
    fn form(&self, name: &str, spelled: &Spelling) -> (String, &'static str, &'static str) {
        let line = spelled.line.unwrap_or(self.line);
        let (head, rest) = line.split_once("{value}").unwrap_or((line, ""));
        // The text after the value, up to where the line repeats it.
        let tail = rest.split_once("{value}").map_or(rest, |(between, _)| between);
        (head.replace("{name}", name), tail, rest)
    }

    /// The line that sets a knob to a value.
    pub fn written(&self, knob: &Knob, spelled: &Spelling, value: &str) -> String {
        let line = spelled.line.unwrap_or(self.line).replace("{name}", knob.name);
        let is_word =
            value.parse::<i64>().is_err() && !matches!(knob.takes, lastdrop_model::settings::KnobValues::Switch { .. });
        let quote = if is_word { self.quote } else { "" };
        line.replace("{value}", &format!("{quote}{value}{quote}"))
    }

    /// Finds the last line that sets a knob: the one that counts.
    pub fn find(&self, text: &str, knob: &Knob, spelled: &Spelling) -> Option<SettingPosition> {
        self.find_through(text, knob, spelled, &|_| None, MOST_DEPTH).map(|(_, place)| place)
    }

    /// The same across all files of a configuration. `read` returns the text of a file by the name that a line gives
    /// it. The result contains that name; `None` for the text itself.
    pub fn find_through(
        &self,
        text: &str,
        knob: &Knob,
        spelled: &Spelling,
        read: &dyn Fn(&str) -> Option<String>,
        deeper: usize,
    ) -> Option<(Option<String>, SettingPosition)> {
        let names = std::iter::once(knob.name).chain(spelled.aliases.iter().copied());
        let forms: Vec<(String, &str)> = names.map(|name| self.form(name, spelled)).map(|(h, t, _)| (h, t)).collect();
        let inclusions: Vec<String> = self.includes.iter().map(|name| self.form(name, spelled).0).collect();
        let (mut found, mut section, mut at) = (None, None::<String>, 0);
        for (i, whole) in text.split_inclusive('\n').enumerate() {
            let line = whole.trim_end_matches(['\n', '\r']);
            let bytes = at..at + line.len();
            at += whole.len();
            if self.section.is_some()
                && let Some(name) = line.trim().strip_prefix('[').and_then(|l| l.strip_suffix(']'))
            {
                section = Some(name.trim().to_string());
                continue;
            }
            if self.section.is_some_and(|wanted| section.as_deref() != Some(wanted)) {
                continue;
            }
            if let Some(value) = forms.iter().find_map(|(head, tail)| value_of(line, head, tail, self.comment)) {
                found = Some((None, SettingPosition { bytes, number: i + 1, value }));
                continue;
            }
            let included = inclusions.iter().find_map(|head| value_of(line, head, "", self.comment));
            if let (Some(name), true) = (included, deeper > 0)
                && let Some(text) = read(&name)
                && let Some((inner, place)) = self.find_through(&text, knob, spelled, read, deeper - 1)
            {
                found = Some((inner.or(Some(name)), place));
            }
        }
        found
    }

    /// Finds a knob in a program's text where its value is certain: it is named once, in a line of its own outside any
    /// block.
    pub fn certain_in_code(&self, text: &str, knob: &Knob, spelled: &Spelling) -> Option<SettingPosition> {
        const OF_LONG_TEXTS: [&str; 4] = ["\"\"\"", "'''", "=begin", "<<"];
        let place = self.find(text, knob, spelled)?;
        let is_comment = |line: &&str| self.comment.chars().any(|c| line.trim_start().starts_with(c));
        let mentions = text.lines().filter(|line| !is_comment(line)).map(|line| line.matches(knob.name).count());
        let is_plain = place.value.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        let begins_line = !text[place.bytes.clone()].starts_with(char::is_whitespace);
        let is_certain = mentions.sum::<usize>() == 1
            && is_plain
            && begins_line
            && !OF_LONG_TEXTS.iter().any(|mark| text.contains(mark));
        is_certain.then_some(place)
    }

    /// Returns the text with a knob set: its last line is replaced, or a line is added at the end of the section.
    /// `read` is as in [`LineFormat::find_through`]: a line before an inclusion that sets the same does not count.
    pub fn set(
        &self,
        text: &str,
        knob: &Knob,
        spelled: &Spelling,
        value: &str,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String, String> {
        let line = self.written(knob, spelled, value);
        let own = self.find_through(text, knob, spelled, read, MOST_DEPTH).filter(|(included, _)| included.is_none());
        if let Some((_, place)) = own.filter(|_| !self.is_code) {
            let old = &text[place.bytes.clone()];
            let indent = &old[..old.len() - old.trim_start().len()];
            return Ok([&text[..place.bytes.start], indent, &line, &text[place.bytes.end..]].concat());
        }
        let end = match self.section {
            None => text.len(),
            Some(section) => end_of_section(text, section).ok_or_else(|| format!("it has no section [{section}]"))?,
        };
        let before = &text[..end];
        let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        Ok([before, gap, &line, "\n", &text[end..]].concat())
    }
}

/// Where the last section with this name ends in an INI file: after its last line with content.
fn end_of_section(text: &str, section: &str) -> Option<usize> {
    let (mut inside, mut end, mut at) = (false, None, 0);
    for whole in text.split_inclusive('\n') {
        at += whole.len();
        let line = whole.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = name.trim() == section;
        }
        if inside && !line.is_empty() {
            end = Some(at);
        }
    }
    end
}

/// The value that a line sets for this knob: the line is `head`, value, `tail`, with optional spaces between.
fn value_of(line: &str, head: &str, tail: &str, comment: &str) -> Option<String> {
    let mut rest = line.trim_start();
    if comment.chars().any(|c| rest.starts_with(c)) {
        return None;
    }
    let begins_with_space = head.ends_with(' ');
    for part in head.split_whitespace() {
        rest = rest.trim_start().strip_prefix(part)?;
    }
    // `workers 4` is not `workersmax 4`.
    if begins_with_space && head.trim_end().ends_with(|c: char| c.is_alphanumeric()) && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let rest = rest.trim_start();
    let value = match rest.chars().next()? {
        quote @ ('"' | '\'') => rest[1..].split(quote).next()?,
        _ => {
            let value = rest.find(|c| comment.contains(c)).map_or(rest, |end| &rest[..end]);
            let tail = tail.trim();
            let end = if tail.is_empty() { value.len() } else { value.find(tail).unwrap_or(value.len()) };
            value[..end].trim()
        }
    };
    Some(value.to_string())
}

#[cfg(test)]
mod tests {
    use lastdrop_model::ReloadClass;
    use lastdrop_model::settings::KnobValues;

    use super::*;

    const SPELLED: Spelling =
        Spelling { option: None, also: &[], option_off: None, variable: "", line: None, aliases: &[] };

    fn lines(line: &'static str, section: Option<&'static str>) -> LineFormat {
        LineFormat { line, section, comment: "#;", quote: "'", otherwise: None, includes: &[], is_code: false }
    }

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn knob(name: &'static str) -> Knob {
        Knob::new(name, KnobValues::Count(1, 99), "1", ReloadClass::Restart, "", "")
    }

    #[test]
    fn the_last_line_counts_and_is_replaced() {
        let ini = lines("{name} = {value}", Some("app"));
        let text =
            "processes = 1\n[app]\n  processes=2 # two\n# processes = 9\n processes =  3\n\n[other]\nprocesses = 4\n";
        let place = ini.find(text, &knob("processes"), &SPELLED).expect("it is there");
        assert_eq!((place.number, place.value.as_str()), (5, "3"));
        let set = ini.set(text, &knob("processes"), &SPELLED, "7", &nothing).expect("set");
        assert!(set.contains("\n processes = 7\n\n[other]") && set.contains("processes=2"), "{set}");
        let added = ini.set(text, &knob("threads"), &SPELLED, "2", &nothing).expect("set");
        assert!(added.contains("processes =  3\nthreads = 2\n\n[other]"), "{added}");
        assert!(ini.set("x = 1\n", &knob("threads"), &SPELLED, "2", &nothing).is_err());
    }

    #[test]
    fn included_files_count_where_they_stand_and_other_names_are_the_same_setting() {
        let ini = LineFormat { includes: &["ini", "include"], ..lines("{name} = {value}", Some("app")) };
        let spelled = Spelling { aliases: &["workers"], ..SPELLED };
        let read = |name: &str| (name == "more.ini").then(|| "[app]\nprocesses = 6\n".to_string());
        let find = |text: &str| {
            let found = ini.find_through(text, &knob("processes"), &spelled, &read, 3);
            found.map(|(file, place)| (file, place.value))
        };
        assert_eq!(find("[app]\nworkers = 2\n"), Some((None, "2".into())));
        let (before, after) = ("[app]\nworkers = 2\nini = more.ini\n", "[app]\ninclude = more.ini\nworkers = 2\n");
        assert_eq!(find(before), Some((Some("more.ini".into()), "6".into())));
        assert_eq!(find(after), Some((None, "2".into())));
        let set = |text: &str| ini.set(text, &knob("processes"), &spelled, "9", &read).expect("set");
        assert_eq!(set(before), format!("{before}processes = 9\n"), "a line before the inclusion does not count");
        assert_eq!(set(after), "[app]\ninclude = more.ini\nprocesses = 9\n");
    }

    #[test]
    fn a_program_is_never_edited_in_the_middle() {
        let python = LineFormat { is_code: true, ..lines("{name} = {value}", None) };
        for text in ["workers = max(\n    1,\n    2,\n)\n", "def f():\n    workers = 99\n", "if x:\n    workers = 9\n"]
        {
            let set = python.set(text, &knob("workers"), &SPELLED, "3", &nothing).expect("set");
            assert_eq!(set, format!("{text}workers = 3\n"));
        }
    }

    #[test]
    fn words_are_quoted_and_read_without_quotes() {
        let python = lines("{name} = {value}", None);
        let set = python.set("x = 1", &knob("worker_class"), &SPELLED, "gthread", &nothing).expect("set");
        assert_eq!(set, "x = 1\nworker_class = 'gthread'\n");
        assert_eq!(python.find(&set, &knob("worker_class"), &SPELLED).expect("there").value, "gthread");
    }

    #[test]
    fn a_line_may_say_its_value_twice() {
        let ruby = lines("{name} {value}", None);
        let twice = Spelling { line: Some("threads {value}, {value}"), ..SPELLED };
        let text = "threads 2, 5\nworkers 3\nworkersmax 8\n";
        assert_eq!(ruby.find(text, &knob("threads"), &twice).expect("there").value, "2");
        assert_eq!(
            ruby.set(text, &knob("threads"), &twice, "4", &nothing).expect("set").lines().next(),
            Some("threads 4, 4")
        );
        assert_eq!(ruby.find(text, &knob("workers"), &SPELLED).expect("there").value, "3");
    }
}
