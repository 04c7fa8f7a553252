//! Real databases at the end of a chain: lock waits, slow statements, connections. A database that is full, stopped, dead or
//! closed to us is reported as such, and does not stop samples of anything else.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use crate::common::databases::Postgres;
use crate::common::servers::Mariadb;
use crate::common::{Folder, free_port, n, number, signal, wait_until};
use serde_json::{Value, json};

/// Takes one sample, over half a second.
fn look(folder: &Folder, args: &[&str]) -> Value {
    folder.json(&[&["watch"], args, &["--once", "--interval", "500ms"]].concat(), 0)
}

/// Takes samples until one of the only database meets a condition.
fn seen(folder: &Folder, args: &[&str], what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut database = Value::Null;
    wait_until(what, || {
        database = look(folder, args)["databases"][0].clone();
        wanted(&database)
    });
    database
}

fn rows<'a>(of: &'a Value, list: &str) -> &'a [Value] {
    of[list].as_array().map_or(&[], Vec::as_slice)
}

/// The statement of a sample with these words in it.
fn statement<'a>(database: &'a Value, words: &str) -> Option<&'a Value> {
    rows(database, "statements").iter().find(|s| s["statement"].as_str().is_some_and(|text| text.contains(words)))
}

/// The server for a watch of databases, which needs one: this process.
fn ourselves() -> String {
    format!("pid:{}", std::process::id())
}

/// A running watch of a single database.
struct Watch {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// Limit of samples, at three per second, until an awaited one has to come.
const MOST_LOOKS: usize = 200;

impl Watch {
    fn start(folder: &Folder, args: &[&str]) -> Watch {
        let all = [&["watch"], args, &["--interval", "300ms", "-d", "5m", "--json", "-"]].concat();
        let mut child = folder.lastdrop(&all).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Watch { child, lines }
    }

