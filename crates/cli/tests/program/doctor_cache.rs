//! `doctor --confirm` tries a cache for pages that all users share, on a real nginx before PHP-FPM, on a real HAProxy
//! and on a real Apache.

mod apache;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::haproxy::Haproxy;
use crate::common::servers::{Daemon, Fpm, nginx, open_folder, php, php_site};
use crate::common::{Folder, KILLED, end_at, free_port, number, wait_until};
use serde_json::Value;

/// An nginx before PHP-FPM, with a page that is the same for all and others that are not.
struct Site {
    folder: Folder,
    _fpm: Fpm,
    nginx: Daemon,
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
        Site { folder, _fpm: fpm, nginx, url, config, before, homes }
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
        assert_eq!((self.folder.journal(), self.journal_of_cache()), (None, None), "{moment}");
    }

    /// The journal of a cache that was kept.
    fn journal_of_cache(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.folder.join("state")).ok()?;
        entries.filter_map(|e| Some(e.ok()?.path())).find(|path| path.extension().is_some_and(|e| e == "cache"))
    }

    fn port(&self) -> &str {
        self.url.rsplit(':').next().expect("a port")
    }

    /// Makes nginx read its configuration again and waits until its workers are new ones.
    fn reload(&self) {
        let workers = || workers_of(self.nginx.pid());
        let old = workers();
        // SAFETY: a plain call on a server of ours.
        unsafe { libc::kill(self.nginx.pid(), libc::SIGHUP) };
        wait_until("new workers", || !workers().is_empty() && workers().iter().all(|pid| !old.contains(pid)));
    }

    /// True if two visitors get the same page.
    fn answers_from_a_cache(&self) -> bool {
        let page = visit(self.port(), "");
        page.is_some() && page == visit(self.port(), "")
    }
}

/// Worker processes of nginx, and those that look after a cache.
fn workers_of(master: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Requests that a cache must not answer.
const OTHERS: &str = "cookie headers = { Cookie = 'id=1' }\ncookie headers = { Cookie = 'id=2' }\nsets\nprivate\nlanguage\nsame method = 'POST'";

/// The body of the page for all, as a visitor with these further fields gets it.
fn visit(port: &str, more: &str) -> Option<String> {
    ask(port, "GET /same.php", "127.0.0.1", more)
}

/// The body of an answer to a visitor.
fn ask(port: &str, what: &str, host: &str, more: &str) -> Option<String> {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).ok()?;
    let head = format!("{what} HTTP/1.1\r\nHost: {host}\r\nX-Visitor: 1\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_string())
}

/// Does something while a visitor comes again and again. Returns the pages that the visitor gets, too.
fn visit_meanwhile<T>(visit: impl Fn() -> Option<String> + Sync, what: impl FnOnce() -> T) -> (T, Vec<String>) {
    let over = AtomicBool::new(false);
    let (done, visits) = thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            let mut visits = Vec::new();
            while !over.load(Ordering::SeqCst) {
                visits.extend(visit());
                thread::sleep(Duration::from_millis(40));
            }
            visits
        });
        let done = catch_unwind(AssertUnwindSafe(what));
        over.store(true, Ordering::SeqCst);
        (done, visitor.join().expect("visits"))
    });
    (done.unwrap_or_else(|panic| resume_unwind(panic)), visits)
}

