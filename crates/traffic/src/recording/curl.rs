//! Commands of curl, as browsers copy them ("Copy as cURL", one or all). They are read and never run: quotes and escapes are those of a
//! POSIX shell and of bash (`$'…'`), and nothing is expanded.

use lastdrop_model::Url;

use super::{Exchange, RecordingError, Sent, find, is_method};

/// Letters that take a value; other letters may stand together (`-sSL`).
const SHORT_WITH_VALUE: &str = "AbcCdDeEFhHKmoPQrtTuUwxXyYz";

/// Long options that take a value and say nothing that a plan needs.
const IGNORED: [&str; 52] = [
    "--abstract-unix-socket",
    "--cacert",
    "--capath",
    "--cert",
    "--cert-type",
    "--ciphers",
    "--connect-timeout",
    "--connect-to",
    "--continue-at",
    "--cookie-jar",
    "--curves",
    "--dns-interface",
    "--dns-servers",
    "--doh-url",
    "--dump-header",
    "--expect100-timeout",
    "--happy-eyeballs-timeout-ms",
    "--hostpubmd5",
    "--interface",
    "--ip-tos",
    "--keepalive-time",
    "--key",
    "--key-type",
    "--limit-rate",
    "--local-port",
    "--max-filesize",
    "--max-redirs",
    "--max-time",
    "--noproxy",
    "--output",
    "--output-dir",
    "--pass",
    "--pinnedpubkey",
    "--preproxy",
    "--proto",
    "--proto-default",
    "--proto-redir",
    "--proxy",
    "--proxy-header",
    "--proxy-user",
    "--range",
    "--resolve",
    "--retry",
    "--retry-delay",
    "--retry-max-time",
    "--speed-limit",
    "--speed-time",
    "--stderr",
    "--tls-max",
    "--trace-ascii",
    "--unix-socket",
    "--write-out",
];

/// Reads commands, each from its `curl` to a line end, `;`, `&` or `&&`.
///
/// # Errors
/// With the number of the command that is not understood.
pub fn read_curl(text: &str) -> Result<Vec<Exchange>, RecordingError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let commands = commands(text)?;
    let mut exchanges = Vec::new();
    for (index, words) in commands.iter().enumerate() {
        let wrong = |what: String| RecordingError(format!("command {}: {what}", index + 1));
        if words[0] != "curl" && !words[0].ends_with("/curl") {
            return Err(wrong(format!("'{}' is not curl", words[0])));
        }
        exchanges.push(command(&words[1..]).map_err(wrong)?);
    }
    if exchanges.is_empty() {
        return Err(RecordingError("there is no curl command in it".into()));
    }
    Ok(exchanges)
}

