//! nginx's knobs: what they are, where in a configuration each stands, and the bytes that turn it. Defaults:
//! `ngx_http_core_module.c`, `ngx_event.c`, `ngx_http_gzip_filter_module.c` of 1.22.
//!
//! Every one of them comes into force with a reload, also what belongs to a listening socket: a new backlog makes nginx
//! call listen() again (`ngx_configure_listening_sockets`).

use lastdrop_model::settings::Takes;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings};

use super::config::{Config, Directive};
use super::listen::listens;
use crate::edits::Edits;

const fn knob(
    name: &'static str,
    takes: Takes,
    default: &'static str,
    constraint: &'static str,
    effect: &'static str,
) -> Knob {
    Knob { name, short: None, role: None, takes, default, needs: ReloadClass::Reload, constraint, effect }
}

/// One that a search may use.
const fn for_search(role: Role, knob: Knob) -> Knob {
    Knob { role: Some(role), ..knob }
}

const SWITCH: Takes = Takes::Switch { on: "on", off: "off" };
const OWN: &str = "a server or location may set its own";

/// All of them; the last is of upstreams alone.
pub static KNOBS: &[Knob] = &[
    // No pool: each serves many requests at once.
    knob(
        "worker_processes",
        Takes::CountOr(1, 1024, "auto"),
        "1",
        "auto is one for each CPU",
        "processes that serve, each of them many requests at once",
    ),
    knob(
        "worker_connections",
        Takes::Count(1, 10_000_000),
        "512",
        "of each worker, those to upstreams included; at most its limit of open files",
        "how many connections a worker has at most; further ones are closed at once",
    ),
    knob(
        "worker_rlimit_nofile",
        Takes::Count(1, 10_000_000),
        "0",
        "0 is the limit of the master; a connection that is passed on takes two",
        "how many files and connections a worker may have open",
    ),
    // Its own switch: 0 is off, and any time is on.
    for_search(
        Role::KeepAlive,
        knob(
            "keepalive_timeout",
            Takes::Count(0, 86_400),
            "75",
            "seconds; 0 is off; a server or location may set its own",
            "how long an idle connection stays open for another request",
        ),
    ),
    for_search(
        Role::KeepAliveRequests,
        knob(
            "keepalive_requests",
            Takes::Count(1, 1_000_000_000),
            "1000",
            OWN,
            "a connection that has had so many requests is closed",
        ),
    ),
    knob("sendfile", SWITCH, "off", OWN, "files go from the page cache to the socket without a copy"),
    knob("tcp_nopush", SWITCH, "off", "only with sendfile", "headers and the beginning of a file go in one packet"),
    knob(
        "gzip",
        SWITCH,
        "off",
        "of text/html, and what gzip_types adds",
        "answers are compressed: less to send, more CPU",
    ),
    knob("gzip_comp_level", Takes::Count(1, 9), "1", "only with gzip", "how hard it compresses"),
    knob(
        "open_file_cache",
        Takes::Count(0, 10_000_000),
        "0",
        "files; 0 is off",
        "open files are remembered: fewer calls for each, and changes of them are seen later",
    ),
    for_search(
        Role::Backlog,
        knob(
            "backlog",
            Takes::Count(1, 65_535),
            "511",
            "of listen; at most net.core.somaxconn",
            "connections that wait for a worker before the kernel turns them away",
        ),
    ),
    knob(
        "reuseport",
        SWITCH,
        "off",
        "of listen; what waits for a worker that leaves is lost",
        "each worker has a queue of its own, between which the kernel deals",
    ),
    knob(
        "keepalive",
        Takes::Count(0, 1_000_000),
        "0",
        "of upstream; before 1.29.7 only with proxy_http_version 1.1 and an empty Connection header",
        "idle connections to the upstream that each worker keeps for the next request",
    ),
];

/// Those that a configuration has a place for.
pub fn of(config: Option<&Config>) -> &'static [Knob] {
    let upstreams = config.is_some_and(|c| c.within(&["http"], "upstream").next().is_some());
    if upstreams { KNOBS } else { &KNOBS[..KNOBS.len() - 1] }
}

