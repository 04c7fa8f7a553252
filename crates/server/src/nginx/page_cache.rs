//! Turns a cache of pages into lines of nginx's configuration.
//!
//! The cache's name is a variable that is empty for all requests but those that may use it. An empty name is as good as
//! no cache: nginx passes such a request on with all its fields, whereas `proxy_cache_bypass` would drop conditions and
//! ranges, and turn HEAD into GET (ngx_http_upstream_cache).

use std::path::{Path, PathBuf};

use super::config::{Config, Directive};
use super::directives::{end_of, insert};
use crate::edits::Edits;
use crate::page_cache::{KEPT, PageCache, is_plain, path_pattern, site_and_path};

/// Modules that pass requests on and can cache the answers.
const MODULES: [&str; 4] = ["proxy", "fastcgi", "uwsgi", "scgi"];
/// Directives whose requests within a request, or whose users, a key of ours does not know.
const UNKNOWN_TO_KEY: [&str; 8] =
    ["add_after_body", "add_before_body", "auth_jwt", "auth_request", "mirror", "slice", "ssi", "ssl_verify_client"];
/// Bytes of names and of pages that a cache on trial may have.
const NAMES: &str = "2m";
const PAGES: &str = "128m";

/// Returns the edits that put a cache into the configuration.
///
/// # Errors
/// In words, if the configuration passes nothing on, or has something that such a cache must not meet.
pub fn edits(config: &Config, cache: &PageCache) -> Result<Edits, String> {
    let folder = cache.folder.as_deref().ok_or("the cache has no folder")?;
    let modules = modules(config)?;
    let http = config.directives.iter().position(|d| d.is_block && d.parent.is_none() && d.name() == "http");
    let http = http.ok_or("the configuration has no http block for a cache")?;
    let lines = lines(&modules, cache, &|module| folder.join(module))?;
    let mut edits = Edits::default();
    if cache.token.is_some() {
        insert(config, &mut edits, Some(http), &lines)?;
    } else {
        // People will read it.
        let (source, at) = end_of(config, http);
        edits.replace(source, at..at, format!("\n    {KEPT}\n    {}", lines.join("\n    ")));
    }
    Ok(edits)
}

/// Returns the lines for the http block that make the cache one for all visitors. Without a folder of its own it stores
/// pages in one in `home`.
pub fn kept_lines(config: &Config, cache: &PageCache, home: &Path) -> Result<Vec<String>, String> {
    let cache = PageCache { token: None, ..cache.clone() };
    lines(&modules(config)?, &cache, &|module| match &cache.folder {
        Some(folder) => folder.join(module),
        None => home.join(format!("pages_{module}")),
    })
}

/// Directives that pass requests on.
fn passes(config: &Config) -> impl Iterator<Item = &Directive> {
    let is_pass = |d: &&Directive| d.name().strip_suffix("_pass").is_some_and(|module| MODULES.contains(&module));
    config.directives.iter().filter(is_pass).filter(|d| config.context(d).first() == Some(&"http"))
}

/// Returns the modules that pass requests on.
fn modules(config: &Config) -> Result<Vec<&'static str>, String> {
    let is_off = |d: &Directive| d.arguments().first().is_some_and(|w| w.text == "off");
    let has_own = |d: &&Directive| {
        let of = |module: &&str| {
            d.name().strip_prefix(module).and_then(|rest| rest.strip_prefix('_')).is_some_and(|rest| {
                rest.starts_with("cache") || ["no_cache", "ignore_headers", "store"].contains(&rest)
            })
        };
        MODULES.iter().any(of) || UNKNOWN_TO_KEY.contains(&d.name())
    };
    if let Some(own) = config.directives.iter().filter(has_own).find(|d| !is_off(d)) {
        return Err(format!("{} at {} is about a cache, or about users, already", own.name(), config.place(own)));
    }
    let all: Vec<&str> =
        MODULES.into_iter().filter(|m| passes(config).any(|d| d.name() == format!("{m}_pass"))).collect();
    if all.is_empty() { Err("it passes no request on that a cache could answer".into()) } else { Ok(all) }
}

