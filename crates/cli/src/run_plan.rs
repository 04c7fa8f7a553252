//! From the options of `run` to its plan: a URL, a file of URLs, or a plan file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lastdrop_load::LoadError;
use lastdrop_model::plan::{HttpOptions, KeepAlive, Network, Plan, Proxy, TlsOptions};
use lastdrop_model::plan_file::ReadPlan;
use lastdrop_model::request::{Auth, Body, Data, Page, Part, PartContent, Per, Pick, RequestSpec};
use lastdrop_model::{Url, plan_file, url_file};

use crate::args::{NetworkArgs, RequestArgs, RunArgs};
use crate::exit::UsageError;

const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// The plan of a run.
///
/// # Errors
/// [`UsageError`] for a plan or a file that cannot be used.
pub fn plan(args: &RunArgs) -> Result<Plan> {
    let target = args.target.as_deref().unwrap_or_default();
    let plan = if is_plan_file(target) { from_file(args, Path::new(target))? } else { from_options(args, target)? };
    plan.check().map_err(|e| UsageError(e.to_string()))?;
    Ok(plan)
}

fn from_file(args: &RunArgs, path: &Path) -> Result<Plan> {
    refuse_network(&args.network, &path.display().to_string())?;
    let usage = |what: String| UsageError(format!("{}: {what}", path.display()));
    let read = read_file(path)?;
    let mut plan = read.plan;
    let places = read.places;
    let load = &args.load;
    let says = load.says_load() || load.duration.is_some() || load.requests.is_some();
    if says && read.has_load {
        return Err(usage("the plan says how much load there is; change it there, not by options".into()).into());
    }
    if says {
        plan.phases = load.phases(DEFAULT_DURATION);
    }
    if !read.has_seed {
        plan.seed = load.seed();
    }
    load.adjust(&mut plan);
    for request in &mut plan.requests {
        request.headers.extend(load.headers.iter().cloned());
    }
    let r = &args.request;
    let requests = r.method.is_some()
        || r.body.is_some()
        || !r.form.is_empty()
        || !r.parts.is_empty()
        || r.basic.is_some()
        || r.digest.is_some()
        || r.bearer.is_some()
        || !r.expect.is_empty()
        || r.data.is_some()
        || r.page
        || r.pipeline.is_some()
        || r.redirects.is_some();
    if requests {
        return Err(usage("options about requests belong into the plan".into()).into());
    }
    // Templates, rules and files of a request are looked at only now; its place is known here alone.
    if let Err(LoadError::Request { index, what }) = lastdrop_load::preview(&plan)
        && let Some((line, column)) = places.get(index)
    {
        return Err(usage(format!("line {line}, column {column}: {what}")).into());
    }
    Ok(plan)
}

fn from_options(args: &RunArgs, target: &str) -> Result<Plan> {
    let r = &args.request;
    let mut plan = match &r.urls {
        Some(urls) => {
            let any: Url = "http://127.0.0.1/".parse().map_err(anyhow::Error::new)?;
            let mut plan = args.load.plan(any, DEFAULT_DURATION, KeepAlive::On);
            use_urls(&mut plan, urls, &args.load.headers)?;
            plan
        }
        None => {
            let url: Url = target.parse().map_err(|e: lastdrop_model::plan::UrlError| UsageError(e.to_string()))?;
            args.load.plan(url, DEFAULT_DURATION, KeepAlive::On)
        }
    };
    if r.urls.is_some() && r.in_order {
        plan.pick = Pick::Order;
    }
    let body = body(r);
    for request in &mut plan.requests {
        if let Some(method) = &r.method {
            request.method.clone_from(method);
        } else if body != Body::None {
            request.method = "POST".into();
        }
        if body != Body::None {
            request.body = body.clone();
        }
        request.auth = auth(r);
        request.expect.clone_from(&r.expect);
    }
    plan.think = r.think;
    plan.data = r.data.as_ref().map(|file| Data { file: file.clone(), per: Per::Request, random: false });
    plan.page = r.page.then_some(Page { connections_per_host: 6, cache: r.page_cache });
    plan.http = HttpOptions {
        http10: r.http.as_deref() == Some("1.0"),
        pipeline: r.pipeline.unwrap_or(1),
        redirects: r.redirects.unwrap_or(0),
        cookies: r.cookies,
        compressed: r.compressed || r.decode,
        decode: r.decode,
        chunked: r.chunked.map(|n| n.clamp(1, 1 << 30) as u32),
        expect_continue: r.expect_continue,
    };
    use_network(&mut plan, &args.network);
    Ok(plan)
}

/// What to load, for commands that say how much load by themselves: the requests of a URL or of a plan file.
///
/// # Errors
/// [`UsageError`] for a plan or a URL that cannot be used.
pub fn requests_of(target: &str, network: &NetworkArgs) -> Result<ReadPlan> {
    if is_plan_file(target) {
        refuse_network(network, target)?;
        return read_file(Path::new(target));
    }
    let url: Url = target.parse().map_err(|e: lastdrop_model::plan::UrlError| UsageError(e.to_string()))?;
    let mut plan = Plan::new(url, 0);
    use_network(&mut plan, network);
    Ok(ReadPlan { plan, urls: None, has_load: false, has_seed: false, places: Vec::new() })
}