/// Where a knob stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The first word after its name, in a block; of http also in its servers.
    In(&'static [&'static str]),
    /// `max=N` of open_file_cache, or `off`.
    Most,
    /// `NAME=N` of the listen lines.
    OfListen,
    /// A word of the listen lines.
    WordOfListen,
    OfUpstream,
}

const HTTP: &[&str] = &["http"];
const SERVER: &[&str] = &["http", "server"];
const UPSTREAM: &[&str] = &["http", "upstream"];

fn place(name: &str) -> Place {
    match name {
        "worker_processes" | "worker_rlimit_nofile" => Place::In(&[]),
        "worker_connections" => Place::In(&["events"]),
        "open_file_cache" => Place::Most,
        "backlog" => Place::OfListen,
        "reuseport" => Place::WordOfListen,
        "keepalive" => Place::OfUpstream,
        _ => Place::In(HTTP),
    }
}

/// A value, where it is from, and what a person should know about it.
pub struct Found {
    pub value: Setting,
    /// `file:line`; none is nginx's default.
    pub source: Option<String>,
    pub notes: Vec<String>,
}

/// What a configuration says of a knob. `port` is that of the server blocks that are meant; none is all.
pub fn find(config: &Config, knob: &Knob, port: Option<u16>) -> Found {
    let place = place(knob.name);
    let default = || Setting::read(knob.default);
    let said: Vec<(&Directive, Setting)> = match place {
        Place::In(context) => lines(config, context, knob.name).map(|d| (d, value(knob, d))).collect(),
        Place::Most => lines(config, HTTP, knob.name).map(|d| (d, Setting::Count(most(d)))).collect(),
        Place::OfListen | Place::WordOfListen => {
            listens(config, port).into_iter().map(|d| (d, of_listen(knob, place, d))).collect()
        }
        Place::OfUpstream => config.within(UPSTREAM, knob.name).map(|d| (d, value(knob, d))).collect(),
    };
    let mut notes = Vec::new();
    let first = said.first().map(|(_, value)| value.clone());
    for (line, value) in said.iter().filter(|(_, value)| Some(value) != first.as_ref()) {
        notes.push(format!("{} {value} at {}: a change is one of all of them", knob.name, config.place(line)));
    }
    if matches!(place, Place::In(HTTP) | Place::Most) {
        let deeper = config.directives.iter().filter(|d| d.name() == knob.name);
        let is_deeper = |context: &[&str]| context.len() > 2 && context[..1] == *HTTP;
        for line in deeper.filter(|d| is_deeper(&config.context(d))) {
            let block = line.parent.map_or("", |p| config.directives[p].name());
            notes.push(format!("a {block} has its own {} ({}), which is left as it is", knob.name, config.place(line)));
        }
    }
    let is_set = |d: &Directive| match place {
        Place::OfListen => d.word(&format!("{}=", knob.name)).is_some(),
        Place::WordOfListen => d.word(knob.name).is_some(),
        _ => true,
    };
    let source = said.first().filter(|(d, _)| is_set(d)).map(|(d, _)| config.place(d));
    Found { value: first.unwrap_or_else(default), source, notes }
}

/// The lines of a directive at a level; those of http come first, then those of its servers.
fn lines<'a>(
    config: &'a Config,
    context: &'static [&'static str],
    name: &'a str,
) -> impl Iterator<Item = &'a Directive> {
    let servers = (context == HTTP).then(|| config.within(SERVER, name));
    config.within(context, name).chain(servers.into_iter().flatten())
}

fn value(knob: &Knob, directive: &Directive) -> Setting {
    let word = directive.arguments().first().map_or("", |w| w.text.as_str());
    match (knob.name, seconds(word)) {
        ("keepalive_timeout", Some(s)) => Setting::Count(s),
        _ => Setting::read(word),
    }
}