    /// The first sample that meets a condition.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut database = Value::Null;
        for _ in 0..MOST_LOOKS {
            let line = self.lines.next().expect("a look").expect("a line");
            database = serde_json::from_str::<Value>(&line).expect("a document")["databases"][0].clone();
            if wanted(&database) {
                return database;
            }
        }
        panic!("{what} did not come about in {MOST_LOOKS} looks, the last of them: {database:#}");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Nobody reads its output any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ITEMS: &str = "CREATE TABLE item (id INT PRIMARY KEY, stock INT, name VARCHAR(40));\n\
    INSERT INTO item VALUES (1, 10, 'a'), (2, 10, 'b');\n";
/// A statement that compares each row of a table of 3,000 with each other.
const SLOW: &str = "SELECT COUNT(*) FROM big a, big b WHERE a.v + b.v = 71 AND a.name <> 'top secret';";

#[test]
fn mariadb_tells_who_waits_for_whom_and_what_reads_whole_tables() {
    let folder = Folder::new();
    let db = Mariadb::start(
        &folder,
        &[
            "--performance-schema=on",
            "--performance-schema-consumer-events-statements-current=on",
            "--innodb-lock-wait-timeout=600",
        ],
    );
    db.run(&format!(
        "CREATE DATABASE shop; USE shop; {ITEMS} CREATE TABLE big AS SELECT seq AS v, CONCAT('n', seq) AS name FROM seq_1_to_3000;"
    ));
    let name = db.name();
    let idle = seen(&folder, &[&name], "an answer", |d| d["trouble"].is_null() && n(&d["samples"]) > 0);
    assert!(idle["software"].as_str().is_some_and(|s| s.starts_with("MariaDB 1")), "{idle:#}");
    assert_eq!(
        (&idle["server"], &idle["max_connections"], n(&idle["connections"])),
        (&json!("mariadb"), &json!(151), 1)
    );
    assert_eq!((&idle["unread"], &idle["lock_waits"], &idle["statements"]), (&json!([]), &json!([]), &json!([])));
    // It had run before the first sample: only differences count.
    assert!(n(&idle["counters"]["Questions"]) < 100 && n(&idle["counters"]["Aborted_connects"]) == 0, "{idle:#}");

    let (mut blocker, mut waiter) = (db.client("root"), db.client("root"));
    blocker.say("USE shop; BEGIN; UPDATE item SET stock = 9, name = 'card 4711' WHERE id = 1;");
    seen(&folder, &[&name], "a transaction", |d| d["states"]["idle-in-transaction"] == 1);
    waiter.say("USE shop; UPDATE item SET stock = 8 WHERE id = 1;");
    let locked = seen(&folder, &[&name], "a wait", |d| !rows(d, "lock_waits").is_empty());
    let wait = &locked["lock_waits"][0];
    assert_eq!(
        (&wait["statement"], &wait["on"]),
        (&json!("UPDATE item SET stock = ? WHERE id = ?"), &json!("shop.item"))
    );
    assert_eq!(wait["blocker_statement"], "UPDATE item SET stock = ?, name = ? WHERE id = ?", "{wait:#}");
    assert_eq!(wait["blocker_state"], "idle-in-transaction", "{wait:#}");
    assert!(wait["waiter"] != wait["blocker"] && number(&wait["blocker_transaction_s"]) > 0.0, "{wait:#}");
    let update = statement(&locked, "UPDATE item").expect("it runs");
    assert!(number(&update["lock_share"]) > 0.0 && number(&locked["lock_wait_mean"]) > 0.0, "{locked:#}");
    let text = folder.run(&["watch", &name, "--once", "--interval", "500ms"]).stdout;
    assert!(text.contains(" waits since ") && text.contains(", idle in a transaction, "), "{text}");
    assert!(!text.contains("4711") && !locked.to_string().contains("4711"), "{text}");
    blocker.say("ROLLBACK;");
    drop((blocker, waiter));

    let mut slow = db.client("root");
    for _ in 0..300 {
        slow.say(&format!("USE shop; {SLOW}"));
    }
    let scanned = seen(&folder, &[&name], "a scan", |d| {
        statement(d, "FROM big").is_some_and(|s| number(&s["share"]) > 0.9)
            && d["counters"]["Handler_read_rnd_next"].as_u64().is_some_and(|n| n > 3000)
    });
    let slow = statement(&scanned, "FROM big").expect("it runs");
    assert!(slow["statement"].as_str().is_some_and(|s| s.ends_with("<> ?")), "{slow:#}");
    assert!(number(&scanned["active_mean"]) > 0.0 && number(&slow["seconds"]) > 0.0, "{scanned:#}");

    let plan = folder.join("plan.toml");
    let of = format!("server = '{name}'\nurl = 'http://127.0.0.1:1/'\n[settings]\nmax_connections = [10, 20]\n");
    std::fs::write(&plan, of).expect("written");
    for args in [["sweep", &plan.display().to_string()], ["knobs", &name]] {
        let refused = folder.run(&args);
        assert!(refused.code != 0 && refused.stderr.contains("is a database: it is looked at"), "{refused:?}");
    }
}

#[test]
fn mariadb_that_is_full_or_does_not_let_us_in_says_so() {
    let folder = Folder::new();
    let db = Mariadb::start(&folder, &["--max-connections=10"]);
    db.run("CREATE USER look@localhost IDENTIFIED BY 'right-and-secret'; CREATE USER site@localhost IDENTIFIED BY '';");
    let (url, us) = (db.url("look"), ourselves());
    let with = |password: &str, more: &[&str]| {
        let args = [&["watch", &us, "--db", &url, "--once", "--interval", "300ms", "--json", "-"], more].concat();
        let output = folder.lastdrop(&args).env("LASTDROP_DB_PASSWORD", password).output().expect("it runs");
        let text = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
        assert!(output.status.success() && !text.contains("and-secret"), "{text}");
        serde_json::from_slice::<Value>(&output.stdout).expect("a document")["databases"][0].clone()
    };
    let wrong = with("wrong-and-secret", &[]);
    assert_eq!(wrong["trouble"]["kind"], "denied", "{wrong:#}");
    let none = with("", &[]);
    assert!(none["trouble"]["what"].as_str().is_some_and(|what| what.contains("--db-password-file")), "{none:#}");
    // It counts refused connections, and accepts the one with the right password.
    let file = folder.join("password");
    std::fs::write(&file, "right-and-secret\n").expect("written");
    let few = with("wrong-and-secret", &["--db-password-file", &file.display().to_string()]);
    assert!(few["trouble"].is_null() && few["server"].is_null(), "{few:#}");
    let missing = few["unread"][0].as_str().unwrap_or_default();
    assert!(missing.contains("GRANT PROCESS ON *.* TO 'look'@'localhost'"), "{few:#}");
    db.run("GRANT PROCESS ON *.* TO look@localhost;");
    let all = with("right-and-secret", &[]);
    assert_eq!((&all["trouble"], &all["unread"]), (&Value::Null, &json!([])));

    let mut watch = Watch::start(&folder, &[&db.name()]);
    watch.until("an answer", |d| d["trouble"].is_null() && d["samples"].as_u64().is_some_and(|n| n > 0));
    let sites = RefCell::new((0..12).map(|_| db.client("site")).collect::<Vec<_>>());
    // A connected watch still gets samples. A reconnected one has no earlier counts, so clients keep coming. One connection beyond
    // the limit is reserved for an administrator. Until one has it, refused clients are not counted.
    let full = watch.until("no place", |d| {
        sites.borrow_mut().extend([db.client("root"), db.client("site")]);
        d["counters"]["Connection_errors_max_connections"].as_u64().is_some_and(|n| n > 0)
    });
    assert!(n(&full["connections"]) >= 10, "{full:#}");
    let late = with("right-and-secret", &[]);
    assert_eq!(late["trouble"]["kind"], "full", "{late:#}");
    let password = file.display().to_string();
    let asked = ["watch", &us, "--db", &url, "--db-password-file", &password, "--once", "--interval", "100ms"];
    let line = folder.run(&asked).stdout;
    assert!(line.contains("mysql: Too many connections"), "{line}");
    drop(sites);
}

#[test]
fn a_database_over_tcp_is_asked_over_tls_and_its_certificate_is_verified() {
    let folder = Folder::new();
    let port = free_port();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=db", "-keyout", "db.key"])
        .args(["-out", "db.pem", "-addext", "subjectAltName=DNS:localhost"])
        .current_dir(folder.path())
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    let files = ["db.pem", "db.key"].map(|name| folder.join(name));
    for file in &files {
        // It runs as another user than we.
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("its mode");
    }
    let [certificate, key] = files.map(|file| file.display().to_string());
    let options = [
        "--skip-networking=0".to_string(),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".into(),
        format!("--ssl-cert={certificate}"),
        format!("--ssl-key={key}"),
    ];
    let db = Mariadb::start(&folder, &options.each_ref().map(String::as_str));
    db.run("CREATE USER look@'%' IDENTIFIED BY 'right-and-secret' REQUIRE SSL; GRANT PROCESS ON *.* TO look@'%';");
    let trouble = |host: &str, more: &[&str]| {
        let url = format!("mysql://look@{host}:{port}/{}", more.first().copied().unwrap_or_default());
        let mut args = vec!["watch", "--db", &url, "--once", "--interval", "100ms", "--json", "-"];
        let us = ourselves();
        args.push(&us);
        args.extend(more.iter().skip(1));
        let output = folder.lastdrop(&args).env("LASTDROP_DB_PASSWORD", "right-and-secret").output().expect("it runs");
        let seen = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        seen["databases"][0]["trouble"].clone()
    };
    assert_eq!(trouble("localhost", &["", "--db-ca", &certificate]), Value::Null);
    // Still encrypted: this authentication does not reveal the password.
    assert_eq!(trouble("localhost", &[""]), Value::Null);
    assert_eq!(trouble("localhost", &["?ssl-mode=DISABLED"])["kind"], "denied");
    let other = trouble("127.0.0.1", &["", "--db-ca", &certificate]);
    assert!(
        other["what"].as_str().is_some_and(|what| what.contains("it is for localhost, not for 127.0.0.1")),
        "{other}"
    );
    let wrong = folder.run(&["watch", &ourselves(), "--once", "--db-ca", &key]);
    assert!(wrong.code == 2 && wrong.stderr.contains("but: PRIVATE KEY"), "{wrong:?}");
}

#[test]
fn a_database_that_hangs_or_is_dead_is_told_and_stops_no_other_look() {
    let folder = Folder::new();
    let db = Mariadb::start(&folder, &[]);
    let url = db.url("root");
    let mut watch = Watch::start(&folder, &[&ourselves(), "--db", &url]);
    let answers = |d: &Value| d["trouble"].is_null() && d["samples"].as_u64().is_some_and(|n| n > 0);
    let trouble = |kind: &'static str| move |d: &Value| d["trouble"]["kind"] == kind;
    watch.until("an answer", answers);
    signal(&db.daemon.child, libc::SIGSTOP);
    watch.until("silence", trouble("silent"));
    let other = look(&folder, &[&ourselves(), "--db", &url]);
    assert!(other["master"] == std::process::id() && other["databases"][0]["trouble"]["kind"] == "silent", "{other:#}");
    signal(&db.daemon.child, libc::SIGCONT);
    watch.until("an answer again", answers);
    drop(db);
    watch.until("its end", trouble("unreachable"));

    // Sockets with a silent server, or with another protocol.
    let mute = folder.join("mute.sock");
    let _listener = UnixListener::bind(&mute).expect("listens");
    for scheme in ["mysql", "postgres"] {
        let url = format!("{scheme}://u@localhost/?socket={}", mute.display());
        seen(&folder, &[&ourselves(), "--db", &url], "silence", trouble("silent"));
    }
    let (address, _) = crate::common::serve(|_| Some(()), |()| b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(40));
    for scheme in ["mysql", "postgres"] {
        let d = seen(&folder, &[&ourselves(), "--db", &format!("{scheme}://u@{address}/")], "trouble", |d| {
            !d["trouble"].is_null()
        });
        assert!(["other", "silent", "unreachable"].iter().any(|kind| d["trouble"]["kind"] == *kind), "{d:#}");
    }
    let bad = folder.run(&["watch", &ourselves(), "--once", "--db", "oracle://u:top-secret@h/"]);
    assert!(bad.code == 2 && bad.stderr.contains("write postgres://"), "{bad:?}");
}

#[test]
fn postgresql_tells_who_waits_for_whom_and_what_reads_whole_tables() {
    let folder = Folder::new();
    let db = Postgres::start(&folder, &["-c", "max_connections=20", "-c", "log_statement=none"]);
    db.run(&format!(
        "{ITEMS} CREATE TABLE big AS SELECT v, 'n' || v AS name FROM generate_series(1, 3000) v; ANALYZE;"
    ));
    let name = db.name();
    // The connection that created the tables may take a moment to close.
    let alone = |d: &Value| d["trouble"].is_null() && n(&d["samples"]) > 0 && d["connections"] == 1;
    let idle = seen(&folder, &[&name], "an answer, and nobody else", alone);
    assert!(idle["software"].as_str().is_some_and(|s| s.starts_with("PostgreSQL 1")), "{idle:#}");
    assert_eq!(
        (&idle["server"], &idle["max_connections"], &idle["reserved_connections"]),
        (&json!("postgresql"), &json!(20), &json!(3))
    );
    assert_eq!((&idle["connections"], &idle["lock_waits"], &idle["statements"]), (&json!(1), &json!([]), &json!([])));

    let (mut blocker, mut waiter) = (db.client(), db.client());
    blocker.say("BEGIN; UPDATE item SET stock = 9, name = 'card 4711' WHERE id = 1;");
    seen(&folder, &[&name], "a transaction", |d| d["states"]["idle-in-transaction"] == 1);
    waiter.say("UPDATE item SET stock = 8 WHERE id = 1;");
    let locked = seen(&folder, &[&name], "a wait", |d| !rows(d, "lock_waits").is_empty());
    let wait = &locked["lock_waits"][0];
    assert_eq!((&wait["statement"], &wait["on"]), (&json!("UPDATE item SET stock = ? WHERE id = ?"), &json!("item")));
    assert!(wait["blocker_statement"].as_str().is_some_and(|s| s.contains("SET stock = ?, name = ?")), "{wait:#}");
    assert_eq!(wait["blocker_state"], "idle-in-transaction", "{wait:#}");
    assert!(number(&wait["waited_s"]) > 0.0 && number(&wait["blocker_transaction_s"]) > 0.0, "{wait:#}");
    assert!(!locked.to_string().contains("4711"), "{locked:#}");
    drop((blocker, waiter));

    let mut slow = db.client();
    let settings = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0;";
    slow.say(settings);
    for _ in 0..300 {
        slow.say(SLOW);
    }
    let scanned = seen(&folder, &[&name], "a scan", |d| {
        statement(d, "FROM big").is_some() && d["table_scans"].as_array().is_some_and(|t| !t.is_empty())
    });
    let scan = &scanned["table_scans"][0];
    assert!(scan["table"] == "public.big" && n(&scan["rows"]) >= 3000 && n(&scan["scans"]) >= 1, "{scanned:#}");
    let slow = statement(&scanned, "FROM big").expect("it runs");
    assert!(number(&slow["share"]) > 0.9 && !slow.to_string().contains("top secret"), "{slow:#}");
    let refused = folder.run(&["knobs", &name]);
    assert!(refused.code != 0 && refused.stderr.contains("never"), "{refused:?}");
}

#[test]
fn postgresql_that_is_full_stopped_or_wants_another_password_says_so() {
    let folder = Folder::new();
    let db = Postgres::start(&folder, &["-c", "max_connections=8"]);
    db.run("CREATE ROLE look LOGIN PASSWORD 'right-and-secret';");
    let (url, us) = (db.url("look", "postgres"), ourselves());
    let with = |password: &str| {
        let args = ["watch", &us, "--db", &url, "--once", "--interval", "300ms", "--json", "-"];
        let output = folder.lastdrop(&args).env("LASTDROP_DB_PASSWORD", password).output().expect("it runs");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("and-secret"), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).expect("a document")["databases"][0].clone()
    };
    assert_eq!(with("wrong-and-secret")["trouble"]["kind"], "denied");
    assert_eq!(with("")["trouble"]["kind"], "denied");
    let few = with("right-and-secret");
    let missing = few["unread"][0].as_str().unwrap_or_default();
    assert!(few["trouble"].is_null() && missing.contains("GRANT pg_monitor TO look"), "{few:#}");
    db.run("GRANT pg_monitor TO look;");
    let all = with("right-and-secret");
    assert_eq!((&all["trouble"], &all["unread"]), (&Value::Null, &json!([])));

    let mut watch = Watch::start(&folder, &[&db.name()]);
    watch.until("an answer", |d| d["trouble"].is_null() && d["samples"].as_u64().is_some_and(|n| n > 0));
    let sites: Vec<_> = (0..7).map(|_| db.client()).collect();
    let full = watch.until("no place", |d| d["connections"] == 8);
    assert_eq!((&full["max_connections"], &full["reserved_connections"]), (&json!(8), &json!(3)));
    assert_eq!(with("right-and-secret")["trouble"]["kind"], "full");
    drop(sites);
    let stop = |number| signal(&db.daemon.child, number);
    // A process of its own serves each existing connection; new ones get none.
    stop(libc::SIGSTOP);
    let mute = with("right-and-secret");
    stop(libc::SIGCONT);
    assert_eq!(mute["trouble"]["kind"], "silent", "{mute:#}");
}