/// Returns the lines of a cache: for requests of ours, or for those of all visitors.
fn lines(modules: &[&str], cache: &PageCache, folder: &dyn Fn(&str) -> PathBuf) -> Result<Vec<String>, String> {
    let (token, named) = (cache.checked_token()?, cache.named()?);
    let mut lines = vec!["map $http_cookie$http_authorization $lastdrop_known { '' ''; default known; }".to_string()];
    if let Some(token) = token {
        let field = PageCache::HEADER.to_ascii_lowercase().replace('-', "_");
        lines.push(format!("map $http_{field} $lastdrop_ours {{ default ''; {token} ours; }}"));
    }
    let (of_whom, ours) = if token.is_some() { ("$lastdrop_ours:", "ours:") } else { ("$host:$server_port:", "") };
    let pattern_of = |name: &String| if token.is_some() { path_pattern(name) } else { page_pattern(name) };
    let pages = named.iter().map(pattern_of).collect::<Result<Vec<_>, _>>()?.join("|");
    for module in modules {
        // nginx takes no other folder for a zone whose name stays.
        let zone = format!("{}_{module}", if token.is_some() { "trial" } else { "pages" });
        let folder = folder(module);
        let folder = folder.to_str().filter(|text| is_plain(text)).ok_or("the cache's folder cannot be quoted")?;
        lines.push(format!(
            "map $lastdrop_known$request_method:{of_whom}$request_uri $lastdrop_{zone} {{ default ''; \"~^(GET|HEAD):{ours}({pages})([?]|$)\" lastdrop_{zone}; }}"
        ));
        lines.push(format!(
            "{module}_cache_path {folder} levels=1:2 keys_zone=lastdrop_{zone}:{NAMES} max_size={PAGES} inactive=10m use_temp_path=off;"
        ));
        for line in [
            format!("cache $lastdrop_{zone};"),
            // The port and the path inside count, too: an answer may depend on either.
            "cache_key $scheme|$request_method|$host|$http_host|$server_port|$uri|$request_uri;".into(),
            "cache_methods GET HEAD;".into(),
            format!("cache_valid 200 {}s;", cache.lifetime_s),
            "cache_lock on;".into(),
            "cache_use_stale updating error timeout;".into(),
            "cache_background_update on;".into(),
        ] {
            lines.push(format!("{module}_{line}"));
        }
    }
    Ok(lines)
}