/// A time as nginx writes it, where it is whole seconds: `75`, `1m 30s`.
fn seconds(text: &str) -> Option<i64> {
    let mut total = 0_i64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: i64 = rest[..digits].parse().ok()?;
        let unit: String = rest[digits..].chars().take_while(char::is_ascii_alphabetic).collect();
        let ms = match unit.as_str() {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(ms)?)?;
        rest = rest[digits + unit.len()..].trim_start();
    }
    (!text.is_empty() && total % 1000 == 0).then_some(total / 1000)
}

fn most(directive: &Directive) -> i64 {
    directive.word("max=").and_then(|w| w.text[4..].parse().ok()).unwrap_or(0)
}

fn of_listen(knob: &Knob, place: Place, listen: &Directive) -> Setting {
    if place == Place::WordOfListen {
        return knob.switched(listen.word(knob.name).is_some());
    }
    let word = listen.word(&format!("{}=", knob.name)).map(|w| &w.text[knob.name.len() + 1..]);
    word.map_or_else(|| Setting::read(knob.default), Setting::read)
}

/// The changes that bring these settings about.
///
/// # Errors
/// In words, where a setting has no place.
pub fn edits(config: &Config, settings: &Settings, port: Option<u16>) -> Result<Edits, String> {
    let mut edits = Edits::default();
    for (name, value) in settings {
        let Some(knob) = KNOBS.iter().find(|k| k.name == name) else { continue };
        match place(knob.name) {
            Place::In(context) => set_lines(config, &mut edits, context, name, &value.to_string(), first_word)?,
            Place::Most if value.count() == Some(0) => {
                set_lines(config, &mut edits, HTTP, name, "off", all_words)?;
            }
            Place::Most => set_lines(config, &mut edits, HTTP, name, &format!("max={value}"), max_word)?,
            Place::OfListen => {
                for line in listens_to_change(config, port, name)? {
                    let new = format!("{name}={value}");
                    match line.word(&format!("{name}=")) {
                        Some(word) => edits.replace(line.source, word.at.clone(), new),
                        None => append(&mut edits, line, &new),
                    }
                }
            }
            Place::WordOfListen => {
                for line in listens_to_change(config, port, name)? {
                    let at_unix = line.arguments().first().is_some_and(|w| w.text.starts_with("unix:"));
                    match line.word(name) {
                        Some(word) if !value.is_on() => {
                            let before = line.words.iter().rev().find(|w| w.at.end <= word.at.start);
                            let from = before.map_or(word.at.start, |w| w.at.end);
                            edits.replace(line.source, from..word.at.end, String::new());
                        }
                        None if value.is_on() && !at_unix => append(&mut edits, line, name),
                        _ => {}
                    }
                }
            }
            Place::OfUpstream => set_upstreams(config, &mut edits, name, value)?,
        }
    }
    if let Some(source) = edits.sources().find(|s| config.sources[*s].file.is_none()) {
        let names: Vec<&str> = settings.keys().map(String::as_str).collect();
        return Err(format!(
            "one of {} is set by {}: a file cannot change that",
            names.join(", "),
            config.sources[source].name.display()
        ));
    }
    Ok(edits)
}

fn listens_to_change<'a>(config: &'a Config, port: Option<u16>, name: &str) -> Result<Vec<&'a Directive>, String> {
    let lines = listens(config, port);
    if lines.is_empty() {
        let at = port.map_or(String::new(), |p| format!(" at port {p}"));
        return Err(format!("no server block has a listen line{at} that {name} could be put into"));
    }
    Ok(lines)
}

fn append(edits: &mut Edits, line: &Directive, word: &str) {
    if let Some(last) = line.words.last() {
        edits.replace(line.source, last.at.end..last.at.end, format!(" {word}"));
    }
}

fn first_word(line: &Directive) -> Option<std::ops::Range<usize>> {
    Some(line.arguments().first()?.at.clone())
}

fn all_words(line: &Directive) -> Option<std::ops::Range<usize>> {
    Some(line.arguments().first()?.at.start..line.arguments().last()?.at.end)
}

