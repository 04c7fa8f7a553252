//! The flags of ab, in the order of its own table.

use std::fs;
use std::path::PathBuf;

use lastdrop_load::describe;
use lastdrop_model::Url;
use lastdrop_model::bounds::{BUFFER, DURATION, REQUESTS, TIMEOUT, USERS};

use crate::personality::getopt::{Argument, Opt, Style, atoi, opt, parse};
use crate::personality::{Refusal, base64, host_and_port, path_of, refuse, whole};
use crate::stdio::{note, out};

const USAGE: &str = include_str!("usage.txt");
pub const BANNER: &str = "This is ApacheBench, Version 2.3 <$Revision$>\n\
    Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/\n\
    Licensed to The Apache Software Foundation, http://www.apache.org/\n\n";
pub const HTML_BANNER: &str = "<p>\n This is ApacheBench, Version 2.3 <i>&lt;$Revision$&gt;</i><br>\n \
    Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/<br>\n \
    Licensed to The Apache Software Foundation, http://www.apache.org/<br>\n</p>\n<p>\n";
/// The value that -t sets for -n.
const REQUESTS_OF_A_TIME: i64 = 50_000;
const MAX_CONCURRENCY: i64 = 200_000;

const TABLE: &[Opt] = &[
    value('n'),
    value('c'),
    value('t'),
    value('s'),
    value('b'),
    value('T'),
    value('p'),
    value('u'),
    value('v'),
    flag('l'),
    flag('r'),
    flag('k'),
    flag('V'),
    flag('h'),
    flag('w'),
    flag('i'),
    flag('I'),
    value('x'),
    value('y'),
    value('z'),
    value('C'),
    value('H'),
    value('P'),
    value('A'),
    value('g'),
    value('X'),
    flag('d'),
    value('e'),
    flag('S'),
    flag('q'),
    value('B'),
    value('m'),
    value('Z'),
    value('f'),
    value('E'),
];

const fn value(short: char) -> Opt {
    opt(short, "", Argument::Required)
}

const fn flag(short: char) -> Opt {
    opt(short, "", Argument::None)
}

#[derive(Debug, Default)]
pub struct AbOptions {
    pub requests: i64,
    pub concurrency: i64,
    pub limit_s: i64,
    pub timeout_s: i64,
    pub window: Option<u32>,
    pub method: Option<String>,
    pub body: Option<(PathBuf, u64)>,
    pub content_type: Option<String>,
    pub verbosity: i64,
    pub any_length: bool,
    pub go_on: bool,
    pub keep_alive: bool,
    pub html: bool,
    pub attributes: [String; 3],
    /// The last one counts.
    pub cookie: Option<String>,
    pub headers: Vec<String>,
    /// Header lines with credentials for servers and proxies; all of them are sent.
    pub logins: Vec<String>,
    pub proxy: Option<(String, u16)>,
    pub no_percentiles: bool,
    pub no_confidence: bool,
    pub quiet: bool,
    pub gnuplot: Option<String>,
    pub csv: Option<String>,
    pub bind: Option<String>,
    pub no_sni: bool,
    pub protocol: Option<String>,
    pub certificate: Option<PathBuf>,
    pub url: String,
}

impl AbOptions {
    /// The number of requests between two progress lines on stderr; None if there are no such lines.
    pub fn heartbeat(&self) -> Option<u64> {
        (!self.quiet && self.requests > 150).then(|| (self.requests as u64 / 10).max(100))
    }
}

pub fn usage<T>(why: &str) -> Result<T, Refusal> {
    let why = if why.is_empty() { String::new() } else { format!("ab: {why}\n") };
    refuse(22, format!("{why}{}", USAGE.trim_end()))
}

