//! From a plan to what the event loops need: files read, names resolved, templates and expressions compiled, request
//! bytes built once where they never change. Every mistake that can be found before the first request is found here.
//!
//! A long file, since a request is prepared in one pass with the names, bodies and endpoints that all requests share.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lastdrop_http::request::{RequestBuilder, write_chunked, write_field, write_line};
use lastdrop_model::plan::{HttpOptions, KeepAlive, Load, Plan};
use lastdrop_model::request::{Auth, Body, Expectation, PartContent, Per, Pick, RequestSpec, Think};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Classes, raw, secrets};
use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustls::ClientConfig;

use crate::LoadError;
use crate::endpoint::{Endpoint, basic};
use crate::inspect::{Extraction, Wanted, wanted};
use crate::tape::Tape;
use crate::template::{Encode, Names, Template, Values, encode_into};
use crate::{files, tls};

/// Boundary of multipart bodies; fixed, so that a run can be repeated byte by byte.
const BOUNDARY: &str = "----lastdrop-7f83b1657ff1fc53b92dc18148a1d65d";

/// Most bytes of files that are sent: they are kept in memory, once as they are and once in their request.
const MOST_BODY_BYTES: u64 = 512 << 20;

/// User and password for digest authentication.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

/// One request, ready to be sent.
#[derive(Debug)]
pub struct Request {
    /// Index into the endpoints.
    pub endpoint: usize,
    /// Its class, an index into the plan's.
    pub class: u16,
    pub method: String,
    /// All bytes, where they never change.
    pub wire: Option<Box<[u8]>>,
    target: Template,
    fields: Fields,
    /// The plan's own Proxy-Authorization, where there is a proxy.
    for_proxy: Option<Template>,
    own_host: bool,
    /// The plan says how long the body is.
    own_length: bool,
    body: Option<Template>,
    pub digest: Option<Credentials>,
    pub expect: Vec<Expectation>,
    pub extract: Vec<Extraction>,
    pub think: Option<Think>,
    pub once: bool,
    /// A session ends with it.
    pub last: bool,
    /// CRC-32 of the first answer to it in the whole run, for `checksum=same`.
    pub first_sum: OnceLock<u32>,
    /// What has to be looked at in its answers; None where they are only counted.
    pub wanted: Option<Wanted>,
}

/// Header fields of a request. What follows from its answers carries fewer of them; None is no fewer.
#[derive(Debug)]
struct Fields {
    /// As the plan says.
    own: Template,
    /// At the same scheme, host and port: without what is about this path and this body.
    same_origin: Option<Template>,
    /// Anywhere else: without credentials, too. They were written for one server, and nobody else shall have them.
    elsewhere: Option<Template>,
}

impl Fields {
    fn at(&self, detour: Option<&Detour>, own_endpoint: usize) -> &Template {
        let fewer = match detour {
            None => None,
            Some(d) if d.endpoint == own_endpoint => self.same_origin.as_ref(),
            Some(_) => self.elsewhere.as_ref().or(self.same_origin.as_ref()),
        };
        fewer.unwrap_or(&self.own)
    }
}

/// Where a request goes instead of where its plan says: after a redirect, or to what a page embeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    pub endpoint: usize,
    pub method: String,
    pub path: String,
    pub body: bool,
    /// The Host field, where it is another than the server's.
    pub host: Option<String>,
}

/// What a request is filled with.
pub struct Filling<'a> {
    pub values: Values<'a>,
    /// The value of the Cookie header, if there is one.
    pub cookie: Option<Vec<u8>>,
    /// The value of the Authorization header, made for the target that it is given.
    pub authorization: Option<&'a mut dyn FnMut(&str) -> String>,
}

impl Request {
    #[must_use]
    pub fn head_request(&self) -> bool {
        self.method == "HEAD"
    }

    /// Path and query with their values.
    pub fn target(&self, values: &mut Values<'_>) -> Vec<u8> {
        let mut target = Vec::new();
        self.target.render(values, &mut target);
        target
    }

