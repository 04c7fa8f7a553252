//! Pages of real runs, opened from disk in a real browser without a network. They draw their plots, respect their own policy,
//! print nothing on the console, do not interpret a server's text as markup, and are accessible.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::accessible::{assert_accessible, faults};
use crate::common::browser::Browser;
use crate::common::{Folder, Target, answer, head, serve, wait_until};
use lastdrop_model::{Counts, HostSample, KeptPlan, Kind, ListenQueue, Plan, Sample, Slice};
use lastdrop_store::Store;

/// A page as a browser has rendered it.
struct RenderedPage {
    /// The document after its scripts ran.
    dom: String,
    /// Lines of the console, with errors and violations of the policy.
    console: Vec<String>,
    /// Requested addresses other than the page.
    requests: Vec<String>,
}

/// Opens a page from disk in a browser, and waits until it has drawn this many plots over time.
fn open(reader: &Browser, page: &Path, plots: usize) -> RenderedPage {
    reader.console();
    reader.go(&format!("file://{}", page.display()));
    // uPlot inserts a canvas for each plot that the script has drawn.
    let drawn = || reader.run("return document.querySelectorAll('canvas').length").as_u64().unwrap_or(0);
    wait_until("the plots", || drawn() >= plots as u64);
    let asked = "return performance.getEntriesByType('resource').map((entry) => entry.name)";
    let asked = reader.run(asked).as_array().cloned().unwrap_or_default();
    RenderedPage {
        dom: reader.run("return document.documentElement.outerHTML").as_str().unwrap_or_default().to_string(),
        console: reader.console(),
        requests: asked.iter().map(ToString::to_string).collect(),
    }
}

/// Starts a browser without a network.
fn reader(folder: &Folder) -> Browser {
    Browser::start(folder, &["--proxy-server=127.0.0.1:1"])
}

/// Asserts that the page is small, has an empty console, asks for nothing, and has drawn its plots.
fn assert_quiet(reader: &Browser, page: &Path, plots: usize) -> RenderedPage {
    let size = fs::metadata(page).expect("a page").len();
    assert!(size < 1_000_000, "{size} bytes");
    let opened = open(reader, page, plots);
    assert!(opened.dom.contains("</html>"), "it was opened: {}", opened.dom);
    assert_eq!(opened.console, Vec::<String>::new(), "nothing on the console");
    assert_eq!(opened.requests, Vec::<String>::new(), "nothing is asked for");
    opened
}

/// Asserts that the page is accessible, too.
fn assert_sound(reader: &Browser, page: &Path, plots: usize) -> RenderedPage {
    let opened = assert_quiet(reader, page, plots);
    assert_accessible(reader, &page.display().to_string());
    assert_eq!(reader.console(), Vec::<String>::new(), "nothing on the console, however wide it is");
    opened
}

/// Makes the page of some ids.
fn page(folder: &Folder, ids: &[&str], name: &str) -> PathBuf {
    let path = folder.join(name);
    let text = path.display().to_string();
    let mut args = vec!["report"];
    args.extend(ids);
    args.extend(["-o", &text]);
    let done = folder.run(&args);
    assert_eq!(done.code, 0, "{done:?}");
    path
}

const EVIL: &str =
    "</script><script>document.title='taken'</script><img src='http://127.0.0.1:9/x.png' onerror='alert(1)'>";

#[test]
fn the_browser_of_these_tests_sees_what_is_wrong_with_a_page() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let path = folder.join("page.html");
    let write = |page: &str| fs::write(&path, page).expect("written");
    write("<!doctype html><html><img src='http://127.0.0.1:9/x.png'><script>nobody.knows()</script></html>");
    let opened = open(&reader, &path, 0);
    assert!(opened.requests.iter().any(|r| r.contains("x.png")), "{:?}", opened.requests);
    assert!(opened.console.iter().any(|l| l.contains("nobody")), "{:?}", opened.console);
    let policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">";
    write(&format!("<!doctype html><html>{policy}<p style='color:red'>x</p></html>"));
    assert!(open(&reader, &path, 0).console.iter().any(|l| l.contains("Content Security Policy")));
    let show = |body: &str| {
        write(&format!("<!doctype html><html lang=en><title>t</title><main><h1>one</h1>{body}</main></html>"));
        reader.go(&format!("file://{}", path.display()));
        faults(&reader)
    };
    assert_eq!(show("<p>text</p>"), Vec::<String>::new());
    for (body, rule) in [
        ("<button></button>", "no name"),
        ("<input type=text>", "no name"),
        ("<div tabindex=0>x</div>", "no name"),
        ("<svg><path class=line d='M0 0L5 5'/></svg>", "a picture"),
        ("<div aria-label=x>x</div>", "a name of nothing"),
        ("<p style='color:#999'>x</p>", "contrast 2.85 of text"),
        ("<p style='opacity:.4'>x</p>", "contrast"),
        (
            "<svg role=img aria-label=x><path class=line style='fill:none;stroke:#ccc' d='M0 0L5 5'/></svg>",
            "contrast 1.6",
        ),
        ("<h3>x</h3>", "a level left out"),
        ("<h1>x</h1>", "not one h1"),
        ("<table><caption>c</caption><tr><th>x</th></tr></table>", "a heading of what"),
        ("<table><tr><th scope=col>x</th></tr></table>", "no caption"),
        ("<p id=a>x</p><p id=a>y</p>", "an id twice"),
        ("<label for=nobody>x</label>", "refers to nothing"),
        ("<pre style='width:5em;overflow-x:auto'>a very long line of text</pre>", "scrolls, but not by keyboard"),
        ("<p style='width:5000px'>x</p>", "wider than the window"),
        ("<ul><p>x</p></ul>", "a list of other things"),
        ("<p aria-hidden=true><a href=x>x</a></p>", "reached, though hidden"),
        ("</main><p>x</p>", "outside of all parts"),
        ("</main><main>x</main>", "not one main"),
    ] {
        let found = show(body);
        assert!(found.iter().any(|f| f.starts_with(rule)), "{body}: {found:?}");
    }
}

