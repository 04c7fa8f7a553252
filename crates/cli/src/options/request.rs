//! Options about requests: bodies, expected responses, and details of HTTP.

use std::path::PathBuf;

use clap::Args;
use lastdrop_model::plan::{HttpOptions, Plan, ServerTimeFrom};
use lastdrop_model::request::{Auth, Body, DataSource, Expectation, FormPart, Page, PartContent, RowScope, ThinkTime};

use super::http::HttpArgs;
use super::values::pair;

/// Options about requests, for `run`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Request method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_parser = method)]
    pub method: Option<String>,
    /// Request body; '@FILE' is a file's content
    #[arg(long, value_name = "TEXT")]
    pub body: Option<String>,
    /// A field of a form body, 'name=value'; may be given several times
    #[arg(long = "form", value_name = "FIELD", value_parser = pair, conflicts_with = "body")]
    pub form: Vec<(String, String)>,
    /// A part of a multipart body, 'name=value' or 'name=@FILE'; may be given several times
    #[arg(long = "part", value_name = "PART", value_parser = pair, conflicts_with_all = ["body", "form"])]
    pub parts: Vec<(String, String)>,
    /// URLs from a file, in the format of siege or http_load
    #[arg(short = 'f', long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Take the URLs of -f in turn instead of at random
    #[arg(long, requires = "urls")]
    pub in_order: bool,
    /// Basic authentication
    #[arg(long, value_name = "USER:PASSWORD", value_parser = credentials)]
    pub basic: Option<(String, String)>,
    /// Digest authentication
    #[arg(long, value_name = "USER:PASSWORD", value_parser = credentials, conflicts_with = "basic")]
    pub digest: Option<(String, String)>,
    /// Bearer authentication
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["basic", "digest"])]
    pub bearer: Option<String>,
    /// What an answer has to be: status=200, length=1234, text=Hello, no-text=Error, url=/orders/*, checksum=sha256:…, checksum=same
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<Expectation>)]
    pub expect: Vec<Expectation>,
    /// Pause between an answer and the next request: 2s, 1s-3s (uniform) or 'exp 2s' (exponential)
    #[arg(long, value_name = "TIME", value_parser = str::parse::<ThinkTime>)]
    pub think: Option<ThinkTime>,
    /// A CSV file with a header line: {{name}} in URL, headers and body is the value of its next row
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Load the page as a browser does: HTML, then what it embeds, over up to 6 connections a host
    #[arg(long)]
    pub page: bool,
    /// With --page: each user fetches a resource once, if it may be cached
    #[arg(long, requires = "page")]
    pub page_cache: bool,
    /// Where the server says its own time of a request: auto (Server-Timing, X-Runtime and others), header:NAME,
    /// header:NAME:UNIT (s, ms, us) or `log:FILE[,FORMAT]` (its access log, joined by X-Request-Id). The report then splits
    /// each response into link, queue, server and upstream
    #[arg(long, value_name = "WHERE", value_parser = str::parse::<ServerTimeFrom>)]
    pub server_time: Option<ServerTimeFrom>,
    #[command(flatten)]
    pub http: HttpArgs,
}

impl RequestArgs {
    /// True if the options describe requests, which a plan file does itself.
    #[must_use]
    pub fn says_requests(&self) -> bool {
        self.method.is_some()
            || self.body.is_some()
            || !self.form.is_empty()
            || !self.parts.is_empty()
            || self.basic.is_some()
            || self.digest.is_some()
            || self.bearer.is_some()
            || !self.expect.is_empty()
            || self.data.is_some()
            || self.page
            || self.http.0.options().any(|option| !option.beside_a_file)
    }

    /// Sets the requests of a plan that comes from the command line alone.
    pub fn fill(&self, plan: &mut Plan) {
        let body = self.body();
        for request in &mut plan.requests {
            if let Some(method) = &self.method {
                request.method.clone_from(method);
            } else if body != Body::None {
                request.method = "POST".into();
            }
            if body != Body::None {
                request.body = body.clone();
            }
            request.auth = self.auth();
            request.expect.clone_from(&self.expect);
        }
        plan.data =
            self.data.as_ref().map(|file| DataSource { file: file.clone(), per: RowScope::Request, random: false });
        plan.page = self.page.then_some(Page { connections_per_host: 6, cache: self.page_cache });
        plan.http = HttpOptions::default();
        self.http.0.set(&mut plan.http, |option| !option.beside_a_file);
    }

    /// Sets how requests are sent. These options are also allowed with a plan file and override it.
    pub fn adjust(&self, plan: &mut Plan) {
        if self.think.is_some() {
            plan.think = self.think;
            plan.requests.iter_mut().for_each(|request| request.think = None);
        }
        if self.server_time.is_some() {
            plan.server_time.clone_from(&self.server_time);
        }
        self.http.0.set(&mut plan.http, |option| option.beside_a_file);
    }

    fn body(&self) -> Body {
        let file = |text: &str| text.strip_prefix('@').map(PathBuf::from);
        if let Some(text) = &self.body {
            return file(text).map_or_else(|| Body::Text(text.clone()), Body::File);
        }
        if !self.form.is_empty() {
            return Body::Form(self.form.clone());
        }
        if self.parts.is_empty() {
            return Body::None;
        }
        let part = |(name, value): &(String, String)| {
            FormPart::new(name, file(value).map_or_else(|| PartContent::Text(value.clone()), PartContent::File))
        };
        Body::Multipart(self.parts.iter().map(part).collect())
    }

    fn auth(&self) -> Option<Auth> {
        let basic = self.basic.clone().map(|(user, password)| Auth::Basic { user, password });
        let digest = self.digest.clone().map(|(user, password)| Auth::Digest { user, password });
        basic.or(digest).or_else(|| self.bearer.clone().map(Auth::Bearer))
    }
}

fn method(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        Ok(text.to_ascii_uppercase())
    } else {
        Err(format!("'{text}' is not a request method"))
    }
}

fn credentials(text: &str) -> Result<(String, String), String> {
    text.split_once(':')
        .map(|(user, password)| (user.to_string(), password.to_string()))
        .ok_or_else(|| "write USER:PASSWORD".to_string())
}