    /// Appends the whole request. Says where the body begins, for `Expect: 100-continue`.
    pub fn render(
        &self,
        endpoint: &Endpoint,
        http: &HttpOptions,
        detour: Option<&Detour>,
        target: &[u8],
        filling: &mut Filling<'_>,
        out: &mut Vec<u8>,
    ) -> usize {
        let method = detour.map_or(self.method.as_str(), |d| d.method.as_str());
        match endpoint.absolute {
            true => write_line(out, method, &[endpoint.origin.as_bytes(), target].concat(), http.http10),
            false => write_line(out, method, target, http.http10),
        }
        if !self.own_host || detour.is_some() {
            let host = detour.and_then(|d| d.host.as_ref()).unwrap_or(&endpoint.authority);
            write_field(out, "Host", host.as_bytes());
        }
        self.fields.at(detour, self.endpoint).render(&mut filling.values, out);
        if endpoint.absolute {
            match (&self.for_proxy, &endpoint.proxy_authorization) {
                (Some(own), _) => own.render(&mut filling.values, out),
                (None, Some(value)) => write_field(out, "Proxy-Authorization", value.as_bytes()),
                (None, None) => {}
            }
        }
        if let Some(cookie) = &filling.cookie {
            write_field(out, "Cookie", cookie);
        }
        if let Some(authorization) = &mut filling.authorization {
            write_field(out, "Authorization", authorization(&String::from_utf8_lossy(target)).as_bytes());
        }
        let body = self.body.as_ref().filter(|_| detour.is_none_or(|d| d.body)).map(|body| {
            let mut bytes = Vec::new();
            body.render(&mut filling.values, &mut bytes);
            bytes
        });
        match body {
            None => {
                out.extend_from_slice(b"\r\n");
                out.len()
            }
            Some(body) => {
                if http.expect_continue {
                    write_field(out, "Expect", b"100-continue");
                }
                match http.chunked {
                    Some(size) if !http.http10 => {
                        write_field(out, "Transfer-Encoding", b"chunked");
                        out.extend_from_slice(b"\r\n");
                        let start = out.len();
                        write_chunked(out, &body, size as usize);
                        start
                    }
                    _ => {
                        if !self.own_length {
                            write_field(out, "Content-Length", body.len().to_string().as_bytes());
                        }
                        out.extend_from_slice(b"\r\n");
                        let start = out.len();
                        out.extend_from_slice(&body);
                        start
                    }
                }
            }
        }
    }
}

/// Rows of the data file.
#[derive(Debug)]
pub struct Rows {
    pub rows: Vec<Vec<Vec<u8>>>,
    pub per: Per,
    pub random: bool,
    /// Columns; they are the first of a user's values.
    pub columns: usize,
}

/// How the next request is chosen.
#[derive(Debug)]
pub enum Choice {
    Only,
    Weighted(Vec<f64>),
    Order,
    Session,
    /// Several sessions: where each begins.
    Sessions(Vec<usize>),
}

impl Choice {
    /// Index of a request by weight. The list is of running sums.
    pub fn by_weight(sums: &[f64], rng: &mut Xoshiro256PlusPlus) -> usize {
        let total = sums.last().copied().unwrap_or(0.0);
        let at = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        sums.partition_point(|sum| *sum <= at).min(sums.len().saturating_sub(1))
    }
}

/// A plan, ready to be carried out.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) requests: Vec<Request>,
    pub(crate) choice: Choice,
    pub(crate) rows: Option<Rows>,
    /// How many values a user has: columns, then extracted ones.
    pub(crate) values: usize,
    /// Do users have anything of their own: values, cookies, a session?
    pub(crate) personal: bool,
    /// Connections that a user may have open.
    pub(crate) connections_per_user: u32,
    /// Classes of requests; 0 where there is one, which is the whole run. That of what pages embed.
    pub(crate) classes: usize,
    pub(crate) class_of_parts: u16,
    /// Requests that somebody else made, instead of the plan's own.
    pub(crate) tape: Option<Tape>,
    names: Names,
    tls: Tls,
}

/// Will there be TLS?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    No,
    /// A redirect or a page may lead to it.
    Perhaps,
    Yes,
}