#[test]
fn runs_long_and_short_are_pages_that_need_nobody() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let target = Target::start(&folder, &["--workers", "2", "--service", "2ms", "--reset-every", "40"]);
    let plan = folder.join("plan.toml");
    let text = format!(
        "[[phase]]\nname = 'first'\nusers = 2\nduration = '4s'\n[[phase]]\nname = 'second'\nrate = 50\nto_rate = 150\nduration = '4s'\n\
         [[request]]\nurl = '{0}'\nname = \"\"\"{EVIL}\"\"\"\n[[request]]\nurl = \"{0}item/1?a=%3Cb%3E&c='d'\"\n",
        target.url()
    );
    fs::write(&plan, text).expect("written");
    let whole = folder.json(&["run", plan.to_str().expect("text"), "--keepalive", "off"], 0);
    let opened = assert_sound(&reader, &page(&folder, &["last"], "whole.html"), 4);
    assert!(!opened.dom.contains("<img") && !opened.dom.contains("taken</title>"), "it was taken for markup");
    assert!(opened.dom.contains("&lt;/script&gt;&lt;script&gt;document.title"), "the name of the class is there");
    let id = whole["id"].as_str().expect("an id");
    assert!(opened.dom.contains(&format!("run {id}")) && opened.dom.contains("second"));
    // A run with a single request has a curve and a map, too. On a target that resets none.
    let steady = Target::start(&folder, &["--service", "2ms"]);
    folder.json(&["run", &steady.url(), "-n", "1", "-c", "1"], 0);
    let short = assert_sound(&reader, &page(&folder, &["last"], "short.html"), 2);
    assert!(short.dom.contains("heat-cell") && short.dom.contains("Latency by percentile"), "{}", short.dom);
    // Two of them are compared.
    let both = assert_sound(&reader, &page(&folder, &[&id[..6], "last"], "both.html"), 6);
    assert!(both.dom.contains("B against A") && both.dom.matches("Every answer, by when and how long").count() == 2);
}

#[test]
fn a_replay_is_a_page_with_what_was_asked_for() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let target = Target::start(&folder, &["--service", "1ms"]);
    let log = folder.join("access.log");
    let line = |i: u32| {
        let (client, second, item) = (i % 7, i / 40, i % 30);
        format!(
            "10.0.0.{client} - - [10/Oct/2025:12:00:{second:02} +0000] \"GET /item/{item} HTTP/1.1\" 200 12 \"-\" \"{EVIL}\"\n"
        )
    };
    fs::write(&log, (0..400).map(line).collect::<String>()).expect("written");
    folder.json(&["replay", log.to_str().expect("text"), "--to", &target.url(), "--speed", "10"], 0);
    let opened = assert_sound(&reader, &page(&folder, &["last"], "replay.html"), 2);
    assert!(opened.dom.contains("replay of ") && opened.dom.contains("GET /item/{n}"), "{}", opened.dom);
    assert!(!opened.dom.contains("<img"));
}

/// Seconds of a run with a million requests per second, as on a machine with many processors.
const MILLIONS: u32 = 300;

