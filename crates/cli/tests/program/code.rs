//! `profile --code`: functions of known shares are found in a real mod_perl, PHP-FPM, mod_php, gunicorn, Node, JVM and Puma, and
//! nothing is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::servers::{Daemon, Fpm, ModPhp, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, free_port, get, number, processes_with, quiet, wait_until};

/// Functions that burn 60, 30 and 10 % of the time.
const PERL: &str = "use strict;

sub heavy { my $x = 0; $x += sqrt($_) for 1 .. 60000; $x }
sub middle { my $x = 0; $x += sqrt($_) for 1 .. 30000; $x }
sub light { my $x = 0; $x += sqrt($_) for 1 .. 10000; $x }
print \"Content-Type: text/plain\\n\\n\";
heavy(); middle(); light();
print \"ok\\n\";
";

fn apache_with_planted_functions(folder: &Folder) -> Apache {
    let apache = Apache::small(folder);
    let page = apache.folder.join("htdocs/perl/planted.pl");
    fs::write(&page, PERL).expect("written");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o755)).expect("its mode");
    apache
}

/// A folder for temporary files that is empty at the end, if nothing is left behind.
fn temporary(folder: &Folder) -> PathBuf {
    let path = folder.join("tmp");
    fs::create_dir(&path).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).expect("its mode");
    path
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("readable").filter_map(|e| Some(e.ok()?.path())).collect()
}

