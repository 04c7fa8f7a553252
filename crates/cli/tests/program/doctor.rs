//! `doctor`: it distinguishes similar faults on real servers, tries its proposal and restores the server, and says what it
//! cannot do. All faults at all strengths: ./x lab doctor.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::servers::{Daemon, Fpm, Mariadb, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, Target, free_port, get, n, number, processes_with, signal};
use serde_json::{Value, json};

/// The doctor's document about servers under load.
fn ask(folder: &Folder, servers: &[&str], url: &str, more: &[&str]) -> Value {
    let mut args = vec!["doctor"];
    args.extend(servers);
    args.extend(["--url", url, "--keepalive", "off", "--no-store"]);
    args.extend(more);
    if !more.contains(&"-d") {
        args.extend(["-d", "2s"]);
    }
    folder.json(&args, 0)
}

fn ids(said: &Value) -> Vec<&str> {
    said["findings"].as_array().expect("findings").iter().filter_map(|f| f["id"].as_str()).collect()
}

/// A server that answers one request after the other, 40 ms each. It is another process, because this one is the parent of all
/// servers of all tests.
fn serial_peer(folder: &Folder) -> (u16, Daemon) {
    let (port, file) = (free_port(), folder.join("peer.py"));
    let text = format!(
        "import socket, time\nl = socket.create_server(('127.0.0.1', {port}), backlog=64)\nwhile True:\n    c, _ = l.accept()\n    \
         c.recv(1024)\n    time.sleep(0.04)\n    c.sendall(b'HTTP/1.0 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok')\n    c.close()\n"
    );
    fs::write(&file, text).expect("written");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file);
    (port, Daemon::start(command, "python3", |_| TcpStream::connect(("127.0.0.1", port)).is_ok()))
}

/// Four faults that look the same in front: all children busy, waiting connections, idle processors.
#[test]
fn full_pools_are_told_apart_by_what_their_workers_wait_for() {
    let folder = Folder::new();
    let database = Mariadb::start(&folder, &[]);
    let fpm = Fpm::start(&folder, 4, "");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    let (peer, _peer) = serial_peer(&folder);
    php(&root, "sleep.php", "usleep(150000); echo 'ok';");
    php(&root, "peer.php", &format!("echo file_get_contents('http://127.0.0.1:{peer}/');"));
    let sessions = open_folder(&folder, "sessions");
    let session = format!(
        "session_save_path('{}'); session_id('one'); session_start(); $_SESSION['n'] = 1; usleep(60000); echo 'ok';",
        sessions.display()
    );
    php(&root, "session.php", &session);
    let rows = format!(
        "{}\n$db->query('CREATE DATABASE IF NOT EXISTS t'); $db->select_db('t');\n\
         $db->query('CREATE TABLE IF NOT EXISTS r (id INT PRIMARY KEY, n INT) ENGINE=InnoDB');\n\
         $db->query('INSERT IGNORE INTO r VALUES (1, 0)'); echo 'ok';",
        database.connect()
    );
    php(&root, "make.php", &rows);
    let locked = format!(
        "{}\n$db->select_db('t'); $db->begin_transaction(); $db->query('SELECT n FROM r WHERE id = 1 FOR UPDATE');\n\
         usleep(50000); $db->query('UPDATE r SET n = n + 1 WHERE id = 1'); $db->commit(); echo 'ok';",
        database.connect()
    );
    php(&root, "row.php", &locked);
    assert!(get(port, "/make.php").is_some_and(|body| body.contains("ok")));
    let front = format!("nginx:{}", folder.join("nginx.conf").display());
    let database_url = format!("mysql://root@localhost?socket={}", database.socket.display());
    let cases = [
        ("sleep.php", "fpm-children-exhausted"),
        ("peer.php", "slow-upstream"),
        ("session.php", "session-lock"),
        ("row.php", "db-locked"),
    ];
    for (page, expected) in cases {
        let url = format!("http://127.0.0.1:{port}/{page}");
        // The doctor finds the pool behind the front by itself.
        let said = ask(&folder, &[&front, &fpm.name()], &url, &["-c", "16", "--db", &database_url, "--live"]);
        assert_eq!(said["limit"], expected, "{page}: {:#} {:#}", said["findings"], said["examination"]["steps"]);
        let limit = &said["findings"][0];
        assert_eq!((&limit["id"], &limit["severity"]), (&expected.into(), &"limit".into()), "{limit:#}");
        assert!(limit["evidence"].as_array().is_some_and(|e| e.len() >= 3), "{limit:#}");
        assert!(!limit["against"].as_array().expect("against").is_empty(), "{limit:#}");
        let chain = said["chain"].as_array().expect("a chain");
        assert_eq!((&chain[0]["server"], &chain[0]["to"][0]), (&"nginx".into(), &"php-fpm".into()), "{chain:?}");
        // The cost is reported; benches/ measure how little it is, on an idle machine.
        assert!(number(&said["cost_cores"]) > 0.0, "{}", said["cost_cores"]);
    }
}

