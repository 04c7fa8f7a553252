//! HAProxy's knobs, which depend on its configuration: their names, their positions, and the edits that set them.
//!
//! `maxconn` and `nbthread` without a prefix are those of the `global` section. `defaults.X` belongs to the unnamed
//! defaults, `defaults/NAME.X` to named ones, `PROXY.X` to a frontend, backend or listen section,
//! `BACKEND/SERVER.maxconn` to a server. Defaults and rules: configuration.txt and `cfgparse.c` of 2.6.

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Setting, Settings};

use super::config::{Config, ConfigLine};
use crate::edits::{ConfigWord, Edits};
use crate::intern;

pub const MAXCONN: &str = "maxconn";
pub const NBTHREAD: &str = "nbthread";
pub const REUSE: &str = "http-reuse";
pub const BALANCE: &str = "balance";
/// Maximum of Debian's build (MAX_THREADS).
pub const MOST_THREADS: usize = 64;
const MOST_CONNECTIONS: i64 = 10_000_000;

/// The part of a configuration that a knob belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobLocation {
    Global,
    /// A section, by index.
    Section(usize),
    /// The line of a server, by index.
    Server(usize),
}

/// A knob that fits a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKnob {
    pub name: String,
    pub keyword: &'static str,
    pub place: KnobLocation,
}

/// All knobs that a configuration has a place for; of two with the same name, the first.
pub fn entries(config: &Config) -> Vec<ConfigKnob> {
    let mut all: Vec<ConfigKnob> = Vec::new();
    let mut add = |name: String, keyword: &'static str, place: KnobLocation| {
        if !all.iter().any(|entry| entry.name == name) {
            all.push(ConfigKnob { name, keyword, place });
        }
    };
    add(MAXCONN.into(), MAXCONN, KnobLocation::Global);
    add(NBTHREAD.into(), NBTHREAD, KnobLocation::Global);
    let mut unnamed = 0;
    for (index, section) in config.sections.iter().enumerate() {
        let keywords: &[&'static str] = match section.kind.as_str() {
            "defaults" => &[MAXCONN, REUSE],
            "frontend" => &[MAXCONN],
            "backend" => &[REUSE, BALANCE],
            "listen" => &[MAXCONN, REUSE, BALANCE],
            _ => continue,
        };
        let label = match (section.kind.as_str(), section.name.as_str()) {
            ("defaults", "") => {
                unnamed += 1;
                if unnamed == 1 { "defaults".to_string() } else { format!("defaults/{unnamed}") }
            }
            ("defaults", name) => format!("defaults/{name}"),
            (_, name) => name.to_string(),
        };
        let servers = servers(config, index);
        let is_http = config.said(index, "mode").and_then(|line| line.argument(1)).is_some_and(|w| w.text == "http");
        for keyword in keywords {
            let is_of_use = match *keyword {
                MAXCONN => true,
                REUSE => is_http && (section.kind == "defaults" || !servers.is_empty()),
                _ => !servers.is_empty(),
            };
            if is_of_use {
                add(format!("{label}.{keyword}"), keyword, KnobLocation::Section(index));
            }
        }
        for line in servers {
            let server = config.lines[line].argument(1).map_or("", |word| word.text.as_str());
            add(format!("{label}/{server}.{MAXCONN}"), MAXCONN, KnobLocation::Server(line));
        }
    }
    all
}

/// Lines of a section that define servers or server templates.
fn servers(config: &Config, section: usize) -> Vec<usize> {
    let is_server = |line: &ConfigLine| matches!(line.keyword(), "server" | "server-template") && line.words.len() > 2;
    let lines = config.lines.iter().enumerate();
    lines.filter(|(_, line)| line.section == section && is_server(line)).map(|(index, _)| index).collect()
}

/// The knobs of a configuration on a machine with this many processors. With a master a reload is enough; without one,
/// they need a restart.
pub fn table(entries: &[ConfigKnob], processors: usize, has_master: bool) -> &'static [Knob] {
    let needs = if has_master { ReloadClass::Reload } else { ReloadClass::Restart };
    let threads = processors.clamp(1, MOST_THREADS);
    intern::table(entries.iter().map(|entry| knob(entry, threads, needs)).collect())
}

