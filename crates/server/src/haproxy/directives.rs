//! Where the directives of a change go: in place of those that sections have, otherwise into defaults or global.

use std::collections::HashMap;

use super::config::{Config, ConfigLine, is_section};
use super::knobs::line_end;
use super::words::words;
use crate::change::{Change, ConfigScope};
use crate::directive_edits::{DirectiveNames, GivenDirective, PresentDirective};
use crate::edits::Edits;

const NAMES: DirectiveNames = DirectiveNames {
    ignore_case: false,
    repeated: &[
        ("acl", 9),
        ("bind", 1),
        ("capture", 9),
        ("compression", 1),
        ("errorfile", 1),
        ("errorloc", 1),
        ("filter", 1),
        ("http-after-response", 2),
        ("http-check", 9),
        ("http-request", 2),
        ("http-response", 2),
        ("log", 1),
        ("option", 1),
        ("presetenv", 1),
        ("redirect", 9),
        ("server", 1),
        ("server-template", 1),
        ("setenv", 1),
        ("stats", 1),
        ("tcp-check", 9),
        ("tcp-request", 9),
        ("tcp-response", 9),
        ("timeout", 1),
        ("use-server", 1),
        ("use_backend", 1),
    ],
    between: "\n",
};

/// Keywords of global; all others are for `defaults` if nothing else is said. One that ends in `*` is a beginning.
const OF_GLOBAL: &[&str] = &[
    "busy-polling",
    "cpu-map",
    "hard-stop-after",
    "maxcompcpuusage",
    "maxcomprate",
    "maxconnrate",
    "maxpipes",
    "maxsessrate",
    "maxsslconn",
    "maxsslrate",
    "maxzlibmem",
    "nbthread",
    "noepoll",
    "nogetaddrinfo",
    "nopoll",
    "noreuseport",
    "nosplice",
    "spread-checks",
    "ssl-default-*",
    "ssl-server-verify",
    "tune.*",
    "ulimit-n",
];

/// Returns the edits that put the directives of a change into the configuration.
///
/// # Errors
/// In words, if one is no directive or has no place.
pub fn edits(config: &Config, change: &Change) -> Result<Edits, String> {
    let given = change.directives.lines().iter().map(|line| read(line)).collect::<Result<Vec<_>, String>>()?;
    let mut edits = Edits::default();
    match &change.scope {
        None => {
            for group in NAMES.by_name(&given) {
                everywhere(config, &mut edits, &group)?;
            }
        }
        Some(scope) => {
            for section in sections_of(config, scope)? {
                place(config, &mut edits, section, &given);
            }
        }
    }
    Ok(edits)
}

fn read(line: &str) -> Result<GivenDirective, String> {
    let words =
        words(line.as_bytes(), 0, &HashMap::new()).map_err(|what| format!("'{line}' is no directive: {what}"))?;
    let mut texts: Vec<String> = words.into_iter().map(|word| word.text).collect();
    let is_negated = texts.first().is_some_and(|word| word == "no");
    texts.drain(..usize::from(is_negated));
    let [name, arguments @ ..] = texts.as_slice() else { return Err(format!("'{line}' is no directive")) };
    if is_section(name) || name.starts_with('.') {
        return Err(format!("'{line}' begins a section: of HAProxy single lines are taken, and --at says where"));
    }
    Ok(GivenDirective { name: name.clone(), arguments: arguments.to_vec(), is_negated, text: line.into() })
}

fn present(line: &ConfigLine) -> Option<PresentDirective> {
    let is_negated = line.keyword() == "no";
    let mut texts = line.words.iter().skip(usize::from(is_negated)).map(|word| word.text.clone());
    let name = texts.next()?;
    let at = line.words.first()?.at.start..line.words.last()?.at.end;
    Some(PresentDirective { name, arguments: texts.collect(), source: line.source, at, is_negated })
}

/// Places directives of one name wherever the configuration has them, otherwise for all proxies or the process.
fn everywhere(config: &Config, edits: &mut Edits, group: &[GivenDirective]) -> Result<(), String> {
    let mut found = false;
    for section in 0..config.sections.len() {
        let own = present_in(config, section);
        found |= NAMES.replace(edits, group, &own).found;
    }
    if found {
        return Ok(());
    }
    let name = group[0].name.as_str();
    let of_global = OF_GLOBAL.iter().any(|known| match known.strip_suffix('*') {
        Some(begins) => name.starts_with(begins),
        None => name == *known,
    });
    let kind = if of_global { "global" } else { "defaults" };
    let sections: Vec<usize> = (0..config.sections.len()).filter(|i| config.sections[*i].kind == kind).collect();
    if sections.is_empty() {
        return Err(format!(
            "the configuration has no {kind} section for '{}': --at vhost:NAME says where",
            group[0].text
        ));
    }
    // In one section of global is enough; each of defaults is for other proxies.
    for section in sections.into_iter().take(if of_global { 1 } else { usize::MAX }) {
        place(config, edits, section, group);
    }
    Ok(())
}

