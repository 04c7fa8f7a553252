//! Where each knob is in an nginx configuration, and the edits that set it.

use lastdrop_model::{Knob, Setting, Settings};

use super::config::{Config, Directive};
use super::knobs::KNOBS;
use super::listen::listens;
use crate::edits::{ConfigWord, Edits};

/// The position of a knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnobLocation {
    /// The first argument of the directive, in these blocks; for http also in its servers.
    In(&'static [&'static str]),
    /// `max=N` of open_file_cache, or `off`.
    Most,
    /// `NAME=N` of the listen lines.
    OfListen,
    /// An argument of the listen lines.
    WordOfListen,
    /// `buffer=Nk` of the access_log lines.
    OfLog,
    /// `shared:NAME:Nm` of ssl_session_cache.
    OfTls,
    OfUpstream,
}

const HTTP: &[&str] = &["http"];
pub const SERVER: &[&str] = &["http", "server"];
const UPSTREAM: &[&str] = &["http", "upstream"];

fn place(name: &str) -> KnobLocation {
    match name {
        "worker_processes" | "worker_rlimit_nofile" => KnobLocation::In(&[]),
        "worker_connections" => KnobLocation::In(&["events"]),
        "open_file_cache" => KnobLocation::Most,
        "backlog" => KnobLocation::OfListen,
        "reuseport" => KnobLocation::WordOfListen,
        "access_log_buffer" => KnobLocation::OfLog,
        "ssl_session_cache" => KnobLocation::OfTls,
        "keepalive" => KnobLocation::OfUpstream,
        _ => KnobLocation::In(HTTP),
    }
}

/// A value, its source, and notes for the user.
pub struct FoundValue {
    pub value: Setting,
    /// `file:line`; `None` for nginx's default.
    pub source: Option<String>,
    pub notes: Vec<String>,
}

/// The value of a knob in a configuration. `port` selects server blocks; `None` means all.
pub fn find(config: &Config, knob: &Knob, port: Option<u16>) -> FoundValue {
    let place = place(knob.name);
    let default = || Setting::read(knob.default);
    let said: Vec<(&Directive, Setting)> = match place {
        KnobLocation::In(context) => lines(config, context, knob.name).map(|d| (d, value(knob, d))).collect(),
        KnobLocation::Most => lines(config, HTTP, knob.name).map(|d| (d, Setting::Count(most(d)))).collect(),
        KnobLocation::OfListen | KnobLocation::WordOfListen => {
            listens(config, port).into_iter().map(|d| (d, of_listen(knob, place, d))).collect()
        }
        KnobLocation::OfLog => logs(config).map(|d| (d, Setting::Count(log_buffer(d)))).collect(),
        KnobLocation::OfTls => lines(config, HTTP, knob.name).map(|d| (d, Setting::Count(tls_cache(d)))).collect(),
        KnobLocation::OfUpstream => config.within(UPSTREAM, knob.name).map(|d| (d, value(knob, d))).collect(),
    };
    let mut notes = Vec::new();
    let first = said.first().map(|(_, value)| value.clone());
    for (line, value) in said.iter().filter(|(_, value)| Some(value) != first.as_ref()) {
        notes.push(format!("{} {value} at {}: a change is one of all of them", knob.name, config.place(line)));
    }
    if matches!(place, KnobLocation::In(HTTP) | KnobLocation::Most) {
        let deeper = config.directives.iter().filter(|d| d.name() == knob.name);
        let is_deeper = |context: &[&str]| context.len() > 2 && context[..1] == *HTTP;
        for line in deeper.filter(|d| is_deeper(&config.context(d))) {
            let block = line.parent.map_or("", |p| config.directives[p].name());
            notes.push(format!("a {block} has its own {} ({}), which is left as it is", knob.name, config.place(line)));
        }
    }
    let is_set = |d: &Directive| match place {
        KnobLocation::OfListen => d.word(&format!("{}=", knob.name)).is_some(),
        KnobLocation::WordOfListen => d.word(knob.name).is_some(),
        KnobLocation::OfLog => d.word("buffer=").is_some(),
        _ => true,
    };
    let source = said.first().filter(|(d, _)| is_set(d)).map(|(d, _)| config.place(d));
    FoundValue { value: first.unwrap_or_else(default), source, notes }
}

