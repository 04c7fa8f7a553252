//! Which `listen` lines set the options of a socket. An address may occur in many server blocks, but only one of its
//! lines may have socket options (`ngx_http_add_addresses`).

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::config::{Config, Directive};

/// The socket that a listen line belongs to: an identifying text, and its ports.
fn address(listen: &Directive) -> (String, RangeInclusive<u16>) {
    let text = listen.arguments().first().map_or("", |w| w.text.as_str());
    let none = RangeInclusive::new(1, 0);
    if text.starts_with("unix:") {
        return (text.into(), none);
    }
    let ports = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    let (host, range) = match text.rsplit_once(':') {
        // The colons of [::1] do not separate a port.
        Some((host, port)) if !port.ends_with(']') => (host, ports(port)),
        _ => match ports(text) {
            Some(range) => ("*", Some(range)),
            None => (text, Some(80..=80)),
        },
    };
    let host = if host == "0.0.0.0" { "*" } else { host };
    let range = range.unwrap_or(none);
    // HTTP/3 has its own socket.
    let quic = if listen.word("quic").is_some() { "quic " } else { "" };
    (format!("{quic}{host}:{}-{}", range.start(), range.end()), range)
}

/// Socket options, which nginx accepts in only one line per address.
const OF_SOCKETS: &[&str] = &[
    "backlog=",
    "rcvbuf=",
    "sndbuf=",
    "setfib=",
    "fastopen=",
    "accept_filter=",
    "deferred",
    "ipv6only=",
    "bind",
    "reuseport",
    "so_keepalive=",
];

fn tells_of_its_socket(listen: &Directive) -> bool {
    OF_SOCKETS.iter().any(|word| listen.word(word).is_some())
}

/// For each socket, the listen line that sets or may set its options: the one that already does, otherwise the first of
/// its address. An address whose port also has a wildcard has its own socket only if a line says so.
pub fn listens(config: &Config, port: Option<u16>) -> Vec<&Directive> {
    let all: Vec<(&Directive, String, RangeInclusive<u16>)> = config
        .within(&["http", "server"], "listen")
        .map(|d| {
            let (name, ports) = address(d);
            (d, name, ports)
        })
        .filter(|(_, name, ports)| match port {
            Some(port) => ports.contains(&port) && !name.starts_with("quic"),
            None => !name.starts_with("quic"),
        })
        .collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut chosen = Vec::new();
    for (line, name, ports) in &all {
        if !seen.insert(name) {
            continue;
        }
        let teller = all.iter().find(|(d, n, _)| n == name && tells_of_its_socket(d)).map(|(d, ..)| *d);
        let wildcard = format!("*:{}-{}", ports.start(), ports.end());
        let is_v4 = !name.starts_with(['[', '*']) && !name.starts_with("unix:");
        let covered = is_v4 && all.iter().any(|(_, n, _)| *n == wildcard);
        if let Some(line) = teller.or((!covered).then_some(*line)) {
            chosen.push(line);
        }
    }
    chosen
}
