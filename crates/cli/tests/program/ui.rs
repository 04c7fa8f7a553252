//! `ui`: a real browser shows a run of another process live, stops it, repeats it and compares it, and lists ten thousand runs.
//! Pages of other sites, wrong tokens, wrong host names, and slow or endless clients get nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::common::accessible::assert_accessible;
use crate::common::browser::Browser;
use crate::common::pages::{PageResponse, UiServer};
use crate::common::tls_server::TlsServer;
use crate::common::{Folder, Target, answer, head, serve, signal, wait_until};
use lastdrop_store::Store;

const EVIL: &str = "\"><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";

/// Starts a run that goes on until it is stopped, with samples of the target.
fn long_run(folder: &Folder, target: &Target) -> Child {
    let server = format!("pid:{}", target.child.id());
    let mut command = folder.lastdrop(&["run", &target.url(), "-c", "2", "-d", "600s", "--think", "20ms", "--quiet"]);
    command.args(["--server", &server]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until("the run", || store(folder).run_of(child.id()).expect("reads").is_some());
    child
}

fn store(folder: &Folder) -> Store {
    Store::open(&folder.join("runs.sqlite")).expect("a store")
}

fn last(folder: &Folder) -> String {
    store(folder).find("last").expect("a run")
}

/// Makes a short run; returns its id.
fn short_run(folder: &Folder, target: &Target) -> String {
    let run = folder.json(&["run", &target.url(), "-n", "20", "-c", "2"], 0);
    run["id"].as_str().expect("an id").to_string()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

#[test]
fn nobody_gets_anything_without_the_token() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let id = short_run(&folder, &target);
    let pages = UiServer::start(&folder, &[]);
    let (host, origin) = (pages.host(), pages.origin());
    assert!(pages.url.starts_with(&format!("{origin}/?token=")) && pages.entrance().len() > 50, "{}", pages.url);
    let run = format!("/run/{id}");
    let ours = ("Host", host.as_str());
    for path in ["/", &run, "/compare?a=1&b=2", "/events", "/nowhere", "/?token=", "/?token=wrong", "/../../etc/passwd"]
    {
        for method in ["GET", "HEAD", "POST", "DELETE"] {
            let seen = pages.bare(method, path, &[ours], "");
            assert!(seen.is_nothing(), "{method} {path}: {seen:?}");
        }
    }
    let token = pages.entrance();
    for (path, fields) in [
        (&token[..token.len() - 1], vec![ours]),
        (token.as_str(), vec![("Host", "evil.example")]),
        (&token, vec![("Host", "127.0.0.1")]),
        (&token, vec![]),
        ("/", vec![ours, ("Cookie", "lastdrop=1")]),
        ("/", vec![ours, ("Cookie", &token["/?token=".len()..])]),
    ] {
        let seen = pages.bare("GET", path, &fields, "");
        assert!(seen.is_nothing(), "{path} {fields:?}: {seen:?}");
    }
    // With the token a browser gets a cookie, and with that the pages; each response has headers that restrict the browser.
    let cookie = pages.cookie();
    let page = pages.get(&cookie, &run);
    assert!(page.status == 200 && page.body.contains("Every request was answered"), "{page:?}");
    for (name, value) in [
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-store"),
        ("X-Frame-Options", "DENY"),
    ] {
        assert_eq!(page.field(name), Some(value), "{name}");
    }
    let policy = page.field("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    let token = pages.entrance().replace("/?token=", "");
    assert!(!page.body.contains(&token) && !page.body.contains(cookie.split('=').nth(1).expect("a value")));
    for (what, fields) in [
        ("rebinding", vec![("Host", "evil.example"), ("Cookie", cookie.as_str())]),
        ("another origin", vec![ours, ("Cookie", &cookie), ("Origin", "http://127.0.0.1:1")]),
        ("another site", vec![ours, ("Cookie", &cookie), ("Sec-Fetch-Site", "cross-site")]),
        ("another port", vec![ours, ("Cookie", &cookie), ("Sec-Fetch-Site", "same-site")]),
    ] {
        for path in ["/", "/events", &format!("{run}/events")] {
            assert!(pages.bare("GET", path, &fields, "").is_nothing(), "{what} {path}");
        }
    }
}

#[test]
fn what_changes_something_is_asked_by_our_own_forms_alone() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let id = short_run(&folder, &target);
    let mut child = long_run(&folder, &target);
    let live = last(&folder);
    let pages = UiServer::start(&folder, &[]);
    let (host, origin, cookie) = (pages.host(), pages.origin(), pages.cookie());
    let key = format!("key={}", pages.key(&cookie, &format!("/run/{id}")));
    let (ours, session) = (("Host", host.as_str()), ("Cookie", cookie.as_str()));
    for path in [format!("/run/{live}/stop"), format!("/run/{id}/again"), format!("/run/{id}/remark")] {
        for (fields, body) in [
            (vec![ours, ("Origin", origin.as_str())], key.as_str()),
            (vec![ours, session], &key),
            (vec![ours, session, ("Origin", "null")], &key),
            (vec![ours, session, ("Origin", "http://127.0.0.1:1")], &key),
            (vec![ours, session, ("Origin", &origin), ("Sec-Fetch-Site", "same-site")], &key),
            (vec![ours, session, ("Origin", &origin)], "key=wrong"),
            (vec![ours, session, ("Origin", &origin)], ""),
        ] {
            let seen = pages.bare("POST", &path, &fields, body);
            assert!(seen.is_nothing(), "{path} {fields:?} {body}: {seen:?}");
        }
        let seen = pages.get(&cookie, &path);
        assert_eq!((seen.status, seen.field("allow")), (405, Some("POST")), "{path}");
    }
    // Only our own pages get events.
    assert!(pages.get(&cookie, &format!("/run/{live}/events")).is_nothing());
    assert_eq!(pages.post(&cookie, &format!("/run/{id}"), &key).status, 405);
    assert_eq!(store(&folder).list(&[], 0, 9).expect("reads").all, 2, "nothing was started");
    assert!(child.try_wait().expect("asked").is_none(), "and nothing stopped");
    // Two simultaneous runs would disturb each other.
    assert_eq!(pages.post(&cookie, &format!("/run/{id}/again"), &key).status, 409);
    let done = pages.post(&cookie, &format!("/run/{live}/stop"), &key);
    assert_eq!((done.status, done.field("location")), (303, Some(format!("/run/{live}").as_str())), "{done:?}");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "as by Ctrl-C, with its report");
    assert_eq!(pages.post(&cookie, &format!("/run/{live}/stop"), &key).status, 409, "it is over");
}