/// Words as a shell would make them.
fn commands(text: &str) -> Result<Vec<Vec<String>>, RecordingError> {
    let (mut all, mut words, mut word): (Vec<Vec<String>>, Vec<String>, Option<String>) = Default::default();
    let mut chars = text.chars().peekable();
    let unclosed = || RecordingError("a quote is not closed".into());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') => {}
                Some('\r') if chars.next_if_eq(&'\n').is_some() => {}
                Some(c) => word.get_or_insert_default().push(c),
                None => {}
            },
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(unclosed)? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '$' if chars.peek() == Some(&'\'') => {
                chars.next();
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(unclosed)? {
                        '\'' => break,
                        '\\' => ansi(&mut chars, word).ok_or_else(unclosed)?,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(unclosed)? {
                        '"' => break,
                        '\\' => match chars.next().ok_or_else(unclosed)? {
                            '\n' => {}
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\n' | ';' | '&' => {
                words.extend(word.take());
                if !words.is_empty() {
                    all.push(std::mem::take(&mut words));
                }
            }
            // cmd.exe's escape, at the end of a line and before its quotes.
            '^' if matches!(chars.peek(), Some('\n' | '\r' | '"')) => {
                return Err(RecordingError(
                    "it is quoted for cmd.exe (^), which is not understood: \"copy as cURL (bash)\" is".into(),
                ));
            }
            '#' if word.is_none() && words.is_empty() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if !words.is_empty() {
        all.push(words);
    }
    Ok(all)
}

/// An escape of `$'…'`.
fn ansi(chars: &mut std::iter::Peekable<std::str::Chars>, word: &mut String) -> Option<()> {
    let c = chars.next()?;
    let c = match c {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'e' | 'E' => '\u{1b}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        'x' => character(digits(chars, 16, 2, 0)),
        'u' => {
            let first = digits(chars, 16, 4, 0);
            // Chromium writes what is beyond 16 bits as two.
            let mut ahead = chars.clone();
            let second = ((0xd800..0xdc00).contains(&first) && ahead.next() == Some('\\') && ahead.next() == Some('u'))
                .then(|| digits(&mut ahead, 16, 4, 0))
                .filter(|second| (0xdc00..0xe000).contains(second));
            match second {
                Some(second) => {
                    *chars = ahead;
                    character(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
                }
                None => character(first),
            }
        }
        'U' => character(digits(chars, 16, 8, 0)),
        c @ '0'..='7' => character(digits(chars, 8, 2, c as u32 - '0' as u32)),
        c => c,
    };
    word.push(c);
    Some(())
}

fn character(n: u32) -> char {
    char::from_u32(n).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A number of at most so many digits, after what is known of it.
fn digits(chars: &mut std::iter::Peekable<std::str::Chars>, base: u32, most: usize, mut n: u32) -> u32 {
    for _ in 0..most {
        let Some(digit) = chars.peek().and_then(|c| c.to_digit(base)) else { break };
        n = n.wrapping_mul(base) + digit;
        chars.next();
    }
    n
}

/// What a command says, as far as it has been read.
#[derive(Debug, Default)]
struct Command {
    url: Option<String>,
    method: Option<String>,
    /// What `-d` has goes into the query.
    get: bool,
    headers: Vec<(String, String)>,
    /// None without any `-d`.
    data: Option<Vec<String>>,
    parts: Vec<(String, String)>,
}

fn command(words: &[String]) -> Result<Exchange, String> {
    let mut command = Command::default();
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        if let Some(long) = word.strip_prefix("--") {
            // --request=POST is --request POST.
            let (name, joined) = long.split_once('=').map_or((word, None), |(n, v)| (&word[..n.len() + 2], Some(v)));
            command.option(name, &mut || joined.or_else(|| rest.next()))?;
        } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
            // So are -XPOST and -sX POST.
            for (at, letter) in letters.char_indices() {
                let joined = Some(&letters[at + letter.len_utf8()..]).filter(|v| !v.is_empty());
                command.option(&format!("-{letter}"), &mut || joined.or_else(|| rest.next()))?;
                if SHORT_WITH_VALUE.contains(letter) {
                    break;
                }
            }
        } else {
            command.address(word)?;
        }
    }
    command.exchange()
}

impl Command {
    fn address(&mut self, url: &str) -> Result<(), String> {
        match &self.url {
            Some(first) => Err(format!("it has two URLs, '{first}' and '{url}' (or an option is not known)")),
            None => {
                self.url = Some(if url.contains("://") { url.into() } else { format!("http://{url}") });
                Ok(())
            }
        }
    }

    fn header(&mut self, name: &str, value: &str) {
        self.headers.push((name.to_string(), value.to_string()));
    }

    /// One option; `next` is its value, if it takes one.
    fn option<'a>(&mut self, option: &str, next: &mut dyn FnMut() -> Option<&'a str>) -> Result<(), String> {
        let mut value = || next().ok_or_else(|| format!("{option} has no value"));
        let unopened = |text: &str| format!("{option} {text}: no other file is opened; put its content there");
        match option {
            "-X" | "--request" => self.method = Some(value()?.to_ascii_uppercase()),
            "-H" | "--header" => {
                let line = value()?;
                if line.starts_with('@') {
                    return Err(unopened(line));
                }
                // `Name:` takes one of curl's own away.
                if let Some((name, text)) = line.split_once(':').filter(|(_, v)| !v.trim().is_empty()) {
                    self.header(name.trim(), text.trim());
                }
            }
            "-d" | "--data" | "--data-ascii" | "--data-binary" | "--data-raw" | "--json" => {
                let text = value()?;
                if text.starts_with('@') && option != "--data-raw" {
                    return Err(unopened(text));
                }
                if option == "--json" {
                    self.header("Content-Type", "application/json");
                    self.header("Accept", "application/json");
                }
                self.data.get_or_insert_default().push(text.to_string());
            }
            "--data-urlencode" => {
                let text = value()?;
                let (name, content) = text.split_once('=').ok_or("--data-urlencode takes name=value here")?;
                let pair = if name.is_empty() { percent(content) } else { format!("{name}={}", percent(content)) };
                self.data.get_or_insert_default().push(pair);
            }
            "-F" | "--form" | "--form-string" => {
                let text = value()?;
                let (name, content) = text.split_once('=').ok_or("-F takes name=value")?;
                let is_file = option != "--form-string" && content.starts_with(['@', '<']);
                self.parts.push((name.to_string(), if is_file { String::new() } else { content.to_string() }));
            }
            "-T" | "--upload-file" | "-K" | "--config" => return Err(unopened(value()?)),
            "-u" | "--user" => {
                use base64::Engine as _;
                let login = base64::engine::general_purpose::STANDARD.encode(value()?);
                self.header("Authorization", &format!("Basic {login}"));
            }
            "--oauth2-bearer" => self.header("Authorization", &format!("Bearer {}", value()?)),
            // Without a `=` it is a file of cookies.
            "-b" | "--cookie" => match value()? {
                pairs if pairs.contains('=') => self.header("Cookie", pairs),
                file => return Err(unopened(file)),
            },
            "-e" | "--referer" => self.header("Referer", value()?),
            "-A" | "--user-agent" => self.header("User-Agent", value()?),
            "-G" | "--get" => self.get = true,
            "-I" | "--head" => self.method = Some("HEAD".into()),
            "--url" => return self.address(value()?),
            ignored if IGNORED.contains(&ignored) => drop(value()?),
            letter if letter.len() == 2 && SHORT_WITH_VALUE.contains(&letter[1..]) => drop(value()?),
            _ => {}
        }
        Ok(())
    }

    fn exchange(self) -> Result<Exchange, String> {
        let mut url = self.url.ok_or("it has no URL")?;
        let mut data = self.data;
        if self.get
            && let Some(data) = data.take()
        {
            url.push_str(if url.contains('?') { "&" } else { "?" });
            url.push_str(&data.join("&"));
        }
        let url: Url = url.parse().map_err(|e: lastdrop_model::url::UrlError| e.to_string())?;
        let content_type = find(&self.headers, "content-type").unwrap_or("application/x-www-form-urlencoded");
        let natural = if data.is_some() || !self.parts.is_empty() { "POST" } else { "GET" };
        let body = match data {
            _ if !self.parts.is_empty() => Sent::Multipart(self.parts),
            Some(data) => Sent::of(content_type, data.join("&")),
            None => Sent::Nothing,
        };
        let method = self.method.unwrap_or_else(|| natural.into());
        if !is_method(&method) {
            return Err(format!("'{method}' is no method"));
        }
        Ok(Exchange { headers: self.headers, body, ..Exchange::of(&method, url) })
    }
}

fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
