//! How the settings of a kind that is only data are changed: where they are written, and what makes the server take them.

use std::path::Path;

use lastdrop_model::Knob;
use nix::sys::signal::Signal;

/// How a server takes a change. What a kind has of `option`, `variable` and files is tried in this order.
#[derive(Debug)]
pub struct Means {
    /// Settings are options of its command line, where that can be seen.
    pub command_line: bool,
    /// Settings are variables of its environment, where that can be seen.
    pub environment: bool,
    pub written: Option<Written>,
    /// At this signal it reads its configuration again and replaces its workers.
    pub reload: Option<Signal>,
    /// Its master executes itself at that signal.
    pub executes_itself: bool,
    /// At this signal the whole of it ends.
    pub stop: Signal,
    /// Words of its command line with which it detaches itself from whoever starts it.
    pub detached_by: &'static [&'static str],
    /// Words of its command line without which it detaches itself; none are of a server that never does.
    pub attached_by: &'static [&'static str],
    /// Tests a configuration: fails with the reason on its standard error.
    pub test: &'static [&'static str],
    /// Words in what a passing test says that mean that a value would not be taken as it is.
    pub clamps: &'static [&'static str],
    /// Prints `name = value` of every setting as the server would have it.
    pub tells: &'static [&'static str],
    pub knobs: &'static [Knob],
    /// Of each knob.
    pub spelled: &'static [Spelled],
}

impl Means {
    /// Is this the command line of a server that only tests or tells its configuration? What a killed lastdrop has asked may
    /// still be at it.
    pub fn is_asked(&self, argv: &[String]) -> bool {
        [self.test, self.tells].iter().any(|words| match words {
            ["{argv}", more @ ..] if !more.is_empty() => more.iter().all(|word| argv.iter().any(|a| a == word)),
            _ => false,
        })
    }
}

/// Where settings are written.
#[derive(Debug)]
pub enum Written {
    /// Lines of the server's own configuration file.
    Lines(Lines),
    /// Lines of a file of ours that its configuration includes; relative to the folder of the configuration.
    Included { file: &'static Path, lines: Lines },
    /// A file of ours on which it runs instead of its own: `head` includes that.
    OwnFile { head: &'static str, lines: Lines },
    /// The whole configuration file is made of this one, in which `{{name}}` stands for a value. Relative to the folder of
    /// the configuration.
    Template(&'static Path),
}

/// How a knob is spelled where it is changed.
#[derive(Debug, Clone)]
pub struct Spelled {
    pub option: Option<&'static str>,
    pub also: &'static [&'static str],
    pub option_off: Option<&'static str>,
    pub variable: &'static str,
    pub line: Option<&'static str>,
}

/// How a setting is written in a line.
#[derive(Debug, Clone)]
pub struct Lines {
    /// `{name} = {value}`.
    pub line: &'static str,
    /// The section of an INI file in which it stands.
    pub section: Option<&'static str>,
    /// What begins a comment.
    pub comment: &'static str,
    /// What stands around a value that is a word.
    pub quote: &'static str,
    /// The file where no flag of the command line names one; relative to the folder in which the server was started.
    pub otherwise: Option<&'static Path>,
}

/// A setting where it stands in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Of the line, without its end.
    pub bytes: std::ops::Range<usize>,
    /// From 1.
    pub number: usize,
    pub value: String,
}

impl Lines {
    fn form(&self, knob: &Knob, spelled: &Spelled) -> (String, &'static str, &'static str) {
        let line = spelled.line.unwrap_or(self.line);
        let (head, rest) = line.split_once("{value}").unwrap_or((line, ""));
        // What follows the value up to where the line says it again.
        let tail = rest.split_once("{value}").map_or(rest, |(between, _)| between);
        (head.replace("{name}", knob.name), tail, rest)
    }

    /// The line that sets a knob to a value.
    pub fn written(&self, knob: &Knob, spelled: &Spelled, value: &str) -> String {
        let line = spelled.line.unwrap_or(self.line).replace("{name}", knob.name);
        let is_word =
            value.parse::<i64>().is_err() && !matches!(knob.takes, lastdrop_model::settings::Takes::Switch { .. });
        let quote = if is_word { self.quote } else { "" };
        line.replace("{value}", &format!("{quote}{value}{quote}"))
    }

    /// The last line that sets a knob: it counts.
    pub fn find(&self, text: &str, knob: &Knob, spelled: &Spelled) -> Option<Place> {
        let (head, tail, _) = self.form(knob, spelled);
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
            let is_here = self.section.is_none_or(|wanted| section.as_deref() == Some(wanted));
            if is_here && let Some(value) = value_of(line, &head, tail, self.comment) {
                found = Some(Place { bytes, number: i + 1, value });
            }
        }
        found
    }

    /// The text with a knob set: its last line replaced, or another added where the section ends.
    pub fn set(&self, text: &str, knob: &Knob, spelled: &Spelled, value: &str) -> Result<String, String> {
        let line = self.written(knob, spelled, value);
        if let Some(place) = self.find(text, knob, spelled) {
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

/// Where the last section of a name ends in an INI file: behind its last line that says something.
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

/// What a line sets, where it is one of this knob: `head`, the value, `tail`, with any spaces between.
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
    use lastdrop_model::settings::Takes;

    use super::*;

    const SPELLED: Spelled = Spelled { option: None, also: &[], option_off: None, variable: "", line: None };

    fn lines(line: &'static str, section: Option<&'static str>) -> Lines {
        Lines { line, section, comment: "#;", quote: "'", otherwise: None }
    }

    fn knob(name: &'static str) -> Knob {
        Knob::new(name, Takes::Count(1, 99), "1", ReloadClass::Restart, "", "")
    }

    #[test]
    fn the_last_line_counts_and_is_replaced() {
        let ini = lines("{name} = {value}", Some("app"));
        let text =
            "processes = 1\n[app]\n  processes=2 # two\n# processes = 9\n processes =  3\n\n[other]\nprocesses = 4\n";
        let place = ini.find(text, &knob("processes"), &SPELLED).expect("it is there");
        assert_eq!((place.number, place.value.as_str()), (5, "3"));
        let set = ini.set(text, &knob("processes"), &SPELLED, "7").expect("set");
        assert!(set.contains("\n processes = 7\n\n[other]") && set.contains("processes=2"), "{set}");
        let added = ini.set(text, &knob("threads"), &SPELLED, "2").expect("set");
        assert!(added.contains("processes =  3\nthreads = 2\n\n[other]"), "{added}");
        assert!(ini.set("x = 1\n", &knob("threads"), &SPELLED, "2").is_err());
    }

    #[test]
    fn words_are_quoted_and_read_without_quotes() {
        let python = lines("{name} = {value}", None);
        let set = python.set("x = 1", &knob("worker_class"), &SPELLED, "gthread").expect("set");
        assert_eq!(set, "x = 1\nworker_class = 'gthread'\n");
        assert_eq!(python.find(&set, &knob("worker_class"), &SPELLED).expect("there").value, "gthread");
    }

    #[test]
    fn a_line_may_say_its_value_twice() {
        let ruby = lines("{name} {value}", None);
        let twice = Spelled { line: Some("threads {value}, {value}"), ..SPELLED };
        let text = "threads 2, 5\nworkers 3\nworkersmax 8\n";
        assert_eq!(ruby.find(text, &knob("threads"), &twice).expect("there").value, "2");
        assert_eq!(ruby.set(text, &knob("threads"), &twice, "4").expect("set").lines().next(), Some("threads 4, 4"));
        assert_eq!(ruby.find(text, &knob("workers"), &SPELLED).expect("there").value, "3");
    }
}
