//! Imports curl commands, as browsers copy them ("Copy as cURL", one or all) and as people write them. They are never
//! run, and no file that they name is opened. Each option is kept in the plan, or has no effect on the request, or is
//! reported as left out. An unknown option is an error, because it is also unknown whether it takes a value.

use base64::Engine as _;
use lastdrop_model::Url;
use lastdrop_model::plan::Proxy;
use lastdrop_model::request::check_header;

use super::{
    ImportSettings, ImportedFile, RecordedExchange, RecordingError, RequestBody, UploadedFile, find, is_method, shell,
};

/// Short options, with the long option of each.
const SHORT: &str = "a=append b=cookie c=cookie-jar d=data e=referer f=fail g=globoff h=help i=include j=junk-session-cookies k=insecure \
    l=list-only m=max-time n=netrc o=output p=proxytunnel q=disable r=range s=silent t=telnet-option u=user v=verbose w=write-out x=proxy \
    y=speed-time z=time-cond A=user-agent B=use-ascii C=continue-at D=dump-header E=cert F=form G=get H=header I=head J=remote-header-name \
    K=config L=location M=manual N=no-buffer O=remote-name P=ftp-port Q=quote R=remote-time S=show-error T=upload-file U=proxy-user V=version \
    X=request Y=speed-limit Z=parallel 0=http1.0 1=tlsv1 2=sslv2 3=sslv3 4=ipv4 6=ipv6 #=progress-bar :=next";

/// Options that are kept and take a value.
const KEPT_WITH_VALUE: &str = "cacert cert connect-to cookie cookie-jar data data-ascii data-binary data-raw data-urlencode form form-string \
    header interface json key max-redirs max-time oauth2-bearer proxy proxy-user range referer request request-target resolve unix-socket \
    upload-file url url-query user user-agent";
/// Options that are kept, without a value.
const KEPT: &str = "basic compressed digest get globoff head http1.0 http1.1 insecure ipv4 ipv6 location location-trusted next path-as-is \
    proxytunnel";
/// Options without effect on the request (output, retries, diagnostics), with a value.
const WITHOUT_EFFECT_WITH_VALUE: &str = "create-file-mode dump-header etag-save expect100-timeout happy-eyeballs-timeout-ms keepalive-time \
    libcurl max-filesize output output-dir parallel-max proto proto-default proto-redir retry retry-delay retry-max-time speed-limit \
    speed-time stderr trace trace-ascii trace-config write-out";
/// Such options without a value.
const WITHOUT_EFFECT: &str = "create-dirs disable disallow-username-in-url fail fail-early fail-with-body ftp-create-dirs include no-alpn \
    no-buffer no-clobber no-keepalive no-progress-meter no-sessionid parallel parallel-immediate progress-bar progress-meter buffer keepalive \
    alpn sessionid proxy-basic raw remote-header-name remote-name remote-name-all remote-time remove-on-error retry-all-errors \
    retry-connrefused show-error silent show-headers styled-output suppress-connect-headers tcp-fastopen tcp-nodelay trace-ids trace-time \
    verbose xattr";
/// Options that change the request or its transfer, but do not exist in a plan: reported as left out. With a value.
const LEFT_OUT_WITH_VALUE: &str = "abstract-unix-socket alt-svc aws-sigv4 capath cert-type ciphers connect-timeout continue-at crlfile curves \
    delegation dns-interface dns-ipv4-addr dns-ipv6-addr dns-servers doh-url ech egd-file engine etag-compare hostpubmd5 hostpubsha256 hsts \
    key-type krb limit-rate local-port login-options netrc-file noproxy pass pinnedpubkey preproxy proxy-cacert proxy-capath proxy-cert \
    proxy-cert-type proxy-ciphers proxy-crlfile proxy-header proxy-key proxy-key-type proxy-pass proxy-pinnedpubkey proxy-service-name \
    proxy-tls13-ciphers proxy1.0 pubkey random-file rate sasl-authzid service-name socks4 socks4a socks5 socks5-gssapi-service \
    socks5-hostname telnet-option time-cond tls-max tls13-ciphers tlsauthtype tlspassword tlsuser vlan-priority ip-tos";