#[test]
fn a_cache_answers_only_the_requests_of_its_trial_and_its_gain_is_told_beside_the_promise() {
    let site = Site::start("");
    let port = site.port();
    let (said, visits) = visit_meanwhile(|| visit(port, ""), || site.confirm(OTHERS));
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
fn a_cache_that_is_kept_is_for_visitors_without_a_cookie_until_restore_takes_it_away() {
    let site = Site::start("");
    let args = site.args("");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--keep", "--json", "-"]).collect();
    let done = site.folder.run(&args);
    let said: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    let (cache, port) = (&said["cache"], site.port());
    assert_eq!(
        (&cache["kept"], &cache["shared"][0]),
        (&true.into(), &format!("127.0.0.1:{port}/same.php").into()),
        "{said:#}"
    );
    let kept = fs::read_to_string(&site.config).expect("readable");
    let lines = cache["lines"].as_array().expect("lines");
    assert!(lines.iter().all(|line| kept.contains(line.as_str().expect("a line"))), "{kept}");
    assert!(!kept.contains("trial") && site.folder.journal().is_none(), "{kept}");
    let journal = site.journal_of_cache().expect("a journal of the cache");
    let journal_text = fs::read_to_string(&journal).expect("readable");
    let written: Value = serde_json::from_str(&journal_text).expect("JSON");
    assert_eq!(written["birth"]["environment"], Value::Array(Vec::new()), "it may have passwords");
    let folder = PathBuf::from(written["cache_folders"][0].as_str().expect("a folder"));
    assert_eq!(fs::read_dir(&site.homes).expect("readable").count(), 2, "the folder of the trial is gone");
    // Before visitors met it, it was said what they share.
    for part in [
        &*format!("shares GET and HEAD of 127.0.0.1:{port}/same.php with any query, 10 s long"),
        "not shared: requests with Cookie or Authorization, other methods",
        &*format!("pages are stored in {}; lastdrop restore", folder.display()),
    ] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }

    assert_visitors_share(&site);

    let planned = site.folder.run(&["restore", "--dry-run"]);
    assert_eq!(planned.code, 0, "{planned:?}");
    for part in ["would be taken away", "nginx.conf: bring back what stood in it", "reload by", "remove with all"] {
        assert!(planned.stdout.contains(part), "{part}: {}", planned.stdout);
    }
    assert!(site.answers_from_a_cache() && folder.join("fastcgi").is_dir(), "a dry run changes nothing");

    // It does not matter how far a killed restore came.
    let keep_again = |config: &str| {
        fs::write(&site.config, config).expect("written");
        fs::create_dir(&folder).expect("made");
        fs::write(&journal, &journal_text).expect("written");
        fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).expect("its mode");
        site.reload();
        assert!(site.answers_from_a_cache());
    };
    for step in 1.. {
        let killed = end_at(&site.folder, &["restore"], step);
        let restored = site.folder.run(&["restore"]);
        assert!(restored.code == 0 && !restored.stdout.contains("but "), "{step}: {restored:?}");
        site.assert_as_found(&format!("a restore that ended before step {step}"));
        assert!(!site.answers_from_a_cache());
        if killed.code != KILLED {
            assert!(step > 3 && killed.stdout.contains("taken away with its pages"), "{step}: {killed:?}");
            break;
        }
        keep_again(&kept);
    }
    // What others have changed since stays.
    let theirs = |text: &str| text.replace("access_log off;", "access_log off; # theirs") + "# theirs\n";
    keep_again(&theirs(&kept));
    let restored = site.folder.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(fs::read_to_string(&site.config).expect("readable"), theirs(&site.before));
    assert!(!site.answers_from_a_cache() && !folder.exists() && site.journal_of_cache().is_none());
}

#[test]
fn a_kill_while_a_cache_is_being_kept_leaves_no_file() {
    let site = Site::start("");
    let args = site.args("");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--keep"]).collect();
    let (mut kept, mut remembered) = (0, 0);
    for step in [116, 124, 131] {
        let moment = format!("ended before step {step}");
        let done = end_at(&site.folder, &args, step);
        assert!(done.code == KILLED && done.stderr.contains("the cache is kept"), "{moment}: {done:?}");
        kept += usize::from(fs::read_to_string(&site.config).expect("readable").contains("lastdrop keeps"));
        remembered += usize::from(site.journal_of_cache().is_some());
        let restored = site.folder.run(&["restore"]);
        assert!(restored.code == 0 && !restored.stdout.contains("but "), "{moment}: {restored:?}");
        site.assert_as_found(&moment);
        assert!(!site.answers_from_a_cache(), "{moment}");
    }
    assert!(kept > 1 && remembered > 0, "no kill came while it was kept: {kept}, {remembered}");
}

