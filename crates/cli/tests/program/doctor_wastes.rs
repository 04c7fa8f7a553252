//! `doctor`: wastes that answers, programs and configurations show. Each fault and its look-alikes stand on one real server.

use std::fs;

use crate::common::servers::{Fpm, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, free_port};
use serde_json::Value;

/// The findings with this id about a URL, under a light load.
fn found(folder: &Folder, server: &str, url: &str, id: &str) -> (Vec<Value>, Value) {
    found_by(folder, server, url, id, "2")
}

fn found_by(folder: &Folder, server: &str, url: &str, id: &str, users: &str) -> (Vec<Value>, Value) {
    let args = ["doctor", server, "--url", url, "-c", users, "-d", "2s", "--live", "--no-store"];
    let said = folder.json(&args, 0);
    let all = said["findings"].as_array().expect("findings");
    (all.iter().filter(|f| f["id"] == id).cloned().collect(), said["examination"]["answers"].clone())
}

/// As in the configuration of Debian's nginx: gzip is on, and compresses pages alone.
#[test]
fn text_that_is_sent_uncompressed_is_named_and_pictures_and_compressed_pages_are_not() {
    let folder = Folder::new();
    let (port, cured, root) = (free_port(), free_port(), open_folder(&folder, "www"));
    let page =
        "<html><link rel=stylesheet href=style.css><img src=a.png></html>\n".to_string() + &"<p>text\n".repeat(3000);
    let write = |name: &str, text: &str| fs::write(root.join(name), text).expect("written");
    write("page.html", &page);
    write("style.css", &".a-class-of-some-length { color: #333; margin: 0 auto }\n".repeat(1000));
    write("a.png", &"not a picture".repeat(3000));
    let server = |port: u16, lines: &str| {
        let types = "types { text/html html; text/css css; image/png png; }";
        format!(" server {{ listen 127.0.0.1:{port}; root {}; gzip on; {lines} {types} }}\n", root.display())
    };
    let _nginx = nginx(&folder, &(server(port, "") + &server(cured, "gzip_types text/css;")), port);
    let name = format!("nginx:{}", folder.join("nginx.conf").display());
    let ask = |port: u16| found(&folder, &name, &format!("http://127.0.0.1:{port}/page.html"), "uncompressed-text");
    let (said, answers) = ask(port);
    assert_eq!(said.len(), 1, "{answers:#}");
    let text = said[0].to_string();
    assert!(text.contains("style.css") && text.contains("gzip_types text/css"), "{:#}", said[0]);
    assert!(!text.contains("a.png") && !text.contains("page.html is"), "{:#}", said[0]);
    assert!(said[0]["expected"]["ratio"].as_f64().is_some_and(|ratio| ratio > 1.5), "{:#}", said[0]);
    let seen: Vec<(&Value, &Value)> =
        answers.as_array().expect("answers").iter().map(|a| (&a["media_type"], &a["coding"])).collect();
    assert_eq!(seen[0], (&"text/html".into(), &"gzip".into()), "{answers:#}");
    let (said, answers) = ask(cured);
    assert!(said.is_empty() && answers.as_array().is_some_and(|a| a.len() == 3), "{said:#?} {answers:#}");
}

/// A program that requests start, and the same page without it. A log through a pipe is a program that stays.
#[test]
fn a_program_that_each_request_starts_is_named_and_a_page_without_one_is_not() {
    let folder = Folder::new();
    let fpm = Fpm::start(&folder, 3, "");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    php(&root, "shell.php", "echo shell_exec('expr 3 + 4');");
    php(&root, "plain.php", "echo 3 + 4;");
    let ask =
        |page: &str| found(&folder, &fpm.name(), &format!("http://127.0.0.1:{port}/{page}"), "process-per-request");
    let (said, _) = ask("shell.php");
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["server"], "php-fpm", "{:#}", said[0]);
    assert!(said[0]["title"].as_str().is_some_and(|title| title.contains("starts ")), "{:#}", said[0]);
    let (said, _) = ask("plain.php");
    assert!(said.is_empty(), "{said:#?}");
}

