//! Generates plans of all kinds, and the worlds to run them in.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{Arrival, GiveUpRule, KeepAlive, Load, Phase, Plan, Proxy};
use lastdrop_model::request::{
    Auth, Body, Expectation, ExtractSource, ExtractSpec, Page, Pick, RequestSpec, ThinkTime,
};
use lastdrop_model::{CaptureLevel, Failure, Micros, Url};

use crate::faults::{FaultModel, FaultRates, PlanNeeds, StreamRates};
use crate::layer::server_config;
use crate::rng::Rng;

/// A run to simulate.
#[derive(Debug)]
pub struct Scenario {
    pub plan: Plan,
    pub faults: FaultModel,
    pub wish: CaptureLevel,
    /// When the shards begin, on the clock of the run.
    pub start: Micros,
    /// When the user presses Ctrl-C.
    pub stop: Option<Micros>,
    /// A request leads to nothing but its answer.
    pub is_simple: bool,
}

impl Scenario {
    #[must_use]
    pub fn new(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(url(&mut rng, false, 8000), rng.seed());
        plan.threads = rng.one_of(&[1, 1, 1, 1, 2, 2, 3, 4, 8]);
        plan.timeout = micros(rng.around(2_000, 2_000_000));
        plan.drain = micros(if rng.in_thousand(100) { 0 } else { rng.around(1_000, 2_000_000) });
        plan.keepalive = match rng.below(10) {
            0 | 1 => KeepAlive::Off,
            2 => KeepAlive::Requests(rng.between(1, 5) as u32),
            _ => KeepAlive::On,
        };
        let tls = rng.in_thousand(120);
        let mut is_simple = requests(&mut plan, &mut rng, tls);
        // In some sessions each step is a page, as in a recording. This draws no random number, so that old seeds keep
        // their meaning.
        if matches!(plan.pick, Pick::Session | Pick::Sessions) && matches!(seed % 11, 1 | 5 | 6 | 9) {
            plan.page = Some(Page { connections_per_host: 1 + (seed % 3) as u32, cache: seed.is_multiple_of(2) });
        }
        load(&mut plan, &mut rng, is_simple);
        network(&mut plan, &mut rng);
        let ports = ports(&plan);
        let same = plan.requests.iter().any(|r| r.expect.contains(&Expectation::Same));
        let digest = plan.requests.iter().any(|r| r.auth.is_some());
        let wants = PlanNeeds {
            digest,
            head: plan.requests[0].method == "HEAD",
            page: plan.page.is_some(),
            redirects: plan.http.redirects > 0,
            bodies_differ: same,
            ports,
        };
        let mut faults = faults(&plan, wants, &mut rng, tls);
        let wish = rng.one_of(&[CaptureLevel::Exchanges, CaptureLevel::Exchanges, CaptureLevel::Answers]);
        let length = plan.phases.iter().filter_map(|p| p.duration).sum::<Duration>().as_micros() as u64;
        let start = rng.below(10_000);
        let stop = rng.in_thousand(80).then(|| start + rng.below(length.max(200_000) + 100_000));
        // A third of the runs speaks HTTP/2. The choice draws no random number, so that old seeds keep their meaning.
        if matches!(seed % 21, 5 | 9 | 10 | 15..=18) {
            is_simple |= over_streams(&mut plan, &mut faults, seed, tls);
        } else if tls && seed % 19 == 7 {
            agreed_on(&mut plan, &mut faults, Version::Http11);
        }
        Scenario { plan, faults, wish, start, stop, is_simple }
    }
}

/// Has the version of HTTP be the one that was agreed on before the run, and some connections agree on another.
fn agreed_on(plan: &mut Plan, faults: &mut FaultModel, version: Version) {
    (plan.http.version, plan.http.agreed) = (Version::Auto, Some(version));
    let (same, other) = if version == Version::Http2 { ("h2", "http/1.1") } else { ("http/1.1", "h2") };
    faults.tls = Some(server_config(&[same, other]));
    faults.other_tls = Some(server_config(&[other]));
}