/// Asserts who gets the page that was stored for others, and who never does.
fn assert_visitors_share(site: &Site) {
    let port = site.port();
    let get = |more: &str| visit(port, more).expect("an answer");
    let first = get("");
    assert_eq!(get("Accept-Language: de\r\n"), first);
    let mut own = vec![get("")];
    for (what, host, more) in [
        ("GET /same.php", "127.0.0.1", "Cookie: a=b\r\n"),
        ("GET /same.php", "127.0.0.1", "Authorization: Basic YTpi\r\n"),
        ("POST /same.php", "127.0.0.1", "Content-Length: 0\r\n"),
        ("DELETE /same.php", "127.0.0.1", ""),
        ("GET /same.php", "other.example", ""),
        ("GET /private.php", "127.0.0.1", ""),
    ] {
        own.extend((0..2).map(|_| ask(port, what, host, more).expect("an answer")));
    }
    let unique: BTreeSet<&String> = own.iter().collect();
    assert_eq!(unique.len(), own.len(), "{own:#?}");
    // Another query is another page, which visitors share as well.
    let other = |query: &str| ask(port, &format!("GET /same.php?{query}"), "127.0.0.1", "").expect("an answer");
    assert!(other("a=1") == other("a=1") && other("a=1") != other("a=2"));
    wait_until("a fresh page", || get("") != first);
}

#[test]
fn a_cache_of_haproxy_answers_only_the_requests_of_its_trial_and_is_gone_afterwards() {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, &["-W"]);
    let (before, port) = (haproxy.tree(), haproxy.port.to_string());
    let (name, url) = (haproxy.name(), format!("http://127.0.0.1:{port}/"));
    let args = ["doctor", &name, "--url", &url, "-c", "4", "-d", "1s", "--live", "--no-store", "--confirm"];
    let page = |more: &str| ask(&port, "GET /", "127.0.0.1", more);
    let (said, visits) = visit_meanwhile(|| page(""), || folder.json(&[&args[..], &["--keep"]].concat(), 0));
    let cache = &said["cache"];
    assert_eq!((&cache["server"], &cache["pages"][0]), (&"haproxy".into(), &"/".into()), "{said:#}");
    assert_eq!((&cache["difference"], &cache["kept"]), (&Value::Null, &false.into()), "{cache:#}");
    assert!(number(&cache["compared"]) >= 15.0 && number(&cache["interval"][0]) > 1.5, "{cache:#}");
    assert!(said["notes"].to_string().contains("lastdrop keeps none on haproxy"), "{said:#}");
    assert!(cache["lines"].to_string().contains("http-response cache-store lastdrop-http if"), "{cache:#}");
    // A page from the cache would be that of others, and one of an earlier visit a second time.
    let unique: BTreeSet<&String> = visits.iter().collect();
    assert!(visits.len() > 50 && unique.len() == visits.len(), "{} of {}", unique.len(), visits.len());
    assert!(visits.iter().all(|page| page != "ok"), "{visits:?}");
    let is_as_found = |moment: &str| {
        assert_eq!((haproxy.tree(), folder.journal()), (before.clone(), None), "{moment}");
        assert_ne!(page(""), page(""), "{moment}");
    };
    is_as_found("after the trial");

    // The cache is in its files for at least three steps.
    let mut had_cache = false;
    for step in (15..40).step_by(3) {
        assert_eq!(end_at(&folder, &args, step).code, KILLED);
        had_cache |= haproxy.tree() != before;
        let restored = folder.run(&["restore"]);
        assert!(restored.code == 0 && !restored.stdout.contains("but "), "{step}: {restored:?}");
        is_as_found(&format!("ended before step {step}"));
        if had_cache {
            break;
        }
    }
    assert!(had_cache, "no kill came while it had a cache");
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