fn knob(entry: &ConfigKnob, threads: usize, needs: ReloadClass) -> Knob {
    let connections = KnobValues::Count(0, MOST_CONNECTIONS);
    let (takes, default, constraint, effect) = match (entry.keyword, entry.place) {
        (MAXCONN, KnobLocation::Global) => (
            connections,
            "0",
            "0 is as many as ulimit -n allows; one that is passed on takes two open files",
            "connections of clients at once in all; further ones wait in the listen queue",
        ),
        (NBTHREAD, _) => {
            let most = (2 * threads).min(MOST_THREADS) as i64;
            let default = intern::text(&threads.to_string());
            let constraint = "the default is the processors that it may use; a bind or cpu-map may name threads";
            (
                KnobValues::Count(1, most),
                default,
                constraint,
                "threads that serve, each of them many connections at once",
            )
        }
        (REUSE, _) => (
            KnobValues::Choice(&["never", "safe", "aggressive", "always"]),
            "safe",
            "only with mode http",
            "idle connections to a server go over to other clients: fewer connects, or none with never",
        ),
        (BALANCE, _) => (
            KnobValues::Choice(&["roundrobin", "static-rr", "leastconn", "first", "source", "random", "uri"]),
            "roundrobin",
            "first needs a maxconn of each server",
            "which server gets a request: in turn, the least loaded, always the same for a client",
        ),
        (_, KnobLocation::Server(_)) => (
            connections,
            "0",
            "0 is no limit; not below minconn; in all as many as there are workers behind",
            "requests at once to the server; further ones wait in HAProxy instead of in its listen queue",
        ),
        _ => (
            connections,
            "0",
            "0 is the global maxconn, which is also the most",
            "connections of clients at once; further ones wait in the listen queue, which is as long by default",
        ),
    };
    let name = intern::text(&entry.name);
    let findings: &[&str] = match (entry.keyword, entry.place) {
        (MAXCONN, KnobLocation::Server(_)) => &["upstream-backlog-overflow"],
        (MAXCONN, _) => &["accept-queue-overflow", "fd-limit"],
        (NBTHREAD, _) => &["cpu-saturated", "single-worker-cpu"],
        (REUSE, _) => &["upstream-connect-per-request", "port-exhaustion"],
        _ => &[],
    };
    Knob::new(name, takes, default, needs, constraint, effect).worth_trying_for(findings)
}

/// The value of a knob in the configuration, and its source.
pub fn find(config: &Config, entry: &ConfigKnob) -> Option<(Setting, String)> {
    let said = |line: &ConfigLine| Some((value(entry.keyword, line)?, config.place(line)));
    match entry.place {
        // HAProxy warns about a second line and ignores it.
        KnobLocation::Global if entry.keyword == MAXCONN => said(config.of_global(MAXCONN).next()?),
        KnobLocation::Global => said(config.of_global(entry.keyword).next_back()?),
        KnobLocation::Section(section) if config.sections[section].kind == "defaults" => {
            said(config.of(section, entry.keyword).next_back()?)
        }
        KnobLocation::Section(section) => said(config.said(section, entry.keyword)?),
        KnobLocation::Server(line) => {
            let (word, line) = of_server(config, line, MAXCONN)?;
            Some((Setting::read(&word.text), config.place(line)))
        }
    }
}

/// The value after a parameter of a server, and its line: the server's own, otherwise the defaults for servers. A
/// `default-server` of its own section applies to the servers below it.
pub fn of_server<'a>(config: &'a Config, server: usize, parameter: &str) -> Option<(&'a ConfigWord, &'a ConfigLine)> {
    let own = &config.lines[server];
    let of = |line: &'a ConfigLine| Some((parameter_of(line, parameter)?, line));
    let of_section = |section| config.of(section, "default-server").rev();
    let before = of_section(own.section).filter(|l| (l.source, l.number) < (own.source, own.number));
    let of_defaults = config.sections[own.section].defaults.into_iter().flat_map(of_section);
    of(own).or_else(|| before.chain(of_defaults).find_map(of))
}

