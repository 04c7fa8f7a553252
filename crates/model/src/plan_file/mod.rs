//! Plan files: TOML that says all that a plan can say.
//!
//! The structures of `format` are the format: what they take is what a file may say, their comments are its
//! documentation, and its JSON schema is made from them. Every mistake is reported with line and column and what to try.

mod format;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use format::{Bandwidth, Bytes, PlanFile};
use format::{HttpFile, NetworkFile, Placed, RequestFile, Text};

use crate::plan::{Arrival, HttpOptions, Load, Network, Phase, Plan, Proxy, Trouble};
use crate::request::{Auth, Body, Data, Extract, Page, Part, PartContent, Pick, Place, RequestSpec, check_header};
use crate::url::Url;

/// A plan file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFileError {
    /// From 1.
    pub line: usize,
    pub column: usize,
    pub what: String,
    pub advice: String,
}

impl fmt::Display for PlanFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}; {}", self.line, self.column, self.what, self.advice)
    }
}

impl std::error::Error for PlanFileError {}

/// What a plan file says, and what it leaves to others.
#[derive(Debug)]
pub struct ReadPlan {
    /// Its requests are empty where they are in a file of URLs.
    pub plan: Plan,
    pub urls: Option<PathBuf>,
    /// Does it say how much load there is to be?
    pub has_load: bool,
    pub has_seed: bool,
    /// Line and column of each request.
    pub places: Vec<(usize, usize)>,
}

const DEFAULT_CONNECTIONS: u32 = 256;

/// Reads a plan file. `folder` is where relative file names start.
///
/// # Errors
/// For the first mistake, with its place.
pub fn parse(text: &str, folder: &Path) -> Result<ReadPlan, PlanFileError> {
    let place = |offset: usize| {
        let before = &text[..floor(text, offset)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (line, column)
    };
    let at = |offset: usize, what: String, advice: String| {
        let (line, column) = place(offset);
        PlanFileError { line, column, what, advice }
    };
    let file: PlanFile = toml::from_str(text).map_err(|e| {
        let offset = e.span().map_or(0, |s| s.start);
        let what = e.message().lines().next().unwrap_or("it is not TOML").to_string();
        let advice = suggestion(&what);
        at(offset, what, advice)
    })?;
    let spans = Spans::of(&file);
    let (url, urls) = (file.url.as_ref().map(|u| u.0.clone()), file.urls.as_ref().map(|u| folder.join(u)));
    let mut requests = Vec::new();
    for request in &file.request {
        let start = request.0.span().start;
        let spec = read_request(request.0.get_ref(), url.as_ref(), folder)
            .map_err(|(what, advice)| at(start, what.into(), advice.into()))?;
        requests.push(spec);
    }
    if requests.is_empty() {
        requests.extend(url.clone().map(RequestSpec::get));
    }
    let Some(first) = url.clone().or_else(|| requests.first().map(|r| r.url.clone())).or_else(|| {
        // A file of URLs gives the real one.
        urls.as_ref().and_then(|_| "http://127.0.0.1/".parse().ok())
    }) else {
        return Err(at(
            0,
            "it has nothing to load".into(),
            "write url = \"http://127.0.0.1:8080/\", or [[request]]".into(),
        ));
    };
    if urls.is_some() && (url.is_some() || !file.request.is_empty()) {
        return Err(at(0, "urls excludes url and [[request]]".into(), "keep one of them".into()));
    }
    let mut plan = Plan::new(first, u64::from(file.seed.unwrap_or(0)));
    plan.requests = if urls.is_some() { Vec::new() } else { requests };
    plan.pick = file.pick.unwrap_or_default();
    plan.threads = file.threads.unwrap_or(1).clamp(1, 256);
    if let Some(timeout) = &file.timeout {
        plan.timeout = timeout.0;
    }
    plan.drain = file.drain.as_ref().map_or(plan.timeout, |d| d.0);
    if let Some(keepalive) = &file.keepalive {
        plan.keepalive = keepalive.0;
    }
    plan.objectives = file.objective.as_ref().map(|o| o.0.0.clone()).unwrap_or_default();
    plan.think = file.think.as_ref().map(|t| t.0);
    plan.data = file.data.as_ref().map(|d| Data { file: folder.join(&d.file), per: d.per, random: d.random });
    plan.page = file.page.as_ref().map(|p| {
        let p = p.0.get_ref();
        Page { connections_per_host: p.connections.unwrap_or(6).clamp(1, 100), cache: p.cache }
    });
    if let Some(http) = &file.http {
        let start = http.0.span().start;
        plan.http = read_http(http.0.get_ref()).map_err(|(what, advice)| at(start, what.into(), advice.into()))?;
    }
    plan.http.cookies |=
        plan.pick == Pick::Session && file.http.as_ref().is_none_or(|h| h.0.get_ref().cookies != Some(false));
    if let Some(network) = &file.network {
        plan.network = read_network(network.0.get_ref(), folder);
    }
    if let Some(tls) = &file.tls {
        let t = tls.0.get_ref();
        plan.tls.insecure = t.insecure;
        plan.tls.ca = t.ca.as_ref().map(|p| folder.join(p));
        plan.tls.certificate = t.certificate.as_ref().map(|p| folder.join(p));
        plan.tls.key = t.key.as_ref().map(|p| folder.join(p));
        plan.tls.server_name.clone_from(&t.server_name);
        plan.tls.version.clone_from(&t.version);
        plan.tls.resumption = t.resumption.unwrap_or(true);
    }
    let has_load = read_phases(&file, &mut plan).map_err(|(offset, what, advice)| at(offset, what, advice))?;
    plan.check().map_err(|e| at(spans.of_trouble(&e), e.what, e.advice))?;
    let places = spans.requests.iter().map(|offset| place(*offset)).collect();
    Ok(ReadPlan { plan, urls, has_load, has_seed: file.seed.is_some(), places })
}

/// The JSON schema of plan files.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(PlanFile).to_value()
}