#[test]
fn no_other_process_is_ever_signalled() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let mut child = long_run(&folder, &target);
    let id = last(&folder);
    wait_until("a second of it", || !store(&folder).seconds_after(&id, 0).expect("reads").is_empty());
    child.kill().and_then(|()| child.wait()).expect("killed");
    let mut other =
        Command::new("sleep").arg("60").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
    // Its pid now belongs to another process, in the same boot and namespace.
    let sql = format!("UPDATE makers SET pid = {}", other.id());
    let script = format!(
        "import sqlite3; c = sqlite3.connect({:?}); c.execute({sql:?}); c.commit()",
        folder.join("runs.sqlite")
    );
    assert!(Command::new("/usr/bin/python3").args(["-c", &script]).status().expect("python3").success());
    let pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    let page = pages.get(&cookie, &format!("/run/{id}"));
    assert!(page.body.contains("It did not end by itself") && !page.body.contains("/stop\""), "{page:?}");
    let key = pages.key(&cookie, &format!("/run/{id}"));
    assert_eq!(pages.post(&cookie, &format!("/run/{id}/stop"), &format!("key={key}")).status, 409);
    assert!(other.try_wait().expect("asked").is_none(), "it lives");
    other.kill().and_then(|()| other.wait()).expect("killed");
}

#[test]
fn whoever_is_slow_or_endless_is_let_go() {
    let folder = Folder::new();
    let pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    let mut slow = pages.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").expect("sent");
    let large = "a".repeat(20_000);
    for (fields, body, status) in [
        (vec![("X", large.as_str())], "", 431),
        (vec![("Cookie", &large)], "", 431),
        (vec![], &*"b".repeat(100_000), 413),
    ] {
        assert_eq!(pages.bare("POST", "/", &fields, body).status, status);
    }
    for (bytes, status) in [
        (b"GET / HTTP/9\r\n\r\n".to_vec(), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_vec(), 400),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(30_000)).into_bytes(), 431),
    ] {
        assert_eq!(PageResponse::of(&pages.send(&bytes)).status, status, "{}", String::from_utf8_lossy(&bytes[..20]));
    }
    // Connections are bounded: silent and slow clients give way to new ones, and the owner gets the pages.
    let many: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = pages.connect();
            if number % 2 == 0 {
                // The server may have closed it already.
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nX: ");
            }
            stream
        })
        .collect();
    for _ in 0..10 {
        let seen = pages.bare("GET", "/", &[("Host", &pages.host()), ("Cookie", &cookie)], "");
        assert_eq!(seen.status, 200, "{seen:?}");
    }
    drop(many);
    let mut rest = Vec::new();
    // The server has closed it: a whole request has five seconds.
    slow.read_to_end(&mut rest).expect("closed");
    assert!(rest.is_empty());
}

