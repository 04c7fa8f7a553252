//! Parameters of mod_proxy's workers: the connections it keeps open to backends. They are edited in the lines that
//! create the workers. A virtual host has its own worker with all its parameters, so no section elsewhere could change
//! one parameter and keep the others.

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, Setting, Settings};

use super::config::{DirectiveLine, Scan, split_words};
use crate::edits::{ConfigWord, Edits};

/// Prefix of a parameter's knob name.
const PREFIX: &str = "proxy.";
pub const MAX: &str = "proxy.max";
pub const PROXY_TIMEOUT: &str = "ProxyTimeout";
const SWITCH: KnobValues = KnobValues::Switch { on: "On", off: "Off" };
const REUSE: &str = "proxy.enablereuse";

/// A time in seconds, or in milliseconds if no unit is given.
const MILLISECONDS: &str = "proxy.acquire";

/// Knobs of every MPM.
pub const KNOBS: [Knob; 6] = [
    Knob::by_reload(
        REUSE,
        SWITCH,
        "On",
        "of every ProxyPass and BalancerMember; Off by default for FastCGI",
        "connections to a server behind stay open for the next request, instead of one for each",
    )
    .worth_trying_for(&["upstream-connect-per-request", "port-exhaustion"]),
    Knob::by_reload(
        "proxy.ttl",
        KnobValues::Count(0, 86_400),
        "0",
        "seconds; 0 is for ever; less than the server behind keeps idle connections",
        "an idle connection to a server behind is used no more after this long: avoids those that it is just closing",
    )
    .only_with(REUSE, &["On"]),
    Knob::by_reload(
        "proxy.timeout",
        KnobValues::Count(0, 86_400),
        "0",
        "seconds; 0 is ProxyTimeout",
        "how long a silent server behind is waited for; then the visitor gets 504",
    ),
    Knob::by_reload(
        "proxy.connectiontimeout",
        KnobValues::Count(0, 86_400),
        "0",
        "seconds; 0 is proxy.timeout",
        "how long a connect to a server behind may take; then the visitor gets 503",
    ),
    Knob::by_reload(
        "proxy.keepalive",
        SWITCH,
        "Off",
        "TCP keep-alive, for a firewall between that drops idle connections",
        "the kernel asks on idle connections to a server behind whether it is still there",
    )
    .only_with(REUSE, &["On"]),
    Knob::by_reload(
        PROXY_TIMEOUT,
        KnobValues::Count(1, 86_400),
        "60",
        "seconds; Timeout where nothing is said; a VirtualHost may set its own, proxy.timeout goes before it",
        "how long a silent server behind is waited for",
    ),
];

/// Knobs of worker and event: a prefork process has one connection per backend.
pub const OF_THREADS: [Knob; 2] = [
    Knob::by_reload(
        MAX,
        KnobValues::Count(0, 20_000),
        "0",
        "at most ThreadsPerChild, which 0 is; of each process",
        "connections at once to a server behind; further requests wait for one",
    )
    .worth_trying_for(&["upstream-backlog-overflow"]),
    Knob::by_reload(
        MILLISECONDS,
        KnobValues::Count(0, 3_600_000),
        "0",
        "milliseconds; 0 is for as long as it takes",
        "how long a request waits for a connection beyond proxy.max; then the visitor gets 503",
    ),
];

/// True if the name is a parameter of workers and not a directive.
pub fn is_parameter(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// A line that sets parameters of one worker.
struct WorkerLine<'a> {
    line: &'a DirectiveLine,
    /// Where the worker is defined: virtual host, balancer, URL.
    host: Option<usize>,
    balancer: Option<String>,
    url: String,
    /// True if the line changes an existing worker: it overrides the parameters given when the worker was created.
    sets: bool,
}

/// The lines about one backend; the first creates it.
struct Worker<'a>(Vec<WorkerLine<'a>>);

fn is_url(word: &str) -> bool {
    word.starts_with("unix:") || word.contains("://")
}

fn is_balancer(url: &str) -> bool {
    url.split(':').next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("balancer"))
}

