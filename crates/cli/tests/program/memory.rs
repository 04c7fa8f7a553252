//! `profile --memory`: the class that leaks a known number of bytes is named in a real gunicorn and a real mod_perl, and no
//! class of a healthy application is. For Node the function is named, too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::servers::{Daemon, open_folder};
use crate::common::{Apache, Folder, free_port, get, number, quiet};

/// Bytes that a request of the leaking class keeps.
const KEPT: f64 = 16_384.0;

/// One page keeps bytes, one does little, and one uses and frees some megabytes.
const PYTHON: &str = "KEPT = []
def application(environ, start_response):
    if environ['PATH_INFO'] == '/report':
        KEPT.append(bytes(16384))
    elif environ['PATH_INFO'] == '/busy':
        rows = [str(i) * 20 for i in range(20000)]
        big = bytearray(2000000)
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [b'ok\\n']
";

/// The same in Perl, by the query.
const PERL: &str = "use strict;
our @kept;
my $query = $ENV{QUERY_STRING} // '';
push @kept, chr(65 + rand 26) x 16384 if $query eq 'report';
my @rows = $query eq 'busy' ? map { $_ x 20 } 1 .. 20000 : ();
print \"Content-Type: text/plain\\n\\nok\\n\";
";

/// Writes a plan with a request of each name.
fn plan(folder: &Folder, requests: &[(&str, String)]) -> String {
    let text: Vec<String> =
        requests.iter().map(|(name, url)| format!("[[request]]\nname = \"{name}\"\nurl = \"{url}\"\n")).collect();
    let path = folder.join(&format!("{}.toml", requests.len()));
    fs::write(&path, text.concat()).expect("written");
    path.display().to_string()
}

/// Asserts that only the class `report` grows, by what it keeps, in the heap.
fn assert_that_report_leaks(profile: &Value) {
    let memory = &profile["memory"];
    let classes = memory["classes"].as_array().expect("classes");
    let first = &classes[0];
    assert_eq!((&first["class"], &first["verdict"]), (&"report".into(), &"grows".into()), "{profile:#}");
    let growth = number(&first["growth_bytes"]["value"]);
    assert!((growth / KEPT - 1.0).abs() <= 0.15, "{growth} bytes per request: {profile:#}");
    let interval = &first["growth_bytes"]["interval"];
    assert!(number(&interval[0]) <= growth && growth <= number(&interval[1]), "{first:#}");
    let heap = &first["mappings"][0];
    assert_eq!(heap["mapping"], "[heap]", "{first:#}");
    assert!(number(&heap["growth_bytes"]["value"]) >= 0.85 * growth, "{first:#}");
    assert!(number(&first["requests"]) >= 48.0 && number(&memory["workers"]) == 2.0, "{profile:#}");
    assert_eq!(classes.len(), 3, "{profile:#}");
    assert!(classes[1..].iter().all(|class| class["verdict"] == "steady"), "{profile:#}");
}

/// Asserts that no class grows, and that the least growth that would have been seen is small.
fn assert_healthy(profile: &Value) {
    let classes = profile["memory"]["classes"].as_array().expect("classes");
    assert_eq!(classes.len(), 2, "{profile:#}");
    assert!(classes.iter().all(|class| class["verdict"] == "steady"), "{profile:#}");
    let smallest = number(&profile["memory"]["smallest_bytes"]);
    assert!(smallest > 0.0 && smallest < KEPT / 2.0, "{profile:#}");
}

/// Starts a gunicorn with two workers and the planted leak. Returns its name and its URL, too.
fn gunicorn(folder: &Folder) -> (Daemon, String, String) {
    let (app, port) = (open_folder(folder, "app"), free_port());
    fs::write(app.join("shop.py"), PYTHON).expect("written");
    let config = app.join("gunicorn.conf.py");
    fs::write(&config, format!("bind = '127.0.0.1:{port}'\nworkers = 2\n")).expect("written");
    let mut gunicorn = Command::new("/usr/bin/gunicorn");
    gunicorn.arg("-c").arg(&config).arg("shop:application").current_dir(&app);
    let running = Daemon::start(gunicorn, "gunicorn", |_| get(port, "/").is_some());
    (running, format!("gunicorn:{}@http://127.0.0.1:{port}/", config.display()), format!("http://127.0.0.1:{port}"))
}

