//! Commands of curl, as browsers copy them ("Copy as cURL", one or all). They are read and never run: quotes and escapes are those of a
//! POSIX shell and of bash (`$'…'`), and nothing is expanded.

use lastdrop_model::Url;

use super::{Exchange, RecordingError, Sent};

/// Options that take a value and say nothing that a plan needs.
const IGNORED: [&str; 12] = [
    "-o",
    "--output",
    "--max-time",
    "-m",
    "--connect-timeout",
    "--retry",
    "-w",
    "--write-out",
    "--cacert",
    "-x",
    "--proxy",
    "--resolve",
];

/// Reads commands, each from its `curl` to a line end, `;`, `&` or `&&`.
///
/// # Errors
/// With the number of the command that is not understood.
pub fn read_curl(text: &str) -> Result<Vec<Exchange>, RecordingError> {
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
    let mut number = |most: usize| {
        let mut n = 0;
        for _ in 0..most {
            match chars.peek().and_then(|c| c.to_digit(16)) {
                Some(digit) => n = n * 16 + digit,
                None => break,
            }
            chars.next();
        }
        char::from_u32(n).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    word.push(match c {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'x' => number(2),
        'u' => number(4),
        'U' => number(8),
        c => c,
    });
    Some(())
}

fn command(words: &[String]) -> Result<Exchange, String> {
    let (mut url, mut method, mut get) = (None, None, false);
    let mut headers: Vec<(String, String)> = Vec::new();
    let (mut data, mut parts): (Vec<String>, Vec<(String, String)>) = Default::default();
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        // -XPOST and --request=POST are -X POST.
        let (option, joined) = match word {
            w if w.starts_with("--") => w.split_once('=').map_or((w, None), |(o, v)| (o, Some(v))),
            w if w.starts_with('-') && w.len() > 2 && "XHdFubeAom".contains(&w[1..2]) => (&w[..2], Some(&w[2..])),
            w => (w, None),
        };
        let mut value = || joined.or_else(|| rest.next()).ok_or_else(|| format!("{option} has no value"));
        match option {
            "-X" | "--request" => method = Some(value()?.to_ascii_uppercase()),
            "-H" | "--header" => {
                let line = value()?;
                // `Name:` takes one of curl's own away.
                if let Some((name, text)) = line.split_once(':').filter(|(_, v)| !v.trim().is_empty()) {
                    headers.push((name.trim().to_string(), text.trim().to_string()));
                }
            }
            "-d" | "--data" | "--data-ascii" | "--data-binary" | "--data-raw" | "--json" => {
                let text = value()?;
                if text.starts_with('@') && option != "--data-raw" {
                    return Err(format!("{option} {text}: no other file is opened; put its content there"));
                }
                if option == "--json" {
                    headers.push(("Content-Type".into(), "application/json".into()));
                }
                data.push(text.to_string());
            }
            "--data-urlencode" => {
                let text = value()?;
                let (name, content) = text.split_once('=').ok_or("--data-urlencode takes name=value here")?;
                data.push(format!("{name}={}", percent(content)));
            }
            "-F" | "--form" | "--form-string" => {
                let text = value()?;
                let (name, content) = text.split_once('=').ok_or("-F takes name=value")?;
                let is_file = option != "--form-string" && content.starts_with(['@', '<']);
                parts.push((name.to_string(), if is_file { String::new() } else { content.to_string() }));
            }
            "-u" | "--user" => {
                use base64::Engine as _;
                let login = base64::engine::general_purpose::STANDARD.encode(value()?);
                headers.push(("Authorization".into(), format!("Basic {login}")));
            }
            "-b" | "--cookie" => headers.push(("Cookie".into(), value()?.to_string())),
            "-e" | "--referer" => headers.push(("Referer".into(), value()?.to_string())),
            "-A" | "--user-agent" => headers.push(("User-Agent".into(), value()?.to_string())),
            "-G" | "--get" => get = true,
            "-I" | "--head" => method = Some("HEAD".into()),
            "--url" => url = Some(value()?.to_string()),
            ignored if IGNORED.contains(&ignored) => drop(value()?),
            flag if flag.starts_with('-') => {}
            word => url = Some(word.to_string()),
        }
    }
    let mut url = url.ok_or("it has no URL")?;
    if get && !data.is_empty() {
        url.push_str(if url.contains('?') { "&" } else { "?" });
        url.push_str(&std::mem::take(&mut data).join("&"));
    }
    let url: Url = url.parse().map_err(|e: lastdrop_model::url::UrlError| e.to_string())?;
    let content_type = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("content-type"));
    let content_type = content_type.map_or("application/x-www-form-urlencoded", |(_, v)| v.as_str()).to_string();
    let body = match (parts.is_empty(), data.is_empty()) {
        (false, _) => Sent::Multipart(parts),
        (_, false) => Sent::of(&content_type, data.join("&")),
        _ => Sent::Nothing,
    };
    let method = method.unwrap_or_else(|| if body == Sent::Nothing { "GET" } else { "POST" }.into());
    Ok(Exchange { headers, body, ..Exchange::of(&method, url) })
}

fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