/// The word after a parameter in a line; the last one applies.
fn parameter_of<'a>(line: &'a ConfigLine, parameter: &str) -> Option<&'a ConfigWord> {
    // `server` has a name and an address; `server-template` a name, a number and an address.
    let from = match line.keyword() {
        "server" => 3,
        "server-template" => 4,
        _ => 1,
    };
    let parameters = line.words.get(from..)?;
    let at = parameters[..parameters.len().saturating_sub(1)].iter().rposition(|word| word.text == parameter)?;
    parameters.get(at + 1)
}

fn value(keyword: &str, line: &ConfigLine) -> Option<Setting> {
    let words: Vec<&str> = line.words[1..].iter().map(|word| word.text.as_str()).collect();
    // A balance algorithm may have arguments, such as `url_param user`.
    let text = if keyword == BALANCE { words.join(" ") } else { (*words.first()?).to_string() };
    Some(Setting::read(&text))
}

/// Returns the edits that make these settings.
///
/// # Errors
/// In words, if a setting has no place.
pub fn edits(config: &Config, settings: &Settings) -> Result<Edits, String> {
    let entries = entries(config);
    let mut edits = Edits::default();
    for (name, value) in settings {
        let Some(entry) = entries.iter().find(|entry| entry.name == *name) else {
            return Err(format!("the configuration has no place for {name} any more"));
        };
        set(config, &mut edits, entry, &value.to_string())?;
    }
    Ok(edits)
}

fn set(config: &Config, edits: &mut Edits, entry: &ConfigKnob, value: &str) -> Result<(), String> {
    let lines: Vec<&ConfigLine> = match entry.place {
        KnobLocation::Global => config.of_global(entry.keyword).collect(),
        KnobLocation::Section(section) => config.of(section, entry.keyword).collect(),
        KnobLocation::Server(line) => {
            let line = &config.lines[line];
            match (parameter_of(line, MAXCONN), line.words.last()) {
                (Some(word), _) => edits.replace(line.source, word.at.clone(), value.into()),
                (None, Some(last)) => {
                    edits.replace(line.source, last.at.end..last.at.end, format!(" {MAXCONN} {value}"));
                }
                (None, None) => {}
            }
            return Ok(());
        }
    };
    for line in &lines {
        let (Some(first), Some(last)) = (line.argument(1), line.words.last()) else {
            return Err(format!("{} has no value", config.place(line)));
        };
        let end = if entry.keyword == BALANCE { last.at.end } else { first.at.end };
        edits.replace(line.source, first.at.start..end, value.into());
    }
    if lines.is_empty() {
        add(config, edits, entry, value)?;
    }
    Ok(())
}

/// Adds a line right below the head of its section.
fn add(config: &Config, edits: &mut Edits, entry: &ConfigKnob, value: &str) -> Result<(), String> {
    let section = match entry.place {
        KnobLocation::Section(section) => Some(section),
        _ => config.sections.iter().position(|section| section.kind == "global"),
    };
    let Some(section) = section else {
        let first = config.sources.first().ok_or("there is no configuration")?;
        let end = line_end(&first.text);
        edits.replace(0, 0..0, format!("global{end}    {} {value}{end}", entry.keyword));
        return Ok(());
    };
    let head = &config.sections[section].head;
    let text = &config.sources[head.source].text;
    let below = config.lines.iter().find(|line| line.section == section && line.source == head.source);
    let indent = below.and_then(|line| text.get(line.at.start..line.words[0].at.start));
    let indent = indent.map_or("    ".into(), String::from_utf8_lossy);
    let end = line_end(&text[head.at.end..]);
    edits.replace(head.source, head.at.end..head.at.end, format!("{end}{indent}{} {value}", entry.keyword));
    Ok(())
}