fn floor(text: &str, mut offset: usize) -> usize {
    offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// Where the parts of a file begin.
struct Spans {
    phases: Vec<usize>,
    requests: Vec<usize>,
    http: usize,
    page: usize,
    network: usize,
    tls: usize,
}

impl Spans {
    fn of(file: &PlanFile) -> Spans {
        fn start<T>(part: Option<&Placed<T>>) -> usize {
            part.map_or(0, |p| p.0.span().start)
        }
        Spans {
            phases: file.phase.iter().map(|p| p.0.span().start).collect(),
            requests: file.request.iter().map(|r| r.0.span().start).collect(),
            http: start(file.http.as_ref()),
            page: start(file.page.as_ref()),
            network: start(file.network.as_ref()),
            tls: start(file.tls.as_ref()),
        }
    }

    fn of_trouble(&self, trouble: &crate::plan::PlanError) -> usize {
        match trouble.part {
            Trouble::Phase(i) => self.phases.get(i).copied().unwrap_or(0),
            Trouble::Request(i) => self.requests.get(i).copied().unwrap_or(0),
            Trouble::Http => self.http,
            Trouble::Page => self.page,
            Trouble::Network => self.network,
            Trouble::Tls => self.tls,
            Trouble::Whole => 0,
        }
    }
}

type Wrong = (&'static str, &'static str);

fn read_request(r: &RequestFile, url: Option<&Url>, folder: &Path) -> Result<RequestSpec, Wrong> {
    let url = match (&r.url, url) {
        (Some(own), _) => own.0.clone(),
        (None, Some(url)) => url.clone(),
        (None, None) => return Err(("a request without a url", "give it one, or one for all at the top of the file")),
    };
    let mut bodies: Vec<Body> = Vec::new();
    bodies.extend(r.body.clone().map(Body::Text));
    bodies.extend(r.body_file.as_ref().map(|p| Body::File(folder.join(p))));
    if let Some(form) = &r.form {
        bodies.push(Body::Form(form.0.clone()));
    }
    if let Some(parts) = &r.multipart {
        let mut all = Vec::new();
        for part in parts {
            let content = match (&part.value, &part.file) {
                (Some(value), None) => PartContent::Text(value.clone()),
                (None, Some(file)) => PartContent::File(folder.join(file)),
                _ => return Err(("a part of a multipart body needs a value or a file", "write value = or file =")),
            };
            all.push(Part { name: part.name.clone(), content });
        }
        bodies.push(Body::Multipart(all));
    }
    if bodies.len() > 1 {
        return Err(("a request with more than one body", "keep one of body, body_file, form and multipart"));
    }
    let body = bodies.pop().unwrap_or_default();
    let split = |text: &String| {
        text.split_once(':')
            .map(|(user, password)| (user.to_string(), password.to_string()))
            .ok_or(("basic and digest need a user and a password", "write \"user:password\""))
    };
    let auth = match (&r.basic, &r.digest, &r.bearer) {
        (None, None, None) => None,
        (Some(text), None, None) => {
            let (user, password) = split(text)?;
            Some(Auth::Basic { user, password })
        }
        (None, Some(text), None) => {
            let (user, password) = split(text)?;
            Some(Auth::Digest { user, password })
        }
        (None, None, Some(token)) => Some(Auth::Bearer(token.clone())),
        _ => return Err(("a request with more than one way to authenticate", "keep one of basic, digest and bearer")),
    };
    let mut extract = Vec::new();
    for (name, from) in &r.extract {
        let from = match (&from.header, &from.regex, &from.json) {
            (Some(header), None, None) => Place::Header(header.clone()),
            (None, Some(regex), None) => Place::Regex(regex.clone()),
            (None, None, Some(pointer)) => Place::Json(pointer.clone()),
            _ => {
                return Err((
                    "a value is taken from a header, by a regex, or from JSON",
                    "write one of header =, regex = and json =",
                ));
            }
        };
        extract.push(Extract { name: name.clone(), from });
    }
    let method = r.method.clone().unwrap_or_else(|| if body == Body::None { "GET" } else { "POST" }.into());
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        return Err(("that is not a request method", "write GET, HEAD, POST, PUT, DELETE …"));
    }
    let mut headers = Vec::new();
    for (name, value) in &r.headers {
        if check_header(name, value).is_err() {
            return Err((
                "a header that cannot be sent",
                "names are letters, digits and hyphens; values have no control characters",
            ));
        }
        headers.push((name.clone(), value.clone()));
    }
    Ok(RequestSpec {
        name: r.name.clone().unwrap_or_default(),
        method: method.to_ascii_uppercase(),
        url,
        headers,
        body,
        weight: r.weight.filter(|w| w.is_finite() && *w >= 0.0).unwrap_or(1.0),
        auth,
        expect: r.expect.iter().map(|e| e.0.clone()).collect(),
        extract,
        think: r.think.as_ref().map(|t| t.0),
        once: r.once,
        last: r.last,
    })
}