/// Has a plan speak HTTP/2, without what lastdrop does not do over it. Returns true if a request now leads to nothing
/// but its answer.
fn over_streams(plan: &mut Plan, faults: &mut FaultModel, seed: u64, tls: bool) -> bool {
    let rng = &mut Rng::new(!seed.rotate_left(32));
    plan.http.version = Version::Http2;
    plan.http.streams = Some(rng.one_of(&[1, 1, 2, 3, 10, 100]));
    plan.http.pipeline = 1;
    (plan.http.chunked, plan.http.expect_continue) = (None, false);
    (plan.network.proxy, plan.network.bandwidth_bytes) = (None, None);
    faults.reads_slowly = false;
    let is_session = matches!(plan.pick, Pick::Session | Pick::Sessions);
    let keeps_session = is_session && plan.page.is_none() && !seed.is_multiple_of(3);
    if keeps_session {
        plan.http.redirects = 0;
        for request in &mut plan.requests {
            request.auth = None;
            request.expect.retain(|e| *e != Expectation::Same);
            request.headers.push(("X-User".into(), "{{user}}".into()));
        }
    }
    let becomes_simple = is_session && !keeps_session
        || plan.page.is_some()
        || plan.http.redirects > 0
        || plan.requests.iter().any(|r| r.auth.is_some() || r.expect.contains(&Expectation::Same));
    if becomes_simple {
        (plan.pick, plan.page, plan.http.redirects) = (Pick::Weighted, None, 0);
        plan.abandon.lost_is_sent_again = false;
        let url = Url { tls, host: "127.0.0.1".into(), port: 8000, path: "/fixed".into() };
        let mut other = RequestSpec::get(Url { path: "/{{random}}".into(), ..url.clone() });
        other.method = "PUT".into();
        other.body = Body::Text("y".repeat(rng.around(1, 100_000) as usize));
        plan.requests = vec![RequestSpec::get(url.clone()), other];
        plan.url = url;
    }
    for phase in &mut plan.phases {
        if let Load::Closed { users, connections, .. } = &mut phase.load {
            if keeps_session {
                *connections = None;
            } else if rng.in_thousand(500) {
                *connections = Some(rng.around(1, u64::from(*users)) as u32);
            }
        }
    }
    let trouble = rng.one_of(&[0, 0, 5, 20, 100]);
    let mut share = |of: u64| if rng.in_thousand(600) { trouble * of / 10 } else { 0 };
    faults.streams = Some(StreamRates {
        refuse: share(15),
        reset: share(10),
        silent: share(5),
        early: share(30),
        interim: share(20),
        pieces: share(30),
        malformed: share(10),
        goaway: share(15),
        leave: share(5),
        half: share(2),
        broken: share(2),
        chatter: share(30),
        late_settings: share(50),
        new_settings: share(30),
        body_bytes: faults.rates.body_bytes,
        latency_us: faults.rates.latency_us,
    });
    faults.tls = tls.then(|| server_config(&["h2"]));
    if tls && rng.in_thousand(400) {
        agreed_on(plan, faults, Version::Http2);
    }
    becomes_simple
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn url(rng: &mut Rng, tls: bool, port: u16) -> Url {
    let path = rng.one_of(&["/", "/a", "/b?c=d", "/{{user}}/{{iteration}}", "/{{random}}"]);
    Url { tls, host: "127.0.0.1".into(), port, path: path.into() }
}

fn ports(plan: &Plan) -> Vec<u16> {
    let mut ports: Vec<u16> = plan.requests.iter().map(|r| r.url.port).collect();
    ports.push(8009);
    ports
}

fn think(rng: &mut Rng) -> ThinkTime {
    let mean = micros(rng.around(1, 60_000));
    match rng.below(3) {
        0 => ThinkTime::Fixed(mean),
        1 => ThinkTime::Uniform(mean, mean * 2),
        _ => ThinkTime::Exponential(mean),
    }
}

/// Generates the requests. Returns true if nothing follows from an answer.
fn requests(plan: &mut Plan, rng: &mut Rng, tls: bool) -> bool {
    let kind = rng.below(20);
    let fixed = Url { tls, host: "127.0.0.1".into(), port: 8000, path: "/fixed".into() };
    plan.requests = vec![RequestSpec::get(fixed.clone())];
    let simple = match kind {
        // The common case: bytes that never change.
        0..5 => true,
        5 if !tls => {
            plan.http.pipeline = rng.between(2, 5) as u32;
            plan.keepalive = KeepAlive::On;
            true
        }
        6..8 => {
            plan.requests =
                (0..rng.between(2, 4)).map(|i| RequestSpec::get(url(rng, tls, 8000 + (i % 3) as u16))).collect();
            plan.pick = rng.one_of(&[Pick::Order, Pick::Weighted]);
            true
        }
        8..10 => {
            plan.requests[0].method = rng.one_of(&["POST", "PUT", "HEAD"]).into();
            if plan.requests[0].method != "HEAD" {
                plan.requests[0].body = Body::Text("x".repeat(rng.around(1, 3_000) as usize));
                plan.http.expect_continue = rng.in_thousand(500);
                plan.http.chunked = rng.in_thousand(300).then(|| rng.between(1, 500) as u32);
            }
            true
        }
        10..13 => {
            session(plan, rng, tls);
            false
        }
        13 | 14 => {
            plan.requests[0].url.path = "/page{{iteration}}".into();
            plan.page = Some(Page { connections_per_host: rng.between(1, 6) as u32, cache: rng.in_thousand(500) });
            false
        }
        15 | 16 => {
            plan.requests = (0..rng.between(1, 3)).map(|i| RequestSpec::get(url(rng, tls, 8000 + i as u16))).collect();
            plan.http.redirects = rng.between(1, 5) as u32;
            false
        }
        17 => {
            plan.requests[0].auth = Some(Auth::Digest { user: "u".into(), password: "p".into() });
            plan.http.redirects = rng.one_of(&[0, 3]);
            false
        }
        18 => {
            plan.requests[0].expect.push(Expectation::Same);
            true
        }
        _ => {
            plan.requests[0].url = url(rng, tls, 8000);
            plan.requests[0].expect.push(Expectation::Status(vec![2]));
            true
        }
    };
    plan.url = plan.requests[0].url.clone();
    if kind != 5 {
        plan.http.cookies = rng.in_thousand(150);
        if rng.in_thousand(200) {
            plan.think = Some(think(rng));
        }
    }
    simple
}

fn session(plan: &mut Plan, rng: &mut Rng, tls: bool) {
    let n = rng.between(2, 5);
    plan.requests = (0..n).map(|i| RequestSpec::get(url(rng, tls, 8000 + (i % 2) as u16))).collect();
    plan.pick = rng.one_of(&[Pick::Session, Pick::Sessions]);
    for request in &mut plan.requests {
        if rng.in_thousand(300) {
            request.think = Some(think(rng));
        }
        request.last = plan.pick == Pick::Sessions && rng.in_thousand(400);
    }
    if let Some(last) = plan.requests.last_mut() {
        last.last = plan.pick == Pick::Sessions;
        last.headers.push(("X-Back".into(), "{{token}}".into()));
    }
    let first = &mut plan.requests[0];
    first.extract.push(ExtractSpec { name: "token".into(), from: ExtractSource::Header("x-token".into()) });
    first.once = rng.in_thousand(400);
    plan.abandon.session_with_connection = rng.in_thousand(200);
    plan.abandon.session_with_status = rng.in_thousand(200).then_some(500);
    plan.abandon.lost_is_sent_again = rng.in_thousand(300);
}

/// Generates the load and its duration.
fn load(plan: &mut Plan, rng: &mut Rng, is_simple: bool) {
    let phases = if is_simple { rng.one_of(&[1, 1, 1, 2, 3]) } else { rng.one_of(&[1, 1, 2]) };
    plan.phases = (0..phases).map(|i| phase(i, i + 1 == phases, rng)).collect();
    if rng.in_thousand(80) {
        plan.abandon.run = Some(GiveUpRule {
            after: rng.around(1, 50),
            failures: vec![Failure::Reset, Failure::Connect],
            timeouts: rng.in_thousand(500),
            silence: rng.in_thousand(200),
            statuses: vec![500],
        });
    }
}

fn phase(index: usize, is_last: bool, rng: &mut Rng) -> Phase {
    let duration = micros(rng.around(3_000, 1_500_000));
    let mut limit = rng.in_thousand(400).then(|| rng.around(1, 150));
    let seconds = duration.as_secs_f64();
    let load = if rng.in_thousand(500) {
        // Now and then more than can begin in one turn.
        let users = if rng.in_thousand(20) { rng.between(100, 300) } else { rng.around(1, 24) } as u32;
        let connections = rng.in_thousand(200).then(|| rng.between(1, u64::from(users)) as u32);
        let to_users = rng.in_thousand(200).then(|| rng.between(1, 24) as u32);
        // Without a limit, a user of a server that answers at once would never stop.
        limit = limit.or(Some(rng.around(20, 300).max(u64::from(users))));
        Load::Closed { users, to_users, connections }
    } else {
        let rate_rps = rng.around(10, 120) as f64 / seconds;
        let to_rps = rng.in_thousand(300).then(|| rng.around(10, 120) as f64 / seconds);
        Load::Open {
            rate_rps: rate_rps.min(100_000.0),
            to_rps: to_rps.map(|r| r.min(100_000.0)),
            steps: to_rps.and_then(|_| rng.in_thousand(500).then(|| rng.between(2, 4) as u32)),
            arrivals: rng.one_of(&[Arrival::Uniform, Arrival::Poisson, Arrival::Jitter(250)]),
            burst: rng.one_of(&[1, 1, 1, 7]),
            connections: rng.around(1, 40) as u32,
        }
    };
    let ramps = matches!(load, Load::Open { to_rps: Some(_), .. } | Load::Closed { to_users: Some(_), .. });
    let endless = is_last && !ramps && limit.is_some() && rng.in_thousand(300);
    Phase {
        name: format!("phase {index}"),
        measured: is_last,
        load,
        requests: limit,
        duration: (!endless).then_some(duration),
    }
}

fn network(plan: &mut Plan, rng: &mut Rng) {
    let n = &mut plan.network;
    match rng.below(20) {
        0 | 1 => {
            n.proxy = Some(Proxy {
                host: "127.0.0.1".into(),
                port: 3128,
                credentials: rng.in_thousand(500).then(|| "u:p".into()),
                tunnel: rng.in_thousand(500),
            });
        }
        2 => n.unix_socket = Some("/simulated".into()),
        3 => n.sources = vec![IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3))],
        4 if plan.http.pipeline <= 1 => n.bandwidth_bytes = Some(rng.around(2_000, 1_000_000)),
        _ => {}
    }
    plan.tls.insecure = true;
    plan.tls.resumption = rng.in_thousand(800);
    plan.tls.version = rng.one_of(&[None, None, Some("1.2"), Some("1.3")]).map(Into::into);
}

