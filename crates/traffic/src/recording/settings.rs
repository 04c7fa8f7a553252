//! A command line's settings for all its requests: how to connect, and what to do with answers.

use super::write::quoted;

/// Settings of a plan that apply to all requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportSettings {
    pub insecure: bool,
    pub ca: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
    /// The name to verify a server's certificate by, instead of the URL's host.
    pub server_name: Option<String>,
    /// Most redirects to follow.
    pub redirects: Option<u32>,
    /// The limit, if redirects are followed.
    pub most_redirects: Option<u32>,
    pub compressed: bool,
    pub cookies: bool,
    pub http10: bool,
    pub proxy: Option<String>,
    pub proxy_tunnel: bool,
    pub unix_socket: Option<String>,
    pub source: Option<String>,
    pub family: Option<u8>,
    pub timeout_s: Option<f64>,
}

impl ImportSettings {
    /// Adds the settings of another command. A plan has them once for all requests; differences are reported.
    pub(crate) fn merge(&mut self, other: ImportSettings, left_out: &mut Vec<String>) {
        let mut one = |name: &str, own: &mut Option<String>, new: Option<String>| match (&*own, new) {
            (_, None) => {}
            (None, new) => *own = new,
            (Some(old), Some(new)) if *old == new => {}
            (Some(old), Some(new)) => left_out.push(format!("{name} {new}, the plan has {old} for all requests")),
        };
        one("--cacert", &mut self.ca, other.ca);
        one("--cert", &mut self.certificate, other.certificate);
        one("--key", &mut self.key, other.key);
        one("the name of the certificate", &mut self.server_name, other.server_name);
        one("--proxy", &mut self.proxy, other.proxy);
        one("--unix-socket", &mut self.unix_socket, other.unix_socket);
        one("--interface", &mut self.source, other.source);
        self.insecure |= other.insecure;
        self.compressed |= other.compressed;
        self.cookies |= other.cookies;
        self.http10 |= other.http10;
        self.proxy_tunnel |= other.proxy_tunnel;
        self.redirects = self.redirects.max(other.redirects);
        self.most_redirects = self.most_redirects.max(other.most_redirects);
        self.family = self.family.or(other.family);
        self.timeout_s = other.timeout_s.map(|s| self.timeout_s.map_or(s, |own| own.max(s))).or(self.timeout_s);
    }

    /// Resolves combinations that a plan cannot have.
    pub(crate) fn settle(&mut self, left_out: &mut Vec<String>) {
        // curl reads the key from the certificate's file.
        if self.key.is_none() {
            self.key.clone_from(&self.certificate);
        }
        if self.certificate.is_none()
            && let Some(key) = self.key.take()
        {
            left_out.push(format!("left out: --key {key}, there is no --cert"));
        }
        if self.unix_socket.is_some() && (self.proxy.take().is_some() | self.source.take().is_some()) {
            left_out.push("left out: a proxy and a source address beside --unix-socket".into());
        }
    }

    /// Writes the tables of a plan file, `timeout` before them. `own_cookies`: requests have their own Cookie headers.
    pub(crate) fn write(&self, own_cookies: bool, to: &mut String) {
        let text = |value: &Option<String>| value.as_deref().map(quoted);
        if let Some(s) = self.timeout_s {
            to.push_str(&format!("timeout = \"{}ms\"\n", (s * 1e3).round().clamp(1.0, 86_400_000.0)));
        }
        let redirects = self.redirects.map(|n| self.most_redirects.unwrap_or(n));
        to.push_str(&format!("\n[http]\ncookies = {}\n", self.cookies && !own_cookies));
        if let Some(redirects) = redirects {
            to.push_str(&format!("redirects = {redirects}\n"));
        }
        if self.compressed {
            to.push_str("compressed = true\ndecode = true\n");
        }
        if self.http10 {
            to.push_str("version = \"1.0\"\n");
        }
        let lines = |pairs: &[(&str, Option<String>)]| -> String {
            pairs.iter().filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} = {value}\n"))).collect()
        };
        let tables = [
            (
                "network",
                lines(&[
                    ("proxy", text(&self.proxy)),
                    ("proxy_tunnel", self.proxy_tunnel.then(|| "true".into())),
                    ("unix_socket", text(&self.unix_socket)),
                    ("sources", text(&self.source).map(|source| format!("[{source}]"))),
                    ("family", self.family.map(|n| n.to_string())),
                ]),
            ),
            (
                "tls",
                lines(&[
                    ("insecure", self.insecure.then(|| "true".into())),
                    ("ca", text(&self.ca)),
                    ("certificate", text(&self.certificate)),
                    ("key", text(&self.key)),
                    ("server_name", text(&self.server_name)),
                ]),
            ),
        ];
        for (name, lines) in tables.iter().filter(|(_, lines)| !lines.is_empty()) {
            to.push_str(&format!("\n[{name}]\n{lines}"));
        }
    }
}
