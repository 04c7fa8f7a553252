//! Requests are sent as they are meant: header fields about framing take effect, and bodies stay bodies. Responses that a client
//! may accept are accepted, and each refusal has its reason.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;

use crate::common::servers::nginx;
use crate::common::{Folder, answer, free_port, n, serve};

fn main_phase(run: &Value) -> &Value {
    run["phases"].as_array().expect("phases").iter().find(|p| p["measured"] == true).expect("a measured phase")
}

/// Reads a whole request with a body of known length.
fn whole(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let (mut text, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        text.push_str(&line);
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(text + &String::from_utf8_lossy(&body))
}

#[test]
fn nothing_follows_on_a_connection_whose_request_asks_for_its_end() {
    let (folder, port) = (Folder::new(), free_port());
    let server = format!("server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }}");
    let _nginx = nginx(&folder, &server, port);
    let url = format!("http://127.0.0.1:{port}/");
    let plan = folder.join("session.toml");
    fs::write(
        &plan,
        format!(
            "url = '{url}'\nusers = 4\nrequests = 200\npick = 'session'\n[[request]]\n[[request]]\nheaders = {{ Connection = 'close' }}\n"
        ),
    )
    .expect("written");
    let plan = plan.display().to_string();
    let ways: [(&[&str], u64); 3] = [
        (&["run", &url, "-n", "200", "-c", "4", "-H", "Connection: close"], 200),
        (&["run", &url, "-n", "200", "-c", "4", "-H", "connection: TE, Close"], 200),
        (&["run", &plan], 100),
    ];
    for (args, connections) in ways {
        let run = folder.json(args, 0);
        let p = main_phase(&run);
        let failed = &p["requests"]["failed"];
        assert_eq!((n(&p["requests"]["answered"]), n(&failed["closed"]), n(&failed["reset"])), (200, 0, 0), "{p}");
        // If the last of the 200 requests is the first of a session, that session ends there; at most one for each of four users.
        let opened = n(&p["connections"]["opened"]);
        let most = if connections == 200 { connections } else { connections + 4 };
        assert!((connections..=most).contains(&opened), "{args:?}: {}", p["connections"]);
    }
    for (field, why) in [
        ("Content-Length: 5", "there is no body"),
        ("Transfer-Encoding: gzip", "or chunked"),
        ("Upgrade: websocket", "another protocol"),
    ] {
        let refused = folder.run(&["run", &url, "-n", "1", "-H", field]);
        assert!(refused.code == 2 && refused.stderr.contains(why), "{field}: {refused:?}");
    }
}

#[test]
fn a_body_of_markup_and_the_headers_of_a_siegerc_are_sent() {
    let (address, seen) = serve(whole, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    let (urls, rc) = (folder.join("urls.txt"), folder.join("siegerc"));
    let xml = "<?xml version=\"1.0\"?><order><id>7</id></order>";
    fs::write(&urls, format!("http://{address}/soap POST {xml}\n")).expect("written");
    fs::write(&rc, "verbose = false\nconcurrent = 1\nheader = X-Tenant: blue\nheader = X-Trace: 7\n").expect("written");
    let (urls, rc) = (urls.display().to_string(), rc.display().to_string());
    let plan = folder.join("imported.toml").display().to_string();
    let imported = folder.run(&["import", &urls, "-o", &plan]);
    assert_eq!(imported.code, 0, "{imported:?}");
    for args in [
        &["siege", "-R", &rc, "-r", "1", "-b", "-f", &urls][..],
        &["run", "-f", &urls, "-n", "1"],
        &["run", &plan, "-n", "1"],
    ] {
        seen.lock().expect("nobody panicked").clear();
        let done = Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(args).env("HOME", folder.path()).output();
        assert!(done.as_ref().is_ok_and(|d| d.status.success()), "{args:?}: {done:?}");
        let heard = seen.lock().expect("nobody panicked").join("");
        assert!(heard.starts_with("POST /soap HTTP/1.") && heard.ends_with(xml), "{args:?}: {heard}");
        let has_headers = heard.contains("X-Tenant: blue\r\n") && heard.contains("X-Trace: 7\r\n");
        assert_eq!(has_headers, args[0] == "siege", "{heard}");
    }
}

#[test]
fn odd_answers_are_accepted_and_refused_ones_have_a_reason() {
    let folder = Folder::new();
    let with = |bytes: Vec<u8>, more: &[&str], code: i32| {
        let (address, _) = serve(crate::common::head, move |()| bytes.clone());
        let url = format!("http://{address}/");
        folder.json(&[&["run", &url, "-n", "6", "-c", "1"], more].concat(), code)
    };
    let many: String = (0..300).map(|i| format!("X-{i}: y\r\n")).collect();
    for odd in [answer("200 OK", "X: a\r\n b\r\n", "ok"), answer("200 OK", many, "ok"), answer("200", "", "ok")] {
        assert_eq!(n(&main_phase(&with(odd, &[], 0))["requests"]["answered"]), 6);
    }
    // Responses without a body but with a Content-Encoding.
    for (status, method) in
        [("204 No Content", "GET"), ("304 Not Modified", "GET"), ("200 OK", "HEAD"), ("200 OK", "GET")]
    {
        let run = with(answer(status, "Content-Encoding: gzip\r\n", ""), &["--decode", "-X", method], 0);
        let p = main_phase(&run);
        assert_eq!((n(&p["requests"]["answered"]), n(&p["expectations"]["missed"])), (6, 0), "{status} {method}: {p}");
    }
    for (wrong, why) in [
        (&b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n"[..], "it does not begin with HTTP/"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n", "a Content-Length that is not a number"),
        (b"HTTP/2 200\r\n\r\n", "an answer in HTTP/2"),
    ] {
        let (address, _) = serve(crate::common::head, move |()| wrong.to_vec());
        let done = folder.run(&["run", &format!("http://{address}/"), "-n", "6", "-c", "1"]);
        let all = format!("{}{}", done.stdout, done.stderr);
        assert!(all.contains(why) && all.contains("not HTTP"), "{why}: {all}");
    }
}

#[test]
fn a_run_whose_pages_were_not_served_is_not_called_good() {
    let (folder, port) = (Folder::new(), free_port());
    let page = "default_type text/html; return 200";
    let server = format!(
        "server {{ listen 127.0.0.1:{port};\n\
         location /mine/ {{ return 302 /accounts/login/?next=$uri; }}\n\
         location /accounts/login/ {{ {page} '<title>Log in</title><form method=post><input type=\"password\">'; }}\n\
         location /edit {{ {page} '<title>Edit</title><form method=\"post\"><textarea name=\"text\"></textarea>'; }}\n\
         location / {{ {page} '<title>Shop</title>'; }} }}"
    );
    let _nginx = nginx(&folder, &server, port);
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let redirects = "GET /mine/ redirects to /accounts/login/?next";
    let login = "GET /mine/ is answered with a page called 'Log in'";
    let form = "POST /edit is answered with the same form again";
    for (path, more, doubt) in [
        ("/mine/", &[][..], redirects),
        ("/mine/", &["--redirects", "3"], login),
        ("/mine/", &["--expect", "status=302"], ""),
        ("/accounts/login/", &[], ""),
        ("/edit", &["--method", "POST", "--body", "text=hello"], form),
        ("/edit", &["--method", "POST", "--body", "text=hello", "--expect", "text=Edit"], ""),
        ("/", &[], ""),
    ] {
        let url = url(path);
        let args = [&["run", &url, "-n", "50", "-c", "2"], more].concat();
        let run = folder.json(&args, 0);
        let reasons = run["validity"]["reasons"].as_array().expect("reasons");
        let told = reasons.iter().find(|r| r["rule"] == "answers-in-doubt").map(|r| r["what"].to_string());
        let told = told.unwrap_or_default();
        assert!(told.contains(doubt) && told.is_empty() == doubt.is_empty(), "{args:?}: {told:?}");
        let text = folder.run(&["show", "last"]).stdout;
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("Good: ") == doubt.is_empty() && first.contains(doubt), "{args:?}: {text}");
        // Inspected responses are counted like all others, and none is lost.
        assert_eq!(n(&main_phase(&run)["requests"]["sent"]) % 50, 0, "{args:?}");
    }
}