fn faults(plan: &Plan, wants: PlanNeeds, rng: &mut Rng, tls: bool) -> FaultModel {
    let trouble = rng.one_of(&[0, 3, 15, 60, 200]);
    let mut share = |of: u64| if rng.in_thousand(600) { trouble * of / 10 } else { 0 };
    let rates = FaultRates {
        refuse_at_once: share(10),
        refuse: share(10),
        never: share(5),
        at_once: 200,
        greet: if plan.network.proxy.is_some() { 0 } else { share(3) },
        late: 700,
        pieces: 200 + share(20),
        single_bytes: share(10),
        half: share(5),
        silent: share(5),
        twice: share(4),
        interim: share(10),
        garbage: share(3),
        early: share(20),
        close: share(10),
        close_later: share(20),
        error: share(15),
        cookie: 300,
        redirect: 300,
        body_bytes: 0,
        latency_us: 0,
    };
    let slow_sockets = rng.in_thousand(200);
    let is_exact = rng.in_thousand(500);
    let few = rng.in_thousand(100);
    FaultModel {
        cost_us: if is_exact { 0 } else { rng.around(1, 60) },
        stands_still: if is_exact || rng.in_thousand(500) { 0 } else { rng.around(1, 40) },
        stands_still_us: rng.around(1_000, 3_000_000),
        space: if slow_sockets { rng.around(1, 2_000) as usize } else { usize::MAX },
        drain_us: rng.around(1, 5_000),
        never_drain: if slow_sockets { rng.one_of(&[0, 10, 100]) } else { 0 },
        descriptors: if few { rng.between(1, 20) } else { u64::MAX },
        no_socket: if rng.in_thousand(60) { 300 } else { 0 },
        no_watch: if rng.in_thousand(30) { 100 } else { 0 },
        reads_slowly: plan.network.bandwidth_bytes.is_some(),
        rates: FaultRates {
            body_bytes: if rng.in_thousand(30) { 300_000 } else { rng.around(1, 20_000) },
            latency_us: rng.around(10, 30_000),
            ..rates
        },
        wants: Arc::new(wants),
        other_tls: None,
        tls: (tls || plan.http.redirects > 0 || plan.page.is_some()).then(|| server_config(&["http/1.1"])),
        streams: None,
        thread: 0,
    }
}
