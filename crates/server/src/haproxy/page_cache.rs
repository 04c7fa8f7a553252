//! Turns a cache of pages on trial into lines of HAProxy's configuration.
//!
//! Frontends mark the requests that may use it before any rule of theirs can take a Cookie away. Backends ask it after all
//! their rules, so that none is skipped. HAProxy stores only answers with a lifetime; those of the trial get one if they have
//! none. Its key has the host and the URL but not the scheme, so there is a cache for each. It is in memory, and gone with
//! the process.

use super::config::{Config, ConfigLine};
use super::knobs::line_end;
use crate::edits::Edits;
use crate::page_cache::PageCache;

/// Caches by scheme, each with the condition of its requests.
const CACHES: [(&str, &str); 2] = [("lastdrop-http", "!{ ssl_fc }"), ("lastdrop-https", "{ ssl_fc }")];
/// Megabytes of a cache, and bytes of its largest page.
const TOTAL_MB: u32 = 64;
const LARGEST_PAGE: u32 = 4 << 20;
const MARKED: &str = "{ var(txn.lastdrop_cache) -m bool }";
/// Rules that HAProxy applies after those of `http-request`. It warns of another order.
const LATER: [&str; 4] = ["redirect", "use_backend", "use-server", "default_backend"];
const MOST_SECTIONS: usize = 100;

/// Returns the edits that put a cache into the configuration.
///
/// # Errors
/// In words, if the configuration has no HTTP proxy, or has something that such a cache must not meet.
pub fn edits(config: &Config, cache: &PageCache) -> Result<Edits, String> {
    let token = cache.checked_token()?.ok_or("a cache is only tried on HAProxy")?;
    let is_ours =
        format!("{{ req.hdr({}) -m str {token} }} {{ path -m str {} }}", PageCache::HEADER, paths(cache.named()?)?);
    let (sections, source) = (proxies(config)?, config.sources.len() - 1);
    let mut edits = Edits::default();
    for section in sections {
        let kind = config.sections[section].kind.as_str();
        if kind != "backend" {
            insert(config, &mut edits, section, RulePosition::BeforeRules, &[mark(&is_ours)]);
        }
        if kind != "frontend" {
            insert(config, &mut edits, section, RulePosition::AfterRules, &uses());
            insert(config, &mut edits, section, RulePosition::AfterAnswers, &stores(cache));
        }
    }
    let text = &config.sources[source].text;
    let begins = if text.is_empty() || text.ends_with(b"\n") { "" } else { "\n" };
    edits.replace(source, text.len()..text.len(), format!("{begins}{}\n", caches(cache).join("\n")));
    Ok(edits)
}

/// Returns the lines that make the cache one for all visitors of these pages.
pub fn kept_lines(config: &Config, cache: &PageCache) -> Result<Vec<String>, String> {
    proxies(config)?;
    // Clients leave the port of the scheme out.
    let without_port = |page: &String| {
        let (site, path) = page.split_once('/')?;
        let name = site.strip_suffix(":80").or_else(|| site.strip_suffix(":443"))?;
        Some(format!("{name}/{path}"))
    };
    let pages: Vec<String> =
        cache.pages.iter().map(|page| without_port(page).unwrap_or_else(|| page.clone())).collect();
    let pages = pages.iter().map(|page| word(page)).collect::<Result<Vec<_>, _>>()?.join(" ");
    let indented = |lines: Vec<String>| lines.into_iter().map(|line| format!("    {line}"));
    let mut lines = caches(cache);
    lines.push("# in the frontend, before its other rules".into());
    lines.extend(indented(vec![mark(&format!("{{ base -m str {pages} }}"))]));
    lines.push("# in the backend, after its other rules".into());
    lines.extend(indented(uses().into_iter().chain(stores(cache)).collect()));
    Ok(lines)
}

