//! `doctor --confirm` tries a cache for pages that all users share, on a real nginx before PHP-FPM.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::servers::{Daemon, Fpm, nginx, open_folder, php, php_site};
use crate::common::{Folder, KILLED, end_at, free_port, number};
use serde_json::Value;

/// An nginx before PHP-FPM, with a page that is the same for all and others that are not.
struct Site {
    folder: Folder,
    _fpm: Fpm,
    _nginx: Daemon,
    url: String,
    /// The configuration of nginx, and what stood in it.
    config: PathBuf,
    before: String,
    homes: PathBuf,
}

impl Site {
    /// `same` is PHP that the page for all has in it.
    fn start(same: &str) -> Site {
        let folder = Folder::new();
        let fpm = Fpm::start(&folder, 8, "");
        let (port, root, homes) = (free_port(), open_folder(&folder, "www"), open_folder(&folder, "temporary"));
        let lines = format!(" fastcgi_temp_path {}/fastcgi;\n", homes.display());
        let nginx = nginx(&folder, &(lines + &php_site(port, &root, &fpm.socket)), port);
        for (name, text) in [
            // A visitor is told from others by a field that nobody else has.
            (
                "same",
                &*format!("usleep(20000); echo isset($_SERVER['HTTP_X_VISITOR']) ? uniqid('', true) : 'same'; {same}"),
            ),
            ("cookie", "echo 'for ', $_COOKIE['id'] ?? 'nobody';"),
            ("sets", "setcookie('id', uniqid()); echo 'ok';"),
            ("private", "header('Cache-Control: private'); echo uniqid('', true);"),
            ("language", "echo $_SERVER['HTTP_ACCEPT_LANGUAGE'] ?? 'none';"),
        ] {
            php(&root, &format!("{name}.php"), text);
        }
        let config = folder.join("nginx.conf");
        let before = fs::read_to_string(&config).expect("readable");
        let url = format!("http://127.0.0.1:{port}");
        Site { folder, _fpm: fpm, _nginx: nginx, url, config, before, homes }
    }

    /// Arguments that try a cache for a plan with these requests, beside the page that is the same for all.
    fn args(&self, more: &str) -> Vec<String> {
        let plan = self.folder.join("plan.toml");
        let url = &self.url;
        let request = |name: &str, lines: &str| format!("[[request]]\nurl = '{url}/{name}.php'\n{lines}\n");
        let mut text = format!("url = '{url}/same.php'\n") + &request("same", "weight = 20");
        for line in more.lines() {
            let (name, lines) = line.split_once(' ').unwrap_or((line, ""));
            text += &request(name, &lines.replace(';', "\n"));
        }
        fs::write(&plan, text).expect("written");
        let name = format!("nginx:{}", self.config.display());
        let words = [
            "doctor",
            &name,
            "--url",
            &plan.display().to_string(),
            "-c",
            "4",
            "-d",
            "1s",
            "--live",
            "--no-store",
            "--confirm",
        ];
        words.map(str::to_string).to_vec()
    }

    fn confirm(&self, more: &str) -> Value {
        let args = self.args(more);
        self.folder.json(&args.iter().map(String::as_str).collect::<Vec<_>>(), 0)
    }

    /// Number of entries in the folders of caches on trial, folders included.
    fn files_of_caches(&self) -> usize {
        fn entries(folder: &Path) -> usize {
            let all = fs::read_dir(folder).into_iter().flatten().flatten();
            all.map(|entry| 1 + entries(&entry.path())).sum()
        }
        let all = fs::read_dir(&self.homes).expect("readable").flatten();
        let caches = all.filter(|e| e.file_name().to_string_lossy().starts_with("lastdrop-cache-"));
        caches.map(|cache| entries(&cache.path())).sum()
    }

    fn assert_as_found(&self, moment: &str) {
        assert_eq!(fs::read_to_string(&self.config).expect("readable"), self.before, "{moment}");
        let left: Vec<_> = fs::read_dir(&self.homes).expect("readable").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["fastcgi"], "{moment}");
        assert_eq!(self.folder.journal(), None, "{moment}");
    }
}

/// Requests that a cache must not answer.
const OTHERS: &str = "cookie headers = { Cookie = 'id=1' }\ncookie headers = { Cookie = 'id=2' }\nsets\nprivate\nlanguage\nsame method = 'POST'";

/// The body of the page for all, as a visitor with these further fields gets it.
fn visit(port: &str, more: &str) -> Option<String> {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).ok()?;
    let head = format!("GET /same.php HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Visitor: 1\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_string())
}

