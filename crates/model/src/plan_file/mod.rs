//! Plan files: TOML that can express every plan.
//!
//! The structs of `format` define the format, their doc comments document it, and its JSON schema is made from them.
//! Every mistake is reported with line and column and what to try.

mod error;
mod format;
mod phases;
mod positions;
mod requests;

use std::path::{Path, PathBuf};

pub use error::PlanFileError;
pub use format::{Bandwidth, PlanFile};
pub use positions::PartPositions;

use error::suggestion;
use format::NetworkFile;
use phases::read_phases;
use positions::LineIndex;
use requests::read_request;

use crate::plan::{Network, Plan, Proxy};
use crate::request::{DataSource, Page, Pick, RequestSpec};
use crate::toml_error;

/// A plan that was read from a file, and which parts the file left out.
#[derive(Debug)]
pub struct LoadedPlan {
    /// The plan; its requests are empty if they are in a URL file.
    pub plan: Plan,
    pub urls: Option<PathBuf>,
    /// True if the file says how much load to generate.
    pub has_load: bool,
    pub has_seed: bool,
    pub places: PartPositions,
}

/// Reads a plan file. Relative file names start at `folder`. [`Plan::check`] checks the parts against each other, after
/// command-line options were added; `places` then locates its mistakes.
///
/// # Errors
/// For the first mistake, with its position.
pub fn parse(text: &str, folder: &Path) -> Result<LoadedPlan, PlanFileError> {
    let lines = LineIndex::of(text);
    let at = |offset: usize, what: String, advice: String| {
        let (line, column) = lines.place(offset);
        PlanFileError { line, column, what, advice }
    };
    let file: PlanFile = toml::from_str(text).map_err(|e| {
        let offset = e.span().map_or(0, |s| s.start);
        let what = toml_error::what(&e);
        let advice = suggestion(e.message().lines().next().unwrap_or_default());
        at(offset, what, advice)
    })?;
    let places = PartPositions::of(&file, &lines);
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
        // The URL file provides the real URL.
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
    let mut plan = Plan::new(first, u64::from(file.seed.map_or(0, |s| s.0)));
    plan.requests = if urls.is_some() { Vec::new() } else { requests };
    plan.pick = file.pick.unwrap_or_default();
    plan.threads = file.threads.map_or(1, |t| t.0);
    if let Some(timeout) = &file.timeout {
        plan.timeout = timeout.0;
    }
    plan.drain = file.drain.as_ref().map_or(plan.timeout, |d| d.0);
    if let Some(keepalive) = &file.keepalive {
        plan.keepalive = keepalive.0;
    }
    plan.objectives = file.objective.as_ref().map(|o| o.0.0.clone()).unwrap_or_default();
    plan.server_time = file.server_time.as_ref().map(|s| s.0.clone().seen_from(folder));
    plan.think = file.think.as_ref().map(|t| t.0);
    plan.data = file.data.as_ref().map(|d| DataSource { file: folder.join(&d.file), per: d.per, random: d.random });
    plan.page = file.page.as_ref().map(|p| {
        let p = p.0.get_ref();
        Page { connections_per_host: p.connections.map_or(6, |c| c.0), cache: p.cache }
    });
    // A session needs its cookies.
    plan.http.cookies = plan.pick == Pick::Session;
    if let Some(http) = &file.http {
        http.0.get_ref().set(&mut plan.http, |_| true);
    }
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
    Ok(LoadedPlan { plan, urls, has_load, has_seed: file.seed.is_some(), places })
}

/// Returns the JSON schema of plan files.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(PlanFile).to_value()
}

fn read_network(n: &NetworkFile, folder: &Path) -> Network {
    Network {
        unix_socket: n.unix_socket.as_ref().map(|p| folder.join(p)),
        connect_to: None,
        sources: n.sources.iter().map(|s| s.0).collect(),
        proxy: n.proxy.as_ref().map(|p| Proxy { tunnel: n.proxy_tunnel, ..p.0.clone() }),
        family: n.family.map(|f| f.0 as u8),
        dns_refresh: n.dns_refresh.map(|d| d.0),
        bandwidth_bytes: n.bandwidth.as_ref().map(|b| b.0.0),
        receive_buffer_bytes: n.receive_buffer.map(|b| b.0),
        send_buffer_bytes: n.send_buffer.map(|b| b.0),
    }
}

