//! Finds the pool and script that answer a URL, and the variables that a front server passes for it. The pools' status
//! pages show it: the worker has served one more request after the URL was requested.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::fastcgi::{self, FpmSocket};
use lastdrop_probe::status::{self, Answer};
use serde::Deserialize;

use crate::fpm_config::{Scan, socket_of};

const MOST_TIME: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
/// Space in PHP-FPM's scoreboard (`fpm_scoreboard.h`); longer text is truncated.
const NAME_ROOM: usize = 127;
const QUERY_ROOM: usize = 511;
const SCRIPT_ROOM: usize = 255;

/// A request as a pool received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRequest {
    pub pool: String,
    pub script: PathBuf,
    /// `SCRIPT_NAME`.
    name: String,
    query: String,
}

/// What the status pages and the answer of the URL show.
pub struct ServedEvidence {
    pub served: ServedRequest,
    /// The answer of the URL.
    pub answer: Answer,
    /// Scripts that workers served before, of any site.
    pub others: Vec<PathBuf>,
}

/// The status page of a pool.
struct Page {
    pool: String,
    socket: FpmSocket,
    path: String,
}

#[derive(Debug, Deserialize)]
struct StatusDocument {
    processes: Vec<ProcessRow>,
}

/// A worker, and its current or last request.
#[derive(Debug, Clone, Deserialize)]
struct ProcessRow {
    pid: i32,
    requests: u64,
    #[serde(rename = "request uri")]
    uri: String,
    script: String,
}

/// Finds the worker that answers a URL.
///
/// # Errors
/// In words, if that cannot be determined.
pub fn of(scan: &Scan, url: &Url) -> Result<ServedEvidence, String> {
    let page = |pool: &&str| {
        let value = |key: &str| Some(scan.last(pool, key)?.value.replace("$pool", pool));
        let socket = socket_of(&value("pm.status_listen").or_else(|| value("listen"))?)?;
        Some(Page { pool: (*pool).to_string(), socket, path: value("pm.status_path")? })
    };
    let pages: Vec<Page> = scan.pools().iter().filter_map(page).collect();
    if pages.is_empty() {
        return Err(
            "which script answers the URL is told by its status page, and it has none: pm.status_path = /status".into(),
        );
    }
    let until = Instant::now() + MOST_TIME;
    let left = || until.saturating_duration_since(Instant::now()).max(PAUSE);
    let mut several = false;
    while Instant::now() < until {
        let before = pages.iter().map(|page| page.rows(left())).collect::<Result<Vec<_>, _>>()?;
        let answer = status::get(url, left()).map_err(|e| e.to_string())?;
        let after = pages.iter().map(|page| page.rows(left())).collect::<Result<Vec<_>, _>>()?;
        let all = pages.iter().zip(before.iter().zip(&after));
        let mut served: Vec<ServedRequest> = Vec::new();
        for (page, (before, after)) in all {
            for row in newer(before, after).filter(|row| !page.is_of(row)) {
                let one = row.served(&page.pool)?;
                if !served.contains(&one) {
                    served.push(one);
                }
            }
        }
        match (served.pop(), served.is_empty()) {
            (Some(served), true) => {
                let all = before.iter().chain(&after).flatten().map(|row| PathBuf::from(&row.script));
                let others = all.filter(|script| script.is_absolute() && script.is_file()).collect();
                return Ok(ServedEvidence { served, answer, others });
            }
            (one, _) => several |= one.is_some(),
        }
        // A request appears on the page when it is finished, which may be just after its answer.
        thread::sleep(PAUSE);
    }
    Err(match several {
        true => "others ask it for other pages at the same time: which script answers the URL cannot be told".into(),
        false => "none of the workers that its status page tells of has answered the URL: either another server does, or the same \
                  worker makes the page (pm.status_listen gives it one of its own)"
            .into(),
    })
}

/// Workers that have served more requests than before.
fn newer<'a>(before: &'a [ProcessRow], after: &'a [ProcessRow]) -> impl Iterator<Item = &'a ProcessRow> {
    let had = |row: &ProcessRow| before.iter().find(|b| b.pid == row.pid).map_or(0, |b| b.requests);
    after.iter().filter(move |row| row.requests > had(row))
}