#[test]
fn a_million_requests_a_second_are_a_page() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let store = Store::open(&folder.join("runs.sqlite")).expect("a store");
    let mut plan = Plan::new("http://127.0.0.1/".parse().expect("a URL"), 1);
    plan.phases[0].duration = Some(Duration::from_secs(MILLIONS.into()));
    let id = "3111100000000001";
    store.begin(id, 1_700_000_000_000, "", &KeptPlan::from(&plan), &serde_json::json!({})).expect("written");
    // From tens of microseconds to a second, as with many machines: the whole map is filled.
    let mut second = Slice::new(0, 0);
    let n = 1_000_000;
    second.counts =
        Counts { due: n + 30, sent: n + 20, timed_out: 20, answered: n, answered_in_time: n, ..Counts::default() };
    second.status[200] = n - 1000;
    second.status[503] = 1000;
    for i in 0..n {
        let us = (30.0 * (i as f64 / n as f64 * 10.4).exp()) as u64;
        for kind in [Kind::Response, Kind::Service] {
            second.record(kind, us);
        }
    }
    for t in 0..MILLIONS {
        second.second = t;
        store.second(id, &second).expect("written");
        let queue = ListenQueue { address: "127.0.0.1:80".into(), queue: 4096, limit: 4096, ..ListenQueue::default() };
        let look = Sample {
            t_s: f64::from(t) + 1.0,
            span_s: 1.0,
            worker_count: 4096,
            busy: Some(4096),
            cpu_cores: Some(190.5),
            real_memory_bytes: Some(900 << 30),
            listen: vec![queue],
            kernel: [("ListenOverflows".to_string(), 1_000_000)].into(),
            host: HostSample { cores: vec![0.99; 192], ..HostSample::default() },
            ..Sample::default()
        };
        store.look(id, &look).expect("written");
    }
    store.phase_end(id, 0, u64::from(MILLIONS) * 1_000_000, 10_000).expect("written");
    let opened = assert_sound(&reader, &page(&folder, &[id], "million.html"), 6);
    assert!(opened.dom.contains("1,000,000") && opened.dom.contains("ListenOverflows"), "{}", opened.dom);
}

#[test]
fn what_a_server_says_is_text() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let garbage = format!("{EVIL}\u{1b}[31m\r\n\r\n");
    let (address, _) = serve(head, move |()| garbage.clone().into_bytes());
    folder.json(&["run", &format!("http://{address}/'b'&amp;"), "-n", "3", "-c", "1"], 1);
    let opened = assert_quiet(&reader, &page(&folder, &["last"], "evil.html"), 0);
    assert!(opened.dom.contains("Nothing was answered") && !opened.dom.contains("<img"), "{}", opened.dom);
    assert!(!opened.dom.contains('\u{1b}'));
    let (address, _) = serve(head, |()| answer("200 OK", format!("Server: {EVIL}\r\n"), EVIL));
    folder.json(&["run", &format!("http://{address}/"), "-n", "5", "-c", "1"], 0);
    let opened = assert_quiet(&reader, &page(&folder, &["last"], "headers.html"), 2);
    assert!(!opened.dom.contains("<img"));
}

#[test]
fn questions_of_several_runs_are_pages() {
    let folder = Folder::new();
    let reader = reader(&folder);
    let target = Target::with_config(&folder, "workers = 2\nservice = '4ms'");
    let url = target.url();
    let server = format!("target:{}", folder.join("target.toml").display());
    let sweep = folder.join("sweep.toml");
    fs::write(
        &sweep,
        format!("server = '{server}'\nurl = '{url}'\nusers = [1, 4]\nrequests = 30\n[settings]\nworkers = [1, 3]\n"),
    )
    .expect("written");
    let capacity = ["capacity", &url, "--objective", "p99<2s", "-d", "1s", "--max-time", "8s", "-c", "2"];
    for args in [
        [&capacity[..], &["-r", "50", "--max-rate", "50"]].concat(),
        vec!["compare", "--live", &url, &url, "--blocks", "4", "-d", "100ms", "-c", "2"],
        vec!["sweep", sweep.to_str().expect("text")],
        vec![
            "tune", &server, "--url", &url, "-c", "4", "--only", "workers", "--trials", "2", "-d", "300ms", "--blocks",
            "4",
        ],
    ] {
        let done = folder.run(&args);
        assert!([0, 1, 3].contains(&done.code), "{done:?}");
        let id = done.stdout.lines().find_map(|l| l.strip_prefix("kept as ")).and_then(|l| l.split(';').next());
        let id = id.unwrap_or_else(|| panic!("{done:?}"));
        let opened = assert_sound(&reader, &page(&folder, &[id], "document.html"), 0);
        assert!(opened.dom.contains("class=\"verdict"), "{}", opened.dom);
        // It is listed, and shown as plain text.
        assert!(folder.run(&["history"]).stdout.lines().any(|l| l.trim_start().starts_with(id)), "{args:?}");
        let shown = folder.run(&["show", id]);
        assert!(shown.code == 0 && done.stdout.contains(shown.stdout.trim_end()), "{shown:?}\n{done:?}");
        // The document of several runs was stored after them.
        assert_eq!(fs::read(page(&folder, &["last"], "last.html")).ok(), fs::read(folder.join("document.html")).ok());
    }
    // Other documents are read from the files that --json wrote.
    let file = folder.join("size.json");
    let file = file.to_str().expect("text");
    assert_eq!(folder.run(&["size", &server, "--memory", "200M", "--json", file]).code, 0);
    assert_sound(&reader, &page(&folder, &[file, "last"], "two.html"), 0);
}

#[test]
fn what_cannot_be_shown_is_said() {
    let folder = Folder::new();
    let done = folder.run(&["report", "last"]);
    assert_eq!(done.code, 1, "{done:?}");
    let file = folder.join("other.json");
    fs::write(&file, "{\"schema\":\"lastdrop.watch/1\"}").expect("written");
    let done =
        folder.run(&["report", file.to_str().expect("text"), "-o", folder.join("x.html").to_str().expect("text")]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("no page for lastdrop.watch/1") && !folder.join("x.html").exists(), "{done:?}");
}