impl Prepared {
    /// Checks a plan, resolves its names and reads its files.
    ///
    /// # Errors
    /// When the plan contradicts itself, a file cannot be used, or a host does not resolve.
    pub fn new(plan: &Plan) -> Result<Prepared, LoadError> {
        plan.check()?;
        let specs: Vec<RequestSpec> =
            if plan.requests.is_empty() { vec![RequestSpec::get(plan.url.clone())] } else { plan.requests.clone() };
        let (rows, mut names) = match &plan.data {
            Some(data) => {
                let (rows, names) = read_rows(&data.file)?;
                let columns = names.list().len();
                (Some(Rows { rows, per: data.per, random: data.random, columns }), names)
            }
            None => (None, Names::default()),
        };
        let columns = names.list().len();
        for (index, spec) in specs.iter().enumerate() {
            if let Some(extract) = spec.extract.iter().find(|e| names.add(&e.name) < columns) {
                let what =
                    format!("'{}' is a column of the data file, too; give one of them another name", extract.name);
                return Err(LoadError::Request { index, what });
            }
        }
        let classes = Classes::of(plan);
        let mut bodies = Bodies::default();
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let mut requests = Vec::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            let known = endpoints.iter().position(|e| {
                e.tls == spec.url.tls && e.port == spec.url.port && e.host.eq_ignore_ascii_case(&spec.url.host)
            });
            let endpoint = match known {
                Some(at) => at,
                None => {
                    if spec.url.tls {
                        tls::server_name(&spec.url.host, &plan.tls)?;
                    }
                    endpoints.push(Endpoint::new(&spec.url, &plan.network)?);
                    endpoints.len() - 1
                }
            };
            let mut request = prepare(spec, plan, endpoint, &endpoints[endpoint], &names, &mut bodies)
                .map_err(|what| LoadError::Request { index, what: format!("{} {}: {what}", spec.method, spec.url) })?;
            request.class = classes.of_request[index];
            requests.push(request);
        }
        let choice = match plan.pick {
            Pick::Session => Choice::Session,
            Pick::Sessions => {
                let after_last = requests.iter().enumerate().filter(|(_, r)| r.last).map(|(i, _)| i + 1);
                Choice::Sessions(std::iter::once(0).chain(after_last.filter(|i| *i < requests.len())).collect())
            }
            _ if requests.len() == 1 => Choice::Only,
            Pick::Order => Choice::Order,
            Pick::Weighted => {
                let mut sum = 0.0;
                Choice::Weighted(
                    specs
                        .iter()
                        .map(|s| {
                            sum += s.weight.max(0.0);
                            sum
                        })
                        .collect(),
                )
            }
        };
        let personal = matches!(plan.pick, Pick::Session | Pick::Sessions)
            || plan.page.is_some()
            || plan.http.cookies
            || plan.http.redirects > 0
            || requests.iter().any(|r| r.wire.is_none() || r.wanted.is_some());
        let tls = if endpoints.iter().any(|e| e.tls) {
            Tls::Yes
        } else if plan.http.redirects > 0 || plan.page.is_some() {
            Tls::Perhaps
        } else {
            Tls::No
        };
        let servers = endpoints.len() as u32;
        let connections_per_user = match &plan.page {
            // A browser's connections to a host, and as many to each of a few other hosts of the plan.
            Some(page) => page.connections_per_host.max(1) * servers.clamp(1, 4),
            None if plan.phases.iter().any(|p| matches!(p.load, Load::Open { .. })) => 1,
            None => servers.clamp(1, 8),
        };
        let values = names.list().len();
        Ok(Prepared {
            endpoints,
            requests,
            choice,
            rows,
            values,
            personal,
            connections_per_user,
            classes: if classes.names.len() > 1 { classes.names.len() } else { 0 },
            class_of_parts: classes.parts,
            tape: None,
            names,
            tls,
        })
    }

    /// Plays what is on a tape, as its requests come due, instead of the plan's own; those say what header fields they have and
    /// of which class they are. One thread plays it.
    #[must_use]
    pub fn playing(self, tape: Tape) -> Prepared {
        Prepared { tape: Some(tape), personal: true, ..self }
    }

    /// What a plan would send.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn preview(&self, plan: &Plan) -> Result<Preview, LoadError> {
        self.tls_configs(plan, 1)?;
        let servers = self
            .endpoints
            .iter()
            .map(|e| (e.origin.clone(), e.addresses.iter().map(ToString::to_string).collect()))
            .collect();
        // Values that answers will give stand there by their names.
        let mut values: Vec<Vec<u8>> = self.names.list().iter().map(|n| format!("({n})").into_bytes()).collect();
        if let Some(row) = self.rows.as_ref().and_then(|r| r.rows.first()) {
            values[..row.len()].clone_from_slice(row);
        }
        let mut rng = <Xoshiro256PlusPlus as rand_core::SeedableRng>::seed_from_u64(plan.seed);
        let requests = self
            .requests
            .iter()
            .map(|request| {
                let mut out = Vec::new();
                let mut filling = Filling {
                    values: Values { user: 1, iteration: 1, values: &values, rng: &mut rng },
                    cookie: None,
                    authorization: None,
                };
                let target = request.target(&mut filling.values);
                request.render(&self.endpoints[request.endpoint], &plan.http, None, &target, &mut filling, &mut out);
                out
            })
            .collect();
        Ok(Preview { servers, requests })
    }

    /// The TLS of each thread, where the plan has any.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn tls_configs(&self, plan: &Plan, threads: usize) -> Result<Vec<Option<Arc<ClientConfig>>>, LoadError> {
        let configs = match self.tls {
            Tls::No => return Ok(vec![None; threads]),
            Tls::Yes => tls::configs(&plan.tls, threads)?,
            Tls::Perhaps => match tls::configs(&plan.tls, threads) {
                Ok(configs) => configs,
                // A machine without certificates can still load plain pages.
                Err(_) => return Ok(vec![None; threads]),
            },
        };
        Ok(configs.into_iter().map(Some).collect())
    }
}