/// Such options without a value.
const LEFT_OUT: &str = "anyauth append cert-status crlf doh-cert-status doh-insecure false-start form-escape haproxy-protocol http0.9 http2 \
    http2-prior-knowledge http3 http3-only ignore-content-length junk-session-cookies negotiate netrc netrc-optional ntlm ntlm-wb post301 \
    post302 post303 proxy-anyauth proxy-digest proxy-insecure proxy-negotiate proxy-ntlm proxy-tlsv1 sasl-ir ssl ssl-allow-beast \
    ssl-auto-client-cert ssl-no-revoke ssl-reqd ssl-revoke-best-effort sslv2 sslv3 tlsv1 tlsv1.0 tlsv1.1 tlsv1.2 tlsv1.3 tr-encoding use-ascii";

/// Most URLs from one command's braces and ranges: no person reads a longer list.
const MOST_EXPANDED: usize = 1_000;
/// curl's default limit of redirects.
const REDIRECTS: u32 = 50;
const FORM_TYPE: &str = "application/x-www-form-urlencoded";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OptionEffect {
    Kept,
    Nothing,
    LeftOut,
    Refused,
}

/// An option's effect on a plan, and whether it takes a value.
fn known(name: &str) -> Option<(OptionEffect, bool)> {
    let lists = [
        (KEPT_WITH_VALUE, OptionEffect::Kept, true),
        (KEPT, OptionEffect::Kept, false),
        (WITHOUT_EFFECT_WITH_VALUE, OptionEffect::Nothing, true),
        (WITHOUT_EFFECT, OptionEffect::Nothing, false),
        (LEFT_OUT_WITH_VALUE, OptionEffect::LeftOut, true),
        (LEFT_OUT, OptionEffect::LeftOut, false),
        ("config", OptionEffect::Refused, true),
    ];
    let has = |names: &str| names.split_whitespace().any(|n| n == name);
    lists.into_iter().find(|(names, ..)| has(names)).map(|(_, effect, takes_value)| (effect, takes_value))
}

/// Reads curl commands.
///
/// # Errors
/// The number of the command that does not parse.
pub fn read_curl(text: &str) -> Result<ImportedFile, RecordingError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut all = ImportSettings::default();
    let mut imported = ImportedFile::default();
    for (index, script) in shell::commands(text)?.into_iter().enumerate() {
        let wrong = |what: String| RecordingError(format!("command {}: {what}", index + 1));
        let program = script.words[0].rsplit('/').next().unwrap_or_default();
        if program != "curl" && program != "curl.exe" {
            return Err(wrong(format!("'{}' is not curl", script.words[0])));
        }
        let mut line = CommandLine::default();
        line.command(&script.words[1..]).map_err(wrong)?;
        imported.exchanges.append(&mut line.exchanges);
        all.merge(line.settings, &mut line.left_out);
        if let Some(piped_to) = script.piped_to.filter(|p| !p.is_empty()) {
            line.left_out.push(format!("what its answer is piped to: {piped_to}"));
        }
        imported.left_out.extend(line.left_out.iter().map(|what| format!("command {}: left out: {what}", index + 1)));
    }
    if imported.exchanges.is_empty() {
        return Err(RecordingError("there is no curl command in it".into()));
    }
    all.settle(&mut imported.left_out);
    imported.settings = Some(all);
    Ok(imported)
}

/// The results of one command line.
#[derive(Debug, Default)]
struct CommandLine {
    left_out: Vec<String>,
    settings: ImportSettings,
    exchanges: Vec<RecordedExchange>,
}

/// A piece of the body.
#[derive(Debug, Clone)]
enum BodyPiece {
    Text(String),
    File(String),
}

/// The part of a command between two `--next`, as far as read.
#[derive(Debug, Default)]
struct CurlCommand {
    urls: Vec<String>,
    method: Option<String>,
    /// The data of `-d` goes into the query.
    get: bool,
    head: bool,
    globoff: bool,
    json: bool,
    digest: bool,
    user: Option<String>,
    upload: Option<String>,
    target: Option<String>,
    headers: Vec<(String, String)>,
    /// Default headers that `-H 'Name:'` removes.
    removed: Vec<String>,
    data: Vec<BodyPiece>,
    queries: Vec<String>,
    parts: Vec<(String, String)>,
    files: Vec<UploadedFile>,
    /// `host:port`, and the address to connect to instead.
    resolved: Vec<(String, String)>,
}