impl Page {
    fn rows(&self, limit: Duration) -> Result<Vec<ProcessRow>, String> {
        let what = |why: String| format!("its status page ({} of {}): {why}", self.path, self.socket);
        let text = fastcgi::get(&self.socket, &self.path, "full&json", limit).map_err(|e| what(e.to_string()))?;
        let rows: StatusDocument =
            lastdrop_model::read_json(&text).map_err(|e| what(format!("cannot be read: {e}")))?;
        Ok(rows.processes)
    }

    /// True if the row is a request for the status page itself.
    fn is_of(&self, row: &ProcessRow) -> bool {
        row.uri.split('?').next() == Some(&self.path)
    }
}

impl ProcessRow {
    fn served(&self, pool: &str) -> Result<ServedRequest, String> {
        let (name, query) = self.uri.split_once('?').unwrap_or((&self.uri, ""));
        if name.len() >= NAME_ROOM || query.len() >= QUERY_ROOM || self.script.len() >= SCRIPT_ROOM {
            return Err("the URL or the path of its script is too long for the status page, which cuts it off".into());
        }
        let script = PathBuf::from(&self.script);
        if !script.is_absolute() || !script.is_file() {
            return Err(format!("the script that answers the URL is not to be found here: '{}'", self.script));
        }
        Ok(ServedRequest { pool: pool.into(), script, name: name.into(), query: query.into() })
    }
}

impl ServedRequest {
    /// The served folder: the script's path without its name, or otherwise its folder.
    pub fn document_root(&self) -> PathBuf {
        let script = self.script.to_string_lossy();
        let root = script.strip_suffix(&self.name).filter(|root| self.name.starts_with('/') && !root.is_empty());
        root.map(PathBuf::from).or_else(|| self.script.parent().map(Path::to_path_buf)).unwrap_or_default()
    }

    /// The request that a front server passes for another path of the site. A path names its script, or its folder has an
    /// index; otherwise this script answers it, too, as a front controller does.
    pub fn of_path(&self, path: &str) -> ServedRequest {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let root = self.document_root();
        let end = path.match_indices(".php").map(|(at, word)| at + word.len());
        let named =
            end.filter(|end| matches!(path.as_bytes().get(*end), None | Some(b'/'))).map(|end| path[..end].to_string());
        let index = format!("{}/index.php", path.trim_end_matches('/'));
        let file = |name: &str| root.join(name.trim_start_matches('/'));
        let own = |name: &String| path == self.name && *name == self.name;
        let found = named.chain([index]).find(|name| own(name) || file(name).is_file());
        let (script, name) = match found {
            Some(name) if !own(&name) => (file(&name), name),
            _ => (self.script.clone(), self.name.clone()),
        };
        ServedRequest { pool: self.pool.clone(), script, name, query: query.into() }
    }