fn max_word(line: &Directive) -> Option<std::ops::Range<usize>> {
    line.word("max=").map(|w| w.at.clone()).or_else(|| all_words(line))
}

/// Sets a directive wherever a level has it, and adds it where the level does not.
fn set_lines(
    config: &Config,
    edits: &mut Edits,
    context: &'static [&'static str],
    name: &str,
    value: &str,
    words: fn(&Directive) -> Option<std::ops::Range<usize>>,
) -> Result<(), String> {
    for line in lines(config, context, name) {
        if let Some(at) = words(line) {
            edits.replace(line.source, at, value.into());
        }
    }
    if config.within(context, name).next().is_some() {
        return Ok(());
    }
    let [.., block] = context else {
        // Before the first line of the main file.
        let first = config.directives.iter().find(|d| d.parent.is_none() && config.sources[d.source].file.is_some());
        let first = first.ok_or("the configuration is empty")?;
        edits.replace(first.source, first.at.start..first.at.start, format!("{name} {value}; "));
        return Ok(());
    };
    let block = config.within(&context[..context.len() - 1], block).find(|d| d.is_block);
    let block = block.ok_or_else(|| format!("there is no block for {name}"))?;
    edits.replace(block.source, block.at.end..block.at.end, format!(" {name} {value};"));
    Ok(())
}