/// A plan file says how connections are made; an option that it would ignore is a mistake.
fn refuse_network(network: &NetworkArgs, plan: &str) -> Result<()> {
    if *network == NetworkArgs::default() {
        return Ok(());
    }
    Err(UsageError(format!("{plan}: options about connections belong into the plan, under [network] and [tls]")).into())
}

/// Is it the name of a plan file, not a URL?
pub fn is_plan_file(target: &str) -> bool {
    Path::new(target).extension().is_some_and(|e| e == "toml") && !target.contains("://")
}

fn read_file(path: &Path) -> Result<ReadPlan> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut read = plan_file::parse(&text, folder).map_err(|e| UsageError(format!("{}: {e}", path.display())))?;
    if let Some(urls) = &read.urls {
        use_urls(&mut read.plan, urls, &[])?;
    }
    Ok(read)
}

fn use_network(plan: &mut Plan, n: &NetworkArgs) {
    let small = |bytes: Option<u64>| bytes.map(|b| b.clamp(1, 1 << 30) as u32);
    plan.network = Network {
        unix_socket: n.unix_socket.clone(),
        sources: n.source.clone(),
        proxy: n.proxy.clone().map(|p| Proxy { tunnel: n.proxy_tunnel, ..p }),
        family: if n.ipv4 { Some(4) } else { n.ipv6.then_some(6) },
        dns_refresh: n.dns_refresh,
        bandwidth_bytes: n.bandwidth.map(|b| b.0),
        receive_buffer_bytes: small(n.receive_buffer),
        send_buffer_bytes: small(n.send_buffer),
    };
    plan.tls = TlsOptions {
        no_sni: false,
        insecure: n.insecure,
        ca: n.ca.clone(),
        certificate: n.cert.clone(),
        key: n.key.clone(),
        server_name: n.server_name.clone(),
        version: n.tls.clone(),
        resumption: !n.no_resumption,
    };
}

fn use_urls(plan: &mut Plan, path: &Path, headers: &[(String, String)]) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the URLs of {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut requests = url_file::parse(&text, folder, |name| std::env::var(name).ok())
        .map_err(|e| UsageError(format!("{}: {e}", path.display())))?;
    for request in &mut requests {
        request.headers.extend(headers.iter().cloned());
    }
    if let Some(first) = requests.first() {
        plan.url = first.url.clone();
    }
    plan.requests = requests;
    Ok(())
}

fn body(r: &RequestArgs) -> Body {
    let file = |text: &str| text.strip_prefix('@').map(PathBuf::from);
    if let Some(text) = &r.body {
        return file(text).map_or_else(|| Body::Text(text.clone()), Body::File);
    }
    if !r.form.is_empty() {
        return Body::Form(r.form.clone());
    }
    if r.parts.is_empty() {
        return Body::None;
    }
    let part = |(name, value): &(String, String)| Part {
        name: name.clone(),
        content: file(value).map_or_else(|| PartContent::Text(value.clone()), PartContent::File),
    };
    Body::Multipart(r.parts.iter().map(part).collect())
}

fn auth(r: &RequestArgs) -> Option<Auth> {
    let basic = r.basic.clone().map(|(user, password)| Auth::Basic { user, password });
    let digest = r.digest.clone().map(|(user, password)| Auth::Digest { user, password });
    basic.or(digest).or_else(|| r.bearer.clone().map(Auth::Bearer))
}

/// What would be sent, as text.
///
/// # Errors
/// When the plan cannot be carried out.
pub fn dry_run(plan: &Plan) -> Result<String> {
    let preview = lastdrop_load::preview(plan)?;
    let mut out = String::new();
    for (origin, addresses) in &preview.servers {
        out.push_str(&format!("server {origin}: {}\n", addresses.join(", ")));
    }
    for phase in &plan.phases {
        out.push_str(&lastdrop_report::run::phase_line(plan, phase));
    }
    let specs: Vec<RequestSpec> =
        if plan.requests.is_empty() { vec![RequestSpec::get(plan.url.clone())] } else { plan.requests.clone() };
    let many = preview.requests.len();
    const SHOWN: usize = 20;
    for (i, (request, spec)) in preview.requests.iter().zip(&specs).enumerate().take(SHOWN) {
        let weight =
            if plan.pick == Pick::Weighted && many > 1 { format!(", weight {}", spec.weight) } else { String::new() };
        let name = if spec.name.is_empty() { String::new() } else { format!(" {}", spec.name) };
        out.push_str(&format!("\nrequest {}{name}{weight}, {} bytes:\n", i + 1, request.len()));
        const MOST: usize = 2000;
        let text = String::from_utf8_lossy(&request[..request.len().min(MOST)]).replace('\r', "");
        for line in text.trim_end_matches('\n').split('\n') {
            out.push_str(&format!("  {}\n", line.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")));
        }
        if request.len() > MOST {
            out.push_str(&format!("  … and {} bytes more\n", request.len() - MOST));
        }
    }
    if many > SHOWN {
        out.push_str(&format!("\n… and {} requests more\n", many - SHOWN));
    }
    Ok(out)
}
