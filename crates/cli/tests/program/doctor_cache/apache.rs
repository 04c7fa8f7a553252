//! A cache on a real Apache, with mod_php and before PHP-FPM.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::servers::{Fpm, ModPhp, php};
use crate::common::{Folder, number, signal, wait_until};
use serde_json::Value;

use super::{ask, visit_meanwhile};

/// An Apache with pages of PHP, and what stood in its configuration.
struct Site {
    // Ends before its folder goes, which has its process id.
    apache: ModPhp,
    _fpm: Option<Fpm>,
    folder: Folder,
    before: String,
}

/// Sends each page that is no file to `/index.php`, as a front controller wants it.
const FRONT_CONTROLLER: &str = "DirectoryIndex index.php\nFallbackResource /index.php\n";

impl Site {
    fn start(by_fpm: bool) -> Site {
        let folder = Folder::new();
        let fpm = by_fpm.then(|| Fpm::start(&folder, 8, ""));
        let modules = "/usr/lib/apache2/modules/mod_";
        let to_pool = |fpm: &Fpm| {
            format!(
                "LoadModule proxy_module {modules}proxy.so\nLoadModule proxy_fcgi_module {modules}proxy_fcgi.so\n\
                 <FilesMatch \"\\.php$\">\nSetHandler \"proxy:unix:{}|fcgi://localhost\"\n</FilesMatch>\n",
                fpm.socket.display()
            )
        };
        let lines = fpm.as_ref().map(to_pool).unwrap_or_default() + FRONT_CONTROLLER;
        let apache = ModPhp::start(&folder, 8, &lines);
        let page = "isset($_SERVER['HTTP_X_VISITOR']) ? uniqid('', true) : $_SERVER['REQUEST_URI']";
        for (name, text) in [
            ("index", &*format!("usleep(20000); echo {page};")),
            ("same", &*format!("usleep(20000); echo {page};")),
            ("sets", "setcookie('id', uniqid()); echo uniqid('', true);"),
            ("private", "header('Cache-Control: private'); echo uniqid('', true);"),
            ("missing", "http_response_code(404); header('Cache-Control: max-age=60'); echo uniqid('', true);"),
        ] {
            php(&apache.docs, &format!("{name}.php"), text);
        }
        let before = fs::read_to_string(&apache.config).expect("readable");
        Site { folder, _fpm: fpm, apache, before }
    }

    /// Arguments that try a cache for two pages, of which one is rewritten.
    fn args(&self) -> Vec<String> {
        let plan = self.folder.join("plan.toml");
        let url = |path: &str| self.apache.url(path);
        let request = |path: &str, lines: &str| format!("[[request]]\nurl = '{}'\n{lines}\n", url(path));
        let text = format!("url = '{}'\n", url("/same.php"))
            + &request("/same.php", "weight = 10")
            + &request("/front", "weight = 10")
            + &request("/sets.php", "")
            + &request("/private.php", "")
            + &request("/same.php", "method = 'POST'");
        fs::write(&plan, text).expect("written");
        let (name, plan) = (self.apache.name(), plan.display().to_string());
        let words = ["doctor", &name, "--url", &plan, "-c", "4", "-d", "1s", "--live", "--no-store", "--confirm"];
        words.map(str::to_string).to_vec()
    }

    fn config(&self) -> String {
        fs::read_to_string(&self.apache.config).expect("readable")
    }

    /// The folder of the cache that the configuration has now.
    fn cache_folder(&self) -> Option<PathBuf> {
        self.config().lines().find_map(|line| line.strip_prefix("CacheRoot ").map(PathBuf::from))
    }

    fn ask(&self, what: &str, more: &str) -> Option<String> {
        ask(&self.apache.port.to_string(), what, &format!("127.0.0.1:{}", self.apache.port), more)
    }

    fn assert_as_found(&self, folders: &BTreeSet<PathBuf>, moment: &str) {
        assert_eq!(self.config(), self.before, "{moment}");
        assert!(folders.iter().all(|folder| !folder.exists()), "{moment}: {folders:?}");
        let journals = fs::read_dir(self.folder.join("state")).expect("readable").flatten();
        let left: Vec<_> = journals.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert!(!left.iter().any(|name| name.ends_with(".journal") || name.ends_with(".cache")), "{moment}: {left:?}");
        wait_until("no page from a cache", || self.ask("GET /same.php", "") != self.ask("GET /same.php", ""));
    }
}

