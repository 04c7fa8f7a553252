//! Directives that lastdrop has no setting for: compared on real servers (`compare --live SERVER --a … --b …`), swept, refused,
//! and taken back after a kill at any step. The effects are so large that a busy machine does not hide them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::haproxy::Haproxy;
use crate::common::servers::{Daemon, nginx};
use crate::common::{Apache, Folder, end_at_each_step, free_port, get, number, wait_until};
use serde_json::Value;

/// A command line of two parts.
fn words<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

/// The ratio B/A of requests per second.
fn ratio(compared: &Value) -> f64 {
    number(&compared["metrics"]["rps"]["ratio"])
}

/// An Apache with a page so deep that Apache reads 20 large `.htaccess` files where they are allowed; its path.
fn apache_with_a_deep_page(folder: &Folder) -> (Apache, String) {
    let apache = Apache::start_with(folder, |text| {
        Apache::without_perl(text.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"))
    });
    let mut path = apache.folder.join("htdocs");
    let lines: String = (0..200).map(|i| format!("AddType text/plain .x{i}\n")).collect();
    for i in 0..20 {
        path.push(format!("d{i}"));
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join(".htaccess"), &lines).expect("written");
    }
    fs::write(path.join("index.html"), "deep").expect("written");
    let url = path.strip_prefix(apache.folder.join("htdocs")).expect("inside").join("index.html");
    (apache, format!("/{}", url.display()))
}

#[test]
fn directives_of_apache_are_compared_where_the_configuration_has_them() {
    let folder = Folder::new();
    let (apache, path) = apache_with_a_deep_page(&folder);
    let (name, url, before) = (apache.name(), apache.url(&path), (apache.tree(), apache.masters()));
    let base = ["compare", "--live", &name, "--url", &url, "-d", "400ms", "--blocks", "6", "-c", "2"];
    let with = |more: &[&'static str]| words(&base, more);
    let compared = folder.json(&with(&["--a", "AllowOverride All", "--b", "AllowOverride None"]), 0);
    assert_eq!((&compared["verdict"], &compared["server"]), (&"better".into(), &name.as_str().into()), "{compared:#}");
    assert!(ratio(&compared) > 1.5, "{compared:#}");
    let changes = compared["a"]["changes"].to_string();
    assert!(changes.contains("- AllowOverride None") && changes.contains("+ AllowOverride All"), "{compared:#}");
    assert_eq!((apache.tree(), apache.masters(), folder.journal()), (before.0.clone(), before.1.clone(), None));

    // What is printed before the first trial says where.
    let at = format!("directory:{}", apache.folder.join("htdocs").display());
    let told = folder.run(&words(&base, &["--b", "AllowOverride All", "--at", &at, "-n", "5"]));
    assert!(told.code == 0 && told.stderr.contains("B: AllowOverride All\n"), "{told:?}");
    assert!(told.stderr.contains("apache2.conf:") && told.stderr.contains(": + AllowOverride All"), "{told:?}");

    for (more, code, text) in [
        (&["--b", "NoSuch On"][..], 1, "Invalid command 'NoSuch'"),
        (&["--b", "KeepAlive On", "--at", "vhost:shop"], 1, "no <VirtualHost> called shop"),
        (&["--b", "AllowOverride All", "--at", "directory:/no/such"], 1, "no folder /no/such"),
        (&["--b", "AllowOverride None"], 2, "says so already"),
        (&["--a", "AllowOverride All", "--b", "AllowOverride All"], 2, "they change the same"),
        (&["--b", "CustomLog /tmp/x common"], 2, "--allow-code"),
        (&["--b", "KeepAlive On", "--at", "shop"], 2, "vhost:NAME"),
        (&[], 2, "--a or --b"),
    ] {
        let refused = folder.run(&with(more));
        assert!(refused.code == code && refused.stderr.contains(text), "{text}: {refused:?}");
    }
    assert_eq!((apache.tree(), apache.masters(), folder.journal()), (before.0, before.1, None), "nothing is changed");
}

#[test]
fn directives_of_a_plan_need_a_right_and_are_taken_back_after_a_kill_at_any_step() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, Apache::without_perl);
    let before = (apache.tree(), apache.masters());
    let plan = folder.join("plan.toml");
    let (name, url) = (apache.name(), apache.url("/"));
    let write = |directives: &str| {
        let head = format!("server = '{name}'\nurl = '{url}'\nusers = 2\nrequests = 4\n");
        fs::write(&plan, format!("{head}[[variant]]\nname = 'all'\ndirectives = {directives}\n")).expect("written");
    };
    // One is in a section of the server's own file, the other is new.
    write("['AllowOverride All', 'HostnameLookups On']");
    let path = plan.display().to_string();
    let sweep = ["sweep", &path, "--live", "--quiet", "--allow-directives"];
    let refused = folder.run(&sweep[..4]);
    assert!(refused.code == 2 && refused.stderr.contains("--allow-directives"), "{refused:?}");
    let document = folder.json(&sweep[..], 0);
    assert_eq!(document["rows"][0]["directives"], "AllowOverride All; HostnameLookups On", "{document:#}");
    assert_eq!(document["rows"][0]["answered"], 4, "{document:#}");
    let steps = end_at_each_step(&folder, &sweep, |moment| {
        assert_eq!((apache.tree(), apache.masters()), before, "{moment}");
        assert_eq!((apache.pool(), folder.journal()), (Some(50), None), "{moment}");
    });
    assert!(steps >= 12, "{steps}");
    write("['LoadModule x_module /tmp/x.so']");
    let refused = folder.run(&sweep);
    assert!(refused.code == 2 && refused.stderr.contains("--allow-code"), "{refused:?}");
    assert_eq!((apache.tree(), apache.masters(), folder.journal()), (before.0, before.1, None));
}