/// The line end that a text uses.
pub fn line_end(text: &[u8]) -> &'static str {
    let line = text.split_inclusive(|b| *b == b'\n').next().unwrap_or_default();
    if line.ends_with(b"\r\n") { "\r\n" } else { "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (tempfile::TempDir, Config) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("h.cfg");
        std::fs::write(&file, text).expect("written");
        let config = Config::read(&[file], &[], &|_| true).expect("read");
        (dir, config)
    }

    const SITE: &str = "global\r\n  maxconn 100\r\ndefaults\n mode http\n default-server maxconn 8\nfrontend web\n\tbind :80\n\
        backend web # one name\n balance url_param user # kept\n server a 1.1.1.1:1 check\n default-server maxconn 9\n\
        server b 1.1.1.1:2 cookie maxconn maxconn 3 # few\n server-template c 1-3 1.1.1.1:3\nlisten db\n mode tcp\n \
        server d 1.1.1.1:4\nbackend none\n";

    #[test]
    fn knobs_are_those_that_the_configuration_has_a_place_for() {
        let (_dir, config) = read(SITE);
        let entries = entries(&config);
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "maxconn",
                "nbthread",
                "defaults.maxconn",
                "defaults.http-reuse",
                "web.maxconn",
                "web.http-reuse",
                "web.balance",
                "web/a.maxconn",
                "web/b.maxconn",
                "web/c.maxconn",
                "db.maxconn",
                "db.balance",
                "db/d.maxconn"
            ]
        );
        let said = |name: &str| {
            let (value, place) = find(&config, entries.iter().find(|e| e.name == name)?)?;
            Some(format!("{value} {}", place.rsplit(':').next().unwrap_or_default()))
        };
        for (name, expected) in [
            ("maxconn", Some("100 2")),
            ("nbthread", None),
            ("web.balance", Some("url_param user 9")),
            ("web/a.maxconn", Some("8 5")),
            ("web/b.maxconn", Some("3 12")),
            ("web/c.maxconn", Some("9 11")),
            ("db/d.maxconn", Some("8 5")),
        ] {
            assert_eq!(said(name).as_deref(), expected, "{name}");
        }
        let knobs = table(&entries, 2, true);
        assert!(std::ptr::eq(knobs, table(&entries, 2, true)) && !std::ptr::eq(knobs, table(&entries, 2, false)));
        assert_eq!((knobs[1].default, knobs[1].takes), ("2", KnobValues::Count(1, 4)));
        assert!(knobs.iter().all(|knob| knob.check(&Setting::read(knob.default)).is_ok()));
    }

    #[test]
    fn a_change_is_of_the_bytes_of_a_value_or_one_line_more() {
        let (_dir, config) = read(SITE);
        let changed = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, value)| ((*name).to_string(), Setting::read(value))).collect();
            let edits = edits(&config, &settings).expect("it has a place");
            String::from_utf8(edits.apply(0, SITE.as_bytes(), 0..SITE.len())).expect("text")
        };
        assert_eq!(
            changed(&[("maxconn", "7"), ("web.balance", "first"), ("web/b.maxconn", "1"), ("web/a.maxconn", "2")]),
            SITE.replace("maxconn 100", "maxconn 7")
                .replace("url_param user", "first")
                .replace("maxconn maxconn 3", "maxconn maxconn 1")
                .replace("1:1 check", "1:1 check maxconn 2")
        );
        assert_eq!(
            changed(&[("nbthread", "2"), ("web.maxconn", "5"), ("web.http-reuse", "never"), ("db.balance", "source")]),
            SITE.replace("global\r\n", "global\r\n  nbthread 2\r\n")
                .replace("frontend web\n", "frontend web\n\tmaxconn 5\n")
                .replace("# one name\n", "# one name\n http-reuse never\n")
                .replace("listen db\n", "listen db\n balance source\n")
        );
        let settings = Settings::from([("other.maxconn".to_string(), Setting::Count(1))]);
        assert!(edits(&config, &settings).is_err_and(|e| e.contains("no place")));
        let (_dir, bare) = read("listen a\n");
        let settings = Settings::from([("maxconn".to_string(), Setting::Count(1))]);
        let new = edits(&bare, &settings).expect("a place").apply(0, b"listen a\n", 0..9);
        assert_eq!(String::from_utf8_lossy(&new), "global\n    maxconn 1\nlisten a\n");
    }
}