/// Number of answers that a folder has.
fn stored(folder: &Path) -> usize {
    let count = |entry: fs::DirEntry| {
        let is_answer = entry.path().extension().is_some_and(|ending| ending == "data");
        usize::from(is_answer) + if entry.path().is_dir() { stored(&entry.path()) } else { 0 }
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(count).sum()
}

#[test]
fn a_cache_of_apache_answers_only_the_requests_of_its_trial_and_is_gone_afterwards() {
    let site = Site::start(false);
    let args = site.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let folders = Mutex::new(BTreeSet::new());
    let visits_and_more = || {
        folders.lock().expect("no panic").extend(site.cache_folder());
        site.ask("GET /same.php", "")
    };
    let (said, visits) = visit_meanwhile(visits_and_more, || site.folder.json(&args, 0));
    let cache = &said["cache"];
    assert_eq!((&cache["kind"], &cache["difference"]), (&"apache".into(), &Value::Null), "{said:#}");
    assert_eq!(cache["pages"], serde_json::json!(["/front", "/same.php"]), "{said:#}");
    assert!(number(&cache["compared"]) >= 30.0 && number(&cache["promised"]) > 1.5, "{cache:#}");
    assert!(number(&cache["interval"][0]) > 1.2, "{cache:#}");
    let lines = cache["lines"].to_string();
    assert!(lines.contains("LoadModule cache_disk_module") && !lines.contains("X-Lastdrop-Trial"), "{cache:#}");
    // A page from the cache would be the same as that of others, and one of an earlier visit a second time.
    let unique: BTreeSet<&String> = visits.iter().collect();
    assert!(visits.len() > 50 && unique.len() == visits.len(), "{} of {}", unique.len(), visits.len());
    assert!(visits.iter().all(|page| page != "/same.php"), "{visits:?}");
    let folders = folders.into_inner().expect("no panic");
    assert_eq!(folders.len(), 1, "{folders:?}");
    site.assert_as_found(&folders, "after the trial");

    assert_nothing_of_visitors_is_stored(&site, &args);
}

/// Kills lastdrop while Apache has the cache, looks at what it stores, and restores all.
fn assert_nothing_of_visitors_is_stored(site: &Site, args: &[&str]) {
    let mut command = site.folder.lastdrop(args);
    let mut tries = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    let deadline = Instant::now() + Duration::from_secs(100);
    let (folder, ours) = loop {
        assert!(Instant::now() < deadline, "no page came into the cache");
        thread::sleep(Duration::from_millis(20));
        let config = site.config();
        let token = config.split_once("('X-Lastdrop-Trial') == '").and_then(|(_, rest)| rest.split('\'').next());
        let Some((token, folder)) = token.zip(site.cache_folder()) else { continue };
        let ours = format!("X-Lastdrop-Trial: {token}\r\n");
        let get = || site.ask("GET /same.php", &ours);
        // The lines are there before Apache reads them.
        if stored(&folder) > 0 && get() == get() {
            break (folder, ours);
        }
    };
    signal(&tries, libc::SIGKILL);
    tries.wait().expect("it ends");
    assert_who_meets_the_trial(site, &folder, &ours);
    let restored = site.folder.run(&["restore"]);
    assert!(restored.code == 0 && !restored.stdout.contains("but "), "{restored:?}");
    site.assert_as_found(&[folder].into(), "after a kill");
}

fn assert_who_meets_the_trial(site: &Site, folder: &Path, ours: &str) {
    let get = |what: &str, more: &str| site.ask(what, more).expect("an answer");
    let page = get("GET /same.php", ours);
    let before = stored(folder);
    let line = format!("http 127.0.0.1:{} GET /same.php HTTP/1.1", site.apache.port);
    let mut own = vec![page.clone()];
    for (what, more) in [
        ("GET /same.php", String::new()),
        ("GET /same.php", "X-Lastdrop-Trial: 0123456789abcdef\r\n".into()),
        // The field that is set for requests of the trial.
        ("GET /same.php", format!("X-Lastdrop-Cache: {line}\r\n")),
        ("GET /same.php", format!("X-Lastdrop-Cache: {line}\r\n{ours}Cookie: a=b\r\n")),
        ("GET /same.php", format!("{ours}Authorization: Basic YTpi\r\n")),
        ("POST /same.php", format!("{ours}Content-Length: 0\r\n")),
        ("GET /index.php", ours.into()),
        ("GET /private.php", ours.into()),
    ] {
        own.extend((0..2).map(|_| get(what, &more)));
    }
    let unique: BTreeSet<&String> = own.iter().collect();
    assert_eq!(unique.len(), own.len(), "{own:#?}");
    assert_eq!(stored(folder), before, "nothing more is stored");
    // Behind both pages is a script, but each page has its own answer.
    let pages = || ["GET /front", "GET /front?a=1"].map(|what| get(what, ours));
    wait_until("pages from the cache", || pages() == pages());
    let [front, other] = pages();
    assert_ne!(front, other);
    assert!(stored(folder) > before);
}

#[test]
fn a_cache_that_is_kept_on_apache_is_for_visitors_without_a_cookie_until_restore_takes_it_away() {
    let site = Site::start(true);
    let args = site.args();
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--keep", "--json", "-"]).collect();
    let done = site.folder.run(&args);
    let said: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    let (cache, port) = (&said["cache"], site.apache.port);
    let name = format!("127.0.0.1:{port}");
    assert_eq!(
        (&cache["kept"], &cache["shared"]),
        (&true.into(), &serde_json::json!([format!("{name}/front"), format!("{name}/same.php")])),
        "{said:#}"
    );
    let kept = site.config();
    let lines = cache["lines"].as_array().expect("lines");
    assert!(lines.iter().all(|line| kept.contains(line.as_str().expect("a line"))), "{kept}");
    assert!(!kept.contains("X-Lastdrop-Trial") && site.folder.journal().is_none(), "{kept}");
    let folder = site.cache_folder().expect("a folder");
    for part in [
        &*format!("shares GET of {name}/front, {name}/same.php without a query, 10 s long"),
        "not shared: requests with Cookie or Authorization, other methods",
        &*format!("pages are stored in {}, at most 30 copies of each page", folder.display()),
    ] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }

    let get = |what: &str, more: &str| site.ask(what, more).expect("an answer");
    for page in ["GET /same.php", "GET /front"] {
        wait_until("the page of others", || get(page, "") == get(page, "Accept-Language: de\r\n"));
    }
    let mut own = vec![get("GET /same.php", ""), get("GET /front", "")];
    for (what, more) in [
        ("GET /same.php", "Cookie: a=b\r\n"),
        ("GET /same.php", "Authorization: Basic YTpi\r\n"),
        ("GET /same.php", "Accept-Encoding: other\r\n"),
        ("POST /same.php", "Content-Length: 0\r\n"),
        ("GET /same.php?a=1", ""),
        ("GET /index.php", ""),
        ("GET /private.php", ""),
    ] {
        own.extend((0..2).map(|_| get(what, more)));
    }
    let by_name = |host: &str| ask(&port.to_string(), "GET /same.php", host, "").expect("an answer");
    own.extend([by_name("other.example"), by_name("other.example"), by_name("127.0.0.1"), by_name("127.0.0.1:80")]);
    let unique: BTreeSet<&String> = own.iter().collect();
    assert_eq!(unique.len(), own.len(), "{own:#?}");

    let planned = site.folder.run(&["restore", "--dry-run"]);
    assert!(planned.stdout.contains("would be taken away") && folder.exists(), "{planned:?}");
    // What others have changed since stays.
    let theirs = |text: &str| text.replace("KeepAlive Off", "KeepAlive Off\n# theirs");
    fs::write(&site.apache.config, theirs(&kept)).expect("written");
    let restored = site.folder.run(&["restore"]);
    assert!(restored.code == 0 && !restored.stdout.contains("but "), "{restored:?}");
    assert_eq!(site.config(), theirs(&site.before));
    fs::write(&site.apache.config, &site.before).expect("written");
    site.assert_as_found(&[folder].into(), "after the restore");
}