#[test]
fn names_of_files_and_markup_are_nothing_and_what_somebody_wrote_stays_text() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let id = short_run(&folder, &target);
    let pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    for path in [
        "/etc/passwd",
        "/../../../../etc/passwd",
        "/run/../../etc/passwd",
        "/run/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/run/<script>alert(1)</script>",
        "/run/%3Cscript%3Ealert(1)%3C/script%3E",
        "/run/",
        "/run/0",
        "/run/0/events/",
        "/run/%00",
        "//",
    ] {
        let seen = pages.get(&cookie, path);
        assert!(
            seen.status == 404 && !seen.body.contains("alert(1)") && !seen.body.contains("root:x:"),
            "{path}: {seen:?}"
        );
    }
    for path in [
        format!("/compare?a={0}&b={0}x", encoded(EVIL)),
        format!("/compare?a={id}&b={}", encoded(EVIL)),
        format!("/?q={}&a={}&page=999999999999", encoded(EVIL), encoded(EVIL)),
        "/?q=%27%3B+DROP+TABLE+runs%3B--&page=0".into(),
    ] {
        let seen = pages.get(&cookie, &path);
        assert!([200, 404].contains(&seen.status) && !seen.body.contains("<img"), "{path}: {seen:?}");
    }
    let key = pages.key(&cookie, &format!("/run/{id}"));
    let body = format!("key={key}&tags={}&note={}", encoded("nightly, <b>slow</b>"), encoded(EVIL));
    assert_eq!(pages.post(&cookie, &format!("/run/{id}/remark"), &body).status, 303);
    assert_eq!(pages.post(&cookie, &format!("/run/{}/remark", &id[..7]), &body).status, 404, "only by the whole id");
    for path in ["/".to_string(), "/?q=nightly".into(), format!("/?q={}", encoded("<IMG src")), format!("/run/{id}")] {
        let seen = pages.get(&cookie, &path);
        assert!(seen.body.contains("&lt;b&gt;slow") && seen.body.contains("&lt;img"), "{path}: {seen:?}");
        assert!(!seen.body.contains("<img") && !seen.body.contains("<b>"), "{path}");
    }
    assert!(pages.get(&cookie, "/?q=daily").body.contains("Nothing that is kept has all of these words"));
}

#[test]
fn ten_thousand_runs_are_listed_in_parts() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let id = short_run(&folder, &target);
    let store = store(&folder);
    let mut run = store.load(&id).expect("a run");
    for i in 0..10_000u64 {
        run.id = format!("{i:08x}");
        run.started_unix_ms = 1_600_000_000_000 + i * 60_000;
        run.label = format!("night-{}.", i % 365);
        store.begin(&run.id, run.started_unix_ms, &run.label, &run.plan, &run.environment).expect("written");
        store.finish(&run).expect("written");
    }
    let pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    for (path, rows, says) in [
        ("/", 50, "1–50 of 10001"),
        ("/?page=200", 50, "9951–10000 of 10001"),
        ("/?page=201", 1, "10001–10001 of 10001"),
        ("/?q=NIGHT-364.", 27, "1–27 of 27"),
        ("/?q=127.0.0.1", 50, "1–50 of 10001"),
        ("/?page=9999", 0, "There is no such page"),
    ] {
        let begin = Instant::now();
        let seen = pages.get(&cookie, path);
        println!("{path}: {} ms, {} bytes", begin.elapsed().as_millis(), seen.body.len());
        assert_eq!(seen.body.matches("<th class=\"what\"").count(), rows, "{path}");
        assert!(seen.body.contains(says), "{path}: {}", seen.body);
    }
}