#[test]
fn threads_of_one_interpreter_are_no_lock_of_the_application() {
    let folder = Folder::new();
    let port = free_port();
    let app = "import hashlib\ndef application(env, start):\n    for _ in range(60): hashlib.md5(b'x').hexdigest()\n    \
               n = sum(i * i for i in range(40000))\n    start('200 OK', [('Content-Length', '3')])\n    return [b'ok\\n']\n";
    fs::write(folder.join("app.py"), app).expect("written");
    let config = folder.join("gunicorn.conf.py");
    let text = format!(
        "bind = '127.0.0.1:{port}'\nworkers = 1\nthreads = 8\nworker_class = 'gthread'\nchdir = '{}'\n",
        folder.path().display()
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new("/usr/bin/gunicorn");
    command.args(["-c", &config.display().to_string(), "app:application"]);
    let _server = Daemon::start(command, "gunicorn", |_| get(port, "/").is_some());
    let name = format!("gunicorn:{}", config.display());
    let said = ask(&folder, &[&name], &format!("http://127.0.0.1:{port}/"), &["-c", "12", "--live"]);
    assert_eq!(said["limit"], "interpreter-lock", "{:#} {:#}", said["findings"], said["examination"]["steps"]);
}

#[test]
fn what_it_proposes_is_tried_and_the_server_put_back() {
    let folder = Folder::new();
    let apache = Apache::small(&folder);
    let before = apache.tree();
    let url = apache.url("/perl/sleep.pl");
    let said = ask(&folder, &[&apache.name()], &url, &["-c", "12", "--confirm"]);
    assert_eq!(said["limit"], "workers-exhausted", "{:?} {}", ids(&said), said["examination"]["steps"]);
    let confirmed = &said["confirmed"];
    assert_eq!(confirmed["id"], "workers-exhausted");
    assert!(number(&confirmed["ratio"]) > 1.5 && number(&confirmed["interval"][0]) > 1.0, "{confirmed:#}");
    assert_ne!(confirmed["limit_after"], "workers-exhausted", "{confirmed:#}");
    assert_eq!(apache.tree(), before, "put back");
    assert_eq!(folder.journal(), None);
}

/// A second instance tries it, and leaves nothing behind. mod_mime is referred to; mod_dir is needed without a reference.
#[test]
fn modules_that_nothing_needs_are_named_and_those_that_the_page_needs_are_not() {
    let folder = Folder::new();
    let unused = ["userdir", "speling", "dav", "dav_fs"];
    let lines = unused.map(|m| format!("LoadModule {m}_module /usr/lib/apache2/modules/mod_{m}.so\n")).concat();
    let apache = Apache::start_with(&folder, |config| {
        let config = Apache::without_perl(config);
        let kept = config.lines().filter(|l| !l.starts_with("DirectoryIndex"));
        format!("{}\n{lines}", kept.collect::<Vec<_>>().join("\n"))
    });
    let (before, masters) = (apache.tree(), apache.masters());
    let examine = || ask(&folder, &[&apache.name()], &apache.url("/"), &["-c", "2", "-d", "1s", "--live"]);
    let in_time =
        |said: &Value| said["examination"]["servers"][0]["modules"]["undecided"].as_array().is_some_and(Vec::is_empty);
    // Its seconds may not be enough on a busy machine.
    let said = std::iter::repeat_with(examine).take(5).find(in_time).expect("time enough for each module");
    let tried = &said["examination"]["servers"][0]["modules"];
    let named: Vec<&str> =
        tried["unused"].as_array().expect("tried").iter().filter_map(|m| m["name"].as_str()).collect();
    for module in unused {
        assert!(named.contains(&format!("{module}_module").as_str()), "{module}: {tried:#}");
    }
    for module in ["mime_module", "dir_module", "mpm_prefork_module", "status_module", "authz_core_module"] {
        assert!(!named.contains(&module), "{module}: {tried:#}");
    }
    assert!(tried["needed"].to_string().contains("dir_module"), "{tried:#}");
    assert!(number(&tried["worker_bytes"]) > 0.0 && number(&tried["start_s"]) > 0.0, "{tried:#}");
    let found = said["findings"].as_array().expect("findings").iter().find(|f| f["id"] == "unused-modules");
    let found = found.unwrap_or_else(|| panic!("{:#}", said["findings"]));
    assert!(found["against"].to_string().contains("dir_module would be named"), "{found:#}");
    assert_eq!((apache.tree(), apache.masters()), (before, masters), "as it was");
    assert_eq!(processes_with("/lastdrop-modules-"), Vec::<i32>::new());
}

/// A second instance tries it, and leaves nothing behind. The distribution's PHP loads some twenty extensions. The page names
/// ctype, a file beside it names sockets, and the name of mysqli's methods is computed at run time.
#[test]
fn extensions_that_nothing_needs_are_named_and_those_that_the_site_needs_are_not() {
    let folder = Folder::new();
    // It also works with a restricted PHP.
    let closed = "pm.status_path = /status\nphp_admin_value[disable_functions] = get_loaded_extensions,opcache_reset";
    let fpm = Fpm::start(&folder, 3, &format!("{closed}\nphp_admin_value[open_basedir] = {}", folder.path().display()));
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    // Another site with the same PHP.
    let other = open_folder(&folder, "shop");
    let sites = php_site(port, &root, &fpm.socket) + &php_site(free_port(), &other, &fpm.socket);
    let _nginx = nginx(&folder, &sites, port);
    php(&other, "cart.php", "exif_read_data('x.jpg');");
    let code = "require __DIR__ . '/../lib/parts.php'; session_id('one');\n\
                $f = 'mysq' . 'li_report'; echo ctype_digit($_GET['n']) ? $f(MYSQL_OFF) : 'no', $_SERVER['REQUEST_URI'];";
    php(&root, "page.php", code);
    php(&root, "other.php", "socket_create(1, 2, 3);");
    php(
        &open_folder(&folder, "lib"),
        "parts.php",
        "const MYSQL_OFF = 0;\nfunction days() { return cal_days_in_month(0, 1, 2); }",
    );
    let ini = || -> Vec<Vec<u8>> {
        let files = glob_of("/etc/php").into_iter().chain([fpm.config.clone()]);
        files.map(|file| fs::read(file).expect("readable")).collect()
    };
    let (before, master) = (ini(), fpm.master());
    let url = format!("http://127.0.0.1:{port}/page.php?x=%22a%20b%22&n=7");
    let front = format!("nginx:{}", folder.join("nginx.conf").display());
    let examine = || ask(&folder, &[&front, &fpm.name()], &url, &["-c", "2", "-d", "1s", "--live"]);
    let in_time =
        |said: &Value| said["examination"]["servers"][1]["modules"]["undecided"].as_array().is_some_and(Vec::is_empty);
    // Its seconds may not be enough on a busy machine.
    let mut last = Value::Null;
    let said = std::iter::repeat_with(examine).take(5).inspect(|said| last = said["unseen"].clone()).find(in_time);
    let said = said.unwrap_or_else(|| panic!("not tried: {last}"));
    let tried = &said["examination"]["servers"][1]["modules"];
    let named: Vec<&str> =
        tried["unused"].as_array().expect("tried").iter().filter_map(|m| m["name"].as_str()).collect();
    for extension in ["ftp", "gettext", "posix", "shmop", "sysvmsg", "tokenizer", "pdo_mysql", "pdo"] {
        assert!(named.contains(&extension), "{extension}: {tried:#}");
    }
    // Named by the page, by an included file, by another page, by another site; needed without being named; needed by that one;
    // a Zend extension.
    for extension in ["ctype", "calendar", "sockets", "exif", "mysqli", "mysqlnd", "opcache"] {
        assert!(!named.contains(&extension), "{extension}: {tried:#}");
    }
    let needed = tried["needed"].to_string();
    assert!(needed.contains("mysqli") && needed.contains("mysqlnd") && !needed.contains("ctype"), "{tried:#}");
    assert!(number(&tried["worker_bytes"]) > number(&tried["worker_bytes_without"]), "{tried:#}");
    assert!(number(&tried["start_s"]) > 0.0 && number(&tried["start_without_s"]) > 0.0, "{tried:#}");
    let found = said["findings"].as_array().expect("findings").iter().find(|f| f["id"] == "unused-modules");
    let found = found.unwrap_or_else(|| panic!("{:#}", said["findings"]));
    assert!(found["advice"].to_string().contains("phpdismod") && found["server"] == "php-fpm", "{found:#}");
    assert_eq!((ini(), fpm.master()), (before, master), "as it was");
    assert_eq!(processes_with("lastdrop-extensions-"), Vec::<i32>::new());
    let left = glob_of(&std::env::temp_dir().display().to_string());
    assert!(!left.iter().any(|path| path.to_string_lossy().contains("/lastdrop-extensions-")), "{left:?}");
    // Without a status page, which names the script, it is not tried, and a note says so.
    let text = fs::read_to_string(&fpm.config).expect("readable").replace("pm.status_path = /status\n", "");
    fs::write(&fpm.config, text).expect("written");
    let unseen = examine()["unseen"].to_string();
    assert!(unseen.contains("which modules php-fpm could do without") && unseen.contains("pm.status_path"), "{unseen}");
}

/// All files below a folder.
fn glob_of(folder: &str) -> Vec<std::path::PathBuf> {
    let (mut open, mut all) = (vec![std::path::PathBuf::from(folder)], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|t| t.is_dir()) { open.push(entry.path()) } else { all.push(entry.path()) }
        }
    }
    all.sort();
    all
}