/// Returns the directives of a name in a context. For http, those of its servers follow.
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

/// Parses an nginx time in whole seconds: `75`, `1m 30s`.
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

/// Access logs that are switched on.
fn logs(config: &Config) -> impl Iterator<Item = &Directive> {
    let is_off =
        |d: &Directive| d.arguments().first().is_some_and(|w| w.text == "off" || w.text.starts_with("syslog:"));
    lines(config, HTTP, "access_log").filter(move |d| !is_off(d))
}

/// Parses an nginx size into KiB: `64k`, `1m`, `4096`.
fn kib(text: &str) -> Option<i64> {
    let number = |end: &str, unit: i64| text.strip_suffix(end)?.parse::<i64>().ok()?.checked_mul(unit);
    let large = number("k", 1).or_else(|| number("K", 1)).or_else(|| number("m", 1024)).or_else(|| number("M", 1024));
    large.or_else(|| text.parse::<i64>().ok().map(|bytes| bytes.div_euclid(1024).max(1)))
}

fn log_buffer(log: &Directive) -> i64 {
    let size = log.word("buffer=").map(|w| &w.text[7..]);
    // `gzip` and `flush` imply a buffer of 64 KiB.
    let implied = log.word("gzip").is_some() || log.word("gzip=").is_some() || log.word("flush=").is_some();
    size.and_then(kib).unwrap_or(if implied { 64 } else { 0 })
}

fn shared(directive: &Directive) -> Option<&ConfigWord> {
    directive.arguments().iter().find(|w| w.text.starts_with("shared:"))
}

fn tls_cache(directive: &Directive) -> i64 {
    let size = shared(directive).and_then(|w| kib(w.text.rsplit(':').next()?));
    size.map_or(0, |kib| kib.div_euclid(1024).max(1))
}

/// Removes a word and the space before it.
fn take_out(edits: &mut Edits, line: &Directive, word: &ConfigWord) {
    let before = line.words.iter().rev().find(|w| w.at.end <= word.at.start);
    edits.replace(line.source, before.map_or(word.at.start, |w| w.at.end)..word.at.end, String::new());
}

/// Sets the buffers of all access logs.
fn set_logs(config: &Config, edits: &mut Edits, value: &Setting) -> Result<(), String> {
    let mut any = false;
    for log in logs(config) {
        any = true;
        let all = ["buffer=", "flush=", "gzip=", "gzip"].map(|name| log.word(name));
        match (value.count(), all[0]) {
            (Some(0), _) => all.into_iter().flatten().for_each(|word| take_out(edits, log, word)),
            (_, Some(word)) => edits.replace(log.source, word.at.clone(), format!("buffer={value}k")),
            // The first word after the file is the format.
            (_, None) if log.arguments().len() == 1 => append(edits, log, &format!("combined buffer={value}k")),
            (_, None) => append(edits, log, &format!("buffer={value}k")),
        }
    }
    if any { Ok(()) } else { Err("there is no access_log line whose buffer could be set".into()) }
}

/// Sets the size of the shared TLS session cache and keeps its name.
fn set_tls_cache(config: &Config, edits: &mut Edits, name: &'static str, value: &Setting) -> Result<(), String> {
    if value.count() == Some(0) {
        return set_lines(config, edits, HTTP, name, "off", all_words);
    }
    for line in lines(config, HTTP, name) {
        let at = shared(line).map(|w| w.at.clone()).or_else(|| all_words(line));
        let zone = shared(line).and_then(|w| w.text.split(':').nth(1)).unwrap_or("lastdrop");
        edits.replace(line.source, at.unwrap_or(line.at.clone()), format!("shared:{zone}:{value}m"));
    }
    if config.within(HTTP, name).next().is_some() {
        return Ok(());
    }
    set_lines(config, edits, HTTP, name, &format!("shared:lastdrop:{value}m"), |_| None)
}