/// Starts a browser with the pages open.
#[test]
fn a_comparison_is_one_row_with_its_blocks_folded() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2"]);
    let id = short_run(&folder, &target);
    let url = target.url();
    let args = ["compare", "--live", &url, &url, "--blocks", "4", "-n", "20", "-c", "2"];
    let compared = folder.json(&args, 0);
    let runs: Vec<&str> = ["a", "b"]
        .iter()
        .flat_map(|side| compared[side]["runs"].as_array().expect("runs"))
        .map(|run| run.as_str().expect("an id"))
        .collect();
    assert!(runs.len() >= 4, "{compared:#}");
    let pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    for search in ["/", "/?q=compare", "/?q=compare%20A%202"] {
        let page = pages.get(&cookie, search);
        assert_eq!(
            page.body.matches("id=\"run-").count(),
            if search == "/" { 2 } else { 1 },
            "{search}: {}",
            page.body
        );
        let (_, row) = page.body.split_once("<details").expect("what is folded");
        let (row, _) = row.split_once("</details>").expect("its end");
        assert!(row.contains(&format!("{} runs", runs.len())), "{row}");
        assert!(runs.iter().all(|run| row.contains(&format!("/run/{run}\""))), "{runs:?}: {row}");
        assert!(!row.contains(&id), "a run by itself is none of them");
    }
    let page = pages.get(&cookie, "/");
    let at = page.body.find("id=\"run-").expect("a row");
    let document = page.body[at..].split("/run/").nth(1).and_then(|r| r.split('"').next()).expect("an id");
    let shown = pages.get(&cookie, &format!("/run/{document}"));
    assert!(shown.status == 200 && !runs.contains(&document), "the row leads to the comparison: {}", shown.status);
    // A block can still be found, shown, and compared with another run.
    assert_eq!(pages.get(&cookie, &format!("/run/{}", runs[0])).status, 200);
    assert!(pages.get(&cookie, &format!("/?a={}", runs[0])).body.contains("Compare "));
    // The same in history, which lists each run on request.
    let history = folder.run(&["history"]).stdout;
    let row = history.lines().find(|line| line.contains(document)).unwrap_or_else(|| panic!("{history}"));
    assert!(row.contains(&format!(" {} ", runs.len())) && row.ends_with("compare"), "{history}");
    assert!(runs.iter().all(|run| !history.contains(run)) && history.contains(&id), "{history}");
    let all = folder.run(&["history", "--all", "-n", "1000"]).stdout;
    assert!(runs.iter().all(|run| all.contains(run)) && all.contains(document), "{all}");
    let json = folder.run(&["history", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("one document");
    let kept = json["kept"].as_array().expect("a list");
    assert!(kept.iter().any(|k| k["id"] == document && k["runs"] == runs.len()), "{json:#}");
}

fn browser(folder: &Folder, pages: &UiServer) -> Browser {
    let browser = Browser::start(folder, &["--window-size=1280,900", "--force-prefers-reduced-motion"]);
    browser.go(&pages.url);
    browser.see("Runs – lastdrop");
    assert_eq!(browser.url(), format!("{}/", pages.origin()), "the token is not in its history");
    browser
}

fn text(browser: &Browser, css: &str) -> String {
    let script = format!("const e = document.querySelector({css:?}); return e ? e.textContent : ''");
    browser.run(&script).as_str().unwrap_or_default().to_string()
}

#[test]
fn a_run_is_seen_live_stopped_started_again_and_compared_in_a_browser() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    let pages = UiServer::start(&folder, &[]);
    let browser = browser(&folder, &pages);
    assert!(text(&browser, "#kept").contains("No runs yet"));
    // It appears without a reload.
    let mut child = long_run(&folder, &target);
    let first = last(&folder);
    wait_until("the run in the list", || text(&browser, ".chip").contains("under way"));
    let rate = || text(&browser, &format!("tr:has(#run-{first}) td.n"));
    wait_until("its rate", || rate().parse::<f64>().is_ok_and(|rate| rate > 0.0));
    let earlier = rate();
    wait_until("its rate a second later", || rate() != earlier);
    assert!(text(&browser, "[data-name=p99]").contains("ms") && text(&browser, ".load").contains("2 users"));
    assert_accessible(&browser, "the list, with a run under way");
    browser.click(&format!("#run-{first}"));
    let answers = || text(&browser, "[data-live=answers]").replace(',', "").parse::<u64>().unwrap_or(0);
    wait_until("answers", || answers() > 0);
    let (before, rows) = (answers(), text(&browser, "[data-live=rows]").len());
    wait_until("more of them", || answers() > before && text(&browser, "[data-live=rows]").len() > rows);
    let drawn = "return [...document.querySelectorAll('.over-time canvas')].filter((c) => c.clientWidth > 0).length";
    wait_until("plots of the load and of the server", || browser.run(drawn) == 5);
    assert_accessible(&browser, "a run under way");
    assert!(text(&browser, "[data-live=p99]").contains("ms"), "{}", text(&browser, "dl.key"));
    browser.click("button.stop");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    wait_until("its whole page", || text(&browser, ".verdict").contains("It was interrupted"));
    assert_accessible(&browser, "a run that has ended");
    assert_eq!(browser.url(), format!("{}/run/{first}", pages.origin()));
    // Repeat it, in a process that the server of the pages starts.
    browser.click("button.primary");
    wait_until("the second run", || answers() > 0);
    let second = last(&folder);
    assert_eq!(browser.url(), format!("{}/run/{second}", pages.origin()));
    browser.click("button.stop");
    wait_until("its whole page", || text(&browser, ".verdict").contains("It was interrupted"));
    assert_eq!(*store(&folder).load(&first).expect("a run").plan, *store(&folder).load(&second).expect("a run").plan);
    // The user's note about it.
    browser.enter("#tags", "slow disk");
    browser.enter("#note", EVIL);
    browser.click(".remark button");
    wait_until("the tags", || browser.run("return document.querySelector('#note').value") == EVIL);
    // Two clicks.
    browser.go(&format!("{}/", pages.origin()));
    wait_until("what was written", || text(&browser, ".note-text") == EVIL && text(&browser, ".tag") == "slow");
    browser.click(&format!("#cmp-{first}"));
    wait_until("the choice", || text(&browser, ".pick").contains("Compare"));
    browser.click(&format!("#cmp-{second}"));
    browser.see("Two runs – lastdrop");
    assert!(text(&browser, "main").contains("B against A"));
    assert_accessible(&browser, "two runs");
    assert_eq!(browser.console(), Vec::<String>::new(), "nothing on the console");
}

