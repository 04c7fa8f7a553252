//! `lastdrop import`: recordings of other programs become working plans.

use std::fs;
use std::io::BufReader;
use std::io::{BufRead, Read};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Folder, Target, answer, n, serve};
use serde_json::{Value, json};

/// Method, target, body and cookie of a request.
#[derive(Debug, Clone)]
struct ReceivedRequest {
    line: String,
    cookie: String,
    body: String,
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head).ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let field = |name: &str| {
        let of = |l: &str| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_string());
        head.lines().find_map(of).unwrap_or_default()
    };
    let mut body = vec![0; field("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let line = head.lines().next()?.trim_end_matches(" HTTP/1.1").to_string();
    Some(ReceivedRequest { line, cookie: field("cookie"), body: String::from_utf8_lossy(&body).into_owned() })
}

/// A shop with a token per visitor and numbered orders.
fn shop(seen: &ReceivedRequest) -> Vec<u8> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    let html = "Content-Type: text/html\r\n";
    let token = seen.cookie.strip_prefix("sid=").unwrap_or_default();
    match seen.line.as_str() {
        "GET /login" => {
            let new = format!("t0k3n{}", NEXT.fetch_add(1, Ordering::Relaxed));
            let page = format!(
                "<title>Log in</title><input type=\"hidden\" name=\"csrf\" value=\"{new}\"> <input name=password>"
            );
            answer("200 OK", format!("{html}Set-Cookie: sid={new}\r\n"), page)
        }
        "POST /login" if seen.body == format!("csrf={token}&user=ann&password=pw+1") => {
            answer("302 Found", format!("Location: /order/{}\r\n", token.trim_start_matches("t0k3n")), "")
        }
        line if line == format!("GET /order/{}", token.trim_start_matches("t0k3n")) => answer(
            "200 OK",
            html,
            format!("<title>Order</title> <a href=\"{}/pay\">pay</a>", line.trim_start_matches("GET ")),
        ),
        line if line == format!("GET /order/{}/pay", token.trim_start_matches("t0k3n")) => {
            answer("200 OK", html, "paid")
        }
        _ => answer("403 Forbidden", "", "no"),
    }
}

#[test]
fn a_har_file_is_a_plan_that_fifty_users_can_run() {
    let (address, seen) = serve(read, shop);
    let folder = Folder::new();
    let url = |path: &str| format!("http://{address}{path}");
    let entry = |second: f64, method: &str, path: &str, form: &str, response: Value| {
        let mut request =
            json!({"method": method, "url": url(path), "headers": [{"name": "Cookie", "value": "sid=t0k3n7"}]});
        if !form.is_empty() {
            request["postData"] = json!({"mimeType": "application/x-www-form-urlencoded", "text": form});
        }
        json!({"startedDateTime": format!("2026-01-31T12:00:0{second:.1}Z"), "time": 10, "request": request, "response": response})
    };
    let page = |text: &str| json!({"status": 200, "headers": [], "content": {"mimeType": "text/html", "text": text}});
    let har = json!({"log": {"entries": [
        entry(0.0, "GET", "/login", "", page("<title>Log in</title><input type=\"hidden\" name=\"csrf\" value=\"t0k3n7000\">")),
        entry(0.3, "POST", "/login", "csrf=t0k3n7000&user=ann&password=pw+1",
              json!({"status": 302, "headers": [{"name": "location", "value": "/order/7000"}], "content": {}})),
        entry(0.31, "GET", "/order/7000", "", page("<title>Order</title> <a href=\"/order/7000/pay\">pay</a>")),
        entry(0.5, "GET", "/order/7000/pay", "", page("paid")),
    ]}});
    let (file, plan) = (folder.join("shop.har"), folder.join("plan.toml"));
    fs::write(&file, har.to_string()).expect("written");
    let (file, plan) = (file.to_str().expect("text"), plan.to_str().expect("text"));
    let done = folder.run(&["import", file, "-o", plan]);
    assert!(done.code == 0 && done.stdout.contains("3 requests, 2 values"), "{done:?}");
    let mode = |name: &str| fs::metadata(folder.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("plan.csv"), mode("plan.toml")), (0o600, 0o600));
    let text = fs::read_to_string(plan).expect("a plan");
    assert!(text.lines().count() < 45 && !text.contains("pw 1") && !text.contains("t0k3n"), "{text}");
    let run = folder.json(&["run", plan, "-c", "50", "-n", "300", "--no-store"], 0);
    let phase = &run["phases"][0];
    let seen = seen.lock().expect("nobody panicked");
    assert_eq!(n(&phase["expectations"]["missed"]), 0, "{text}\n{:?}", seen.iter().rev().take(5).collect::<Vec<_>>());
    assert!(n(&phase["status"]["200"]) >= 300 - 100 && phase["status"]["403"].is_null(), "{phase}");
}