fn of_listen(knob: &Knob, place: KnobLocation, listen: &Directive) -> Setting {
    if place == KnobLocation::WordOfListen {
        return knob.switched(listen.word(knob.name).is_some());
    }
    let word = listen.word(&format!("{}=", knob.name)).map(|w| &w.text[knob.name.len() + 1..]);
    word.map_or_else(|| Setting::read(knob.default), Setting::read)
}

/// Returns the edits that make these settings.
///
/// # Errors
/// In words, if a setting has no place.
pub fn edits(config: &Config, settings: &Settings, port: Option<u16>) -> Result<Edits, String> {
    let mut edits = Edits::default();
    for (name, value) in settings {
        let Some(knob) = KNOBS.iter().find(|k| k.name == name) else { continue };
        match place(knob.name) {
            KnobLocation::In(context) => set_lines(config, &mut edits, context, name, &value.to_string(), first_word)?,
            KnobLocation::Most if value.count() == Some(0) => {
                set_lines(config, &mut edits, HTTP, name, "off", all_words)?;
            }
            KnobLocation::Most => set_lines(config, &mut edits, HTTP, name, &format!("max={value}"), max_word)?,
            KnobLocation::OfListen => {
                for line in listens_to_change(config, port, name)? {
                    let new = format!("{name}={value}");
                    match line.word(&format!("{name}=")) {
                        Some(word) => edits.replace(line.source, word.at.clone(), new),
                        None => append(&mut edits, line, &new),
                    }
                }
            }
            KnobLocation::WordOfListen => {
                for line in listens_to_change(config, port, name)? {
                    let at_unix = line.arguments().first().is_some_and(|w| w.text.starts_with("unix:"));
                    match line.word(name) {
                        Some(word) if !value.is_on() => take_out(&mut edits, line, word),
                        None if value.is_on() && !at_unix => append(&mut edits, line, name),
                        _ => {}
                    }
                }
            }
            KnobLocation::OfLog => set_logs(config, &mut edits, value)?,
            KnobLocation::OfTls => set_tls_cache(config, &mut edits, knob.name, value)?,
            KnobLocation::OfUpstream => set_upstreams(config, &mut edits, name, value)?,
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

/// Sets a directive wherever it occurs at this level, and adds it where it does not.
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
        // Added before the first line of the main file.
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

/// Sets the keepalive connections of all upstreams. The line must follow the load-balancing method, so it goes at the
/// end.
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

    use super::super::knobs::of;
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

    fn found(text: &str, name: &str) -> FoundValue {
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
    fn logs_and_sessions_are_buffered_where_they_are() {
        let text = "events {} http { access_log /a; access_log off; access_log /b main flush=5s; \
                    server { access_log /c main buffer=1m if=$x; ssl_session_cache builtin:9 shared:S:10m; } }";
        let new = changed(text, &[("access_log_buffer", "32"), ("ssl_session_cache", "5")], None);
        for part in [
            "/a combined buffer=32k;",
            "off;",
            "flush=5s buffer=32k;",
            "buffer=32k if=$x;",
            "9 shared:S:5m;",
            "http { ssl_session_cache shared:lastdrop:5m;",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        let off = changed(text, &[("access_log_buffer", "0"), ("ssl_session_cache", "0")], None);
        assert!(off.contains("/b main;") && off.contains("/c main if=$x; ssl_session_cache off;"), "{off}");
        let told = found(text, "access_log_buffer");
        assert!(told.value == Setting::Count(0) && told.notes.len() == 2, "{:?}", told.notes);
        assert_eq!(found(text, "ssl_session_cache").value, Setting::Count(10));
        let (_dir, config) = read("events {} http {}");
        let settings = Settings::from([("access_log_buffer".to_string(), Setting::Count(5))]);
        assert!(edits(&config, &settings, None).is_err_and(|e| e.contains("no access_log")));
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
        let of = |text: &str| of(Some(&read(text).1)).last().map(|k| k.name);
        assert_eq!(of("http { upstream a { server b; } }"), Some("keepalive"));
        assert_eq!(of("http { server { listen 443 ssl; } }"), Some("ssl_session_cache"));
        assert_eq!(of("http { }"), Some("access_log_buffer"));
    }
}