#[test]
fn a_cache_answers_only_the_requests_of_its_trial_and_its_gain_is_told_beside_the_promise() {
    let site = Site::start("");
    let over = AtomicBool::new(false);
    let port = site.url.rsplit(':').next().expect("a port");
    let (said, visits) = thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            let mut visits = Vec::new();
            while !over.load(Ordering::SeqCst) {
                visits.extend(visit(port, ""));
                thread::sleep(Duration::from_millis(40));
            }
            visits
        });
        let said = catch_unwind(AssertUnwindSafe(|| site.confirm(OTHERS)));
        over.store(true, Ordering::SeqCst);
        (said, visitor.join().expect("visits"))
    });
    let said = said.unwrap_or_else(|panic| resume_unwind(panic));
    let cache = &said["cache"];
    assert_eq!((&cache["server"], &cache["pages"][0]), (&"nginx".into(), &"/same.php".into()), "{said:#}");
    assert_eq!((&cache["difference"], cache["pages"].as_array().map(Vec::len)), (&Value::Null, Some(1)), "{cache:#}");
    assert!(number(&cache["compared"]) >= 15.0 && number(&cache["promised"]) > 1.5, "{cache:#}");
    assert!(number(&cache["interval"][0]) > 1.5, "{cache:#}");
    let lines = cache["lines"].to_string();
    assert!(lines.contains("fastcgi_cache_lock on") && !lines.contains("trial"), "{cache:#}");
    // A page from the cache would be the same as that of others, and one of an earlier visit a second time.
    let unique: BTreeSet<&String> = visits.iter().collect();
    assert!(visits.len() > 50 && unique.len() == visits.len(), "{} of {}", unique.len(), visits.len());
    assert!(visits.iter().all(|page| page != "same"), "{visits:?}");
    site.assert_as_found("after the trial");
}

#[test]
fn a_cache_that_is_kept_answers_all_visitors_without_a_cookie() {
    let site = Site::start("");
    let args = site.args("");
    let said = site.folder.json(&args.iter().map(String::as_str).chain(["--keep"]).collect::<Vec<_>>(), 0);
    let cache = &said["cache"];
    assert_eq!(cache["kept"], true, "{said:#}");
    let config = fs::read_to_string(&site.config).expect("readable");
    let lines = cache["lines"].as_array().expect("lines");
    assert!(lines.iter().all(|line| config.contains(line.as_str().expect("a line"))), "{config}");
    assert!(!config.contains("trial") && site.folder.journal().is_none(), "{config}");
    assert_eq!(fs::read_dir(&site.homes).expect("readable").count(), 2, "the folder of the trial is gone");
    let port = site.url.rsplit(':').next().expect("a port");
    let ask = |more: &str| visit(port, more).expect("an answer");
    let first = ask("");
    assert_eq!(ask("Accept-Language: de\r\n"), first);
    for named in ["Cookie: a=b\r\n", "Authorization: Basic YTpi\r\n"] {
        assert!(ask(named) != ask(named) && ask(named) != first, "{named}");
    }
    assert_eq!(ask(""), first, "what a visitor with a cookie got was not stored");
}

#[test]
fn a_page_that_a_field_changes_ends_the_trial_of_a_cache_before_it_is_measured() {
    let site = Site::start("echo $_SERVER['HTTP_X_FORWARDED_HOST'] ?? '';");
    let said = site.confirm("");
    let cache = &said["cache"];
    let difference = cache["difference"].as_str().unwrap_or_else(|| panic!("{said:#}"));
    assert!(difference.contains("/same.php with X-Forwarded-Host: lastdrop.invalid"), "{cache:#}");
    assert_eq!(number(&cache["ratio"]), 0.0, "{cache:#}");
    site.assert_as_found("after the trial");
}

#[test]
fn a_cache_on_trial_leaves_no_file_after_a_kill() {
    let site = Site::start("");
    let args = site.args("");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut stored = 0;
    for step in [16, 26] {
        let moment = format!("ended before step {step}");
        assert_eq!(end_at(&site.folder, &args, step).code, KILLED, "{moment}");
        stored += site.files_of_caches();
        let restored = site.folder.run(&["restore"]);
        assert!(restored.code == 0 && !restored.stdout.contains("but "), "{moment}: {restored:?}");
        site.assert_as_found(&moment);
    }
    assert!(stored > 2, "no kill came while a page was in the cache");
}