/// An nginx that compresses a text of 2 MB at level 1.
fn nginx_with_a_text(folder: &Folder) -> (Daemon, PathBuf, String) {
    let port = free_port();
    let root = folder.join("www");
    fs::create_dir(&root).expect("a folder");
    let text: String = (0..10_000_u64).map(|i| format!("line {i} of a text: {}\n", i * 7919 % 10_007)).collect();
    fs::write(root.join("big.txt"), text).expect("written");
    Command::new("chmod").args(["-R", "a+rX"]).arg(&root).status().expect("chmod");
    let http = format!(
        " types {{ text/plain txt; }}\n gzip on; gzip_types text/plain; gzip_comp_level 1;\n server {{\n  listen 127.0.0.1:{port};\n  \
         server_name shop;\n  root {};\n  location = / {{ return 200 ok; }}\n }}",
        root.display()
    );
    let daemon = nginx(folder, &http, port);
    (daemon, folder.join("nginx.conf"), format!("http://127.0.0.1:{port}/big.txt"))
}

#[test]
fn directives_of_nginx_are_compared_by_reload() {
    let folder = Folder::new();
    let (daemon, config, url) = nginx_with_a_text(&folder);
    let name = format!("nginx:{}", config.display());
    let before = fs::read_to_string(&config).expect("readable");
    let base = ["compare", "--live", &name, "--url", &url, "-H", "Accept-Encoding: gzip"];
    let with = |more: &[&'static str]| words(&words(&base, &["-d", "500ms", "--blocks", "6", "-c", "2"]), more);
    let compared = folder.json(&with(&["--b", "gzip_comp_level 9", "--at", "vhost:shop"]), 0);
    assert!(compared["verdict"] == "worse" && ratio(&compared) < 0.7, "{compared:#}");
    assert!(compared["b"]["changes"].to_string().contains("gzip_comp_level 9;"), "{compared:#}");
    for (more, code, text) in [
        (&["--b", "gzip perhaps"][..], 1, "invalid value \"perhaps\""),
        (&["--b", "try_files $uri =404"], 1, "--at vhost:NAME"),
        (&["--b", "gzip off", "--at", "location:/no"], 1, "no location /no"),
        (&["--b", "gzip off", "--at", "directory:/no"], 1, "location:PATH"),
        (&["--b", "gzip off } user root"], 1, "has a block"),
        (&["--b", "load_module /tmp/x.so"], 2, "--allow-code"),
    ] {
        let refused = folder.run(&with(more));
        assert!(refused.code == code && refused.stderr.contains(text), "{text}: {refused:?}");
    }
    assert_eq!(fs::read_to_string(&config).expect("readable"), before);
    assert!(folder.journal().is_none() && daemon.pid() > 0);
}

#[test]
fn directives_of_haproxy_are_compared_in_their_section() {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, &["-W"]);
    let (name, url, before) = (haproxy.name(), format!("http://127.0.0.1:{}/", haproxy.port), haproxy.tree());
    let base = ["compare", "--live", &name, "--url", &url, "-d", "400ms", "--blocks", "6", "-c", "8"];
    let with = |more: &[&'static str]| words(&base, more);
    // Each answer takes 10 ms: one connection at a time is an eighth of eight.
    let compared = folder.json(&with(&["--b", "maxconn 1", "--at", "vhost:fe_main"]), 0);
    assert!(compared["verdict"] != "better" && ratio(&compared) < 0.5, "{compared:#}");
    for (more, code, text) in [
        (&["--b", "option nonsense"][..], 1, "nonsense"),
        (&["--b", "maxconn 1", "--at", "vhost:no"], 1, "no section called no"),
        (&["--b", "backend other"], 1, "begins a section"),
        (&["--b", "lua-load /tmp/x.lua"], 2, "--allow-code"),
    ] {
        let refused = folder.run(&with(more));
        assert!(refused.code == code && refused.stderr.contains(text), "{text}: {refused:?}");
    }
    wait_until("its own answers", || get(haproxy.port, "/").is_some());
    assert_eq!((haproxy.tree(), folder.journal()), (before, None));
}
