//! Where the directives of a change go: in place of those that the configuration has, otherwise as a new line of a block.

use super::config::{Config, Directive};
use super::words::{Lexer, Token};
use crate::change::{Change, ConfigScope};
use crate::directive_edits::{DirectiveNames, GivenDirective, PresentDirective};
use crate::edits::Edits;

const NAMES: DirectiveNames = DirectiveNames {
    ignore_case: false,
    repeated: &[
        ("add_header", 1),
        ("add_trailer", 1),
        ("allow", 1),
        ("deny", 1),
        ("env", 1),
        ("error_page", 1),
        ("fastcgi_cache_valid", 1),
        ("fastcgi_hide_header", 1),
        ("fastcgi_param", 1),
        ("include", 1),
        ("limit_conn", 1),
        ("limit_conn_zone", 2),
        ("limit_req", 1),
        ("limit_req_zone", 2),
        ("listen", 1),
        ("load_module", 1),
        ("log_format", 1),
        ("proxy_cache_valid", 1),
        ("proxy_hide_header", 1),
        ("proxy_pass_header", 1),
        ("proxy_set_header", 1),
        ("rewrite", 1),
        ("scgi_param", 1),
        ("server", 1),
        ("set", 1),
        ("sub_filter", 1),
        ("uwsgi_param", 1),
    ],
    between: " ",
};

/// Directives of the main context and of events; all others are for http if nothing else is said.
const OF_MAIN: &[&str] = &[
    "daemon",
    "env",
    "error_log",
    "load_module",
    "lock_file",
    "master_process",
    "pcre_jit",
    "pid",
    "ssl_engine",
    "thread_pool",
    "timer_resolution",
    "user",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_processes",
    "worker_rlimit_core",
    "worker_rlimit_nofile",
    "worker_shutdown_timeout",
    "working_directory",
];
const OF_EVENTS: &[&str] =
    &["accept_mutex", "accept_mutex_delay", "multi_accept", "use", "worker_aio_requests", "worker_connections"];

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
            for block in blocks_of(config, scope)? {
                let own = present_in(config, Some(block), None);
                let replaced = NAMES.replace(&mut edits, &given, &own);
                insert(config, &mut edits, Some(block), &replaced.missing)?;
            }
        }
    }
    Ok(edits)
}

/// Reads a line as a single directive without a block.
fn read(line: &str) -> Result<GivenDirective, String> {
    let text = format!("{};", line.trim_end_matches([';', ' ']));
    let mut lexer = Lexer::new(text.as_bytes());
    let mut words = Vec::new();
    loop {
        match lexer.token().map_err(|(_, what)| format!("'{line}' is no directive: {what}"))? {
            Token::Word(word) => words.push(word.text),
            Token::End(at) if at + 1 == text.len() && !words.is_empty() => break,
            Token::Open(_) | Token::Close(_) => {
                return Err(format!("'{line}' has a block: of nginx single directives are taken, and --at says where"));
            }
            Token::End(_) | Token::EndOfText(_) => return Err(format!("'{line}' is not one directive")),
        }
    }
    let name = words.remove(0);
    Ok(GivenDirective { name, arguments: words, is_negated: false, text })
}

/// The directives of a block, or of one name there, that are no blocks themselves.
fn present_in(config: &Config, block: Option<usize>, name: Option<&str>) -> Vec<PresentDirective> {
    let own = config.directives.iter().filter(|d| d.parent == block && !d.is_block);
    own.filter(|d| name.is_none_or(|name| d.name() == name)).map(present).collect()
}

fn present(directive: &Directive) -> PresentDirective {
    PresentDirective {
        name: directive.name().to_string(),
        arguments: directive.arguments().iter().map(|w| w.text.clone()).collect(),
        source: directive.source,
        at: directive.at.clone(),
        is_negated: false,
    }
}

/// Places directives of one name wherever the configuration has it, otherwise for the whole server.
fn everywhere(config: &Config, edits: &mut Edits, group: &[GivenDirective]) -> Result<(), String> {
    let name = group[0].name.as_str();
    let lines = config.directives.iter().filter(|d| d.name() == name && !d.is_block);
    if let Some(line) = lines.clone().find(|d| config.sources[d.source].file.is_none()) {
        return Err(format!("{name} is set by {}: a file cannot change that", config.place(line)));
    }
    let mut blocks: Vec<Option<usize>> = lines.map(|d| d.parent).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut found = false;
    for block in &blocks {
        let own = present_in(config, *block, Some(name));
        found |= NAMES.replace(edits, group, &own).found;
    }
    if found {
        return Ok(());
    }
    if blocks.is_empty() {
        let of_context = |kind: &str| {
            let is_it = |d: &&Directive| d.is_block && d.parent.is_none() && d.name() == kind;
            let found = config.directives.iter().position(|d| is_it(&d));
            found.ok_or_else(|| format!("the configuration has no {kind} block for {name}"))
        };
        blocks.push(match name {
            name if OF_MAIN.contains(&name) => None,
            name if OF_EVENTS.contains(&name) => Some(of_context("events")?),
            _ => Some(of_context("http")?),
        });
    }
    let texts: Vec<String> = group.iter().map(|d| d.text.clone()).collect();
    blocks.iter().try_for_each(|block| insert(config, edits, *block, &texts))
}