#[test]
fn a_server_that_has_room_has_no_limit() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 20\nservice = '5ms'\n");
    let said = ask(&folder, &[&target.name()], &target.url(), &["-r", "40"]);
    assert_eq!((&said["limit"], ids(&said).len()), (&Value::Null, 0), "{:#}", said["findings"]);
}

/// Without --live the doctor does not overload a server in use, not even with a rate.
#[test]
fn with_other_peoples_traffic_it_is_gentle_by_itself() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 20\nservice = '5ms'\n");
    let address = target.url().trim_start_matches("http://").trim_end_matches('/').to_string();
    let over = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let Ok(mut stream) = TcpStream::connect(&address) else { continue };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
                let _ = stream.read(&mut [0; 1024]);
                thread::sleep(Duration::from_millis(30));
            }
        });
        let said = ask(&folder, &[&target.name()], &target.url(), &["-r", "300"]);
        over.store(true, Ordering::Relaxed);
        said
    });
    let steps = said["examination"]["steps"].as_array().expect("steps");
    assert!(!steps.iter().any(|s| s["kind"] == "main"), "{steps:#?}");
    let few = steps.iter().find(|s| s["kind"] == "few").expect("a few users");
    assert_eq!(n(&few["users"]), 2, "{few:#}");
    assert!(said["notes"].to_string().contains("--live"), "{}", said["notes"]);
}

