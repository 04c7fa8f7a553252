//! Where slow requests spend their time: tails that are planted in different places of a chain are found there.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::common::servers::{Fpm, Mariadb, nginx, open_folder, php, php_site};
use crate::common::{Folder, Target, free_port, number, quiet};
use serde_json::Value;

/// One in 25 requests takes this much longer, in the place that the request names. The others compute and sleep for a
/// millisecond or two.
const TAIL_US: f64 = 200_000.0;
const PAGE: &str = "$slow = mt_rand(1, 25) == 1;
$x = 0;
for ($i = 0; $i < 30000; $i++) { $x += sqrt($i); }
usleep(1000);
if ($slow && $_GET['at'] == 'code') {
    for ($end = hrtime(true) + 200000000; hrtime(true) < $end; ) { $x += sqrt($x); }
} elseif ($slow && $_GET['at'] == 'sql') {
    CONNECT
    mysqli_query($db, 'SELECT SLEEP(0.2) AS planted');
} elseif ($slow && $_GET['at'] == 'peer') {
    $peer = fsockopen('127.0.0.1', PORT);
    fwrite($peer, 'x');
    fgets($peer);
}
echo 'ok';
";

/// A peer that answers each connection after the time of the tail. Returns its port.
fn slow_peer() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 10]);
                thread::sleep(Duration::from_micros(TAIL_US as u64));
                let _ = stream.write_all(b"y\n");
            });
        }
    });
    port
}

/// Asserts that the tail is in a part of PHP-FPM whose name begins like this, and that it is as long as planted.
fn assert_tail(anatomy: &Value, begins: &str, text: &str) {
    let parts = anatomy["parts"].as_array().expect("parts");
    let excess = |p: &Value| number(&p["slow"]["us"]) - number(&p["typical"]["us"]);
    let pool = parts.iter().filter(|p| p["behind"] != true);
    let most = pool.max_by(|a, b| excess(a).total_cmp(&excess(b))).expect("a part");
    assert!(most["server"] == "php-fpm" && most["what"].as_str().is_some_and(|w| w.starts_with(begins)), "{text}");
    // A busy machine makes other requests slow, too, and these by less. The exact time is asked of `./x lab tails`.
    let more = number(&anatomy["slow"]["in_flight_us"]) - number(&anatomy["typical"]["in_flight_us"]);
    let most_allowed = 1.15 * TAIL_US + 2.0 * number(&most["slow"]["error_us"]);
    assert!(excess(most) > 0.5 * more && excess(most) < most_allowed, "{text}");
    assert!(number(&anatomy["cost"]) < 0.02, "{text}");
}

#[test]
fn tails_in_code_in_a_database_and_at_a_peer_are_found_where_they_are() {
    let _quiet = quiet();
    let folder = Folder::new();
    let (docs, port) = (open_folder(&folder, "docs"), free_port());
    let (db, peer) = (Mariadb::start(&folder, &[]), slow_peer());
    php(&docs, "page.php", &PAGE.replace("CONNECT", &db.connect()).replace("PORT", &peer.to_string()));
    let fpm = Fpm::start(&folder, 8, "");
    let _front = nginx(&folder, &php_site(port, &docs, &fpm.socket), port);
    for (at, begins) in [("code", "running"), ("sql", "peer unix:"), ("peer", "peer 127.0.0.1:")] {
        let url = format!("http://127.0.0.1:{port}/page.php?at={at}");
        let json = folder.join("run.json").display().to_string();
        let args = ["run", &url, "-r", "40", "-d", "10s", "--anatomy", "--json", &json];
        let done = folder.run(&args);
        assert_eq!(done.code, 0, "{done:?}");
        let run: Value = serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
        assert_tail(&run["anatomy"], begins, &done.stdout);
        if at == "sql" {
            assert!(done.stdout.contains("php-fpm waits for mariadb at unix:"), "{}", done.stdout);
            assert!(done.stdout.contains("SELECT SLEEP"), "its statement is named: {}", done.stdout);
        }
    }
    let page = folder.join("run.html");
    let report = folder.run(&["report", "last", "-o", &page.display().to_string()]);
    let text = std::fs::read_to_string(page).unwrap_or_default();
    assert!(text.contains("what the servers did for a typical and for a slow request"), "{report:?}");
}

#[test]
fn an_anatomy_says_where_it_cannot_look() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "5ms"]);
    let url = target.url();
    // Too short, and nobody is slow.
    let short = folder.json(&["run", &url, "-r", "50", "-d", "1s", "--anatomy"], 0);
    assert!(short["anatomy"]["notes"].to_string().contains("more time"), "{}", short["anatomy"]);
    let even = folder.run(&["run", &url, "-r", "50", "-d", "6s", "--anatomy"]);
    assert!(even.code == 0 && even.stdout.contains("anatomy"), "{even:?}");
    let fleet = folder.run(&["run", &url, "--anatomy", "--fleet", "127.0.0.1:1"]);
    assert!(fleet.code == 2 && fleet.stderr.contains("--anatomy"), "{fleet:?}");
}
