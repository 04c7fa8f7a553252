//! A connection of a browser: consecutive requests, or a tunnel that carries requests. Decides which servers may be
//! reached.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use lastdrop_http::RequestParser;
use lastdrop_model::Url;
use lastdrop_wire::{DeadlineSocket, Slot, Wire};
use rustls::ServerConfig;

use crate::incoming::{self, Request, RequestError};
use crate::listener::{ProxyMode, ProxyState};
use crate::{bounds, exchange};

/// The first byte of a TLS connection: a record of a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why a request is not passed on: a status and a sentence for the browser, and a notice for the user if there is one.
struct Refusal(u16, String, Option<String>);

/// Serves a connection until it ends.
pub fn serve(wire: Wire, slot: &Slot, shared: &ProxyState) {
    requests(wire, slot, shared, None);
}

/// Serves requests; within a tunnel all of them are for the server at its other end.
fn requests(mut wire: Wire, slot: &Slot, shared: &ProxyState, tunnel: Option<&Url>) {
    let mut parser = RequestParser::default();
    loop {
        let request = match incoming::read(&mut wire, &mut parser, &shared.recorder) {
            Ok(request) => request,
            Err(RequestError::Over) => return,
            Err(RequestError::Torn) => return shared.recorder.trouble("a request of the browser was torn"),
            Err(RequestError::Refused(status, why)) => {
                shared.recorder.trouble(format!("refused: {why}"));
                return refuse(&mut wire, status, &why);
            }
        };
        if shared.is_over() {
            return refuse(&mut wire, 503, "The recording is over.");
        }
        let is_connect = request.head.method == "CONNECT";
        match target(&request, shared, tunnel) {
            Err(Refusal(status, why, news)) => {
                news.into_iter().for_each(|news| shared.recorder.trouble(news));
                return refuse(&mut wire, status, &why);
            }
            Ok(url) if is_connect && parser.is_empty() => return enter_tunnel(wire, slot, shared, url),
            Ok(_) if is_connect => return refuse(&mut wire, 400, "A tunnel begins when it is granted."),
            Ok(url) => {
                let _busy = slot.busy();
                if !exchange::pass(&mut wire, shared, &request, &url) {
                    return wire.linger();
                }
            }
        }
    }
}

fn refuse(wire: &mut Wire, status: u16, why: &str) {
    wire.within(bounds::SILENCE);
    if wire.write(&exchange::plain_answer(status, why)).is_ok() {
        wire.linger();
    }
}

/// Returns the URL of a request, if it is allowed.
fn target(request: &Request<'_>, shared: &ProxyState, tunnel: Option<&Url>) -> Result<Url, Refusal> {
    let bad = |why: &str| Refusal(400, why.to_string(), None);
    let path = request.head.path.as_str();
    // Servers and proxies before them could otherwise take it for different sites (RFC 9112, section 3.2).
    if request.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host")).count() > 1 {
        return Err(bad("A request has one Host field."));
    }
    let url = |origin: &str| format!("{origin}{path}").parse::<Url>().map_err(|e| bad(&e.to_string()));
    if request.text("upgrade").is_some_and(|to| to.to_ascii_lowercase().contains("websocket")) {
        let news = "refused: a WebSocket, which no plan can speak; many pages then ask by HTTP instead";
        return Err(Refusal(501, "WebSockets are not recorded.".into(), Some(news.into())));
    }
    match (&shared.way, tunnel) {
        (_, Some(server)) if path.starts_with('/') => url(&server.origin()),
        (_, Some(_)) => Err(bad("A request within a tunnel begins with a path.")),
        (ProxyMode::Reverse(server), None) => {
            let host = request.text("host").unwrap_or_default();
            // A malicious page could otherwise point its name here (DNS rebinding) and read the site.
            if !shared.own.iter().any(|own| own.eq_ignore_ascii_case(host)) {
                let news = format!("refused: asked as '{}', and not as {}", shown(host), shared.own.join(" or "));
                return Err(Refusal(403, format!("Ask for http://{}/.", shared.own.join("/ or http://")), Some(news)));
            }
            if path.starts_with('/') {
                return url(&server.origin());
            }
            let asked: Url = path.parse().map_err(|_| bad("A request begins with a path."))?;
            let is_own = path.starts_with("http://") && shared.own.contains(&asked.authority());
            if is_own { Ok(server.with_path(&asked.path)) } else { Err(bad("This is no proxy for other servers.")) }
        }
        (ProxyMode::Forward(hosts), None) => {
            let is_connect = request.head.method == "CONNECT";
            let asked = if is_connect { format!("https://{path}/") } else { path.to_string() };
            if !is_connect && !asked.contains("://") {
                return Err(bad("This is a proxy: tell your browser of it, and ask for the site itself."));
            }
            let asked: Url = asked.parse().map_err(|_| bad("This is no URL that can be asked for."))?;
            if !hosts.contains_key(&asked.host.to_ascii_lowercase()) {
                let why = format!("{} is not among the hosts of this recording (--host).", asked.host);
                let news = format!("refused: {}, which no --host names", shown(&asked.host));
                return Err(Refusal(403, why, Some(news)));
            }
            if shared.own.contains(&asked.authority()) {
                return Err(bad("This is the proxy itself."));
            }
            Ok(asked)
        }
    }
}

/// Sanitises a name chosen by the client.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// Grants a tunnel: TLS with a certificate of the recording, or HTTP, and nothing else.
fn enter_tunnel(mut wire: Wire, slot: &Slot, shared: &ProxyState, url: Url) {
    let ProxyMode::Forward(certificates) = &shared.way else { return };
    let Some(config) = certificates.get(&url.host.to_ascii_lowercase()) else { return };
    wire.within(bounds::HEAD);
    if wire.write(b"HTTP/1.1 200 Connection established\r\n\r\n").is_err() {
        return;
    }
    let Wire::Plain(mut timed) = wire else { return };
    match timed.first_byte() {
        Ok(Some(TLS_HANDSHAKE)) => {
            if let Some(wire) = handshake(timed, config, shared, &url) {
                requests(wire, slot, shared, Some(&url));
            }
        }
        Ok(Some(byte)) if byte.is_ascii_uppercase() => {
            requests(Wire::Plain(timed), slot, shared, Some(&Url { tls: false, ..url }));
        }
        Ok(Some(_)) => {
            let place = format!("{}:{}", url.host, url.port);
            shared.recorder.trouble(format!("refused: what CONNECT takes to {place} is neither TLS nor HTTP"));
        }
        Ok(None) | Err(_) => {}
    }
}

fn handshake(mut timed: DeadlineSocket, config: &Arc<ServerConfig>, shared: &ProxyState, url: &Url) -> Option<Wire> {
    timed.until(Instant::now() + bounds::HEAD);
    match Wire::server(timed, config) {
        Ok(wire) => return Some(wire),
        Err(e) if e.get_ref().is_some_and(|e| e.downcast_ref().is_some_and(is_distrust)) => {
            shared.recorder.trouble(format!("{}: the browser does not trust the recording's certificate", url.host));
        }
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
        Err(e) => shared.recorder.trouble(format!("{}: no TLS with the browser: {e}", url.host)),
    }
    None
}

fn is_distrust(e: &rustls::Error) -> bool {
    matches!(e, rustls::Error::AlertReceived(_))
}