#[test]
fn stopped_before_anything_could_be_judged_it_reports_that() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2\nservice = '20ms'\n");
    let args = ["doctor", &target.name(), "--url", &target.url(), "-d", "20s", "--no-store", "--json", "-"];
    let mut command = folder.lastdrop(&args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut told = BufReader::new(child.stderr.take().expect("piped"));
    let mut text = String::new();
    while !text.contains("one user alone") {
        assert_ne!(told.read_line(&mut text).expect("text"), 0, "{text}");
    }
    signal(&child, libc::SIGINT);
    told.read_to_string(&mut text).expect("text");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{text}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&said["interrupted"], &said["limit"]), (&json!(true), &Value::Null), "{said:#}");
    assert!(text.contains("NOTHING WAS MEASURED"), "{text}");
}

#[test]
fn a_server_that_answers_nothing_or_errors_is_not_said_to_have_no_limit() {
    let folder = Folder::new();
    let port = free_port();
    let site = format!("server {{ listen 127.0.0.1:{port}; location / {{ return 500; }} }}");
    let nginx = nginx(&folder, &site, port);
    let (server, url) = (format!("nginx:{}", folder.join("nginx.conf").display()), format!("http://127.0.0.1:{port}/"));
    let done = folder.run(&["doctor", &server, "--url", &url, "-d", "1s", "-c", "2", "--gentle", "--no-store"]);
    assert!(done.code == 4 && done.stdout.contains("100 % of the answers are errors (5xx)"), "{done:?}");
    let signal_workers = |number| {
        let children = format!("/proc/{0}/task/{0}/children", nginx.child.id());
        for worker in fs::read_to_string(children).expect("workers").split_whitespace() {
            // SAFETY: a plain call on a process of ours.
            unsafe { libc::kill(worker.parse().expect("a pid"), number) };
        }
    };
    signal_workers(libc::SIGSTOP);
    let load = ["--url", &url, "-d", "1s", "-c", "2", "--timeout", "500ms", "--gentle", "--no-store"];
    let done = folder.run(&[&["doctor", &server][..], &load].concat());
    signal_workers(libc::SIGCONT);
    assert!(done.code == 4 && !done.stdout.contains("NO LIMIT"), "{done:?}");
    assert!(done.stdout.contains("NOTHING IS CONCLUDED") && done.stdout.contains("were not answered"), "{done:?}");
}