/// Connections that are kept to the servers of an upstream: after the method by which one is chosen, so at the end.
fn set_upstreams(config: &Config, edits: &mut Edits, name: &str, value: &Setting) -> Result<(), String> {
    for (index, upstream) in config.directives.iter().enumerate().filter(|(_, d)| d.name() == "upstream") {
        if config.context(upstream) != HTTP {
            continue;
        }
        let mut inner = config.directives.iter().filter(|d| d.parent == Some(index));
        match inner.clone().find(|d| d.name() == name) {
            Some(line) if value.count() == Some(0) => edits.replace(line.source, line.at.clone(), String::new()),
            Some(line) => {
                let at = first_word(line).ok_or_else(|| format!("{} has no number", config.place(line)))?;
                edits.replace(line.source, at, value.to_string());
            }
            None if value.count() == Some(0) => {}
            None => {
                let last = inner.rfind(|d| d.source == upstream.source && !d.is_block).unwrap_or(upstream);
                edits.replace(last.source, last.at.end..last.at.end, format!(" {name} {value};"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> (tempfile::TempDir, Config) {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("n.conf"), text).expect("written");
        let config = Config::read(&dir.path().join("n.conf"), Some("pcre_jit on;")).expect("read");
        (dir, config)
    }

    fn changed(text: &str, settings: &[(&str, &str)], port: Option<u16>) -> String {
        let (_dir, config) = read(text);
        let settings = settings.iter().map(|(name, value)| ((*name).to_string(), Setting::read(value))).collect();
        let edits = edits(&config, &settings, port).expect("it has a place");
        String::from_utf8(edits.apply(1, text.as_bytes(), 0..text.len())).expect("text")
    }

    fn found(text: &str, name: &str) -> Found {
        let knob = KNOBS.iter().find(|k| k.name == name).expect("a knob");
        find(&read(text).1, knob, None)
    }

    #[test]
    fn a_setting_is_changed_wherever_its_level_has_it_and_added_where_not() {
        let text = "events {}\nhttp { gzip off; server { gzip 'off'; location / { gzip off; } } }\nstream { server { listen 1; } }";
        let new = changed(text, &[("gzip", "on"), ("worker_processes", "2"), ("worker_connections", "9")], None);
        assert!(
            new.starts_with("worker_processes 2; events { worker_connections 9;}\nhttp { gzip on; server { gzip on;")
        );
        assert!(new.ends_with("location / { gzip off; } } }\nstream { server { listen 1; } }"), "{new}");
        let cache = "events {} http { open_file_cache max=7 inactive=2s; }";
        assert!(changed(cache, &[("open_file_cache", "9")], None).contains("max=9 inactive=2s;"));
        assert!(changed(cache, &[("open_file_cache", "0")], None).contains("open_file_cache off;"));
        assert!(
            changed("events {} http { open_file_cache off; }", &[("open_file_cache", "3")], None).contains(" max=3;")
        );
        let pools = "events {} http { upstream a { server b; least_conn; } upstream c { keepalive 3; server d; } }";
        assert!(
            changed(pools, &[("keepalive", "5")], None)
                .contains("least_conn; keepalive 5; } upstream c { keepalive 5;")
        );
        assert!(changed(pools, &[("keepalive", "0")], None).contains("least_conn; } upstream c {  server"));
        let (_dir, config) = read("events {}");
        let settings = Settings::from([("gzip".to_string(), "on".into())]);
        assert!(edits(&config, &settings, None).is_err_and(|e| e.contains("no block")));
        let settings = Settings::from([("backlog".to_string(), Setting::Count(5))]);
        assert!(edits(&config, &settings, Some(80)).is_err_and(|e| e.contains("at port 80")));
        let set_there = Config::read(&_dir.path().join("n.conf"), Some("worker_processes 1;")).expect("read");
        let settings = Settings::from([("worker_processes".to_string(), Setting::Count(5))]);
        assert!(edits(&set_there, &settings, None).is_err_and(|e| e.contains("command line")));
        assert!(Config::read(Path::new("/no/such"), None).is_err());
    }

    #[test]
    fn one_listen_line_of_an_address_tells_of_its_socket() {
        let text = "events {} http { server { listen 80; listen [::]:80; listen 127.0.0.1:80; listen unix:/s; } \
                    server { listen *:80 rcvbuf=8k; listen 0.0.0.0:81; listen 443 quic; listen 127.0.0.1; } }";
        let new = changed(text, &[("backlog", "9"), ("reuseport", "on")], None);
        assert_eq!(
            new,
            text.replace("[::]:80", "[::]:80 backlog=9 reuseport")
                .replace("/s", "/s backlog=9")
                .replace("8k", "8k backlog=9 reuseport")
                .replace(":81", ":81 backlog=9 reuseport")
        );
        assert_eq!(changed(text, &[("backlog", "9")], Some(81)), text.replace(":81", ":81 backlog=9"));
        let set = new.replace("unix:/s backlog=9", "unix:/s");
        let back = changed(&set, &[("backlog", "8"), ("reuseport", "off")], None);
        assert_eq!(back.matches("reuseport").count() + back.matches("backlog=9").count(), 0, "{back}");
        let told = found(&set, "backlog");
        assert!(told.value == Setting::Count(9) && told.notes[0].contains("backlog 511"), "{:?}", told.notes);
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        for (written, value) in [("75", 75), ("1m 30s", 90), ("'1m30s'", 90), ("2000ms 5s", 2)] {
            let written = written.replace("1m 30s", "'1m 30s'");
            let said = found(&format!("events {{}} http {{ keepalive_timeout {written}; }}"), "keepalive_timeout");
            assert_eq!(said.value, Setting::Count(value), "{written}");
        }
        assert_eq!(
            (seconds("500ms"), seconds(""), seconds("x"), seconds("9223372036854775807d")),
            (None, None, None, None)
        );
        let default = found("events {} http {}", "keepalive_requests");
        assert!(default.value == Setting::Count(1000) && default.source.is_none());
        let own = found("events {} http { server { location / { sendfile on; } } }", "sendfile");
        assert!(
            own.value == "off".into() && own.notes[0].contains("a location has its own sendfile"),
            "{:?}",
            own.notes
        );
        for knob in KNOBS.iter().filter(|k| k.name != "worker_rlimit_nofile") {
            assert_eq!(knob.check(&Setting::read(knob.default)), Ok(()));
        }
        assert_eq!((of(None).len(), of(Some(&read("http { upstream a { server b; } }").1)).len()), (12, 13));
    }
}
