//! nginx's knobs. Defaults:
//! `ngx_http_core_module.c`, `ngx_event.c`, `ngx_http_gzip_filter_module.c` of 1.22.
//!
//! A reload is enough for all of them, even for a listening socket: with a new backlog, nginx calls listen() again
//! (`ngx_configure_listening_sockets`).

use std::sync::OnceLock;

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, Role};

use super::config::Config;
use super::places::SERVER;

const SWITCH: KnobValues = KnobValues::Switch { on: "on", off: "off" };
const OWN: &str = "a server or location may set its own";

/// All knobs; the last two are for TLS and for upstreams only.
pub static KNOBS: &[Knob] = &[
    // Not a pool size: each worker serves many requests at once.
    Knob::by_reload(
        "worker_processes",
        KnobValues::CountOr(1, 1024, "auto"),
        "1",
        "auto is one for each CPU",
        "processes that serve, each of them many requests at once",
    )
    .worth_trying_for(&["single-worker-cpu", "single-process"]),
    Knob::by_reload(
        "worker_connections",
        KnobValues::Count(1, 10_000_000),
        "512",
        "of each worker, those to upstreams included; at most its limit of open files",
        "how many connections a worker has at most; further ones are closed at once",
    )
    .worth_trying_for(&["nginx-connections-exhausted"]),
    Knob::by_reload(
        "worker_rlimit_nofile",
        KnobValues::Count(1, 10_000_000),
        "0",
        "0 is the limit of the master; a connection that is passed on takes two",
        "how many files and connections a worker may have open",
    )
    .worth_trying_for(&["fd-limit", "nginx-connections-exhausted"]),
    // It is its own switch: 0 is off, any other time is on.
    Knob::by_reload(
        "keepalive_timeout",
        KnobValues::Count(0, 86_400),
        "75",
        "seconds; 0 is off; a server or location may set its own",
        "how long an idle connection stays open for another request",
    )
    .worth_trying_for(&["keepalive-off"])
    .with_role(Role::KeepAlive),
    Knob::by_reload(
        "keepalive_requests",
        KnobValues::Count(1, 1_000_000_000),
        "1000",
        OWN,
        "a connection that has had so many requests is closed",
    )
    .worth_trying_for(&["keepalive-off"])
    .with_role(Role::KeepAliveRequests),
    Knob::by_reload("sendfile", SWITCH, "off", OWN, "files go from the page cache to the socket without a copy")
        .worth_trying_for(&["cpu-saturated"]),
    Knob::by_reload(
        "tcp_nopush",
        SWITCH,
        "off",
        "only with sendfile",
        "headers and the beginning of a file go in one packet",
    )
    .only_with("sendfile", &["on"]),
    Knob::by_reload(
        "gzip",
        SWITCH,
        "off",
        "of text/html, and what gzip_types adds",
        "answers are compressed: less to send, more CPU",
    )
    .worth_trying_for(&["cpu-saturated"])
    .only_by_name("what is sent to clients with slow links changes its size, which this load does not show"),
    Knob::by_reload("gzip_comp_level", KnobValues::Count(1, 9), "1", "only with gzip", "how hard it compresses")
        .only_with("gzip", &["on"])
        .worth_trying_for(&["cpu-saturated", "compression-bound"])
        .usually(&[1, 2, 4, 6]),
    Knob::by_reload(
        "open_file_cache",
        KnobValues::Count(0, 10_000_000),
        "0",
        "files; 0 is off",
        "open files are remembered: fewer calls for each, and changes of them are seen later",
    )
    .worth_trying_for(&["cpu-saturated"])
    .usually(&[10_000, 1000]),
    Knob::by_reload(
        "backlog",
        KnobValues::Count(1, 65_535),
        "511",
        "of listen; at most net.core.somaxconn",
        "connections that wait for a worker before the kernel turns them away",
    )
    .worth_trying_for(&["accept-queue-overflow"])
    .with_role(Role::Backlog),
    Knob::by_reload(
        "reuseport",
        SWITCH,
        "off",
        "of listen; what waits for a worker that leaves is lost",
        "each worker has a queue of its own, between which the kernel deals",
    )
    .worth_trying_for(&["single-worker-cpu"]),
    Knob::by_reload(
        "access_log_buffer",
        KnobValues::Count(0, 1_000_000),
        "0",
        "KiB, of access_log; 0 is a write for each request; what is in it comes late to the log",
        "lines of the access log are written together, when so much has come",
    )
    .worth_trying_for(&["access-log-unbuffered", "slow-log"])
    .usually(&[64, 16]),
    Knob::by_reload(
        "ssl_session_cache",
        KnobValues::Count(0, 100_000),
        "0",
        "MiB shared by the workers, about 4000 sessions each; 0 is off; session tickets resume without it",
        "a client that comes again is spared the whole handshake",
    )
    .worth_trying_for(&["tls-bound"])
    .usually(&[10, 1]),
    Knob::by_reload(
        "keepalive",
        KnobValues::Count(0, 1_000_000),
        "0",
        "of upstream; before 1.29.7 only with proxy_http_version 1.1 and an empty Connection header",
        "idle connections to the upstream that each worker keeps for the next request",
    )
    .worth_trying_for(&["upstream-connect-per-request", "port-exhaustion"])
    .usually(&[32, 8, 128]),
];

/// The knobs that a configuration has a place for.
pub fn of(config: Option<&Config>) -> &'static [Knob] {
    static SOME: OnceLock<[Vec<Knob>; 2]> = OnceLock::new();
    let [.., tls, upstream] = KNOBS else { return KNOBS };
    let plain = &KNOBS[..KNOBS.len() - 2];
    let [with_tls, with_upstreams] =
        SOME.get_or_init(|| [tls, upstream].map(|knob| plain.iter().chain([knob]).copied().collect()));
    let has_upstreams = config.is_some_and(|c| c.within(&["http"], "upstream").next().is_some());
    let has_tls = config.is_some_and(|c| {
        let names = c.within(SERVER, "listen").any(|d| d.word("ssl").is_some());
        names || c.within(SERVER, "ssl_certificate").chain(c.within(&["http"], "ssl_certificate")).next().is_some()
    });
    match (has_tls, has_upstreams) {
        (true, true) => KNOBS,
        (true, false) => with_tls,
        (false, true) => with_upstreams,
        (false, false) => plain,
    }
}