/// Pages of one site that take as long: two are the same for all users, one for all without a cookie.
#[test]
fn a_page_that_is_the_same_for_all_users_is_named_and_pages_of_one_user_are_not() {
    let folder = Folder::new();
    let fpm = Fpm::start(&folder, 3, "");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    let pages = [
        ("same", "echo 'the same for all, page ', $_GET['id'] ?? '';"),
        ("cookie", "echo 'for ', $_COOKIE['user'] ?? 'nobody';"),
        ("half", "echo 'for ', $_COOKIE['login'] ?? 'nobody';"),
        ("deletes", "if ($_COOKIE['sid'] ?? '') { setcookie('sid', ''); } echo 'ok';"),
        ("sets", "setcookie('visits', '1'); echo 'ok';"),
        ("private", "header('Cache-Control: private, max-age=60'); echo 'ok';"),
        ("token", "echo date('H:i'), bin2hex(random_bytes(8));"),
        ("vary", "header('Vary: Cookie'); echo 'ok';"),
        ("field", "echo 'for ', $_SERVER['HTTP_X_USER'] ?? 'nobody';"),
        ("type", "echo str_contains($_SERVER['HTTP_ACCEPT'] ?? '', 'json') ? '[]' : 'none';"),
        ("address", "echo $_SERVER['HTTP_X_FORWARDED_FOR'] ?? $_SERVER['REMOTE_ADDR'];"),
    ];
    let site = format!("http://127.0.0.1:{port}");
    let mut plan = format!("url = '{site}/same.php?id=7'\n");
    for (name, code) in pages {
        php(&root, &format!("{name}.php"), &format!("usleep(15000); {code}"));
        let query = if name == "same" { "?id=7" } else { "" };
        let more = if name == "field" { "headers = { X-User = 'alice' }\n" } else { "" };
        let weight = if name == "same" { 10 } else { 1 };
        plan.push_str(&format!("[[request]]\nurl = '{site}/{name}.php{query}'\nweight = {weight}\n{more}"));
    }
    plan.push_str(&format!("[[request]]\nurl = '{site}/half.php'\nheaders = {{ Cookie = 'login=alice' }}\n"));
    php(
        &root,
        "book.php",
        "if ($_POST) { file_put_contents('book.txt', 'x', FILE_APPEND); } echo @filesize('book.txt');",
    );
    plan.push_str(&format!("[[request]]\nurl = '{site}/book.php'\n"));
    plan.push_str(&format!("[[request]]\nmethod = 'POST'\nurl = '{site}/book.php'\nbody = 'a=b'\n"));
    plan.push_str(&format!("[[request]]\nmethod = 'POST'\nurl = '{site}/same.php'\nbody = 'a=b'\n"));
    fs::write(folder.join("plan.toml"), plan).expect("written");
    let name = format!("nginx:{}", folder.join("nginx.conf").display());
    let (said, answers) = found(&folder, &name, &folder.join("plan.toml").display().to_string(), "cacheable-responses");
    assert_eq!(said.len(), 1, "{answers:#}");
    let advice = said[0]["advice"].as_str().expect("advice");
    assert!(advice.contains("/same.php?id=7") && advice.contains("fastcgi_cache_lock on"), "{:#}", said[0]);
    for (name, _) in pages.iter().chain([&("book", "")]) {
        let is_shared = ["same", "half", "deletes"].contains(name);
        assert_eq!(advice.contains(&format!("/{name}.php")), is_shared, "{name}: {:#}", said[0]);
    }
    let against = said[0]["against"].to_string();
    assert!(against.contains("private.php: Cache-Control: private"), "{against}");
    let ratio = said[0]["expected"]["ratio"].as_f64().expect("a ratio");
    assert!((1.5..2.8).contains(&ratio), "12 of the 22 requests that take time: {:#}", said[0]);
}

/// Two scripts of one pool. In the second plan the slow one is as frequent, and as slow, as the other.
#[test]
fn requests_that_hold_the_workers_which_others_wait_for_are_named_and_a_pool_of_equal_requests_is_not() {
    let folder = Folder::new();
    let fpm = Fpm::start(&folder, 3, "");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    for (name, ms) in [("fast", 1), ("slow", 250), ("same", 250)] {
        php(&root, &format!("{name}.php"), &format!("usleep({ms}000); echo 'ok';"));
    }
    let site = format!("http://127.0.0.1:{port}");
    let ask = |other: &str, weight: u32| {
        let mut plan = format!("url = '{site}/'\n");
        for (name, weight) in [(other, weight), ("slow", 1)] {
            plan.push_str(&format!("[[request]]\nurl = '{site}/{name}.php'\nweight = {weight}\n"));
        }
        fs::write(folder.join("plan.toml"), plan).expect("written");
        let plan = folder.join("plan.toml").display().to_string();
        found_by(&folder, &fpm.name(), &plan, "class-starves-others", "12").0
    };
    let said = ask("fast", 5);
    assert_eq!(said.len(), 1);
    let title = said[0]["title"].as_str().expect("a title");
    assert!(title.starts_with("GET /slow.php holds the workers"), "{:#}", said[0]);
    assert!(ask("same", 1).is_empty());
}

#[test]
fn debug_mode_and_lookups_of_names_are_told_where_the_server_shows_them() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |config| {
        format!("{}\nHostnameLookups On\n", Apache::without_perl(config).replace("HostnameLookups Off", ""))
    });
    let (said, _) = found(&folder, &apache.name(), &apache.url("/"), "hostname-lookups");
    assert_eq!(said.len(), 1);
    assert_eq!((&said[0]["fix"][0]["knob"], &said[0]["fix"][0]["to"]), (&"HostnameLookups".into(), &"Off".into()));
    drop(apache);
    let fpm = Fpm::start(&folder, 2, "php_admin_value[display_errors] = On\nphp_admin_value[html_errors] = On");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    php(&root, "shown.php", "echo $missing, 'ok';");
    php(&root, "hidden.php", "error_reporting(0); echo $missing, 'ok';");
    let ask = |page: &str| found(&folder, &fpm.name(), &format!("http://127.0.0.1:{port}/{page}"), "debug-mode").0;
    let said = ask("shown.php");
    assert!(said.len() == 1 && said[0].to_string().contains("display_errors of PHP"), "{said:#?}");
    assert!(ask("hidden.php").is_empty());
}