#[test]
fn commands_urls_and_workloads_run_too() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4"]);
    let base = target.url();
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let plan = folder.join("plan.toml");
    let plan = plan.to_str().expect("text");
    for (name, text, more) in [
        ("curl.txt", format!("curl '{base}a' -H 'X-A: b' --compressed\ncurl {base}b --data-raw 'x=1&y=%20'\n"), vec![]),
        ("urls.txt", format!("# mine\n{base}a\n{base}b POST x=1\n"), vec![]),
        ("wlog", "/a\0/b\0".to_string(), vec!["--to", &base]),
        ("sess", "/a think=0.01\n\t/b\n/c method=POST contents='x=1'\n\n/d\n".to_string(), vec!["--to", &base]),
    ] {
        let name = file(name, text);
        let done = folder.run(&[&["import", &name, "-o", plan][..], &more].concat());
        assert_eq!(done.code, 0, "{done:?}");
        let run = folder.json(&["run", plan, "-c", "2", "-n", "20", "--no-store"], 0);
        assert_eq!(
            n(&run["phases"][0]["status"]["200"]),
            n(&run["phases"][0]["requests"]["answered"]),
            "{name}: {run}"
        );
    }
}

#[test]
fn what_cannot_be_imported_is_told() {
    let folder = Folder::new();
    let file = folder.join("x");
    let name = file.to_str().expect("text");
    for (text, args, word) in [
        ("{\"log\":1}", vec!["-o", "plan.toml"], "no HAR file"),
        ("/a\n", vec!["-o", "plan.toml"], "--to"),
        ("curl -b jar.txt http://h/", vec!["-o", "plan.toml"], "no other file"),
        ("curl http://h/?a=1&b=2", vec!["-o", "plan.toml"], "put the URL in quotes"),
        ("http://h/", vec!["-o", "-"], "no name for a plan"),
        ("http://h/", vec![], "--output"),
    ] {
        fs::write(&file, text).expect("written");
        let done = folder.run(&[&["import", name][..], &args].concat());
        assert!(done.code == 2 && done.stderr.contains(word), "{done:?}");
    }
}

#[test]
fn an_uploaded_file_is_sent_as_it_was_and_what_is_left_out_is_in_the_plan() {
    let (address, seen) = serve(read, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    let (file, plan) = (folder.join("copied.txt"), folder.join("plan.toml"));
    fs::write(folder.join("a.csv"), "id,n\n1,2\n").expect("written");
    let command = format!(
        "$ curl http://{address}/up -F 'doc=@a.csv;type=text/csv' -F 'j={{}};type=application/json' --http2 | jq .\n"
    );
    fs::write(&file, command).expect("written");
    let (file, plan) = (file.to_str().expect("text"), plan.to_str().expect("text"));
    let done = folder.run(&["import", file, "-o", plan]);
    assert!(done.code == 0 && done.stderr.contains("note: command 1: left out: --http2"), "{done:?}");
    let text = fs::read_to_string(plan).expect("a plan");
    assert!(text.contains("# command 1: left out: --http2") && text.contains("piped to: jq ."), "{text}");
    folder.json(&["run", plan, "-c", "1", "-n", "1", "--no-store"], 0);
    let seen = seen.lock().expect("nobody panicked");
    let body = &seen.last().expect("a request").body;
    for part in [
        "name=\"doc\"; filename=\"a.csv\"\r\nContent-Type: text/csv\r\n\r\nid,n\n1,2\n",
        "name=\"j\"\r\nContent-Type: application/json\r\n\r\n{}",
    ] {
        assert!(body.contains(part), "{part}: {body}");
    }
}
