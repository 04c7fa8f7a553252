//! One request: what it is rendered from, and what is checked in its answers.

use std::sync::OnceLock;

use lastdrop_http::request::{RequestBuilder, write_chunked, write_field, write_line};
use lastdrop_model::plan::{HttpOptions, KeepAlive, Plan};
use lastdrop_model::request::{Auth, Expectation, RequestSpec, ThinkTime};
use lastdrop_model::{raw, secrets};

use super::body::{Bodies, prepare_body};
use super::framing::Framing;
use crate::endpoint::{Endpoint, basic};
use crate::extract::Extraction;
use crate::inspect::{CaptureSpec, wanted};
use crate::protocol::EncodedRequest;
use crate::template::{Encoding, Names, Template, Values, encode_into};

/// User and password for digest authentication.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

/// One request, ready to send.
#[derive(Debug)]
pub struct Request {
    /// Index into the endpoints.
    pub endpoint: usize,
    /// Its class, an index into the plan's classes.
    pub class: u16,
    pub method: String,
    /// All bytes, if they never change.
    pub wire: Option<Box<[u8]>>,
    /// The same for HTTP/2.
    pub encoded: Option<EncodedRequest>,
    text: RequestText,
    pub digest: Option<Credentials>,
    pub answer: AnswerChecks,
    pub think: Option<ThinkTime>,
    pub once: bool,
    /// The session ends with this request.
    pub last: bool,
    /// The request asks to close its connection.
    pub closes: bool,
    /// Its body waits for `100 Continue`.
    pub expects_continue: bool,
}

/// What a request is rendered from.
#[derive(Debug)]
struct RequestText {
    target: Template,
    fields: HeaderFields,
    /// The plan's own Proxy-Authorization, if there is a proxy.
    for_proxy: Option<Template>,
    own_host: bool,
    /// The plan states the length of the body in its own header lines.
    own_length: bool,
    /// The body is sent in chunks of this size.
    chunk_bytes: Option<usize>,
    body: Option<Template>,
}

impl RequestText {
    /// Whether the request is the same each time.
    fn is_literal(&self) -> bool {
        self.target.is_literal()
            && self.fields.own.is_literal()
            && self.for_proxy.as_ref().is_none_or(Template::is_literal)
            && self.body.as_ref().is_none_or(Template::is_literal)
    }
}

/// What is checked in the answers to a request.
#[derive(Debug)]
pub struct AnswerChecks {
    pub expect: Vec<Expectation>,
    pub extract: Vec<Extraction>,
    /// CRC-32 of the first answer to it in the whole run, for `checksum=same`.
    pub first_sum: OnceLock<u32>,
    /// What has to be kept of each answer; `None` if answers are only counted.
    pub wanted: Option<CaptureSpec>,
}

/// Header fields of a request. Follow-up requests may carry fewer of them; `None` means the same ones.
#[derive(Debug)]
struct HeaderFields {
    /// As the plan says.
    own: Template,
    /// For the same scheme, host and port: without fields about this path and this body.
    same_origin: Option<Template>,
    /// For any other server: without credentials too, which were written for one server only.
    elsewhere: Option<Template>,
}

impl HeaderFields {
    fn at(&self, detour: Option<&Detour>, own_endpoint: usize) -> &Template {
        let fewer = match detour {
            None => None,
            Some(d) if d.endpoint == own_endpoint => self.same_origin.as_ref(),
            Some(_) => self.elsewhere.as_ref().or(self.same_origin.as_ref()),
        };
        fewer.unwrap_or(&self.own)
    }
}

/// Where a request goes instead of its planned target: after a redirect, or to what a page embeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    pub endpoint: usize,
    pub method: String,
    pub path: String,
    pub body: bool,
    /// Value of the Host field if it is not the server's own.
    pub host: Option<String>,
}

/// The values that a request is rendered with.
pub struct RenderContext<'a> {
    pub values: Values<'a>,
    /// The request's own id, if it carries one.
    pub ids: &'a [u8],
    /// The value of the Cookie header, if there is one.
    pub cookie: Option<Vec<u8>>,
    /// Computes the value of the Authorization header for a target.
    pub authorization: Option<&'a mut dyn FnMut(&str) -> String>,
}