impl CommandLine {
    fn command(&mut self, words: &[String]) -> Result<(), String> {
        let mut command = CurlCommand::default();
        let mut rest = words.iter().map(String::as_str);
        let mut only_urls = false;
        while let Some(word) = rest.next() {
            if word == "--" && !only_urls {
                only_urls = true;
            } else if let Some(long) = word.strip_prefix("--").filter(|_| !only_urls) {
                // --request=POST equals --request POST.
                let (name, joined) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
                self.option(&mut command, name, &format!("--{name}"), &mut || joined.or_else(|| rest.next()))?;
            } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty() && !only_urls) {
                // So do -XPOST and -sX POST.
                for (at, letter) in letters.char_indices() {
                    let short = SHORT.split_whitespace().find_map(|pair| pair.strip_prefix(letter)?.strip_prefix('='));
                    let name = short.ok_or_else(|| format!("-{letter} is no option of curl that is known"))?;
                    let joined = Some(&letters[at + letter.len_utf8()..]).filter(|v| !v.is_empty());
                    if self.option(&mut command, name, &format!("-{letter}"), &mut || joined.or_else(|| rest.next()))? {
                        break;
                    }
                }
            } else {
                command.urls.push(word.into());
            }
        }
        self.finish(command)
    }

    /// Handles one option, by its long name; `next` returns its value, if it takes one. Returns whether it did.
    fn option<'a>(
        &mut self,
        command: &mut CurlCommand,
        name: &str,
        written: &str,
        next: &mut dyn FnMut() -> Option<&'a str>,
    ) -> Result<bool, String> {
        // --no-compressed is the default.
        let negated = name.strip_prefix("no-").filter(|positive| known(name).is_none() && known(positive).is_some());
        if negated.is_some() {
            return Ok(false);
        }
        let (effect, takes_value) =
            known(name).ok_or_else(|| format!("{written} is no option of curl that is known"))?;
        let value = if takes_value { next().ok_or_else(|| format!("{written} has no value"))? } else { "" };
        match effect {
            OptionEffect::Nothing => {}
            OptionEffect::LeftOut => {
                let is_shown = takes_value && !["pass", "tls", "sigv4"].iter().any(|part| name.contains(part));
                let shown = if is_shown { format!(" {value}") } else { String::new() };
                self.left_out.push(format!("{written}{shown}, a plan has nothing like it"));
            }
            OptionEffect::Refused => return Err(unopened(written, value)),
            OptionEffect::Kept => self.kept(command, name, written, value)?,
        }
        Ok(takes_value)
    }

    fn kept(&mut self, command: &mut CurlCommand, name: &str, written: &str, value: &str) -> Result<(), String> {
        match name {
            "request" => {
                if value.bytes().any(|b| b.is_ascii_lowercase()) {
                    self.left_out.push(format!("small letters of the method {value}, a plan sends capitals"));
                }
                command.method = Some(value.to_ascii_uppercase());
            }
            "header" if value.starts_with('@') => return Err(unopened(written, value)),
            "header" => match value.split_once(':') {
                // `Name:` removes a default header.
                Some((name, text)) if text.trim().is_empty() => command.removed.push(name.trim().to_string()),
                Some((name, text)) => {
                    check_header(name.trim(), text.trim())?;
                    command.header(name.trim(), text.trim());
                }
                None => {
                    let name = value.trim_end_matches(';');
                    self.left_out.push(format!("the header {name}, a plan has none without a value"));
                }
            },
            "data" | "data-ascii" | "data-binary" | "json" if value.starts_with('@') => {
                if value == "@-" {
                    return Err(format!("{written} @-: stdin is not read; put its content there"));
                }
                if !matches!(name, "data-binary" | "json") {
                    self.left_out.push(format!(
                        "that {written} {value} sends a file without its line ends: the plan sends it whole"
                    ));
                }
                command.json |= name == "json";
                command.data.push(BodyPiece::File(value[1..].to_string()));
            }
            "data" | "data-ascii" | "data-binary" | "data-raw" | "json" => {
                command.json |= name == "json";
                // Texts of several --json are concatenated.
                match command.data.last_mut() {
                    Some(BodyPiece::Text(text)) if name == "json" => text.push_str(value),
                    _ => command.data.push(BodyPiece::Text(value.to_string())),
                }
            }
            "data-urlencode" => command.data.push(BodyPiece::Text(url_encoded(written, value)?)),
            "url-query" => match value.strip_prefix('+') {
                Some(text) => command.queries.push(text.to_string()),
                None => command.queries.push(url_encoded(written, value)?),
            },
            "form" | "form-string" => command.form(written, value, name == "form", &mut self.left_out)?,
            "upload-file" if matches!(value, "-" | ".") => return Err(format!("{written} {value}: stdin is not read")),
            "upload-file" => command.upload = Some(value.to_string()),
            "user" => command.user = Some(value.to_string()),
            "digest" => command.digest = true,
            "basic" | "http1.1" | "path-as-is" => {}
            "oauth2-bearer" => command.header("Authorization", &format!("Bearer {value}")),
            // Without a `=` it is a file of cookies.
            "cookie" if value.contains('=') => command.header("Cookie", value),
            "cookie" if value.is_empty() => self.settings.cookies = true,
            "cookie" => return Err(unopened(written, value)),
            "cookie-jar" => self.settings.cookies = true,
            "referer" => {
                let page = value.strip_suffix(";auto").unwrap_or(value);
                if page != value {
                    self.left_out.push(";auto of the referer".into());
                }
                if !page.is_empty() {
                    command.header("Referer", page);
                }
            }
            "user-agent" if value.is_empty() => command.removed.push("User-Agent".into()),
            "user-agent" => command.header("User-Agent", value),
            "range" => command.header("Range", &format!("bytes={value}")),
            "get" => command.get = true,
            "head" => command.head = true,
            "globoff" => command.globoff = true,
            "url" => command.urls.push(value.to_string()),
            "next" => {
                let whole = std::mem::take(command);
                self.finish(whole)?;
            }
            "request-target" => command.target = Some(value.to_string()),
            "resolve" => {
                let (place, address) = two_and_rest(value, written)?;
                let address = address.split(',').next().unwrap_or_default().trim_matches(['[', ']']);
                command.resolved.push((place.trim_start_matches('+').to_ascii_lowercase(), address.to_string()));
            }
            "connect-to" => {
                let (place, to) = two_and_rest(value, written)?;
                command.resolved.push((place.to_ascii_lowercase(), to.to_string()));
            }
            _ => return self.setting(name, written, value),
        }
        Ok(())
    }

    /// Takes an option about connections.
    fn setting(&mut self, name: &str, written: &str, value: &str) -> Result<(), String> {
        match name {
            "insecure" => self.settings.insecure = true,
            "location" | "location-trusted" => {
                self.settings.redirects = Some(REDIRECTS);
            }
            "max-redirs" => {
                let most = value.parse::<i64>().map_err(|_| format!("{written} {value} is no number"))?;
                self.settings.most_redirects = Some(u32::try_from(most).unwrap_or(100).min(100));
            }
            "compressed" => self.settings.compressed = true,
            "http1.0" => self.settings.http10 = true,
            "ipv4" => self.settings.family = Some(4),
            "ipv6" => self.settings.family = Some(6),
            "interface" if value.parse::<std::net::IpAddr>().is_ok() => self.settings.source = Some(value.to_string()),
            "interface" => self.left_out.push(format!("{written} {value}, a plan takes an address (network.sources)")),
            "proxy" if value.starts_with("socks") || value.starts_with("https:") => {
                self.left_out.push(format!("{written}, a plan has only proxies of http"));
            }
            "proxy" if !value.is_empty() => {
                let proxy = if value.contains("://") { value.to_string() } else { format!("http://{value}") };
                proxy.parse::<Proxy>()?;
                self.settings.proxy = Some(proxy);
            }
            "proxy" => {}
            "proxytunnel" => self.settings.proxy_tunnel = true,
            "proxy-user" => self.left_out.push(format!("{written}, write the login into network.proxy")),
            "unix-socket" => self.settings.unix_socket = Some(value.to_string()),
            "cacert" => self.settings.ca = Some(value.to_string()),
            "cert" => {
                let file = value.split_once(':').map_or(value, |(file, _)| file);
                if file != value {
                    self.left_out.push(format!("the password of {written}, a plan reads keys that have none"));
                }
                self.settings.certificate = Some(file.to_string());
            }
            "key" => self.settings.key = Some(value.to_string()),
            "max-time" => {
                let seconds = value.parse::<f64>().ok().filter(|s| s.is_finite() && *s > 0.0);
                self.settings.timeout_s =
                    Some(seconds.ok_or_else(|| format!("{written} {value} is no number of seconds"))?);
            }
            _ => self.left_out.push(written.to_string()),
        }
        Ok(())
    }

    /// Creates the requests of a complete command.
    fn finish(&mut self, mut command: CurlCommand) -> Result<(), String> {
        let mut urls = Vec::new();
        for url in &command.urls {
            if command.globoff {
                urls.push(url.clone());
            } else {
                expand(url, &mut urls)?;
            }
        }
        if urls.is_empty() {
            return Err("it has no URL".into());
        }
        if let Some(user) = command.user.take() {
            if command.digest {
                self.left_out.push("the login of --digest, write digest = \"user:password\" into the request".into());
            } else if find(&command.headers, "authorization").is_none() {
                command.header("Authorization", &basic(&user));
            } else {
                self.left_out.push("-u beside a header Authorization".into());
            }
        }
        let mut headers = command.headers.clone();
        let lacks = |headers: &[(String, String)], name: &str| {
            find(headers, name).is_none() && !command.removed.iter().any(|n| n.eq_ignore_ascii_case(name))
        };
        if command.json {
            for name in ["Content-Type", "Accept"] {
                if lacks(&headers, name) {
                    headers.push((name.into(), "application/json".into()));
                }
            }
        }
        if !command.data.is_empty() && !command.get && lacks(&headers, "content-type") {
            headers.push(("Content-Type".into(), FORM_TYPE.into()));
        }
        // A plan removes a default header by an empty value.
        for name in ["Host", "User-Agent", "Accept"] {
            if command.removed.iter().any(|n| n.eq_ignore_ascii_case(name)) && find(&headers, name).is_none() {
                headers.push((name.into(), String::new()));
            }
        }
        for url in urls {
            let exchange = self.exchange(&command, &url, headers.clone())?;
            self.exchanges.push(exchange);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        command: &CurlCommand,
        url: &str,
        mut headers: Vec<(String, String)>,
    ) -> Result<RecordedExchange, String> {
        let mut url = if url.contains("://") { url.to_string() } else { format!("http://{url}") };
        if let Some(login) = take_login(&mut url)
            && find(&headers, "authorization").is_none()
        {
            headers.push(("Authorization".into(), basic(&login)));
        }
        url.truncate(url.find('#').unwrap_or(url.len()));
        let mut query = command.queries.clone();
        if command.get {
            for data in &command.data {
                match data {
                    BodyPiece::Text(text) => query.push(text.clone()),
                    BodyPiece::File(path) => return Err(unopened("-G -d", path)),
                }
            }
        }
        if !query.is_empty() {
            // A query needs a path before it.
            if url.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?'])) {
                url.push('/');
            }
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&query.join("&"));
        }
        if let Some(path) = command.upload.as_ref().filter(|_| url.ends_with('/')) {
            url.push_str(path.rsplit('/').next().unwrap_or_default());
        }
        let mut url: Url = url.parse().map_err(|e: lastdrop_model::url::UrlError| e.to_string())?;
        if let Some(target) = &command.target {
            url = url.with_path(target);
        }
        let place = format!("{}:{}", url.host.to_ascii_lowercase(), url.port);
        let is_meant = |from: &str| from == place || from == format!("*:{}", url.port) || from == ":";
        if let Some((_, to)) = command.resolved.iter().find(|(from, _)| is_meant(from)) {
            if find(&headers, "host").is_none() {
                headers.push(("Host".into(), url.authority()));
            }
            if url.tls {
                self.settings.server_name = Some(url.host.clone());
            }
            // An address, or a host and a port.
            let with_port = to.rsplit_once(':').filter(|_| to.parse::<std::net::Ipv6Addr>().is_err());
            let (host, port) = with_port.unwrap_or((to, ""));
            let host = host.trim_matches(['[', ']']);
            if !host.is_empty() {
                url.host = host.to_string();
            }
            url.port = port.parse().unwrap_or(url.port);
            // The replaced part has not been validated yet.
            url.to_string()
                .parse::<Url>()
                .map_err(|e| format!("--resolve or --connect-to leads to {to:?}, and that is no server: {e}"))?;
        }
        let content_type = find(&headers, "content-type").unwrap_or_default().to_string();
        let sends_data = !command.data.is_empty() && !command.get;
        let body = match command.data.as_slice() {
            _ if !command.parts.is_empty() => RequestBody::Multipart(command.parts.clone()),
            _ if command.upload.is_some() => RequestBody::File(command.upload.clone().unwrap_or_default()),
            _ if !sends_data => RequestBody::Nothing,
            [BodyPiece::File(path)] => RequestBody::File(path.clone()),
            all => {
                let text = |data: &BodyPiece| match data {
                    BodyPiece::Text(text) => Ok(text.clone()),
                    BodyPiece::File(path) => Err(unopened("-d", path)),
                };
                RequestBody::of(&content_type, all.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("&"))
            }
        };
        let natural = match &body {
            _ if command.head => "HEAD",
            RequestBody::File(_) if command.upload.is_some() => "PUT",
            RequestBody::Nothing if !sends_data => "GET",
            _ => "POST",
        };
        let method = command.method.clone().unwrap_or_else(|| natural.into());
        if !is_method(&method) {
            return Err(format!("'{method}' is no method"));
        }
        Ok(RecordedExchange {
            headers,
            body,
            files: command.files.clone(),
            is_exact: true,
            ..RecordedExchange::of(&method, url)
        })
    }
}