#[test]
fn a_page_from_elsewhere_gets_nothing() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let id = short_run(&folder, &target);
    let pages = UiServer::start(&folder, &[]);
    let key = pages.key(&pages.cookie(), &format!("/run/{id}"));
    let ui = pages.origin();
    // The worst case: it knows the key of our forms, and the browser is logged in; to a browser another port is the same site.
    let page = format!(
        "<!doctype html><title>waiting</title><iframe src='{ui}/'></iframe>
         <iframe name=f></iframe><form method=post target=f action='{ui}/run/{id}/remark'><input name=key value='{key}'><input name=note value=taken></form>
         <script>
         const tried = [];
         const attempt = (what, promise) => promise.then((r) => tried.push(what + ':' + r), () => tried.push(what + ':nothing'));
         const body = new URLSearchParams({{key: '{key}', note: 'taken'}});
         document.forms[0].submit();
         Promise.all([
           attempt('read', fetch('{ui}/', {{credentials: 'include'}}).then((r) => r.text())),
           attempt('opaque', fetch('{ui}/', {{credentials: 'include', mode: 'no-cors'}}).then((r) => r.type)),
           attempt('post', fetch('{ui}/run/{id}/remark', {{method: 'POST', credentials: 'include', body}}).then((r) => r.text())),
           attempt('hidden post', fetch('{ui}/run/{id}/remark', {{method: 'POST', mode: 'no-cors', credentials: 'include', body}}).then((r) => r.type)),
           attempt('events', new Promise((yes, no) => {{ const s = new EventSource('{ui}/events', {{withCredentials: true}}); s.onopen = () => yes('open'); s.onerror = no; }})),
           attempt('frame', new Promise((yes) => setTimeout(() => {{ try {{ yes(frames[0].document.body.textContent || 'nothing'); }} catch (e) {{ yes('nothing'); }} }}, 500))),
         ]).then(() => {{ document.title = tried.sort().join(' '); }});
         </script>"
    );
    let (address, _) = serve(head, move |()| answer("200 OK", "Content-Type: text/html\r\n", &page));
    let browser = browser(&folder, &pages);
    browser.go(&format!("http://{address}/"));
    let title = || browser.run("return document.title").as_str().unwrap_or_default().to_string();
    wait_until("its attempts", || title() != "waiting");
    let seen = title();
    for nothing in ["read:nothing", "post:nothing", "events:nothing", "frame:nothing"] {
        assert!(seen.contains(nothing), "{seen}");
    }
    assert!(!seen.contains("Runs") && store(&folder).remark(&id).expect("reads").note.is_empty(), "{seen}");
    // A link from there does not work either: the user has to open the page directly.
    browser.run(&format!("location.href = '{ui}/'"));
    wait_until("the refusal", || browser.url() == format!("{ui}/"));
    assert!(!text(&browser, "body").contains("Runs"), "{}", text(&browser, "body"));
}

