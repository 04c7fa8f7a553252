//! `doctor`: what the answers themselves show. Each fault and its look-alikes stand on one real server.

use std::fs;

use crate::common::servers::{nginx, open_folder};
use crate::common::{Folder, free_port};
use serde_json::Value;

/// The findings with this id about a URL, under a light load.
fn found(folder: &Folder, server: &str, url: &str, id: &str) -> (Vec<Value>, Value) {
    let args = ["doctor", server, "--url", url, "-c", "2", "-d", "1s", "--live", "--no-store"];
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