#[test]
fn what_was_found_can_be_concluded_again_and_explained() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2\nservice = '50ms'\n");
    let file = folder.join("said.json").display().to_string();
    let args =
        ["doctor", &target.name(), "--url", &target.url(), "-c", "12", "-d", "2s", "--keepalive", "off", "--no-store"];
    let done = folder.run(&[&args[..], &["--json", &file]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("LIMIT") && done.stdout.contains("known by"), "{}", done.stdout);
    let first: Value = serde_json::from_str(&fs::read_to_string(&file).expect("written")).expect("JSON");
    let again = folder.json(&["doctor", "--from", &file], 0);
    assert_eq!(again["limit"], "workers-exhausted", "{:#} {:#}", again["findings"], again["examination"]["steps"]);
    // The second conclusion executes no program again.
    let conclusions = |mut document: Value| {
        document.as_object_mut().expect("an object").remove("environment");
        document
    };
    assert_eq!(conclusions(again), conclusions(first.clone()));
    // A refuted finding does not return.
    let mut refuted = first.clone();
    refuted["confirmed"] =
        json!({"id": "workers-exhausted", "ratio": 1.0, "interval": [0.98, 1.01], "limit_after": null, "kept": false});
    fs::write(&file, refuted.to_string()).expect("written");
    let again = folder.json(&["doctor", "--from", &file], 0);
    assert!(!ids(&again).contains(&"workers-exhausted"), "{:#}", again["findings"]);
    assert!(folder.run(&["doctor", "--from", &file]).stdout.contains("REFUTED"));
    let list = folder.run(&["doctor", "--list"]);
    for finding in ids(&first) {
        assert!(list.stdout.contains(finding), "{}", list.stdout);
        assert!(folder.run(&["doctor", "--explain", finding]).stdout.contains("looks like"));
    }
    assert_eq!(folder.run(&["doctor", "--list", "--json", "-"]).code, 2, "it is no document");
    let wrong = folder.run(&["doctor", "--explain", "workers-exhausted2"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("did you mean workers-exhausted"), "{}", wrong.stderr);
    assert_eq!(folder.run(&["doctor", "target"]).code, 2, "no URL");
    // Options for databases of this machine do not apply to those behind an agent's servers.
    for (option, value) in [("--db", "mysql://u@h/"), ("--db-password-file", "/f"), ("--db-ca", "/f")] {
        let done = folder.run(&["doctor", "a/target", "--url", "http://127.0.0.1:1/", option, value]);
        assert!(done.code == 2 && done.stderr.contains(&format!("no {option} with AGENT/KIND")), "{done:?}");
    }
    assert_eq!(folder.run(&["doctor", "--url", "http://127.0.0.1:1/", "-n", "5"]).code, 2);
    let plan = folder.join("ramp.toml").display().to_string();
    fs::write(
        &plan,
        "url = 'http://127.0.0.1:1/'\n[[phase]]\nname = 'ramp'\nduration = '2s'\nrate = 5\nto_rate = 50\n",
    )
    .expect("written");
    let ramp = folder.run(&["doctor", "--url", &plan]);
    assert!(ramp.code == 2 && ramp.stderr.contains("changes its load"), "{ramp:?}");
    fs::write(&file, "{\"schema\":").expect("written");
    assert_eq!(folder.run(&["doctor", "--from", &file]).code, 2, "a torn document");
    assert_eq!(folder.run(&["doctor", "--url", "http://127.0.0.1:1/", "--no-store"]).code, 1, "nobody there");
}