fn prepare(
    spec: &RequestSpec,
    plan: &Plan,
    endpoint_index: usize,
    endpoint: &Endpoint,
    names: &Names,
    bodies: &mut Bodies,
) -> Result<Request, String> {
    let http = &plan.http;
    let mut headers = spec.headers.clone();
    let has = |headers: &[(String, String)], name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    match &spec.auth {
        Some(Auth::Basic { user, password }) => {
            headers.push(("Authorization".into(), basic(&format!("{user}:{password}"))));
        }
        Some(Auth::Bearer(token)) => headers.push(("Authorization".into(), format!("Bearer {token}"))),
        Some(Auth::Digest { .. }) | None => {}
    }
    if http.compressed && !has(&headers, "accept-encoding") {
        headers.push(("Accept-Encoding".into(), "gzip, br".into()));
    }
    let template = |text: &str, encode: Encode| {
        if spec.literal {
            Ok(Template::literal(raw::bytes(text).into_owned()))
        } else {
            Template::parse(text, names, encode)
        }
    };
    let encoded = |text: &str, encode: Encode| match spec.literal {
        true => {
            let mut bytes = Vec::new();
            encode_into(text.as_bytes(), encode, &mut bytes);
            Ok(Template::literal(bytes))
        }
        false => Template::parse_encoded(text, names, encode),
    };
    // What is for the proxy is no field of the request: a tunnel would take it to the server.
    let is_for_proxy = |name: &str| plan.network.proxy.is_some() && name.eq_ignore_ascii_case("proxy-authorization");
    let for_proxy = match headers.iter().rfind(|(name, _)| is_for_proxy(name)) {
        Some((name, value)) => Some(template(&format!("{name}: {value}\r\n"), Encode::Field)?),
        None => None,
    };
    headers.retain(|(name, _)| !is_for_proxy(name));
    let body = prepare_body(&spec.body, &template, &encoded, bodies, &mut headers)?;
    let own_host = spec.lines.is_some() || has(&headers, "host");
    let own_length = spec.lines.is_some() || has(&headers, "content-length");
    let fields = |extra: &[(String, String)]| {
        if let Some(lines) = &spec.lines {
            return template(lines, Encode::Field);
        }
        let close = plan.keepalive == KeepAlive::Off;
        let builder = RequestBuilder { method: &spec.method, target: "", host: "", http10: http.http10, close, extra };
        template(&String::from_utf8_lossy(&builder.fields()), Encode::Field)
    };
    let without = |leave_out: &dyn Fn(&str) -> bool| {
        let others: Vec<_> = headers.iter().filter(|(n, _)| !leave_out(n)).cloned().collect();
        if others.len() == headers.len() { Ok(None) } else { fields(&others).map(Some) }
    };
    let about_this = |name: &str| name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case("content-length");
    let fields = Fields {
        own: fields(&headers)?,
        same_origin: without(&about_this)?,
        elsewhere: without(&|name| about_this(name) || secrets::is_secret(name))?,
    };
    let digest = match &spec.auth {
        Some(Auth::Digest { user, password }) => Some(Credentials { user: user.clone(), password: password.clone() }),
        _ => None,
    };
    let extract = spec
        .extract
        .iter()
        .map(|e| Extraction::new(e, names.index(&e.name).unwrap_or(0)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut look = wanted(&spec.expect, &extract);
    look.cookies = http.cookies;
    look.location |= http.redirects > 0;
    look.challenge = digest.is_some();
    look.decode = http.decode;
    if let Some(page) = &plan.page {
        look.body = true;
        look.decode = true;
        look.caching = page.cache;
    }
    let needed = look.cookies
        || look.location
        || look.challenge
        || look.decode
        || plan.page.is_some()
        || !spec.expect.is_empty()
        || !extract.is_empty();
    let mut request = Request {
        endpoint: endpoint_index,
        class: 0,
        method: spec.method.clone(),
        wire: None,
        target: template(&spec.url.path, Encode::Target)?,
        fields,
        for_proxy,
        own_host,
        own_length,
        body,
        digest,
        expect: spec.expect.clone(),
        extract,
        think: spec.think.or(plan.think),
        once: spec.once,
        last: spec.last,
        first_sum: OnceLock::new(),
        wanted: needed.then_some(look),
    };
    let changes = !request.target.is_literal()
        || !request.fields.own.is_literal()
        || !request.for_proxy.as_ref().is_none_or(Template::is_literal)
        || !request.body.as_ref().is_none_or(Template::is_literal)
        || request.digest.is_some()
        || http.cookies
        || http.expect_continue && request.body.is_some();
    if !changes {
        let mut rng = <Xoshiro256PlusPlus as rand_core::SeedableRng>::seed_from_u64(0);
        let mut values = Values { user: 0, iteration: 0, values: &[], rng: &mut rng };
        let target = request.target(&mut values);
        let mut wire = Vec::new();
        let mut filling = Filling { values, cookie: None, authorization: None };
        request.render(endpoint, http, None, &target, &mut filling, &mut wire);
        request.wire = Some(wire.into());
    }
    Ok(request)
}

/// What files that are sent have together.
#[derive(Debug, Default)]
struct Bodies {
    bytes: u64,
}

impl Bodies {
    /// Reads a file that is sent.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = files::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        self.bytes += bytes.len() as u64;
        if self.bytes > MOST_BODY_BYTES {
            let most = show_bytes(MOST_BODY_BYTES);
            return Err(format!("with {} the bodies of all requests have more than {most} together", path.display()));
        }
        Ok(bytes)
    }
}

fn prepare_body(
    body: &Body,
    template: &dyn Fn(&str, Encode) -> Result<Template, String>,
    encoded: &dyn Fn(&str, Encode) -> Result<Template, String>,
    bodies: &mut Bodies,
    headers: &mut Vec<(String, String)>,
) -> Result<Option<Template>, String> {
    let mut content_type = |value: String| {
        if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-type")) {
            headers.push(("Content-Type".into(), value));
        }
    };
    Ok(match body {
        Body::None => None,
        Body::Text(text) => Some(template(text, Encode::Raw)?),
        Body::File(path) => Some(Template::literal(bodies.read(path)?)),
        Body::Form(fields) => {
            content_type("application/x-www-form-urlencoded".into());
            let mut whole = Template::default();
            for (i, (name, value)) in fields.iter().enumerate() {
                let mut start = if i == 0 { Vec::new() } else { vec![b'&'] };
                encode_into(name.as_bytes(), Encode::Form, &mut start);
                start.push(b'=');
                whole.append(Template::literal(start));
                whole.append(encoded(value, Encode::Form)?);
            }
            Some(whole)
        }
        Body::Multipart(parts) => {
            content_type(format!("multipart/form-data; boundary={BOUNDARY}"));
            let mut whole = Template::default();
            for part in parts {
                let name = part.name.replace('"', "%22").replace(['\r', '\n'], "");
                let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"");
                match &part.content {
                    PartContent::Text(text) => {
                        whole.append(Template::literal(format!("{head}\r\n\r\n").into_bytes()));
                        whole.append(template(text, Encode::Raw)?);
                    }
                    PartContent::File(path) => {
                        let file =
                            path.file_name().map(|n| n.to_string_lossy().replace('"', "%22")).unwrap_or_default();
                        let mut bytes =
                            format!("{head}; filename=\"{file}\"\r\nContent-Type: application/octet-stream\r\n\r\n")
                                .into_bytes();
                        bytes.extend_from_slice(&bodies.read(path)?);
                        whole.append(Template::literal(bytes));
                    }
                }
                whole.append(Template::literal(b"\r\n".to_vec()));
            }
            whole.append(Template::literal(format!("--{BOUNDARY}--\r\n").into_bytes()));
            Some(whole)
        }
    })
}