/// Returns a regular expression that matches this page of this site alone: the site's name and port, and the path.
fn page_pattern(page: &str) -> Result<String, String> {
    let (site, path) = site_and_path(page)?;
    let escaped =
        |c: char| if c.is_ascii_alphanumeric() || "-_:".contains(c) { c.to_string() } else { format!("[{c}]") };
    // nginx has the name in small letters.
    let name: String = site.chars().map(escaped).collect();
    Ok(format!("{name}:{}", path_pattern(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::Edits;

    const SITE: &str = "events {}\nhttp {\n server {\n  location ~ \\.php$ { fastcgi_pass unix:/run/a; }\n }\n}\n";

    fn cache() -> PageCache {
        PageCache {
            token: Some("0123456789abcdef".into()),
            paths: vec!["/a.php".into(), "/b+c/".into()],
            pages: vec!["www.Example.com:80/a.php".into(), "[::1]:8080/b+c/".into()],
            lifetime_s: 10,
            folder: Some("/var/lib/nginx/lastdrop-cache-0".into()),
        }
    }

    fn read(text: &str) -> (tempfile::TempDir, Config) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, text).expect("written");
        let config = Config::read(&file, None).expect("read");
        (dir, config)
    }

    fn changed(text: &str, cache: &PageCache) -> Result<String, String> {
        let (_dir, config) = read(text);
        let edits: Edits = edits(&config, cache)?;
        let at = config.sources.iter().position(|s| s.file.is_some()).expect("a file");
        Ok(String::from_utf8(edits.apply(at, text.as_bytes(), 0..text.len())).expect("text"))
    }

    #[test]
    fn a_cache_is_for_requests_of_ours_that_name_no_user_and_for_these_pages_alone() {
        let new = changed(SITE, &cache()).expect("placed");
        for part in [
            "map $http_cookie$http_authorization $lastdrop_known { '' ''; default known; }",
            "map $http_x_lastdrop_trial $lastdrop_ours { default ''; 0123456789abcdef ours; }",
            "\"~^(GET|HEAD):ours:(/a[.]php|/b[+]c/)([?]|$)\" lastdrop_trial_fastcgi;",
            "fastcgi_cache $lastdrop_trial_fastcgi;",
            "fastcgi_cache_path /var/lib/nginx/lastdrop-cache-0/fastcgi ",
            "$scheme|$request_method|$host|",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert!(!new.contains("ignore_headers") && !new.contains("proxy_"), "{new}");
        assert!(new.ends_with(SITE.split_once("http {").expect("a block").1), "nothing else is changed: {new}");
    }

    #[test]
    fn a_configuration_with_a_cache_of_its_own_or_with_users_that_no_key_knows_is_left_alone() {
        for line in [
            "fastcgi_cache pages;",
            "proxy_cache_valid 1m;",
            "fastcgi_ignore_headers Set-Cookie;",
            "fastcgi_no_cache $arg_a;",
            "auth_request /auth;",
            "ssi on;",
            "ssl_verify_client optional;",
        ] {
            let refused = changed(&SITE.replace("fastcgi_pass", &format!("{line} fastcgi_pass")), &cache());
            assert!(refused.as_ref().is_err_and(|e| e.contains("nginx.conf:4")), "{line}: {refused:?}");
        }
        assert!(changed(&SITE.replace("fastcgi_pass", "ssi off; fastcgi_pass"), &cache()).is_ok());
        let refused = changed(&SITE.replace("fastcgi_pass unix:/run/a", "root /srv"), &cache());
        assert!(refused.is_err_and(|e| e.contains("passes no request on")));
    }

    #[test]
    fn a_path_or_token_that_could_be_more_than_itself_is_refused() {
        for path in ["a", "/a\"b", "/a;b", "/a$b", "/a\\b", "/a b", "/a{", "/\u{e4}", "/a|/b"] {
            assert!(changed(SITE, &PageCache { paths: vec![path.into()], ..cache() }).is_err(), "{path}");
        }
        for token in ["", "a b", "a;"] {
            assert!(changed(SITE, &PageCache { token: Some(token.into()), ..cache() }).is_err(), "{token}");
        }
        assert!(changed(SITE, &PageCache { folder: Some("/a b".into()), ..cache() }).is_err());
        assert!(changed(SITE, &PageCache { folder: None, ..cache() }).is_err());
    }

    #[test]
    fn the_lines_that_stay_are_for_all_who_name_no_user() {
        let (_dir, config) = read(SITE);
        let text = kept_lines(&config, &PageCache { folder: None, ..cache() }, Path::new("/var/lib/nginx"))
            .expect("lines")
            .join("\n");
        let whole = "\"~^(GET|HEAD):(www[.]example[.]com:80:/a[.]php|[[]::1[]]:8080:/b[+]c/)([?]|$)\"";
        assert!(text.contains(whole) && !text.contains("ours"), "{text}");
        assert!(text.contains("map $lastdrop_known$request_method:$host:$server_port:$request_uri "), "{text}");
        for wrong in ["", "/a", "a b:80/", "a\":80/", "(.*):80/", "a:80", "a:80/$"] {
            let cache = PageCache { pages: vec![wrong.into()], ..cache() };
            assert!(kept_lines(&config, &cache, Path::new("/var")).is_err(), "{wrong}");
        }
        let new = changed(SITE, &PageCache { token: None, ..cache() }).expect("placed");
        assert!(new.contains(&format!("http {{\n    {KEPT}\n    map $http_cookie")), "{new}");
        assert!(new.ends_with(SITE.split_once("http {").expect("a block").1), "nothing else is changed: {new}");
        assert!(text.contains("fastcgi_cache_path /var/lib/nginx/pages_fastcgi "), "{text}");
    }
}