fn paths(paths: &[String]) -> Result<String, String> {
    let words = paths
        .iter()
        .map(|path| word(path).and_then(|word| if word.starts_with('/') { Ok(word) } else { Err(cannot_quote(path)) }));
    Ok(words.collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// Returns the text if HAProxy reads it as it is.
fn word(text: &str) -> Result<&str, String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._~%:@=&+,-[]".contains(&b);
    if text.is_empty() || text.starts_with('-') || !text.bytes().all(is_plain) {
        Err(cannot_quote(text))
    } else {
        Ok(text)
    }
}

fn cannot_quote(text: &str) -> String {
    format!("the path {text} cannot be quoted")
}

fn caches(cache: &PageCache) -> Vec<String> {
    let lines = |(name, _): (&str, &str)| {
        [
            format!("cache {name}"),
            format!("    total-max-size {TOTAL_MB}"),
            format!("    max-object-size {LARGEST_PAGE}"),
            format!("    max-age {}", cache.lifetime_s),
            "    process-vary on".into(),
        ]
    };
    CACHES.into_iter().flat_map(lines).collect()
}

fn mark(whose: &str) -> String {
    format!(
        "http-request set-var(txn.lastdrop_cache) bool(true) if METH_GET {whose} !{{ req.hdr(Cookie) -m found }} !{{ req.hdr(Authorization) -m found }} !{{ req.hdr(Range) -m found }}"
    )
}

fn uses() -> Vec<String> {
    CACHES.iter().map(|(name, of)| format!("http-request cache-use {name} if {MARKED} {of}")).collect()
}

fn stores(cache: &PageCache) -> Vec<String> {
    let has_none = "!{ res.hdr(Cache-Control) -m found } !{ res.hdr(Expires) -m found } !{ res.hdr(Pragma) -m found }";
    let lifetime =
        format!("http-response set-header Cache-Control max-age={} if {MARKED} {has_none}", cache.lifetime_s);
    let stored = CACHES.iter().map(|(name, of)| format!("http-response cache-store {name} if {MARKED} {of}"));
    std::iter::once(lifetime).chain(stored).collect()
}

/// Returns the HTTP proxies.
fn proxies(config: &Config) -> Result<Vec<usize>, String> {
    if config.sections.iter().any(|section| section.kind == "cache") {
        return Err("it has a cache already".into());
    }
    let is_in_the_way = |line: &&ConfigLine| match line.keyword() {
        // A filter may ask others who a visitor is, or change pages after they are stored.
        "filter" | "compression" => true,
        "bind" => line.words.iter().any(|word| ["verify", "ca-file"].contains(&word.text.as_str())),
        _ => false,
    };
    if let Some(line) = config.lines.iter().find(is_in_the_way) {
        return Err(format!(
            "{} at {} changes pages, or knows users, in a way that the cache would not",
            line.keyword(),
            config.place(line)
        ));
    }
    let is_http = |section: usize| {
        config.said(section, "mode").and_then(|line| line.argument(1)).is_some_and(|mode| mode.text == "http")
    };
    let kinds = |section: &usize| ["frontend", "backend", "listen"].contains(&config.sections[*section].kind.as_str());
    let all: Vec<usize> = (0..config.sections.len()).filter(kinds).filter(|section| is_http(*section)).collect();
    match all.len() {
        0 => Err("it has no proxy with mode http".into()),
        1..=MOST_SECTIONS => Ok(all),
        many => Err(format!("{many} proxies are more than the {MOST_SECTIONS} that are edited for a trial")),
    }
}

/// Where rules go in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RulePosition {
    BeforeRules,
    AfterRules,
    AfterAnswers,
}

