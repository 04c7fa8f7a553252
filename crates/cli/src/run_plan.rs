//! Makes a plan of the options of `run`: from a URL, a file of URLs, or a plan file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lastdrop_load::{LoadError, PreparedPlan, agree, files};
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{KeepAlive, Load, Plan, PlanPart};
use lastdrop_model::plan_file::{LoadedPlan, PartPositions};
use lastdrop_model::request::{Pick, RequestSpec};
use lastdrop_model::{Url, plan_file, printable, url_file};

use crate::exit::UsageError;
use crate::options::{LoadArgs, NetworkArgs, RequestArgs};

const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// Where a plan comes from, a file or options. With a file, a mistake found later is reported with its line and column.
#[derive(Debug, Default)]
pub struct Origin(Option<(PathBuf, PartPositions)>);

impl Origin {
    /// Whether the plan comes from a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.0.is_some()
    }

    /// Checks that the parts of the plan go together.
    ///
    /// # Errors
    /// [`UsageError`]
    pub fn check(&self, plan: &Plan) -> Result<()> {
        Ok(plan.check().map_err(|e| self.place(e.part, &e).unwrap_or_else(|| UsageError(e.to_string())))?)
    }

    /// Checks the plan, and settles the version of HTTP with its servers where it leaves that to them.
    ///
    /// # Errors
    /// [`UsageError`], or a server that cannot be asked.
    pub fn settle(&self, plan: &mut Plan) -> Result<()> {
        self.check(plan)?;
        let is_open = plan.http.version == Version::Auto;
        agree(plan)?;
        if is_open { self.check(plan) } else { Ok(()) }
    }

    /// Resolves the plan's names, reads its files, and checks all that can be checked before anything is sent.
    ///
    /// # Errors
    /// When it cannot be carried out.
    pub fn prepare(&self, plan: &Plan) -> Result<PreparedPlan> {
        PreparedPlan::new(plan).map_err(|e| {
            let placed = match &e {
                LoadError::Request { index, what } => self.place(PlanPart::Request(*index), what),
                LoadError::Plan(e) => self.place(e.part, e),
                _ => None,
            };
            placed.map_or_else(|| e.into(), Into::into)
        })
    }

    fn place(&self, part: PlanPart, what: &dyn fmt::Display) -> Option<UsageError> {
        let (path, places) = self.0.as_ref()?;
        let (line, column) = places.of_part(part)?;
        Some(UsageError(format!("{}: line {line}, column {column}: {what}", path.display())))
    }
}

/// The plan of a run, unchecked.
///
/// # Errors
/// [`UsageError`] for a file that cannot be used.
pub fn plan(target: &str, load: &LoadArgs, request: &RequestArgs, network: &NetworkArgs) -> Result<(Plan, Origin)> {
    if is_plan_file(target) {
        refuse_network(network, target)?;
        return from_file(Path::new(target), load, request);
    }
    Ok((from_options(target, load, request, network)?, Origin::default()))
}

fn from_file(path: &Path, load: &LoadArgs, r: &RequestArgs) -> Result<(Plan, Origin)> {
    let usage = |what: String| UsageError(format!("{}: {what}", path.display()));
    let read = read_file(path)?;
    let mut plan = read.plan;
    let says = load.says_load() || load.duration.is_some() || load.requests.is_some();
    if says && read.has_load {
        return Err(usage("the plan says how much load there is; change it there, not by options".into()).into());
    }
    if says {
        plan.phases = load.phases(DEFAULT_DURATION)?;
    }
    if !read.has_seed {
        plan.seed = load.seed();
    }
    load.adjust(&mut plan)?;
    for request in &mut plan.requests {
        request.headers.extend(load.headers.iter().cloned());
    }
    if r.says_requests() {
        return Err(usage("options about requests belong into the plan".into()).into());
    }
    r.adjust(&mut plan);
    Ok((plan, Origin(Some((path.to_path_buf(), read.places)))))
}

fn from_options(target: &str, load: &LoadArgs, r: &RequestArgs, network: &NetworkArgs) -> Result<Plan> {
    let mut plan = match &r.urls {
        Some(urls) => {
            let any: Url = "http://127.0.0.1/".parse().map_err(anyhow::Error::new)?;
            let mut plan = load.plan(any, DEFAULT_DURATION, KeepAlive::On)?;
            use_urls(&mut plan, urls, &load.headers)?;
            plan
        }
        None => {
            let url: Url = target.parse().map_err(|e: lastdrop_model::plan::UrlError| UsageError(e.to_string()))?;
            load.plan(url, DEFAULT_DURATION, KeepAlive::On)?
        }
    };
    if r.urls.is_some() && r.in_order {
        plan.pick = Pick::Order;
    }
    r.fill(&mut plan);
    r.adjust(&mut plan);
    network.fill(&mut plan);
    Ok(plan)
}