/// Rows of fields, and the names of the columns.
type Table = (Vec<Vec<Vec<u8>>>, Names);

fn read_rows(path: &Path) -> Result<Table, LoadError> {
    let wrong = |what: String| LoadError::File(format!("the data file {}: {what}", path.display()));
    let bytes = files::read(path).map_err(|e| wrong(e.to_string()))?;
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::Headers).comment(Some(b'#')).from_reader(bytes.as_slice());
    let mut names = Names::default();
    for (column, name) in reader.headers().map_err(|e| wrong(e.to_string()))?.iter().enumerate() {
        if names.add(name) != column {
            return Err(wrong(format!("two columns have the name '{name}'")));
        }
    }
    let mut rows = Vec::new();
    for record in reader.byte_records() {
        let record = record.map_err(|e| wrong(e.to_string()))?;
        rows.push(record.iter().map(<[u8]>::to_vec).collect());
    }
    if rows.is_empty() {
        return Err(wrong("it has no rows below the line of names".into()));
    }
    Ok((rows, names))
}

/// A think time, drawn.
#[must_use]
pub fn draw(think: Option<Think>, rng: &mut Xoshiro256PlusPlus) -> Duration {
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    match think {
        None => Duration::ZERO,
        Some(Think::Fixed(d)) => d,
        Some(Think::Uniform(low, high)) => low + (high - low).mul_f64(uniform()),
        Some(Think::Exponential(mean)) => mean.mul_f64(-(1.0 - uniform()).ln()),
    }
}