fn read_http(h: &HttpFile) -> Result<HttpOptions, Wrong> {
    Ok(HttpOptions {
        http10: match h.version.as_deref() {
            None | Some("1.1") => false,
            Some("1.0") => true,
            Some(_) => return Err(("that version of HTTP is not known here", "write version = \"1.1\" or \"1.0\"")),
        },
        pipeline: h.pipeline.unwrap_or(1).clamp(1, 1000),
        redirects: h.redirects.unwrap_or(0).min(100),
        cookies: h.cookies.unwrap_or(false),
        compressed: h.compressed || h.decode,
        decode: h.decode,
        chunked: h.chunked.as_ref().map(|c| c.0.0.clamp(1, 1 << 30) as u32),
        expect_continue: h.expect_continue,
    })
}

fn read_network(n: &NetworkFile, folder: &Path) -> Network {
    let small = |b: &Option<Text<Bytes>>| b.as_ref().map(|b| b.0.0.clamp(1, 1 << 30) as u32);
    Network {
        unix_socket: n.unix_socket.as_ref().map(|p| folder.join(p)),
        sources: n.sources.iter().map(|s| s.0).collect(),
        proxy: n.proxy.as_ref().map(|p| Proxy { tunnel: n.proxy_tunnel, ..p.0.clone() }),
        family: n.family,
        dns_refresh: n.dns_refresh.as_ref().map(|d| d.0),
        bandwidth_bytes: n.bandwidth.as_ref().map(|b| b.0.0),
        receive_buffer_bytes: small(&n.receive_buffer),
        send_buffer_bytes: small(&n.send_buffer),
    }
}