pub fn read(args: &[String]) -> Result<AbOptions, Refusal> {
    let parsed = parse("ab", Style::Apr, TABLE, args);
    let mut o = AbOptions { requests: 1, concurrency: 1, timeout_s: 30, ..AbOptions::default() };
    let wrong = |text: &str| refuse(1, format!("{text}\n"));
    let whole = |flag: &str, text: &str, bound| whole("ab", flag, text, bound);
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        match TABLE[at].short {
            'n' => {
                o.requests = whole("-n", &value, REQUESTS)?;
                if o.requests <= 0 {
                    return wrong("Invalid number of requests");
                }
            }
            'c' => o.concurrency = whole("-c", &value, USERS)?,
            't' => {
                o.limit_s = whole("-t", &value, DURATION)?;
                // As in ab, a later -n overrides this, and an earlier one has no effect.
                o.requests = REQUESTS_OF_A_TIME;
            }
            's' => o.timeout_s = whole("-s", &value, TIMEOUT)?,
            'b' => o.window = u32::try_from(whole("-b", &value, BUFFER)?).ok().filter(|n| *n > 0),
            'T' => o.content_type = Some(value),
            letter @ ('p' | 'u') => {
                let method = if letter == 'p' { "POST" } else { "PUT" };
                if o.method.is_some() {
                    return wrong(&format!("Cannot mix {method} with other methods"));
                }
                let data = fs::metadata(&value).and_then(|m| fs::File::open(&value).map(|_| m.len()));
                match data {
                    Ok(length) => o.body = Some((path_of(&value), length)),
                    Err(e) => {
                        return refuse(1, format!("ab: Could not open POST data file ({value}): {}", describe(&e)));
                    }
                }
                o.method = Some(method.into());
            }
            'i' => {
                if o.method.is_some() {
                    return wrong("Cannot mix HEAD with other methods");
                }
                o.method = Some("HEAD".into());
            }
            'm' => o.method = Some(value),
            'v' => o.verbosity = atoi(&value),
            'l' => o.any_length = true,
            'r' => o.go_on = true,
            'k' => o.keep_alive = true,
            'w' => o.html = true,
            letter @ ('x' | 'y' | 'z') => {
                o.html = true;
                o.attributes[letter as usize - 'x' as usize] = value;
            }
            'C' => o.cookie = Some(value),
            'H' => o.headers.push(value),
            'A' => o.logins.push(format!("Authorization: Basic {}", base64(value.trim_start()))),
            'P' => o.logins.push(format!("Proxy-Authorization: Basic {}", base64(value.trim_start()))),
            'X' => o.proxy = Some(host_and_port("ab", "-X", &value)?),
            'd' => o.no_percentiles = true,
            'S' => o.no_confidence = true,
            'q' => o.quiet = true,
            'g' => o.gnuplot = Some(value),
            'e' => o.csv = Some(value),
            'B' => o.bind = Some(value),
            'I' => o.no_sni = true,
            'f' => o.protocol = Some(value.to_ascii_uppercase()),
            'E' => {
                if let Err(e) = fs::File::open(&value) {
                    return refuse(1, format!("unable to get certificate from '{value}': {}", describe(&e)));
                }
                o.certificate = Some(path_of(&value));
            }
            'Z' => {
                return refuse(
                    1,
                    "ab: -Z: cipher suites cannot be chosen here; leave it away, or choose a protocol with -f",
                );
            }
            'h' => return usage(""),
            'V' => {
                out(if o.html { HTML_BANNER } else { BANNER });
                return refuse(0, "");
            }
            _ => {}
        }
    }
    // ab prints an error for an unknown option, and treats the words after it as arguments.
    for e in &parsed.errors {
        note!("{e}");
    }
    let [url] = parsed.words.as_slice() else { return usage("wrong number of arguments") };
    o.url.clone_from(url);
    if o.concurrency < 0 || o.concurrency > MAX_CONCURRENCY {
        return usage(&format!("Invalid Concurrency [Range 0..{MAX_CONCURRENCY}]"));
    }
    if o.concurrency > o.requests {
        return usage("Cannot use concurrency level greater than total number of requests");
    }
    Ok(o)
}

/// Host, port and path as ab reads them; None without a path.
pub fn read_url(text: &str) -> Option<Url> {
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, rest) => (false, rest.unwrap_or(text)),
    };
    let (authority, path) = rest.split_at(rest.find('/')?);
    let url: Url = format!("{}://{authority}/", if tls { "https" } else { "http" }).parse().ok()?;
    // ab sends the path unchanged.
    Some(url.with_path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn the_place_of_t_on_the_line_matters() {
        assert_eq!(read(&words("-t 10 -n 1000000 http://h/")).expect("valid").requests, 1_000_000);
        assert_eq!(read(&words("-n 1000000 -t 10 http://h/")).expect("valid").requests, 50_000);
        assert_eq!(read(&words("-c 5 -n 2 http://h/")).expect_err("wrong").code, 22);
        assert_eq!(read(&words("-n x http://h/")).expect_err("wrong").code, 1);
        for line in ["-n 99999999999", "-c inf", "-t 1e300", "-s nan", "-b 9999999999", "-X h:70000"] {
            let refusal = read(&words(&format!("{line} http://h/"))).expect_err(line);
            assert!(
                refusal.code == 2 && refusal.message.as_str().contains(&format!("ab: {}", &line[..2])),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn a_path_is_wanted() {
        assert!(read_url("127.0.0.1:80").is_none() && read_url("127.0.0.1:80/").is_some());
        let odd = read_url("http://h:81/a b<\"#?").expect("valid");
        assert_eq!((odd.host.as_str(), odd.port, odd.path.as_str()), ("h", 81, "/a b<\"#?"));
        assert!(read_url("https://[::1]:443/x").is_some_and(|u| u.tls && u.host == "::1"));
    }
}