/// What would be sent: the servers with their addresses, and the bytes of each request with its first values.
#[derive(Debug)]
pub struct Preview {
    pub servers: Vec<(String, Vec<String>)>,
    pub requests: Vec<Vec<u8>>,
}

/// Prepares a plan and sends nothing.
///
/// # Errors
/// When the plan cannot be carried out.
pub fn preview(plan: &Plan) -> Result<Preview, LoadError> {
    Prepared::new(plan)?.preview(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    #[test]
    fn what_is_for_the_proxy_is_shown_to_the_proxy_alone() {
        let mut plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        let mut other = plan.requests[0].clone();
        other.url = "https://127.0.0.1:2/".parse().expect("valid");
        plan.requests.push(other);
        plan.http.redirects = 1;
        plan.network.proxy = Some("http://me:pw@127.0.0.1:3".parse().expect("valid"));
        let sent = |plan: &Plan, request: usize, endpoint: usize| {
            let prepared = Prepared::new(plan).expect("valid");
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let values = Values { user: 1, iteration: 1, values: &[], rng: &mut rng };
            let mut filling = Filling { values, cookie: None, authorization: None };
            let detour = Detour { endpoint, method: "GET".into(), path: "/".into(), body: false, host: None };
            let detour = (endpoint != prepared.requests[request].endpoint).then_some(&detour);
            let mut out = Vec::new();
            prepared.requests[request].render(
                &prepared.endpoints[endpoint],
                &plan.http,
                detour,
                b"/",
                &mut filling,
                &mut out,
            );
            String::from_utf8(out).expect("text")
        };
        let line = "Proxy-Authorization: Basic bWU6cHc=\r\n";
        for request in [0, 1] {
            // http carries it to the proxy, also after a redirect from https; a tunnel has it in its CONNECT.
            assert_eq!(sent(&plan, request, 0).matches(line).count(), 1, "{request}");
            assert!(!sent(&plan, request, 1).contains("Proxy-Authorization"), "{request}");
        }
        // One that the user wrote as a header.
        plan.network.proxy = Some("http://127.0.0.1:3".parse().expect("valid"));
        for request in &mut plan.requests {
            request.headers.push(("Proxy-Authorization".into(), "Own".into()));
        }
        assert!(sent(&plan, 0, 0).contains("Proxy-Authorization: Own\r\n"));
        assert!(sent(&plan, 1, 0).contains("Proxy-Authorization: Own\r\n"));
        assert!(!sent(&plan, 0, 1).contains("Own") && !sent(&plan, 1, 1).contains("Own"));
        // Without a proxy it is a header like any other, for its own server only.
        plan.network.proxy = None;
        assert!(sent(&plan, 0, 0).contains("Own") && !sent(&plan, 0, 1).contains("Own"));
    }
}