impl Request {
    /// Whether the plan states which status the answer has.
    #[must_use]
    pub fn expects_status(&self) -> bool {
        self.answer.expect.iter().any(|e| matches!(e, Expectation::Status(_)))
    }

    #[must_use]
    pub fn head_request(&self) -> bool {
        self.method == "HEAD"
    }

    /// Renders path and query.
    pub fn target(&self, values: &mut Values<'_>) -> Vec<u8> {
        let mut target = Vec::new();
        self.text.target.render(values, &mut target);
        target
    }

    /// Appends the whole request. Returns where the body begins, for `Expect: 100-continue`.
    pub fn render(
        &self,
        endpoint: &Endpoint,
        http: &HttpOptions,
        detour: Option<&Detour>,
        target: &[u8],
        filling: &mut RenderContext<'_>,
        out: &mut Vec<u8>,
    ) -> usize {
        let method = detour.map_or(self.method.as_str(), |d| d.method.as_str());
        match endpoint.absolute {
            true => write_line(out, method, &[endpoint.origin.as_bytes(), target].concat(), http.is_http10()),
            false => write_line(out, method, target, http.is_http10()),
        }
        if !self.text.own_host || detour.is_some() {
            let host = detour.and_then(|d| d.host.as_ref()).unwrap_or(&endpoint.authority);
            write_field(out, "Host", host.as_bytes());
        }
        out.extend_from_slice(filling.ids);
        self.text.fields.at(detour, self.endpoint).render(&mut filling.values, out);
        if endpoint.absolute {
            match (&self.text.for_proxy, &endpoint.proxy_authorization) {
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
        let body = self.text.body.as_ref().filter(|_| detour.is_none_or(|d| d.body)).map(|body| {
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
                if self.expects_continue {
                    write_field(out, "Expect", b"100-continue");
                }
                match self.text.chunk_bytes {
                    Some(size) => {
                        write_field(out, "Transfer-Encoding", b"chunked");
                        out.extend_from_slice(b"\r\n");
                        let start = out.len();
                        write_chunked(out, &body, size);
                        start
                    }
                    None => {
                        if !self.text.own_length {
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

impl Request {
    /// Builds the bytes of a request that is the same each time.
    fn build_once(&mut self, endpoint: &Endpoint, http: &HttpOptions) -> Result<(), String> {
        let changes = !self.text.is_literal()
            || self.digest.is_some()
            || http.cookies
            || self.expects_continue && self.text.body.is_some();
        if !changes {
            let mut rng = <rand_xoshiro::Xoshiro256PlusPlus as rand_core::SeedableRng>::seed_from_u64(0);
            let mut values = Values { user: 0, iteration: 0, values: &[], rng: &mut rng };
            let target = self.target(&mut values);
            let mut wire = Vec::new();
            let mut filling = RenderContext { values, ids: &[], cookie: None, authorization: None };
            self.render(endpoint, http, None, &target, &mut filling, &mut wire);
            if http.is_http2() {
                self.encoded = Some(EncodedRequest::new(&wire, endpoint.tls)?);
            }
            self.wire = Some(wire.into());
        }
        Ok(())
    }
}

fn has(headers: &[(String, String)], name: &str) -> bool {
    headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
}

/// The header fields of a request, with those that its credentials and the plan's options add.
fn own_headers(spec: &RequestSpec, http: &HttpOptions) -> Vec<(String, String)> {
    let mut headers = spec.headers.clone();
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
    headers
}

/// How the body is framed, and whether the connection ends after it.
fn framing_of(
    spec: &RequestSpec,
    http: &HttpOptions,
    headers: &mut Vec<(String, String)>,
    body: Option<&Template>,
) -> Result<Framing, String> {
    let framing = match &spec.lines {
        Some(lines) => Framing::of_lines(lines, http),
        None => Framing::take(headers, body, http, spec.literal)?,
    };
    if http.is_http2() && (framing.chunk_bytes.is_some() || framing.expects_continue) {
        return Err("over HTTP/2, bodies are sent in frames and at once; leave Transfer-Encoding and Expect out".into());
    }
    if framing.closes && http.pipeline > 1 {
        return Err("'Connection: close' ends the connection on which other requests would be pipelined".into());
    }
    Ok(framing)
}

/// What an answer has to be, and what of it has to be seen for that.
fn answer_checks(spec: &RequestSpec, plan: &Plan, names: &Names, digest: bool) -> Result<AnswerChecks, String> {
    let http = &plan.http;
    let extract = spec
        .extract
        .iter()
        .map(|e| Extraction::new(e, names.index(&e.name).unwrap_or(0)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut look = wanted(&spec.expect, &extract);
    look.cookies = http.cookies;
    look.location |= http.redirects > 0;
    look.challenge = digest;
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
    Ok(AnswerChecks {
        expect: spec.expect.clone(),
        extract,
        first_sum: OnceLock::new(),
        wanted: needed.then_some(look),
    })
}

pub(super) fn prepare(
    spec: &RequestSpec,
    plan: &Plan,
    endpoint_index: usize,
    endpoint: &Endpoint,
    names: &Names,
    bodies: &mut Bodies<'_>,
) -> Result<Request, String> {
    let http = &plan.http;
    let mut headers = own_headers(spec, http);
    let template = |text: &str, encode: Encoding| {
        if spec.literal {
            Ok(Template::literal(raw::bytes(text).into_owned()))
        } else {
            Template::parse(text, names, encode)
        }
    };
    let encoded = |text: &str, encode: Encoding| match spec.literal {
        true => {
            let mut bytes = Vec::new();
            encode_into(text.as_bytes(), encode, &mut bytes);
            Ok(Template::literal(bytes))
        }
        false => Template::parse_encoded(text, names, encode),
    };
    // Fields for the proxy do not belong to the request: a tunnel would take them to the server.
    let is_for_proxy = |name: &str| plan.network.proxy.is_some() && name.eq_ignore_ascii_case("proxy-authorization");
    let for_proxy = match headers.iter().rfind(|(name, _)| is_for_proxy(name)) {
        Some((name, value)) => Some(template(&format!("{name}: {value}\r\n"), Encoding::Field)?),
        None => None,
    };
    headers.retain(|(name, _)| !is_for_proxy(name));
    let body = prepare_body(&spec.body, &template, &encoded, bodies, &mut headers)?;
    let own_host = spec.lines.is_some() || has(&headers, "host");
    let own_length = spec.lines.is_some();
    let framing = framing_of(spec, http, &mut headers, body.as_ref())?;
    let fields = |extra: &[(String, String)]| {
        if let Some(lines) = &spec.lines {
            return template(lines, Encoding::Field);
        }
        let close = plan.keepalive == KeepAlive::Off;
        let builder =
            RequestBuilder { method: &spec.method, target: "", host: "", http10: http.is_http10(), close, extra };
        template(&String::from_utf8_lossy(&builder.fields()), Encoding::Field)
    };
    let without = |leave_out: &dyn Fn(&str) -> bool| {
        let others: Vec<_> = headers.iter().filter(|(n, _)| !leave_out(n)).cloned().collect();
        if others.len() == headers.len() { Ok(None) } else { fields(&others).map(Some) }
    };
    let about_this = |name: &str| name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case("content-length");
    let fields = HeaderFields {
        own: fields(&headers)?,
        same_origin: without(&about_this)?,
        elsewhere: without(&|name| about_this(name) || secrets::is_secret(name))?,
    };
    let digest = match &spec.auth {
        Some(Auth::Digest { user, password }) => Some(Credentials { user: user.clone(), password: password.clone() }),
        _ => None,
    };
    let answer = answer_checks(spec, plan, names, digest.is_some())?;
    let mut request = Request {
        endpoint: endpoint_index,
        class: 0,
        method: spec.method.clone(),
        wire: None,
        encoded: None,
        text: RequestText {
            target: template(&spec.url.path, Encoding::Target)?,
            fields,
            for_proxy,
            own_host,
            own_length,
            chunk_bytes: framing.chunk_bytes,
            body,
        },
        digest,
        answer,
        think: spec.think.or(plan.think),
        once: spec.once,
        last: spec.last,
        closes: framing.closes,
        expects_continue: framing.expects_continue,
    };
    request.build_once(endpoint, http)?;
    Ok(request)
}