fn is_parameter_word(word: &ConfigWord) -> bool {
    word.text.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

/// Reads the worker parameters of a line, if it has any.
fn said(line: &DirectiveLine) -> Option<WorkerLine<'_>> {
    let section = line.section.as_deref().and_then(|head| {
        let words = split_words(head.as_bytes());
        let text = |n: usize| words.get(n).map(|(text, ..)| String::from_utf8_lossy(text).into_owned());
        text(0).filter(|kind| kind.eq_ignore_ascii_case("proxy")).and_then(|_| text(1))
    });
    let urls: Vec<&String> = line.arguments.iter().filter(|word| is_url(word)).collect();
    let own = urls.iter().find(|url| !is_balancer(url)).map(|url| (*url).clone());
    let named = urls.iter().find(|url| is_balancer(url)).map(|url| (*url).clone());
    let name = line.name.to_ascii_lowercase();
    let (url, balancer) = match name.as_str() {
        "proxypass" | "proxypassmatch" => (own?, None),
        "balancermember" => (own?, Some(named.or(section)?)),
        // A worker of a balancer is not named as such here.
        "proxyset" if named.is_none() => (own.or(section.filter(|url| !is_balancer(url)))?, None),
        "<proxy" if line.words[1..].iter().any(is_parameter_word) => (own?, None),
        _ => return None,
    };
    let makes_none = url.contains('*') || !is_url(&url);
    let sets = name == "proxyset" || name == "<proxy";
    (!makes_none).then_some(WorkerLine { line, host: line.host, balancer, url, sets })
}

/// The workers as mod_proxy creates them. A URL that begins with another worker's URL belongs to that worker.
fn workers(scan: &Scan) -> Vec<Worker<'_>> {
    let mut all: Vec<Worker<'_>> = Vec::new();
    for said in scan.lines.iter().filter_map(said) {
        let is_known = |w: &&mut Worker<'_>| {
            let first = &w.0[0];
            (first.host, &first.balancer) == (said.host, &said.balancer) && said.url.starts_with(&first.url)
        };
        match all.iter_mut().filter(is_known).max_by_key(|w| w.0[0].url.len()) {
            Some(worker) => worker.0.push(said),
            None => all.push(Worker(vec![said])),
        }
    }
    all
}

pub fn has_workers(scan: &Scan) -> bool {
    scan.lines.iter().any(|line| said(line).is_some())
}

/// The words of a line that set a parameter, by any of its names; the flag is true for the name with the opposite
/// meaning.
fn words<'a>(line: &'a DirectiveLine, knob: &Knob) -> impl Iterator<Item = (&'a ConfigWord, &'a str, bool)> {
    let name = knob.name.strip_prefix(PREFIX).unwrap_or(knob.name);
    let opposite = (knob.name == REUSE).then_some("disablereuse");
    line.words[1..].iter().filter_map(move |word| {
        let (key, value) = word.text.split_once('=')?;
        let is_opposite = opposite.is_some_and(|o| key.eq_ignore_ascii_case(o));
        (is_opposite || key.eq_ignore_ascii_case(name)).then_some((word, value, is_opposite))
    })
}

impl Worker<'_> {
    /// The effective value: the last one set later, otherwise the one given at creation.
    fn value(&self, knob: &Knob) -> (Setting, Option<String>) {
        let place = |line: &DirectiveLine| format!("{}:{}", line.file.display(), line.number);
        let of = |said: &WorkerLine| {
            let (_, text, is_opposite) = words(said.line, knob).last()?;
            Some((read(knob, text, is_opposite), Some(place(said.line))))
        };
        let first = &self.0[0];
        let fastcgi = first.url.get(first.url.rfind('|').map_or(0, |bar| bar + 1)..).unwrap_or_default();
        let default = match fastcgi.starts_with("fcgi:") && knob.name == REUSE {
            true => knob.switched(false),
            false => Setting::read(knob.default),
        };
        self.0.iter().rev().filter(|s| s.sets).find_map(of).or_else(|| of(first)).unwrap_or((default, None))
    }
}