#[test]
fn a_leaking_page_of_python_is_named_and_a_healthy_application_has_none() {
    let _quiet = quiet();
    let folder = Folder::new();
    let (_running, name, url) = gunicorn(&folder);
    let page = |name: &'static str| (name, format!("{url}/{name}"));
    let healthy = plan(&folder, &[page("plain"), page("busy")]);
    assert_healthy(&folder.json(&["profile", &name, "--memory", "--url", &healthy, "-d", "4s"], 0));

    let leaking = plan(&folder, &[page("plain"), page("report"), page("busy")]);
    let json = folder.join("memory.json").display().to_string();
    let done = folder.run(&["profile", &name, "--memory", "--url", &leaking, "-d", "4s", "--json", &json]);
    assert_eq!(done.code, 0, "{done:?}");
    let profile: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&profile["schema"], &profile["how"]), (&"lastdrop.profile/1".into(), &"smaps".into()));
    assert_that_report_leaks(&profile);
    let sentence = "`report` makes a worker grow by 1";
    assert!(
        done.stdout.contains(sentence) && done.stdout.contains("KB per request, in [heap]; the others"),
        "{done:?}"
    );
    assert!(done.stdout.contains("which functions allocate this is not known"), "{done:?}");
    let page = folder.run(&["report", &json, "-o", &folder.join("page.html").display().to_string()]);
    let html = fs::read_to_string(folder.join("page.html")).unwrap_or_default();
    assert!(page.code == 0 && html.contains("makes a worker grow by 1"), "{page:?}");
}

#[test]
fn a_leaking_page_of_perl_is_named_and_a_healthy_application_has_none() {
    let _quiet = quiet();
    let folder = Folder::new();
    let apache = Apache::small(&folder);
    let script: PathBuf = Path::new(&apache.folder).join("htdocs/perl/shop.pl");
    fs::write(&script, PERL).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    let page = |name: &'static str| (name, apache.url(&format!("/perl/shop.pl?{name}")));
    let healthy = plan(&folder, &[page("plain"), page("busy")]);
    assert_healthy(&folder.json(&["profile", &apache.name(), "--memory", "--url", &healthy, "-d", "4s"], 0));
    let leaking = plan(&folder, &[page("plain"), page("report"), page("busy")]);
    assert_that_report_leaks(&folder.json(&["profile", &apache.name(), "--memory", "--url", &leaking, "-d", "4s"], 0));
}

/// One page keeps objects.
const NODE: &str = "const kept = [];
function keep() { kept.push(Array.from({ length: 500 }, (_, i) => ({ i, j: i + 0.5 }))); }
const answer = (request, response) => {
    if (request.url === '/report') keep();
    response.end('ok');
};
require('http').createServer(answer).listen(Number(process.argv[2]), '127.0.0.1');
";

#[test]
fn a_leaking_page_of_node_is_named_with_the_function_that_allocates() {
    let _quiet = quiet();
    let folder = Folder::new();
    let (app, port) = (folder.join("shop.js"), free_port());
    fs::write(&app, NODE).expect("written");
    let mut node = Command::new("/usr/bin/node");
    node.arg(&app).arg(port.to_string());
    let _node = Daemon::start(node, "node", |_| get(port, "/").is_some());
    let page = |name: &'static str| (name, format!("http://127.0.0.1:{port}/{name}"));
    let leaking = plan(&folder, &[page("plain"), page("report")]);
    let name = format!("node@http://127.0.0.1:{port}/");
    let profile = folder.json(&["profile", &name, "--memory", "--url", &leaking, "-d", "4s"], 0);
    let memory = &profile["memory"];
    assert_eq!((&memory["classes"][0]["class"], &memory["classes"][0]["verdict"]), (&"report".into(), &"grows".into()));
    assert_eq!(memory["classes"][1]["verdict"], "steady", "{profile:#}");
    let functions = memory["functions"].as_array().expect("functions");
    // Array.from is V8's own; it and its callback allocate for keep.
    let of_the_page: f64 = functions
        .iter()
        .filter(|f| f["file"].as_str().is_some_and(|file| file.ends_with("shop.js")) && number(&f["line"]) == 2.0)
        .map(|f| number(&f["share"]))
        .sum();
    assert!(of_the_page >= 0.8, "{profile:#}");
}

#[test]
fn memory_needs_a_load_and_answers_and_goes_with_no_other_profile() {
    let folder = Folder::new();
    let (_running, name, url) = gunicorn(&folder);
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let done = folder.run(&[&["profile", &name, "--memory"], more].concat());
        assert_eq!(done.code, code, "{done:?}");
        assert!(words.iter().all(|word| done.stderr.contains(word)), "{done:?}");
    };
    refused(&[], 2, &["--url"]);
    for other in ["--code", "--flame=x.svg", "--rate=5"] {
        refused(&["--url", &url, other], 2, &["'--memory' cannot be used with"]);
    }
    refused(&["--url", &url, "--code", "--wall"], 2, &["'--memory' cannot be used with", "--code", "--wall"]);
    let none = folder.join("none.toml");
    fs::write(&none, format!("[[request]]\nurl = \"{url}/\"\nweight = 0\n")).expect("written");
    refused(&["--url", &none.display().to_string()], 2, &["no request has a weight"]);
    let many: String = (b'a'..=b'z').map(|c| format!("[[request]]\nurl = \"{url}/{}\"\n", char::from(c))).collect();
    let path = folder.join("many.toml");
    fs::write(&path, many).expect("written");
    refused(&["--url", &path.display().to_string()], 1, &["26 request classes", "at most 20"]);
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    refused(&["--url", &nobody, "-d", "1s"], 1, &["is the URL right?"]);
}