impl CurlCommand {
    fn header(&mut self, name: &str, value: &str) {
        self.headers.push((name.to_string(), value.to_string()));
    }

    /// Parses `name=text` or `name=@file`, either with `;type=text/plain` and `;filename=x`.
    fn form(&mut self, written: &str, text: &str, is_form: bool, left_out: &mut Vec<String>) -> Result<(), String> {
        let (name, content) = text.split_once('=').ok_or_else(|| format!("{written} takes name=value"))?;
        if !is_form {
            self.parts.push((name.to_string(), content.to_string()));
            return Ok(());
        }
        if content.starts_with('<') {
            return Err(unopened(written, content));
        }
        let is_file = content.starts_with('@');
        let content = content.strip_prefix('@').unwrap_or(content);
        let (value, mut rest) = match content.strip_prefix('"').and_then(|r| r.split_once('"')) {
            Some(quoted) => quoted,
            None => content.split_at(content.find(';').unwrap_or(content.len())),
        };
        let mut file = UploadedFile::default();
        while let Some(more) = rest.strip_prefix(';') {
            let end = more.find(';').unwrap_or(more.len());
            let (key, setting) = more[..end].trim().split_once('=').unwrap_or((more[..end].trim(), ""));
            let setting = setting.trim_matches('"').to_string();
            match key {
                "type" => file.content_type = Some(setting),
                "filename" => file.name = Some(setting),
                _ => left_out.push(format!(";{} of the part {name}", &more[..end])),
            }
            rest = &more[end..];
        }
        for value in if is_file { value.split(',').collect() } else { vec![value] } {
            if is_file && value == "-" {
                return Err(format!("{written} {name}=@-: stdin is not read"));
            }
            file.part = self.parts.len();
            file.path = is_file.then(|| value.to_string());
            if file != (UploadedFile { part: file.part, ..UploadedFile::default() }) {
                self.files.push(file.clone());
            }
            self.parts.push((name.to_string(), if is_file { String::new() } else { value.to_string() }));
        }
        Ok(())
    }
}

