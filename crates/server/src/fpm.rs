//! PHP-FPM: where its configuration says that its status page is.

use std::fs;
use std::path::Path;

use lastdrop_probe::fastcgi::FpmSocket;
use lastdrop_probe::status::StatusSource;

/// The status page of the first pool that has one.
pub fn status(config: &Path) -> Option<StatusSource> {
    let mut lines: Vec<String> = Vec::new();
    for line in fs::read_to_string(config).ok()?.lines() {
        match line.trim().strip_prefix("include").and_then(|l| l.trim_start().strip_prefix('=')) {
            Some(pattern) => {
                for file in glob::glob(pattern.trim().trim_matches('"')).ok()?.filter_map(Result::ok) {
                    lines.extend(fs::read_to_string(file).unwrap_or_default().lines().map(str::to_string));
                }
            }
            None => lines.push(line.to_string()),
        }
    }
    let (mut listen, mut path, mut own, mut pool) = (None, None, None, String::new());
    let source = |listen: &Option<String>, path: &Option<String>, own: &Option<String>, pool: &str| {
        let at = own.as_ref().or(listen.as_ref())?.replace("$pool", pool);
        Some(StatusSource::FastCgi { socket: socket_of(&at)?, path: path.clone()?, apart: own.is_some() })
    };
    for line in &lines {
        let line = line.split(';').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            if let Some(found) = source(&listen, &path, &own, &pool) {
                return Some(found);
            }
            (listen, path, own, pool) = (None, None, None, name.to_string());
        } else if let Some((key, value)) = line.split_once('=') {
            let value = Some(value.trim().trim_matches('"').to_string());
            match key.trim() {
                "listen" => listen = value,
                "pm.status_path" => path = value,
                "pm.status_listen" => own = value,
                _ => {}
            }
        }
    }
    source(&listen, &path, &own, &pool)
}

fn socket_of(text: &str) -> Option<FpmSocket> {
    if text.starts_with('/') {
        return Some(FpmSocket::Unix(text.into()));
    }
    let address = if text.contains(':') { text.to_string() } else { format!("127.0.0.1:{text}") };
    address.parse().ok().map(FpmSocket::Tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_page_of_a_pool_is_found_through_includes() {
        let dir = tempfile::tempdir().expect("a folder");
        let pool = "[quiet]\nlisten = 9001\n[www] ; main\nlisten = /run/php/$pool.sock\n; pm.status_path = /no\npm.status_path = /status\n";
        fs::write(dir.path().join("www.conf"), pool).expect("written");
        let main = dir.path().join("php-fpm.conf");
        fs::write(&main, format!("[global]\npid = x\ninclude={}/www*.conf\n", dir.path().display())).expect("written");
        let expected = |socket, apart| Some(StatusSource::FastCgi { socket, path: "/status".into(), apart });
        assert_eq!(status(&main), expected(FpmSocket::Unix("/run/php/www.sock".into()), false));
        fs::write(dir.path().join("www.conf"), format!("{pool}pm.status_listen = 127.0.0.1:9002\n")).expect("written");
        let address = "127.0.0.1:9002".parse().expect("an address");
        assert_eq!(status(&main), expected(FpmSocket::Tcp(address), true));
        assert_eq!(socket_of("9000"), Some(FpmSocket::Tcp("127.0.0.1:9000".parse().expect("an address"))));
    }
}