/// The requests of a URL or of a plan file, for commands that decide on the amount of load themselves.
///
/// # Errors
/// [`UsageError`] for a plan or a URL that cannot be used.
pub fn requests_of(target: &str, network: &NetworkArgs) -> Result<(LoadedPlan, Origin)> {
    if is_plan_file(target) {
        refuse_network(network, target)?;
        let mut read = read_file(Path::new(target))?;
        let origin = Origin(Some((target.into(), std::mem::take(&mut read.places))));
        return Ok((read, origin));
    }
    let url: Url = target.parse().map_err(|e: lastdrop_model::plan::UrlError| UsageError(e.to_string()))?;
    let mut plan = Plan::new(url, 0);
    network.fill(&mut plan);
    let read = LoadedPlan { plan, urls: None, has_load: false, has_seed: false, places: PartPositions::default() };
    Ok((read, Origin::default()))
}

/// The plan of a command whose options decide on the amount of load: `--url URL`, or `--url PLAN.toml` with its requests,
/// sessions and logins. Without `keepalive` connections are kept as the plan says, by default to the end.
///
/// # Errors
/// [`UsageError`] for a plan or a URL that cannot be used.
pub fn with_load(target: &str, load: &LoadArgs, duration: Duration, keepalive: Option<KeepAlive>) -> Result<Plan> {
    let (read, origin) = requests_of(target, &NetworkArgs::default())?;
    let keepalive = keepalive.unwrap_or(read.plan.keepalive);
    let mut plan = Plan { phases: load.phases(duration)?, keepalive, ..read.plan };
    if !read.has_seed {
        plan.seed = load.seed();
    }
    load.adjust(&mut plan)?;
    for request in &mut plan.requests {
        request.headers.extend(load.headers.iter().cloned());
    }
    origin.settle(&mut plan)?;
    spread(&mut plan);
    Ok(plan)
}

/// Gives each user of a closed loop over HTTP/2 a connection of its own, unless the plan says how many connections or
/// streams there are. A few shared connections would measure a few of the server's workers: each connection is one's.
pub fn spread(plan: &mut Plan) {
    let is_free = |load: &Load| matches!(load, Load::Closed { connections: None, .. });
    if plan.http.is_http2() && plan.phases.iter().all(|phase| is_free(&phase.load)) {
        plan.http.streams.get_or_insert(1);
    }
}

/// Fails for options about connections with a plan file, which has its own and would ignore them.
fn refuse_network(network: &NetworkArgs, plan: &str) -> Result<()> {
    if *network == NetworkArgs::default() {
        return Ok(());
    }
    Err(UsageError(format!("{plan}: options about connections belong into the plan, under [network] and [tls]")).into())
}

/// True for the name of a plan file, false for a URL.
pub fn is_plan_file(target: &str) -> bool {
    Path::new(target).extension().is_some_and(|e| e == "toml") && !target.contains("://")
}

fn read_file(path: &Path) -> Result<LoadedPlan> {
    let text = files::read_text(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut read = plan_file::parse(&text, folder).map_err(|e| UsageError(format!("{}: {e}", path.display())))?;
    if let Some(urls) = &read.urls {
        use_urls(&mut read.plan, urls, &[])?;
    }
    Ok(read)
}

fn use_urls(plan: &mut Plan, path: &Path, headers: &[(String, String)]) -> Result<()> {
    let text = files::read_text(path).with_context(|| format!("cannot read the URLs of {}", path.display()))?;
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

/// The requests that a run would send, as text.
///
/// # Errors
/// When the plan cannot be carried out.
pub fn dry_run(plan: &Plan, prepared: &PreparedPlan) -> Result<String> {
    let preview = prepared.preview(plan)?;
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
    if plan.http.is_http2() {
        out.push_str("\nHTTP/2 sends these requests as frames, without the fields about the connection:\n");
    }
    const SHOWN: usize = 20;
    for (i, (request, spec)) in preview.requests.iter().zip(&specs).enumerate().take(SHOWN) {
        let weight =
            if plan.pick == Pick::Weighted && many > 1 { format!(", weight {}", spec.weight) } else { String::new() };
        let name = if spec.name.is_empty() { String::new() } else { format!(" {}", spec.name) };
        out.push_str(&format!("\nrequest {}{name}{weight}, {} bytes:\n", i + 1, request.len()));
        const MOST: usize = 2000;
        let text = printable::lossless(&request[..request.len().min(MOST)]).replace('\r', "");
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