/// Asserts that these functions come first, with these shares of the time in the page.
fn assert_shares(profile: &Value, file: &str, expected: &[(&str, f64, u64)]) {
    let rows = profile["functions"].as_array().expect("functions");
    assert_eq!(rows[0]["name"], expected[0].0, "{profile:#}");
    let row_of =
        |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {profile:#}"));
    // The rest is the server's own: it receives the request and sends the answer.
    let of_page: f64 = expected.iter().map(|(name, ..)| number(&row_of(name)["exclusive_share"])).sum();
    assert!(of_page >= 0.85, "{profile:#}");
    for (name, share, line) in expected {
        let row = row_of(name);
        let found = number(&row["exclusive_share"]);
        assert!((found / of_page - share).abs() <= 0.05, "{name}: {found} of {of_page}");
        assert!(number(&row["cumulative_share"]) >= found, "{row}");
        assert!(row["file"].as_str().is_some_and(|path| path.ends_with(file)), "{row}");
        assert_eq!(row["line"], *line, "{row}");
    }
    assert!(number(&profile["overhead"]) >= 0.0 && number(&profile["requests"]) > 0.0, "{profile:#}");
}

#[test]
fn functions_of_perl_are_found_by_a_second_instance_that_leaves_nothing() {
    let folder = Folder::new();
    let apache = apache_with_planted_functions(&folder);
    let (name, url, temporary) = (apache.name(), apache.url("/perl/planted.pl"), temporary(&folder));
    let before = apache.tree();
    let (json, flame) = (folder.join("code.json").display().to_string(), folder.join("code.svg").display().to_string());
    let args = ["profile", &name, "--code", "--url", &url, "-c", "2", "-d", "1s", "--json", &json, "--flame", &flame];
    let done = folder.lastdrop(&args).env("TMPDIR", &temporary).output().expect("runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let profile: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&profile["schema"], &profile["language"]), (&"lastdrop.profile/1".into(), &"perl".into()));
    assert_shares(&profile, "planted.pl", &[("heavy", 0.6, 3), ("middle", 0.3, 4), ("light", 0.1, 5)]);
    // Each request calls it once. A request that was cut off at the end is counted by one side only.
    let (calls, requests) = (number(&profile["functions"][0]["calls"]), number(&profile["requests"]));
    assert!((calls - requests).abs() <= 4.0, "{calls} calls, {requests} requests");
    assert!(text.contains("Look at heavy first (") && text.contains("who calls whom"), "{text}");
    assert!(fs::read_to_string(&flame).expect("written").contains("heavy ("), "a flame graph of Perl's functions");
    assert_eq!((entries(&temporary), apache.masters().len()), (vec![], 1), "nothing is left behind");
    assert!(apache.tree() == before, "the server's files are untouched");

    assert_that_a_killed_one_leaves_nothing(&folder, &temporary, &name, &url);
}

/// What a killed profile leaves ends by itself, and a restore takes its folder away.
fn assert_that_a_killed_one_leaves_nothing(folder: &Folder, temporary: &Path, name: &str, url: &str) {
    let mut killed = folder.lastdrop(&["profile", name, "--code", "--url", url, "-c", "2", "-d", "60s"]);
    let mut killed = killed.env("TMPDIR", temporary).stdout(Stdio::null()).spawn().expect("runs");
    wait_until("a second instance", || {
        entries(temporary).iter().any(|f| f.join("pid").exists() || f.join("said").exists())
    });
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait_until("the end of the second instance", || processes_with(&temporary.to_string_lossy()).is_empty());
    let restored = folder.lastdrop(&["restore"]).env("TMPDIR", temporary).output().expect("runs");
    assert!(restored.status.success() && entries(temporary).is_empty(), "{restored:?}");
}

/// Functions that burn 60, 25 and 15 % of the time. They need what the file before the page defines.
const PHP: &str = "function heavy() { $x = 0; for ($i = 0; $i < 48 * BEFORE; $i++) { $x += sqrt($i); } return $x; }
class Shop {
    public static function middle() { $x = 0; for ($i = 0; $i < 20 * BEFORE; $i++) { $x += sqrt($i); } return $x; }
    public function light() { $x = 0; for ($i = 0; $i < 12 * BEFORE; $i++) { $x += sqrt($i); } return $x; }
}
heavy();
Shop::middle();
(new Shop())->light();
if (isset($_GET['wait'])) { usleep(100000); }
echo 'ok';
";
const PLANTED: [(&str, f64, u64); 3] = [("heavy", 0.6, 2), ("Shop::middle", 0.25, 4), ("Shop::light", 0.15, 5)];

/// Writes the page and the file before it. Returns that file.
fn planted_php(docs: &Path) -> PathBuf {
    php(docs, "planted.php", PHP);
    php(docs, "before.php", "const BEFORE = 10000;");
    docs.join("before.php")
}

fn profiled(folder: &Folder, temporary: &Path, name: &str, url: &str, more: &[&str]) -> (Value, String) {
    let json = folder.join("code.json").display().to_string();
    let time: &[&str] = if more.contains(&"-d") { &[] } else { &["-d", "2s"] };
    let args = [&["profile", name, "--code", "--url", url, "-c", "2", "--json", &json], time, more].concat();
    let done = folder.lastdrop(&args).env("TMPDIR", temporary).output().expect("runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    (serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON"), text)
}

#[test]
fn functions_of_php_are_found_by_a_second_pool_that_leaves_nothing() {
    let folder = Folder::new();
    let (docs, temporary) = (open_folder(&folder, "docs"), temporary(&folder));
    let before = planted_php(&docs);
    let lines = format!(
        "pm.status_path = /status\nphp_value[auto_prepend_file] = {}\nphp_admin_value[open_basedir] = {}\n",
        before.display(),
        docs.display()
    );
    let (fpm, port) = (Fpm::start(&folder, 2, &lines), free_port());
    let _front = nginx(&folder, &php_site(port, &docs, &fpm.socket), port);
    let url = format!("http://127.0.0.1:{port}/planted.php");
    let (profile, text) = profiled(&folder, &temporary, &fpm.name(), &url, &[]);
    assert_eq!(profile["language"], "php");
    assert_shares(&profile, "planted.php", &PLANTED);
    assert!(text.contains("Look at heavy first (") && text.contains("who calls whom"), "{text}");
    // A wait has its place in the time that passes, and none in CPU time.
    let (wall, _) = profiled(&folder, &temporary, &fpm.name(), &format!("{url}?wait=1"), &["--wall"]);
    assert_eq!(wall["functions"][0]["name"], "planted.php", "{wall:#}");
    assert!(number(&wall["functions"][0]["exclusive_share"]) > 0.5, "{wall:#}");
    assert_eq!(entries(&temporary), Vec::<PathBuf>::new(), "nothing is left behind");
    assert_that_a_killed_one_leaves_nothing(&folder, &temporary, &fpm.name(), &url);
}

#[test]
fn functions_of_php_are_found_in_an_apache_with_mod_php() {
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let apache = ModPhp::start(&folder, 2, "");
    php(&apache.docs, "planted.php", &format!("const BEFORE = 10000;{PHP}"));
    let (profile, _) = profiled(&folder, &temporary, &apache.name(), &apache.url("/planted.php"), &[]);
    assert_shares(&profile, "planted.php", &PLANTED);
    assert_eq!(entries(&temporary), Vec::<PathBuf>::new(), "nothing is left behind");
}

/// Functions that burn 60, 25 and 15 % of the time.
const PYTHON: &str = "import time

def heavy():
    x = 0.0
    for i in range(240000): x += i ** 0.5

def middle():
    x = 0.0
    for i in range(100000): x += i ** 0.5

def light():
    x = 0.0
    for i in range(60000): x += i ** 0.5

def application(env, start):
    heavy(); middle(); light()
    if env['QUERY_STRING']: time.sleep(0.3)
    start('200 OK', [('Content-Length', '3')])
    return [b'ok\\n']
";

/// A command that runs lastdrop where py-spy is in a folder of the system's, and whose temporary files are in a folder.
fn with_py_spy(folder: &Folder, temporary: &Path, args: &[&str]) -> Command {
    let tool = std::env::var("LASTDROP_PY_SPY").expect("LASTDROP_PY_SPY, which ./x test sets");
    let shown = format!(
        "mount -t tmpfs -o mode=755 none /usr/local/bin && install -m 755 {tool} /usr/local/bin/py-spy && exec \"$@\""
    );
    let mut command = in_namespace(&folder.lastdrop(args), &shown);
    command.env("TMPDIR", temporary);
    command
}

/// The same command where this has been done to the files that it sees.
fn in_namespace(command: &Command, before: &str) -> Command {
    let mut other = Command::new("unshare");
    other.args(["--mount", "sh", "-c", before, "sh"]).arg(command.get_program()).args(command.get_args());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}

/// A gunicorn with the planted functions, with further settings.
struct PlantedGunicorn {
    _running: Daemon,
    name: String,
    url: String,
}

fn gunicorn_with_planted_functions(folder: &Folder, settings: &str) -> PlantedGunicorn {
    let (app, port) = (open_folder(folder, "app"), free_port());
    fs::set_permissions(&app, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::write(app.join("planted.py"), PYTHON).expect("written");
    let config = app.join("gunicorn.conf.py");
    fs::write(&config, format!("bind = '127.0.0.1:{port}'\nworkers = 2\n{settings}")).expect("written");
    let mut gunicorn = Command::new("/usr/bin/gunicorn");
    gunicorn.arg("-c").arg(&config).arg("planted:application").current_dir(&app);
    let running = Daemon::start(gunicorn, "gunicorn", |_| get(port, "/").is_some());
    let url = format!("http://127.0.0.1:{port}/");
    PlantedGunicorn { _running: running, name: format!("gunicorn:{}@{url}", config.display()), url }
}

#[test]
fn functions_of_python_are_read_from_outside() {
    // A worker stands still while py-spy reads it, for long if others have the processors.
    let _quiet = quiet();
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let gunicorn = gunicorn_with_planted_functions(&folder, "");
    let (name, url) = (gunicorn.name.as_str(), gunicorn.url.as_str());
    let profile = |more: &[&str], url: &str| -> Value {
        let args = ["profile", name, "--code", "-c", "2", "-d", "2s", "--json", "-", "--url", url];
        let done = with_py_spy(&folder, &temporary, &[&args, more].concat()).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let without = folder.lastdrop(&["profile", name, "--code", "--url", url, "-d", "1s"]);
    let without = in_namespace(&without, "mount -t tmpfs none /usr/local/bin && exec \"$@\"").output().expect("runs");
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(1) && said.contains("py-spy is not installed; from PyPI"), "{said}");
    let cpu = profile(&[], url);
    assert_eq!(cpu["language"], "python");
    assert_shares(&cpu, "planted.py", &[("heavy", 0.6, 3), ("middle", 0.25, 7), ("light", 0.15, 11)]);
    // In the time that passes, a wait is where the application waits.
    let wall = profile(&["--wall"], &format!("{url}?wait"));
    assert_eq!(wall["functions"][0]["name"], "application", "{wall:#}");
    assert!(number(&wall["functions"][0]["exclusive_share"]) > 0.5, "{wall:#}");
    assert_eq!(entries(&temporary), Vec::<PathBuf>::new(), "nothing is left behind");

    // Killed, it takes py-spy with it.
    let args = ["profile", name, "--code", "--url", url, "-d", "60s"];
    let mut killed = with_py_spy(&folder, &temporary, &args);
    let mut killed = killed.stdout(Stdio::null()).spawn().expect("runs");
    wait_until("py-spy", || entries(&temporary).iter().any(|folder| folder.join("said").exists()));
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait_until("the end of py-spy", || processes_with(&temporary.to_string_lossy()).is_empty());
    let restored = folder.lastdrop(&["restore"]).env("TMPDIR", &temporary).output().expect("runs");
    assert!(restored.status.success() && entries(&temporary).is_empty(), "{restored:?}");
    assert!(folder.run(&["run", url, "-n", "4", "--timeout", "5s", "--no-store"]).code == 0, "no worker stands still");
}

#[test]
fn py_spy_reads_workers_of_another_user_as_that_user_and_only_if_it_is_roots() {
    let _quiet = quiet();
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let gunicorn = gunicorn_with_planted_functions(&folder, "user = 'www-data'\ngroup = 'www-data'\n");
    let args = ["profile", &gunicorn.name, "--code", "-c", "2", "-d", "1s", "--json", "-", "--url", &gunicorn.url];
    let done = with_py_spy(&folder, &temporary, &args).output().expect("runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let profile: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(profile["functions"][0]["name"], "heavy", "{profile:#}");
    let executed = profile["environment"]["executed"].as_array().expect("programs");
    let spy = executed.iter().find(|one| one["program"] == "/usr/local/bin/py-spy").expect("listed");
    let www_data = nix::unistd::User::from_name("www-data").ok().flatten().expect("a user of Debian");
    assert_eq!(spy["uid"], www_data.uid.as_raw(), "{spy}");

    let hide = "mount -t tmpfs -o mode=777 none /usr/local/bin && cp /bin/true /usr/local/bin/py-spy && exec \"$@\"";
    let refused = in_namespace(&folder.lastdrop(&args), hide).output().expect("runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("can be changed by others than root"), "{said}");
}

/// Functions that burn 60, 25 and 15 % of the time.
const NODE: &str = "const http = require('http');
function heavy() { let x = 0; for (let i = 0; i < 4800000; i++) x += Math.sqrt(i); return x; }
function middle() { let x = 0; for (let i = 0; i < 2000000; i++) x += Math.sqrt(i); return x; }
function light() { let x = 0; for (let i = 0; i < 1200000; i++) x += Math.sqrt(i); return x; }
const answer = (request, response) => response.end(heavy() + middle() + light() > 0 ? 'ok' : 'no');
const cluster = require('cluster');
if (process.argv[3] === 'cluster' && cluster.isPrimary) {
    cluster.fork();
    cluster.fork();
} else {
    http.createServer(answer).listen(Number(process.argv[2]), '127.0.0.1');
}
";

#[test]
fn functions_of_node_are_found_by_a_second_instance_that_leaves_nothing() {
    for mode in ["alone", "cluster"] {
        let folder = Folder::new();
        let (temporary, port) = (temporary(&folder), free_port());
        let app = folder.join("planted.js");
        fs::write(&app, NODE).expect("written");
        let mut node = Command::new("/usr/bin/node");
        node.arg(&app).arg(port.to_string()).arg(mode);
        let node = Daemon::start(node, "node", |_| get(port, "/").is_some());
        let (name, url) = (format!("node@http://127.0.0.1:{port}/"), format!("http://127.0.0.1:{port}/"));
        let (profile, text) = profiled(&folder, &temporary, &name, &url, &[]);
        assert_eq!(profile["language"], "node");
        assert_shares(&profile, "planted.js", &[("heavy", 0.6, 2), ("middle", 0.25, 3), ("light", 0.15, 4)]);
        assert!(text.contains("Look at heavy first (") && text.contains("who calls whom"), "{text}");
        assert_eq!(entries(&temporary), Vec::<PathBuf>::new(), "nothing is left behind");
        assert_eq!(
            processes_with(&app.to_string_lossy()).len(),
            if mode == "alone" { 1 } else { 3 },
            "of {}",
            node.pid()
        );
        if mode == "cluster" {
            assert_that_a_killed_one_leaves_nothing(&folder, &temporary, &name, &url);
            wait_until("the end of its workers", || processes_with(&app.to_string_lossy()).len() == 3);
            let wall = folder.run(&["profile", &name, "--code", "--wall", "--url", &url]);
            assert!(wall.code == 1 && wall.stderr.contains("--wall"), "{wall:?}");
        }
    }
}

#[test]
fn a_profiler_that_is_not_installed_is_named_with_the_command_that_installs_it() {
    let folder = Folder::new();
    let (apache, mod_php) = (apache_with_planted_functions(&folder), ModPhp::start(&folder, 1, ""));
    php(&mod_php.docs, "ok.php", "echo 'ok';");
    for (name, url, hide, tool, package) in [
        (
            apache.name(),
            apache.url("/perl/planted.pl"),
            "for d in /usr/lib/*/perl5/*/Devel; do mount -t tmpfs none $d || exit 9; done",
            "Devel::NYTProf",
            "libdevel-nytprof-perl",
        ),
        (
            mod_php.name(),
            mod_php.url("/ok.php"),
            "for f in /usr/lib/php/*/excimer.so; do mount --bind /dev/null $f || exit 9; done",
            "Excimer",
            "php-excimer",
        ),
    ] {
        let command = folder.lastdrop(&["profile", &name, "--code", "--url", &url, "-d", "1s"]);
        let output = in_namespace(&command, &format!("{hide}; exec \"$@\"")).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{tool} is not installed")) && said.contains(package), "{said}");
    }
    let other = folder.run(&["profile", "pid:1", "--code", "--url", &apache.url("/")]);
    assert!(other.code == 1 && other.stderr.contains("mod_perl"), "{other:?}");
    let without = folder.run(&["profile", &apache.name(), "--code"]);
    assert!(without.code == 2 && without.stderr.contains("--url"), "{without:?}");
}

/// Functions that burn 60, 25 and 15 % of the time. They are compiled beforehand, as a server's are after its start.
const JAVA: &str = "import com.sun.net.httpserver.HttpServer;
public class Planted {
    static double heavy() { double x = 0; for (int i = 0; i < 4800000; i++) x += Math.sqrt(i); return x; }
    static double middle() { double x = 0; for (int i = 0; i < 2000000; i++) x += Math.sqrt(i); return x; }
    static class Shop {
        double light() { double x = 0; for (int i = 0; i < 1200000; i++) x += Math.sqrt(i); return x; }
    }
    public static void main(String[] words) throws Exception {
        var address = new java.net.InetSocketAddress(\"127.0.0.1\", Integer.parseInt(words[0]));
        var server = HttpServer.create(address, 0);
        server.setExecutor(java.util.concurrent.Executors.newFixedThreadPool(4));
        server.createContext(\"/\", request -> {
            double sum = heavy() + middle() + new Shop().light();
            if (request.getRequestURI().getQuery() != null) {
                try { Thread.sleep(100); } catch (InterruptedException e) { throw new RuntimeException(e); }
            }
            request.sendResponseHeaders(sum > 0 ? 200 : 500, -1);
            request.close();
        });
        server.start();
    }
}
";
const PLANTED_IN_JAVA: [(&str, f64, u64); 3] =
    [("Planted.heavy", 0.6, 3), ("Planted.middle", 0.25, 4), ("Planted$Shop.light", 0.15, 6)];

/// A JVM with the planted functions, as a user of its own.
struct PlantedJvm {
    running: Daemon,
    url: String,
    user: nix::unistd::User,
}

impl PlantedJvm {
    fn start(folder: &Folder) -> PlantedJvm {
        PlantedJvm::start_within(folder, "exec \"$@\"", &[])
    }

    /// As systemd starts Debian's Tomcat: with a /tmp of its own, and with a right that its user has not.
    fn with_its_own_tmp(folder: &Folder) -> PlantedJvm {
        let mount = "mount -t tmpfs -o mode=1777 none /mnt && mkdir -p /mnt/tmp /mnt/$0 && cp $0/*.class /mnt/$0 && chmod -R a+rX /mnt && chmod 1777 /mnt/tmp";
        let rights = ["--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service"];
        PlantedJvm::start_within(folder, &format!("{} && mount --bind /mnt/tmp /tmp && exec \"$@\"", mount), &rights)
    }

    fn start_within(folder: &Folder, before: &str, rights: &[&str]) -> PlantedJvm {
        let (app, port) = (open_folder(folder, "app"), free_port());
        fs::set_permissions(&app, fs::Permissions::from_mode(0o755)).expect("its mode");
        fs::write(app.join("Planted.java"), JAVA).expect("written");
        let compiled = Command::new("javac").arg("Planted.java").current_dir(&app).status();
        assert!(compiled.expect("javac, of Debian's default-jdk-headless").success());
        let mut java = Command::new("unshare");
        java.args(["--mount", "sh", "-c", before]).arg(&app).arg("setpriv").args(rights);
        java.args(["--reuid=www-data", "--regid=www-data", "--clear-groups", "java", "-XX:-UsePerfData", "-cp"]);
        java.arg(&app).arg("Planted").arg(port.to_string());
        let running = Daemon::start(java, "java", |_| get(port, "/").is_some());
        let user = nix::unistd::User::from_name("www-data").ok().flatten().expect("a user of Debian");
        PlantedJvm { running, url: format!("http://127.0.0.1:{port}/"), user }
    }

    fn name(&self) -> String {
        format!("pid:{}", self.running.pid())
    }

    /// Recordings that it makes, in the words of the JDK's own tool.
    fn recordings(&self) -> String {
        let mut jcmd = Command::new("setpriv");
        jcmd.args(["--reuid=www-data", "--regid=www-data", "--clear-groups", "jcmd", "-J-XX:-UsePerfData"]);
        let output = jcmd.arg(self.running.pid().to_string()).arg("JFR.check").output().expect("setpriv");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What has been made in /tmp for it.
    fn left_in_tmp(&self) -> Vec<PathBuf> {
        let end = self.running.pid().to_string();
        let is_its_own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.ends_with(&format!("_{end}")) || name == format!(".java_pid{end}")
        };
        entries(Path::new("/tmp")).into_iter().filter(is_its_own).collect()
    }
}

#[test]
fn a_jvm_with_a_tmp_of_its_own_records_there() {
    let _quiet = quiet();
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let jvm = PlantedJvm::with_its_own_tmp(&folder);
    let its_own = PathBuf::from(format!("/proc/{}/root/tmp", jvm.running.pid()));
    let before = entries(&its_own);
    let (profile, _) = profiled(&folder, &temporary, &jvm.name(), &jvm.url, &[]);
    assert_eq!(profile["functions"][0]["name"], "Planted.heavy", "{profile:#}");
    assert_eq!((entries(&temporary), entries(&its_own)), (vec![], before), "nothing is left behind");
}

#[test]
fn functions_of_java_are_recorded_by_the_jvm_and_nothing_is_left_in_it() {
    let _quiet = quiet();
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let jvm = PlantedJvm::start(&folder);
    let profile = |more: &[&str], url: &str| {
        let (profile, text) = profiled(&folder, &temporary, &jvm.name(), url, more);
        assert_eq!(
            (profile["language"].as_str(), entries(&temporary)),
            (Some("java"), vec![]),
            "nothing is left behind"
        );
        assert_eq!(jvm.left_in_tmp(), Vec::<PathBuf>::new(), "nothing of the JVM's either");
        (profile, text)
    };
    let (cpu, text) = profile(&["-d", "8s"], &jvm.url);
    assert_shares(&cpu, "Planted.java", &PLANTED_IN_JAVA);
    assert!(text.contains("Look at Planted.heavy first (") && text.contains("not what waits"), "{text}");
    let executed = cpu["environment"]["executed"].as_array().expect("programs");
    let theirs = executed.iter().filter(|one| one["uid"] == jvm.user.uid.as_raw());
    assert_eq!(theirs.count(), 2, "jcmd and jfr run as the JVM's user: {executed:#?}");
    // In the time that passes, a wait is where the application waits, and a thread without a request does not count.
    let (wall, _) = profile(&["--wall", "-d", "4s"], &format!("{}?wait", jvm.url));
    assert_eq!(wall["functions"][0]["name"], "java.lang.Thread.sleep", "{wall:#}");
    let (share, passed) = (number(&wall["functions"][0]["exclusive_share"]), number(&wall["functions_s"]));
    assert!(share > 0.4 && (5.0..=10.0).contains(&passed), "two users for 4 s: {wall:#}");
    assert!(jvm.recordings().contains("No available recordings"), "{}", jvm.recordings());

    // Killed, it leaves a recording, which a restore ends.
    let args = ["profile", &jvm.name(), "--code", "--url", &jvm.url, "-c", "2", "-d", "60s"];
    let mut killed = folder.lastdrop(&args).env("TMPDIR", &temporary).stdout(Stdio::null()).spawn().expect("runs");
    wait_until("a recording", || jvm.recordings().contains("name=lastdrop-"));
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    let restored = folder.lastdrop(&["restore"]).env("TMPDIR", &temporary).output().expect("runs");
    assert!(restored.status.success() && entries(&temporary).is_empty(), "{restored:?}");
    assert!(jvm.recordings().contains("No available recordings"), "{}", jvm.recordings());
}

/// Functions that burn 60, 25 and 15 % of the time.
const RUBY: &str = "def heavy
  x = 0.0; 240000.times { |i| x += Math.sqrt(i) }
end
def middle
  x = 0.0; 100000.times { |i| x += Math.sqrt(i) }
end
class Shop
  def light
    x = 0.0; 60000.times { |i| x += Math.sqrt(i) }
  end
end
App = ->(env) { heavy; middle; Shop.new.light; [200, { 'content-type' => 'text/plain' }, [\"ok\\n\"]] }
";

/// A command that runs lastdrop where rbspy is in a folder of the system's, and whose temporary files are in a folder.
fn with_rbspy(folder: &Folder, temporary: &Path, args: &[&str]) -> Command {
    let tool = std::env::var("LASTDROP_RBSPY").expect("LASTDROP_RBSPY, which ./x test sets");
    let shown = format!(
        "mount -t tmpfs -o mode=755 none /usr/local/bin && install -m 755 {tool} /usr/local/bin/rbspy && exec \"$@\""
    );
    let mut command = in_namespace(&folder.lastdrop(args), &shown);
    command.env("TMPDIR", temporary);
    command
}

#[test]
fn functions_of_ruby_are_read_from_outside() {
    let _quiet = quiet();
    let folder = Folder::new();
    let temporary = temporary(&folder);
    let (app, port) = (open_folder(&folder, "app"), free_port());
    fs::write(app.join("planted.rb"), RUBY).expect("written");
    fs::write(app.join("config.ru"), format!("require '{}/planted'\nrun App\n", app.display())).expect("written");
    let config = app.join("puma.rb");
    let lines =
        format!("workers 2\nthreads 1, 2\nbind 'tcp://127.0.0.1:{port}'\nrackup '{}/config.ru'\n", app.display());
    fs::write(&config, lines).expect("written");
    let mut puma = Command::new("/usr/bin/puma");
    puma.arg("-C").arg(&config).current_dir(&app);
    let puma = Daemon::start(puma, "puma", |_| get(port, "/").is_some());
    let url = format!("http://127.0.0.1:{port}/");
    let name = format!("pid:{}", puma.pid());
    let profile = |name: &str, time: &str| -> Value {
        // One user: a thread that waits for a processor counts as running.
        let args = ["profile", name, "--code", "-c", "1", "-d", time, "--json", "-", "--url", &url];
        let done = with_rbspy(&folder, &temporary, &args).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let of_kind = profile(&format!("puma:{}@{url}", config.display()), "4s");
    assert_eq!(of_kind["language"], "ruby");
    assert_shares(&of_kind, "planted.rb", &[("heavy", 0.6, 2), ("middle", 0.25, 5), ("light", 0.15, 9)]);
    assert_eq!(profile(&name, "500ms")["functions"][0]["name"], "heavy");
    let args = ["profile", &name, "--code", "--url", &url, "-d", "60s"];
    let without = in_namespace(&folder.lastdrop(&args), "mount -t tmpfs none /usr/local/bin && exec \"$@\"").output();
    let without = without.expect("runs");
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(1) && said.contains("rbspy is not installed; from crates.io"), "{said}");
    let wall = with_rbspy(&folder, &temporary, &[&args[..], &["--wall"]].concat()).output().expect("runs");
    let said = String::from_utf8_lossy(&wall.stderr).into_owned();
    assert!(wall.status.code() == Some(1) && said.contains("--wall"), "{said}");
    assert_eq!(entries(&temporary), Vec::<PathBuf>::new(), "nothing is left behind");

    // Killed, it takes rbspy with it.
    let mut killed = with_rbspy(&folder, &temporary, &args);
    let mut killed = killed.stdout(Stdio::null()).spawn().expect("runs");
    wait_until("rbspy", || entries(&temporary).iter().any(|folder| folder.join("said").exists()));
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait_until("the end of rbspy", || processes_with(&temporary.to_string_lossy()).is_empty());
    let restored = folder.lastdrop(&["restore"]).env("TMPDIR", &temporary).output().expect("runs");
    assert!(restored.status.success() && entries(&temporary).is_empty(), "{restored:?}");
    assert!(folder.run(&["run", &url, "-n", "4", "--timeout", "5s", "--no-store"]).code == 0, "no worker stands still");
}