    /// Variables that a front server passes for a plain GET of the URL, with this script instead of its own.
    pub fn variables(&self, url: &Url, script: &Path) -> Vec<(&'static str, String)> {
        let path = url.path.split('?').next().unwrap_or("/");
        let info = path.strip_prefix(&self.name).filter(|rest| rest.starts_with('/'));
        let mut all = vec![
            ("GATEWAY_INTERFACE", "CGI/1.1".into()),
            ("SERVER_SOFTWARE", "lastdrop".into()),
            ("SERVER_PROTOCOL", "HTTP/1.1".into()),
            ("REQUEST_METHOD", "GET".into()),
            ("REQUEST_SCHEME", if url.tls { "https" } else { "http" }.into()),
            ("REQUEST_URI", url.path.clone()),
            ("QUERY_STRING", self.query.clone()),
            ("SCRIPT_NAME", self.name.clone()),
            ("DOCUMENT_URI", format!("{}{}", self.name, info.unwrap_or_default())),
            ("SCRIPT_FILENAME", script.display().to_string()),
            ("DOCUMENT_ROOT", self.document_root().display().to_string()),
            ("PATH_INFO", info.unwrap_or_default().into()),
            ("CONTENT_TYPE", String::new()),
            ("CONTENT_LENGTH", String::new()),
            ("REMOTE_ADDR", "127.0.0.1".into()),
            ("REMOTE_PORT", "40000".into()),
            ("SERVER_ADDR", "127.0.0.1".into()),
            ("SERVER_PORT", url.port.to_string()),
            ("SERVER_NAME", url.host.clone()),
            ("HTTP_HOST", url.authority()),
            ("REDIRECT_STATUS", "200".into()),
        ];
        if url.tls {
            all.push(("HTTPS", "on".into()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<ProcessRow> {
        lastdrop_model::read_json::<StatusDocument>(text).expect("rows").processes
    }

    #[test]
    fn the_worker_that_has_served_one_more_tells_the_script() {
        let row = |pid: i32, requests: u64, uri: &str, script: &str| {
            format!(r#"{{"pid":{pid},"state":"Idle","requests":{requests},"request uri":"{uri}","script":"{script}"}}"#)
        };
        let page = |rows: &[String]| format!(r#"{{"pool":"www","processes":[{}]}}"#, rows.join(","));
        let dir = tempfile::tempdir().expect("a folder");
        let script = dir.path().join("index.php");
        std::fs::write(&script, "<?php").expect("written");
        let script = script.display().to_string();
        let before = rows(&page(&[row(1, 5, "/status?full&json", "/status"), row(2, 7, "/a.php", "/a.php")]));
        let after = rows(&page(&[row(1, 6, "/status?full&json", "/status"), row(2, 8, "/index.php?a=b", &script)]));
        let own = Page { pool: "www".into(), socket: FpmSocket::Unix("/x".into()), path: "/status".into() };
        let newer: Vec<&ProcessRow> = newer(&before, &after).filter(|row| !own.is_of(row)).collect();
        assert_eq!(newer.iter().map(|r| r.pid).collect::<Vec<_>>(), [2]);
        let served = newer[0].served("www").expect("a script");
        assert_eq!(served.document_root(), dir.path());
        let url: Url = "https://shop.example/index.php/item/7?x".parse().expect("a URL");
        let all = served.variables(&url, &served.script);
        let of = |name: &str| all.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
        assert_eq!((of("QUERY_STRING"), of("REQUEST_URI")), (Some("a=b"), Some("/index.php/item/7?x")));
        assert_eq!((of("PATH_INFO"), of("HTTPS"), of("SERVER_PORT")), (Some("/item/7"), Some("on"), Some("443")));
        let long = ProcessRow { uri: format!("/{}", "x".repeat(NAME_ROOM)), ..newer[0].clone() };
        assert!(long.served("www").expect_err("cut off").contains("too long"));
        let gone = ProcessRow { script: "/no/such.php".into(), ..newer[0].clone() };
        assert!(gone.served("www").expect_err("not there").contains("/no/such.php"));
    }

    #[test]
    fn another_path_leads_to_its_own_script_or_to_the_same() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("shop")).expect("made");
        for name in ["index.php", "shop/index.php", "a.php"] {
            std::fs::write(dir.path().join(name), "<?php").expect("written");
        }
        let script = dir.path().join("index.php");
        let served = ServedRequest { pool: "www".into(), script, name: "/index.php".into(), query: "x".into() };
        for (path, script, name, query) in [
            ("/a.php?n=1", "a.php", "/a.php", "n=1"),
            ("/a.php/info", "a.php", "/a.php", ""),
            ("/shop/", "shop/index.php", "/shop/index.php", ""),
            ("/item/7?b=2", "index.php", "/index.php", "b=2"),
            ("/none.php", "index.php", "/index.php", ""),
            ("/", "index.php", "/index.php", ""),
        ] {
            let found = served.of_path(path);
            assert_eq!(found.script, dir.path().join(script), "{path}");
            assert_eq!((found.name.as_str(), found.query.as_str()), (name, query), "{path}");
        }
    }

    #[test]
    fn a_script_outside_of_the_folder_that_is_served_has_its_own() {
        let served = ServedRequest {
            pool: "www".into(),
            script: "/usr/share/app/main.php".into(),
            name: "/app".into(),
            query: String::new(),
        };
        assert_eq!(served.document_root(), Path::new("/usr/share/app"));
    }
}