/// Adds directives to a block: behind its last one, since some must follow others.
pub(super) fn insert(config: &Config, edits: &mut Edits, block: Option<usize>, texts: &[String]) -> Result<(), String> {
    if texts.is_empty() {
        return Ok(());
    }
    let text = texts.join(NAMES.between);
    let Some(block) = block else {
        let first = config.directives.iter().find(|d| d.parent.is_none() && config.sources[d.source].file.is_some());
        let first = first.ok_or("the configuration is empty")?;
        edits.replace(first.source, first.at.start..first.at.start, format!("{text} "));
        return Ok(());
    };
    let (source, at) = end_of(config, block);
    edits.replace(source, at..at, format!(" {text}"));
    Ok(())
}

/// Returns the source and the byte after the last directive of a block that is none itself.
pub(super) fn end_of(config: &Config, block: usize) -> (usize, usize) {
    let opens = &config.directives[block];
    let mut own = config.directives.iter().filter(|d| d.parent == Some(block));
    let last = own.rfind(|d| d.source == opens.source && !d.is_block).unwrap_or(opens);
    (last.source, last.at.end)
}

/// The blocks of a scope.
fn blocks_of(config: &Config, scope: &ConfigScope) -> Result<Vec<usize>, String> {
    let blocks = || config.directives.iter().enumerate().filter(|(_, d)| d.is_block);
    let none = |what: String, mut known: Vec<String>| {
        known.sort();
        known.dedup();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Err(format!("the configuration has no {what}; it has {known}"))
    };
    match scope {
        ConfigScope::Host(name) => {
            let names = |block: usize| -> Vec<String> {
                let own = config.directives.iter().filter(|d| d.parent == Some(block) && d.name() == "server_name");
                own.flat_map(|d| d.arguments().iter().map(|w| w.text.clone())).collect()
            };
            let called = |(i, d): (usize, &Directive)| match d.name() {
                "server" => names(i),
                "upstream" => d.arguments().iter().map(|w| w.text.clone()).collect(),
                _ => Vec::new(),
            };
            let found: Vec<usize> = blocks().filter(|b| called(*b).contains(name)).map(|(i, _)| i).collect();
            match found.is_empty() {
                true => none(format!("server or upstream called {name}"), blocks().flat_map(called).collect()),
                false => Ok(found),
            }
        }
        ConfigScope::Location(path) => {
            let paths = |d: &Directive| Some(d.arguments().last()?.text.clone()).filter(|_| d.name() == "location");
            let found: Vec<usize> = blocks().filter(|(_, d)| paths(d).as_ref() == Some(path)).map(|(i, _)| i).collect();
            match found.is_empty() {
                true => none(format!("location {path}"), blocks().filter_map(|(_, d)| paths(d)).collect()),
                false => Ok(found),
            }
        }
        ConfigScope::Directory(_) => Err("nginx has no sections for folders: --at location:PATH or vhost:NAME".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::change::Directives;

    const SITE: &str = "worker_processes 1;\nevents {}\nhttp {\n gzip on; # all\n upstream app { server 1.1.1.1; }\n server {\n  \
        server_name shop;\n  gzip_comp_level 1;\n  add_header A 1;\n  location /a { gzip off; }\n }\n}\n";

    fn changed(lines: &str, scope: Option<&str>) -> Result<String, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, SITE).expect("written");
        let config = Config::read(Path::new(&file), None).expect("read");
        let scope = scope.map(|s| s.parse().expect("a scope"));
        let edits = edits(&config, &Change { scope, ..Change::from(Directives::read(lines)) })?;
        let at = config.sources.iter().position(|s| s.file.is_some()).expect("a file");
        Ok(String::from_utf8(edits.apply(at, SITE.as_bytes(), 0..SITE.len())).expect("text"))
    }

    #[test]
    fn without_a_scope_a_directive_goes_where_the_configuration_has_it() {
        let new = changed("gzip off; gzip_comp_level 9", None).expect("placed");
        assert_eq!(new, SITE.replace("gzip on", "gzip off").replace("level 1", "level 9"));
        let new = changed("tcp_nopush on", None).expect("placed");
        assert_eq!(new, SITE.replace("gzip on;", "gzip on; tcp_nopush on;"));
        let new = changed("multi_accept on; pcre_jit on; worker_processes 2", None).expect("placed");
        let expected = SITE.replace("worker_processes 1;", "pcre_jit on; worker_processes 2;");
        assert_eq!(new, expected.replace("events {", "events { multi_accept on;"));
        // A server with headers of its own does not have those of http.
        let new = changed("add_header B 2", None).expect("placed");
        assert_eq!(new, SITE.replace("A 1;", "A 1; add_header B 2;"));
        assert_eq!(changed("gzip_comp_level 1", None), Ok(SITE.into()));
    }

    #[test]
    fn with_a_scope_it_goes_there_and_nowhere_else() {
        let new = changed("gzip on; gzip_comp_level 5", Some("location:/a")).expect("placed");
        assert_eq!(new, SITE.replace("gzip off;", "gzip on; gzip_comp_level 5;"));
        let new = changed("keepalive 5", Some("vhost:app")).expect("placed");
        assert_eq!(new, SITE.replace("1.1.1.1;", "1.1.1.1; keepalive 5;"));
        let new = changed("sendfile on", Some("vhost:shop")).expect("placed");
        assert_eq!(new, SITE.replace("A 1;", "A 1; sendfile on;"));
        for (scope, part) in [("vhost:x", "app, shop"), ("location:/b", "/a"), ("directory:/b", "location:PATH")] {
            let refused = changed("gzip on", Some(scope)).expect_err("not there");
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_line_is_one_directive_without_a_block() {
        for wrong in
            ["gzip on } user root", "location / { gzip on", "\"a", "add_header X \"a\\\\\"; user root; #\"", ";"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(read("gzip on;").expect("one").text, "gzip on;");
    }
}