fn insert(config: &Config, edits: &mut Edits, section: usize, at: RulePosition, rules: &[String]) {
    let head = &config.sections[section].head;
    let own: Vec<&ConfigLine> =
        config.lines.iter().filter(|line| line.section == section && line.source == head.source).collect();
    let text = &config.sources[head.source].text;
    let indent = own.first().and_then(|line| text.get(line.at.start..line.words[0].at.start));
    let indent = indent.map_or("    ".into(), String::from_utf8_lossy);
    let first = |keywords: &[&str]| own.iter().find(|line| keywords.contains(&line.keyword()));
    let last = |keyword: &str| own.iter().rfind(|line| line.keyword() == keyword);
    let (before, after) = match at {
        RulePosition::BeforeRules => (first(&["http-request"]).or(first(&LATER)), None),
        RulePosition::AfterRules => match last("http-request") {
            Some(line) => (None, Some(line)),
            None => (first(&LATER), None),
        },
        RulePosition::AfterAnswers => (None, last("http-response")),
    };
    if let Some(line) = before {
        let end = line_end(&text[line.at.end..]);
        let new: String = rules.iter().map(|rule| format!("{indent}{rule}{end}")).collect();
        edits.replace(head.source, line.at.start..line.at.start, new);
    } else {
        let line = after.or(own.last()).map_or(head, |line| *line);
        let end = line_end(&text[line.at.end..]);
        let new: String = rules.iter().map(|rule| format!("{end}{indent}{rule}")).collect();
        edits.replace(head.source, line.at.end..line.at.end, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = "defaults\n  mode http\nfrontend web\n  bind :80\n  http-request del-header Cookie\n  default_backend app\n\
        listen all\n  bind :81\n  server a 1.1.1.1:1\nbackend app\n  http-request deny if { src 1.2.3.4 }\n  server a 1.1.1.1:1\n\
        backend raw\n  mode tcp\n";

    fn cache() -> PageCache {
        PageCache {
            token: Some("0123456789abcdef".into()),
            paths: vec!["/a.php".into(), "/b+c/".into()],
            pages: vec!["www.example.com:80/a.php".into(), "a.example:8080/b+c/".into()],
            lifetime_s: 10,
            folder: None,
        }
    }

    fn read(text: &str) -> Config {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("h.cfg");
        std::fs::write(&file, text).expect("written");
        Config::read(&[file], &[], &|_| true).expect("read")
    }

    fn changed(text: &str, cache: &PageCache) -> Result<Vec<String>, String> {
        let edits = edits(&read(text), cache)?;
        let text = edits.apply(0, text.as_bytes(), 0..text.len());
        Ok(String::from_utf8(text).expect("text").lines().map(str::to_string).collect())
    }

    #[test]
    fn requests_of_ours_are_marked_before_all_rules_and_the_cache_is_asked_after_all() {
        let new = changed(SITE, &cache()).expect("placed");
        let at = |section: &str, begins: &str| {
            let head = new.iter().position(|line| line == section).expect("a section");
            let found = new[head..].iter().position(|line| line.trim().starts_with(begins));
            found.unwrap_or_else(|| panic!("{begins} in {section}: {new:#?}"))
        };
        assert!(at("frontend web", "http-request set-var") < at("frontend web", "http-request del-header"));
        assert!(at("listen all", "http-request set-var") < at("listen all", "http-request cache-use"));
        assert!(at("backend app", "http-request deny") < at("backend app", "http-request cache-use"));
        assert!(at("backend app", "http-response set-header") < at("backend app", "http-response cache-store"));
        let mark = &new[new.iter().position(|line| line.contains("set-var")).expect("a mark")];
        assert!(mark.contains(
            "{ req.hdr(X-Lastdrop-Trial) -m str 0123456789abcdef } { path -m str /a.php /b+c/ } !{ req.hdr(Cookie)"
        ));
        assert_eq!(new.iter().filter(|line| line.contains("cache-use lastdrop-https if ")).count(), 2, "{new:#?}");
        assert_eq!(new.last().map(String::as_str), Some("    process-vary on"));
        let theirs: Vec<&str> =
            new.iter().map(String::as_str).filter(|line| SITE.lines().any(|own| own == *line)).collect();
        assert_eq!(theirs, SITE.lines().collect::<Vec<_>>(), "nothing else is changed");
    }

    #[test]
    fn what_the_cache_must_not_meet_or_cannot_be_quoted_is_refused() {
        for line in ["cache own", "filter spoe", "compression algo gzip", "bind :444 ssl verify required ca-file a"] {
            let text = match line.starts_with("cache") {
                true => format!("{SITE}{line}\n"),
                false => SITE.replace("  bind :81", &format!("  bind :81\n  {line}")),
            };
            assert!(changed(&text, &cache()).is_err(), "{line}");
        }
        assert!(changed("defaults\n  mode tcp\nfrontend web\n  bind :80\n", &cache()).is_err());
        for path in ["a", "/a b", "/a\"b", "/$x", "/a#b", "/a\\b", "/{a}", ""] {
            assert!(changed(SITE, &PageCache { paths: vec![path.into()], ..cache() }).is_err(), "{path}");
        }
        for token in ["", "a b"] {
            assert!(changed(SITE, &PageCache { token: Some(token.into()), ..cache() }).is_err(), "{token}");
        }
        assert!(changed(SITE, &PageCache { token: None, ..cache() }).is_err(), "it is not kept");
    }

    #[test]
    fn the_lines_to_keep_name_the_pages_with_their_sites() {
        let text = kept_lines(&read(SITE), &cache()).expect("lines").join("\n");
        assert!(text.contains("{ base -m str www.example.com/a.php a.example:8080/b+c/ }"), "{text}");
        assert!(!text.contains("Trial") && text.contains("process-vary on"), "{text}");
    }
}