fn unopened(option: &str, file: &str) -> String {
    format!("{option} {file}: no other file is opened; put its content there")
}

fn basic(login: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login))
}

/// Removes the login before the host from a URL, and returns it.
fn take_login(url: &mut String) -> Option<String> {
    let start = url.find("://")? + 3;
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |n| start + n);
    let at = start + url[start..end].rfind('@')?;
    let login = url[start..at].to_string();
    url.replace_range(start..=at, "");
    Some(login)
}

/// Splits `host:port:rest` into the first two and the rest.
fn two_and_rest<'a>(value: &'a str, written: &str) -> Result<(&'a str, &'a str), String> {
    let wrong = || format!("{written} {value} is not host:port:address");
    let first = value.find(':').ok_or_else(wrong)?;
    let second = first + 1 + value[first + 1..].find(':').ok_or_else(wrong)?;
    Ok((&value[..second], &value[second + 1..]))
}

/// Percent-encodes `content`, `=content` or `name=content`; files are not read.
fn url_encoded(written: &str, text: &str) -> Result<String, String> {
    let at = text.find(['=', '@']);
    match at.map(|at| (&text[..at], &text[at..=at], &text[at + 1..])) {
        Some((_, "@", _)) => Err(unopened(written, text)),
        Some(("", _, content)) => Ok(percent(content)),
        Some((name, _, content)) => Ok(format!("{name}={}", percent(content))),
        None => Ok(percent(text)),
    }
}

fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Expands a URL with `{one,two}` and `[1-10]` as curl does.
fn expand(url: &str, to: &mut Vec<String>) -> Result<(), String> {
    let mut done = vec![String::new()];
    let mut rest = url;
    while let Some(at) = rest.find(['{', '[', '\\']) {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        done.iter_mut().for_each(|url| url.push_str(before));
        let open = rest.as_bytes()[at];
        let is_address = |inside: &str| inside.parse::<std::net::Ipv6Addr>().is_ok();
        if open == b'\\' {
            let escaped = after.chars().next().filter(|c| "{}[]".contains(*c));
            done.iter_mut().for_each(|url| url.push(escaped.unwrap_or('\\')));
            rest = escaped.map_or(after, |_| &after[1..]);
        } else if open == b'[' && after.split(']').next().is_some_and(is_address) {
            done.iter_mut().for_each(|url| url.push('['));
            rest = after;
        } else {
            let close = if open == b'{' { '}' } else { ']' };
            let wrong = || {
                let sign = char::from(open);
                format!(
                    "the {sign} in its URL begins neither a list {{a,b}} nor a range [1-10]; with -g it is sent as it is"
                )
            };
            let (inside, behind) = after.split_once(close).ok_or_else(wrong)?;
            let values: Vec<String> = match open {
                b'{' => inside.split(',').map(str::to_string).collect(),
                _ => range(inside).ok_or_else(wrong)?,
            };
            if done.len() * values.len() > MOST_EXPANDED {
                return Err(format!("the braces and ranges of its URL are more than {MOST_EXPANDED} URLs"));
            }
            done = done.iter().flat_map(|url| values.iter().map(move |value| format!("{url}{value}"))).collect();
            rest = behind;
        }
    }
    to.extend(done.into_iter().map(|url| url + rest));
    Ok(())
}

/// Expands `1-10`, `001-100:2` or `a-z`.
fn range(text: &str) -> Option<Vec<String>> {
    let (ends, step) = text.split_once(':').map_or((text, Some(1)), |(ends, step)| (ends, step.parse::<usize>().ok()));
    let (from, to) = ends.split_once('-')?;
    let step = step.filter(|n| *n > 0)?;
    if let (Ok(first), Ok(last)) = (from.parse::<u64>(), to.parse::<u64>()) {
        let width = if from.starts_with('0') { from.len().min(20) } else { 0 };
        let values = (first..=last).step_by(step).take(MOST_EXPANDED + 1);
        return (first <= last).then(|| values.map(|n| format!("{n:0width$}")).collect());
    }
    let letter = |text: &str| text.chars().next().filter(|c| text.len() == 1 && c.is_ascii_alphabetic());
    let (first, last) = (letter(from)?, letter(to)?);
    (first <= last).then(|| (first..=last).step_by(step).map(String::from).collect())
}