fn present_in(config: &Config, section: usize) -> Vec<PresentDirective> {
    config.lines.iter().filter(|line| line.section == section).filter_map(present).collect()
}

/// Places directives in a section: new ones behind the last of their keyword, otherwise below the head.
fn place(config: &Config, edits: &mut Edits, section: usize, given: &[GivenDirective]) {
    let own = present_in(config, section);
    for group in NAMES.by_name(given) {
        let missing = NAMES.replace(edits, &group, &own).missing;
        if missing.is_empty() {
            continue;
        }
        let head = &config.sections[section].head;
        let lines = || config.lines.iter().filter(|line| line.section == section && line.source == head.source);
        let text = &config.sources[head.source].text;
        let indent = lines().next().and_then(|line| text.get(line.at.start..line.words[0].at.start));
        let indent = indent.map_or("    ".into(), String::from_utf8_lossy);
        let behind = lines().rev().find(|line| line.keyword() == group[0].name).map_or(&head.at, |line| &line.at);
        let end = line_end(&text[behind.end..]);
        let new: String =
            missing.iter().flat_map(|line| line.split('\n')).map(|line| format!("{end}{indent}{line}")).collect();
        edits.replace(head.source, behind.end..behind.end, new);
    }
}

/// The sections of a scope.
fn sections_of(config: &Config, scope: &ConfigScope) -> Result<Vec<usize>, String> {
    let ConfigScope::Host(name) = scope else {
        return Err("HAProxy has sections with names alone: --at vhost:NAME, vhost:defaults or vhost:global".into());
    };
    let is_nameless = |kind: &str| matches!(kind, "global" | "defaults");
    let found: Vec<usize> = config
        .sections
        .iter()
        .enumerate()
        .filter(|(_, s)| s.name == *name || (s.kind == *name && is_nameless(&s.kind)))
        .map(|(i, _)| i)
        .collect();
    if found.is_empty() {
        let name_of = |s: &super::config::Section| if s.name.is_empty() { s.kind.clone() } else { s.name.clone() };
        let known: Vec<String> = config.sections.iter().map(name_of).collect();
        return Err(format!("the configuration has no section called {name}; it has {}", known.join(", ")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Directives;

    const SITE: &str = "global\n  maxconn 100\ndefaults\n  mode http\n  option httpclose\n  timeout client 5s # short\nfrontend web\n\
        \tbind :80\n\tmaxconn 10\nbackend app\n  server a 1.1.1.1:1\n";

    fn changed(lines: &str, scope: Option<&str>) -> Result<String, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("h.cfg");
        std::fs::write(&file, SITE).expect("written");
        let config = Config::read(&[file], &[], &|_| true).expect("read");
        let scope = scope.map(|s| s.parse().expect("a scope"));
        let edits = edits(&config, &Change { scope, ..Change::from(Directives::read(lines)) })?;
        Ok(String::from_utf8(edits.apply(0, SITE.as_bytes(), 0..SITE.len())).expect("text"))
    }

    #[test]
    fn without_a_scope_a_directive_goes_where_the_configuration_has_it() {
        let new = changed("timeout client 9s; no option httpclose", None).expect("placed");
        assert_eq!(new, SITE.replace("client 5s", "client 9s").replace("option httpclose", "no option httpclose"));
        let new = changed("option httplog; tune.bufsize 32768", None).expect("placed");
        let expected = SITE.replace("option httpclose", "option httpclose\n  option httplog");
        assert_eq!(new, expected.replace("global\n", "global\n  tune.bufsize 32768\n"));
        let new = changed("retries 1", None).expect("placed");
        assert_eq!(new, SITE.replace("defaults\n", "defaults\n  retries 1\n"));
        assert_eq!(changed("option httpclose", None), Ok(SITE.into()));
    }

    #[test]
    fn with_a_scope_it_goes_there_and_nowhere_else() {
        let new = changed("maxconn 5; option httplog", Some("vhost:web")).expect("placed");
        assert_eq!(new, SITE.replace("\tmaxconn 10\n", "\tmaxconn 5\n").replace("web\n", "web\n\toption httplog\n"));
        let new = changed("server a 1.1.1.1:1 maxconn 3", Some("vhost:app")).expect("placed");
        assert_eq!(new, SITE.replace("1.1.1.1:1", "1.1.1.1:1 maxconn 3"));
        for (scope, part) in [("vhost:x", "global, defaults, web, app"), ("location:/", "vhost:NAME")] {
            let refused = changed("maxconn 5", Some(scope)).expect_err("not there");
            assert!(refused.contains(part), "{refused}");
        }
        for wrong in ["backend x", "no", ".if x", "\"a"] {
            assert!(changed(wrong, None).is_err(), "{wrong}");
        }
    }
}