/// Sets the phases; says whether the file has any load in it.
fn read_phases(file: &PlanFile, plan: &mut Plan) -> Result<bool, (usize, String, String)> {
    let arrivals =
        |own: &Option<Text<Arrival>>| own.as_ref().or(file.arrivals.as_ref()).map_or(Arrival::Uniform, |a| a.0);
    let connections = |own: Option<u32>| own.or(file.connections).unwrap_or(DEFAULT_CONNECTIONS).clamp(1, 1_000_000);
    let sane = |rate: f64| rate.is_finite() && (0.0..=10_000_000.0).contains(&rate);
    if file.phase.is_empty() {
        if file.users.is_some() && file.rate.is_some() {
            return Err((0, "users and rate exclude each other".into(), "keep one of them, or write [[phase]]".into()));
        }
        let load = match file.rate {
            Some(rate_rps) if !sane(rate_rps) => {
                return Err((0, format!("{rate_rps} is not a rate"), "write requests per second, such as 500".into()));
            }
            Some(rate_rps) => Load::Open {
                rate_rps,
                to_rps: None,
                steps: None,
                arrivals: arrivals(&None),
                burst: file.burst.unwrap_or(1).max(1),
                connections: connections(None),
            },
            None => Load::closed(file.users.unwrap_or(10).min(1_000_000)),
        };
        let duration = file.duration.as_ref().map(|d| d.0);
        plan.phases = Vec::new();
        if let Some(warm_up) = &file.warm_up {
            plan.phases.push(Phase {
                name: "warm-up".into(),
                measured: false,
                load: load.clone(),
                requests: None,
                duration: Some(warm_up.0),
            });
        }
        plan.phases.push(Phase {
            name: "main".into(),
            measured: true,
            load,
            requests: file.requests,
            duration: duration.or(if file.requests.is_some() { None } else { Some(Duration::from_secs(10)) }),
        });
        return Ok(file.users.is_some() || file.rate.is_some() || file.duration.is_some() || file.requests.is_some());
    }
    if file.users.is_some()
        || file.rate.is_some()
        || file.duration.is_some()
        || file.requests.is_some()
        || file.warm_up.is_some()
    {
        return Err((
            0,
            "users, rate, duration, requests and warm_up are said in the phases where there are some".into(),
            "move them into [[phase]]".into(),
        ));
    }
    plan.phases = Vec::new();
    for (i, phase) in file.phase.iter().enumerate() {
        let (start, p) = (phase.0.span().start, phase.0.get_ref());
        let wrong = |what: &str, advice: &str| Err((start, what.to_string(), advice.to_string()));
        let load = match (p.users, p.rate) {
            (Some(_), Some(_)) => return wrong("a phase has users or a rate, not both", "keep one of them"),
            (None, None) => return wrong("a phase without load", "write users = 10 or rate = 100"),
            (Some(users), None) => {
                if p.to_rate.is_some() || p.steps.is_some() || p.burst.is_some() {
                    return wrong("to_rate, steps and burst belong to a rate", "write to_users for a ramp of users");
                }
                Load::Closed { users: users.min(1_000_000), to_users: p.to_users.map(|n| n.min(1_000_000)) }
            }
            (None, Some(rate_rps)) => {
                if p.to_users.is_some() {
                    return wrong("to_users belongs to users", "write to_rate for a ramp of the rate");
                }
                if !sane(rate_rps) || p.to_rate.is_some_and(|r| !sane(r)) {
                    return wrong("that is not a rate", "write requests per second, such as 500");
                }
                Load::Open {
                    rate_rps,
                    to_rps: p.to_rate,
                    steps: p.steps.map(|n| n.clamp(1, 100_000)),
                    arrivals: arrivals(&p.arrivals),
                    burst: p.burst.or(file.burst).unwrap_or(1).max(1),
                    connections: connections(p.connections),
                }
            }
        };
        plan.phases.push(Phase {
            name: p.name.clone().unwrap_or_else(|| format!("phase {}", i + 1)),
            measured: p.measured.unwrap_or(true),
            load,
            requests: p.requests,
            duration: p.duration.as_ref().map(|d| d.0),
        });
    }
    Ok(true)
}