fn read(knob: &Knob, text: &str, is_opposite: bool) -> Setting {
    if knob.takes == SWITCH {
        return knob.switched(Setting::read(text).is_on() != is_opposite);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let own = if knob.name == MILLISECONDS { 1 } else { 1000 };
    let ms = match &text[digits..] {
        "" => Some(own),
        "ms" => Some(1),
        "s" => Some(1000),
        "mi" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let whole = text[..digits].parse::<i64>().ok().zip(ms).and_then(|(n, ms)| n.checked_mul(ms));
    whole.filter(|n| n % own == 0).map_or_else(|| Setting::Text(text.into()), |n| Setting::Count(n / own))
}

/// A parameter's value, its source, and notes for the user.
pub fn find(scan: &Scan, knob: &Knob) -> (Setting, Option<String>, Vec<String>) {
    let all: Vec<_> = workers(scan).iter().map(|w| (w.value(knob), w.0[0].url.clone())).collect();
    let Some(((first, source), _)) = all.first().cloned() else { return (knob.default.into(), None, Vec::new()) };
    let others = all.iter().filter(|((value, _), _)| *value != first);
    let notes = others.map(|((value, _), url)| format!("{} of {url} is {value}: a change is one of all", knob.name));
    let notes = notes.collect();
    (first, source, notes)
}

/// Returns the edits that set these parameters; other settings are ignored.
///
/// # Errors
/// In words, if there is no worker.
pub fn edits(scan: &Scan, knobs: &[Knob], settings: &Settings) -> Result<Edits, String> {
    let mut edits = Edits::default();
    let workers = workers(scan);
    // By line, so that several words added to the same line become one edit.
    let mut added: Vec<(&DirectiveLine, String)> = Vec::new();
    for (name, value) in settings.iter().filter(|(name, _)| is_parameter(name)) {
        let Some(knob) = knobs.iter().find(|k| k.name == name) else { continue };
        if workers.is_empty() {
            return Err(format!("there is no ProxyPass or BalancerMember that {name} could be of"));
        }
        let unset = knob.takes != SWITCH && value.count() == Some(0);
        let own = name.strip_prefix(PREFIX).unwrap_or(name);
        for worker in &workers {
            let mut any = false;
            for said in &worker.0 {
                for (word, _, is_opposite) in words(said.line, knob) {
                    any = true;
                    let before = said.line.words.iter().rev().find(|w| w.at.end <= word.at.start);
                    let new = match is_opposite {
                        true => format!("disablereuse={}", knob.switched(!value.is_on())),
                        false => format!("{own}={value}"),
                    };
                    match before.filter(|_| unset) {
                        Some(before) => edits.replace(said.line.source, before.at.end..word.at.end, String::new()),
                        None => edits.replace(said.line.source, word.at.clone(), new),
                    }
                }
            }
            if !any && !unset {
                let line = worker.0[0].line;
                match added.iter_mut().find(|(known, _)| std::ptr::eq(*known, line)) {
                    Some((_, text)) => text.push_str(&format!(" {own}={value}")),
                    None => added.push((line, format!(" {own}={value}"))),
                }
            }
        }
    }
    for (line, text) in added {
        if let Some(last) = line.words.last() {
            edits.replace(line.source, last.at.end..last.at.end, text);
        }
    }
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use super::super::config::scan_of;
    use super::*;

    fn all() -> Vec<Knob> {
        [KNOBS.as_slice(), &OF_THREADS].concat()
    }

    fn changed(text: &str, settings: &[(&str, &str)]) -> String {
        let (_dir, scan) = scan_of(text);
        let settings = settings.iter().map(|(name, value)| ((*name).to_string(), Setting::read(value))).collect();
        let edits = edits(&scan, &all(), &settings).expect("it has a place");
        String::from_utf8(edits.apply(0, text.as_bytes(), 0..text.len())).expect("text")
    }

    fn value(text: &str, name: &str) -> String {
        let (_dir, scan) = scan_of(text);
        let knob = all().into_iter().find(|k| k.name == name).expect("a knob");
        let (value, source, notes) = find(&scan, &knob);
        let line = source.map_or("-".into(), |s| s.rsplit(':').next().unwrap_or_default().to_string());
        format!("{value} {line} {}", notes.len())
    }

    const SITE: &str = "<VirtualHost *:80>\r\nProxyPass /img !\r\nProxyPass / \"http://a:1/\" \\\r\n  timeout=5 max=4\r\n\
        ProxyPass /x http://a:1/x max=9\n<Location /y>\nProxyPass http://b/ disablereuse=On\n</Location>\n</VirtualHost>\n\
        <Proxy balancer://c>\nBalancerMember http://d:1 route=1\nBalancerMember 'http://d:2'\nProxySet lbmethod=bybusyness\n\
        </Proxy>\nProxyPass /c balancer://c timeout=3\nProxyPassMatch ^/f(.*)$ fcgi://e/$1\n\
        <Proxy \"http://g/\" ttl=7>\nRequire all granted\n</Proxy>\nProxyPass /g http://g/ ttl=9\n\
        <IfModule nobody>\nProxyPass /h http://h/\n</IfModule>\n<Proxy *>\nRequire all granted\n</Proxy>\n";

    #[test]
    fn a_parameter_is_changed_where_it_counts_and_added_to_the_line_that_makes_the_worker() {
        let new = changed(SITE, &[("proxy.max", "2"), ("proxy.acquire", "50")]);
        assert_eq!(
            new,
            SITE.replace("max=4", "max=2 acquire=50")
                .replace("max=9", "max=2")
                .replace("disablereuse=On", "disablereuse=On acquire=50 max=2")
                .replace("route=1", "route=1 acquire=50 max=2")
                .replace("'http://d:2'", "'http://d:2' acquire=50 max=2")
                .replace("fcgi://e/$1", "fcgi://e/$1 acquire=50 max=2")
                .replace("\" ttl=7>", "\" ttl=7 acquire=50 max=2>")
        );
        let new = changed(SITE, &[("proxy.max", "0"), ("proxy.timeout", "0"), ("proxy.ttl", "1")]);
        assert!(new.contains("\"http://a:1/\" ttl=1\r\nProxyPass /x http://a:1/x\n"), "{new}");
        assert!(
            new.contains("ttl=1>") && new.contains("/g http://g/ ttl=1\n") && new.contains("c timeout=3\n"),
            "{new}"
        );
        let new = changed(SITE, &[("proxy.enablereuse", "Off")]);
        assert!(new.contains("max=4 enablereuse=Off\r") && new.contains("http://b/ disablereuse=On\n"), "{new}");
        assert!(changed(SITE, &[("proxy.enablereuse", "On")]).contains("http://b/ disablereuse=Off\n"));
        assert_eq!(changed(SITE, &[("KeepAlive", "Off"), ("ProxyTimeout", "3")]), SITE);
        let (_dir, none) = scan_of("ProxyPass /c balancer://c\n");
        let settings = Settings::from([("proxy.max".to_string(), Setting::Count(1))]);
        assert!(!has_workers(&none) && edits(&none, &all(), &settings).is_err_and(|e| e.contains("no ProxyPass")));
    }

    #[test]
    fn values_are_those_that_count() {
        assert_eq!(value(SITE, "proxy.max"), "4 3 5");
        assert_eq!(value(SITE, "proxy.enablereuse"), "On - 2");
        assert_eq!(value("ProxyPass / fcgi://a/\n", "proxy.enablereuse"), "Off - 0");
        let later = "ProxyPass / http://a/ ttl=3\n<Proxy http://a/>\nProxySet ttl=5\n</Proxy>\n";
        assert_eq!(value(later, "proxy.ttl"), "5 3 0");
        assert_eq!(changed(later, &[("proxy.ttl", "8")]), later.replace("=3", "=8").replace("=5", "=8"));
        for (text, expected) in [("acquire=3s", "3000"), ("acquire=20", "20"), ("acquire=5x", "5x")] {
            assert_eq!(value(&format!("ProxyPass / http://a/ {text}\n"), "proxy.acquire"), format!("{expected} 1 0"));
        }
        for (text, expected) in [("500ms", "500ms"), ("2000ms", "2"), ("1h", "3600")] {
            let line = format!("ProxyPass / http://a/ connectiontimeout={text}\n");
            assert_eq!(value(&line, "proxy.connectiontimeout"), format!("{expected} 1 0"));
        }
    }
}