#[test]
fn other_machines_are_served_on_request_and_by_tls_alone() {
    let folder = Folder::new();
    let done = folder.run(&["ui", "--listen", "0.0.0.0:0"]);
    assert!(done.code == 2 && done.stderr.contains("--listen-anyway") && done.stdout.is_empty(), "{done:?}");
    let curl = |args: &[&str]| {
        let output = Command::new("curl").args(["-sS", "-i", "--noproxy", "*", "--max-time", "60"]).args(args).output();
        let output = output.expect("curl");
        (output.status.success(), PageResponse::of(&String::from_utf8_lossy(&output.stdout)))
    };
    let tls = TlsServer::start(&folder);
    let (certificate, key) = (tls.ca.display().to_string(), folder.join("server.key").display().to_string());
    for (args, trust) in [
        (vec!["--listen", "0.0.0.0:0", "--listen-anyway"], vec!["-k"]),
        (vec!["--tls-cert", &certificate, "--tls-key", &key, "--name", "localhost"], vec!["--cacert", &certificate]),
    ] {
        let pages = UiServer::start(&folder, &args);
        assert!(pages.url.starts_with("https://"), "{}", pages.url);
        let url = pages.url.replace("127.0.0.1", "localhost");
        let (_, entered) = curl(&[trust.as_slice(), &[&url]].concat());
        assert!(entered.status == 303, "{entered:?}");
        let cookie = entered.field("set-cookie").expect("a cookie");
        assert!(cookie.ends_with("; Secure"), "{cookie}");
        let header = format!("Cookie: {}", cookie.split(';').next().unwrap_or_default());
        let page = curl(&[trust.as_slice(), &["-H", &header, url.split('?').next().unwrap_or_default()]].concat());
        assert!(page.1.status == 200 && page.1.body.contains("No runs yet"), "{page:?}");
        let plain = pages.bare("GET", &pages.entrance(), &[("Host", &pages.host())], "");
        assert!(plain.body.is_empty() && plain.status == 0, "{plain:?}");
    }
    let wrong = folder.run(&["ui", "--tls-cert", &key, "--tls-key", &certificate]);
    assert!(wrong.code == 2 && wrong.stderr.contains("server.key"), "{wrong:?}");
}

#[test]
fn it_ends_at_ctrl_c_with_the_runs_that_it_started() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let mut child = long_run(&folder, &target);
    let first = last(&folder);
    signal(&child, libc::SIGINT);
    child.wait().expect("it ends");
    let mut pages = UiServer::start(&folder, &[]);
    let cookie = pages.cookie();
    let key = pages.key(&cookie, &format!("/run/{first}"));
    let begun = pages.post(&cookie, &format!("/run/{first}/again"), &format!("key={key}"));
    let place = begun.field("location").unwrap_or_else(|| panic!("{begun:?}")).to_string();
    // A browser follows it.
    let mut stream = BufReader::new(pages.connect());
    let head = format!(
        "GET {place}/events HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nCookie: {cookie}\r\n\r\n",
        pages.host()
    );
    stream.get_mut().write_all(head.as_bytes()).expect("sent");
    let mut line = String::new();
    while !line.starts_with("event: second") {
        line.clear();
        assert!(stream.read_line(&mut line).expect("news") > 0, "it ended");
    }
    signal(&pages.child, libc::SIGINT);
    assert_eq!(pages.child.wait().expect("it ends").code(), Some(0));
    let run = store(&folder).load(place.trim_start_matches("/run/")).expect("a run");
    assert_eq!(run.end, lastdrop_model::run::End::Interrupted, "it has its report");
    let follower = thread::spawn(move || stream.read_to_string(&mut String::new()));
    assert!(follower.join().expect("no panic").is_ok());
    // A run that cannot be repeated says why, also on the command line.
    fs::write(folder.join("body"), "x").expect("written");
    let file = format!("@{}", folder.join("body").display());
    folder.json(&["run", &target.url(), "-n", "2", "-c", "1", "--body", &file], 0);
    let refused = folder.run(&["run", "--again", "last"]);
    assert!(refused.code == 2 && refused.stderr.contains("it needs files"), "{refused:?}");
    assert_eq!(folder.run(&["run", "--again", "last", "-c", "3"]).code, 2);
}