#[cfg(test)]
mod tests {

    use std::time::Duration;

    use super::*;
    use crate::plan::Load;
    use crate::request::ExtractSource;

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
        let read = match parse(text, Path::new("/f")) {
            Ok(read) => read,
            Err(e) => return e,
        };
        let e = read.plan.check().expect_err(text);
        let (line, column) = read.places.of_part(e.part).expect("a place");
        PlanFileError { line, column, what: e.what, advice: e.advice }
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
        assert_eq!(plan.requests[0].extract[0].from, ExtractSource::Json("/token".into()));
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
            ("url = 'http://h/'\narrivals = 'poisson'\n", 1, "without a rate", "rate ="),
            ("url = 'http://h/'\n[[phase]]\nusers = 3\nduration = '1s'\narrivals = 'poisson'\n", 2, "arrivals", ""),
            ("url = 'http://h/'\n[[request]]\nbody = 'a'\nform = { a = 'b' }\n", 2, "more than one body", "keep one"),
            ("url = 'http://h/'\n[[request]]\nform = ['a=b']\n", 3, "request.form: a list", "docs/plan-file.md"),
            ("url = 'http://h/'\nusers = 'many'\n", 2, "users must be a whole number", ""),
            ("url = 'http://h/'\npick = 3\n", 2, "pick: wanted", ""),
        ] {
            let e = wrong(text);
            assert_eq!(e.line, line, "{text}: {e}");
            assert!(e.what.contains(what) && e.advice.contains(advice), "{text}: {e}");
        }
    }

    #[test]
    fn numbers_that_options_refuse_are_refused_with_their_key_and_bounds() {
        let top = ["users", "connections", "burst", "threads", "rate", "requests", "timeout", "duration", "warm_up"];
        let keys = top.map(|key| ("", key)).into_iter().chain([
            ("[http]\n", "pipeline"),
            ("[http]\n", "chunked"),
            ("[page]\n", "connections"),
            ("[network]\n", "receive_buffer"),
            ("[network]\n", "bandwidth"),
            ("[network]\n", "dns_refresh"),
            ("[[request]]\n", "weight"),
            ("[[phase]]\nrate = 1\nduration = '1s'\n", "steps"),
            ("[[phase]]\nrate = 1\nduration = '1s'\n", "to_rate"),
            ("[[phase]]\nusers = 1\nduration = '1s'\n", "to_users"),
        ]);
        for (before, key) in keys {
            for value in ["-1", "nan", "inf", "1e300", "99999999999"] {
                let text = format!("url = 'http://h/'\n{before}{key} = {value}\n");
                let e = wrong(&text);
                assert_eq!((e.line, e.column), (text.lines().count(), key.len() + 4), "{text}{e}");
                assert!(e.what.contains(key) && e.what.contains(" from "), "{text}{e}");
            }
        }
        for (text, words) in [
            ("timeout = '0s'", "a timeout must be from 1us to 366d, not '0s'"),
            ("think = '999999999h'", "a pause must be from 0s to 366d"),
            ("keepalive = 4000000000", "1000000000"),
            ("objective = 'rate>inf'", "10000000"),
            ("objective = 'p99<99999999999s'", "366d"),
        ] {
            let e = wrong(&format!("url = 'http://h/'\n{text}\n"));
            assert!(e.what.contains(words), "{text}: {e}");
        }
    }

    #[test]
    fn the_schema_names_every_field_of_the_whole_plan() {
        let schema = schema().to_string();
        for field in ["to_rate", "bandwidth", "insecure", "extract", "multipart", "warm_up"] {
            assert!(schema.contains(&format!("\"{field}\"")), "{field}");
        }
    }
}