/// What to try, for a mistake that serde found.
fn suggestion(what: &str) -> String {
    let quoted: Vec<&str> = what.split('`').skip(1).step_by(2).collect();
    if what.starts_with("unknown") && quoted.len() > 1 {
        let best = quoted[1..]
            .iter()
            .map(|known| (strsim::jaro_winkler(quoted[0], known), known))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.75);
        if let Some((_, known)) = best {
            return format!("did you mean {known}?");
        }
        return format!("there are: {}", quoted[1..].join(", "));
    }
    if what.contains("; ") { "correct it".into() } else { "see docs/manual.md, or lastdrop run --plan-schema".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
threads = 2
timeout = "2s"
think = "100ms-200ms"
pick = "session"
url = "http://127.0.0.1:8080/"

[data]
file = "users.csv"
per = "user"

[http]
redirects = 3
decode = true

[network]
sources = ["127.0.0.2", "127.0.0.3"]
bandwidth = "33.6kbit"

[tls]
insecure = true
version = "1.3"

[[phase]]
name = "warm-up"
measured = false
users = 5
duration = "2s"

[[phase]]
rate = 10
to_rate = 100
steps = 4
duration = "1m"

[[request]]
name = "login"
form = { user = "{{name}}", password = "x y" }
expect = ["status=200", "text=Welcome"]
extract.token = { json = "/token" }

[[request]]
url = "http://127.0.0.1:8080/items/{{token}}"
headers = { "X-Token" = "{{token}}" }
think = "exp 1s"
"#;

    fn wrong(text: &str) -> PlanFileError {
        parse(text, Path::new("/f")).map(|_| ()).expect_err(text)
    }

    #[test]
    fn a_whole_plan_is_read() {
        let plan = parse(WHOLE, Path::new("/f")).expect("valid").plan;
        assert_eq!((plan.threads, plan.timeout, plan.drain), (2, Duration::from_secs(2), Duration::from_secs(2)));
        assert_eq!(plan.data.expect("rows").file, PathBuf::from("/f/users.csv"));
        assert!(plan.http.cookies && plan.http.decode && plan.http.compressed);
        assert_eq!(plan.network.bandwidth_bytes, Some(4200));
        assert_eq!(plan.phases.len(), 2);
        assert!(matches!(plan.phases[1].load, Load::Open { to_rps: Some(100.0), steps: Some(4), .. }));
        assert_eq!(plan.requests[0].method, "POST");
        assert_eq!(plan.requests[0].extract[0].from, Place::Json("/token".into()));
        assert_eq!(plan.requests[1].url.path, "/items/{{token}}");
    }

    #[test]
    fn mistakes_have_a_place_and_an_advice() {
        for (text, line, what, advice) in [
            ("url = 'http://h/'\nusres = 3\n", 2, "usres", "did you mean users?"),
            ("url = 'http://h/'\nduration = 'soon'\n", 2, "soon", "correct it"),
            ("url = 'ftp://h/'\n", 1, "http://", ""),
            ("users = 3\n", 1, "nothing to load", "url ="),
            ("url = 'http://h/'\n[[phase]]\nduration = '1s'\n", 2, "without load", "users = 10"),
            ("url = 'http://h/'\n\n[[phase]]\nusers = 3\n[[phase]]\nusers = 3\n", 3, "no end", "duration"),
            ("url = 'http://h/'\nusers = 3\nrate = 4\n", 1, "exclude", "keep one"),
            ("url = 'http://h/'\n[http]\npipeline = 4\nredirects = 2\n", 2, "pipelin", ""),
            ("url = 'http://h/\n", 1, "", ""),
            ("url = 'http://h/'\n[[request]]\nexpect = ['status=9000']\n", 3, "9000", ""),
            ("url = 'http://h/'\npick = 'sesion'\n", 2, "sesion", "did you mean session?"),
            ("url = 'http://h/'\n[[request]]\nbody = 'a'\nform = { a = 'b' }\n", 2, "more than one body", "keep one"),
        ] {
            let e = wrong(text);
            assert_eq!(e.line, line, "{text}: {e}");
            assert!(e.what.contains(what) && e.advice.contains(advice), "{text}: {e}");
        }
    }

    #[test]
    fn bandwidths_are_read_as_people_say_them() {
        assert_eq!("33.6kbit".parse(), Ok(Bandwidth(4200)));
        assert_eq!("10Mbit".parse(), Ok(Bandwidth(1_250_000)));
        assert_eq!("100k".parse(), Ok(Bandwidth(102_400)));
        assert!("fast".parse::<Bandwidth>().is_err() && "0".parse::<Bandwidth>().is_err());
    }

    #[test]
    fn the_schema_names_every_field_of_the_whole_plan() {
        let schema = schema().to_string();
        for field in ["to_rate", "bandwidth", "insecure", "extract", "multipart", "warm_up"] {
            assert!(schema.contains(&format!("\"{field}\"")), "{field}");
        }
    }
}
