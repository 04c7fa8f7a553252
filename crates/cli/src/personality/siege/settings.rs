//! The settings of siege, from its file. The command line overrides them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use lastdrop_load::files;
use lastdrop_model::bounds::{Bound, DURATION, PAUSE, REQUESTS, TIMEOUT, USERS};
use lastdrop_model::request::header_line;

use super::report::tagged;
use crate::personality::{Refusal, beyond, host_and_port, out_of_bounds, refuse, whole};

const AGENT: &str = "Mozilla/5.0 (pc-x86_64-linux-gnu) Siege/4.0.7";
/// Limit of a setting's length after its variables are expanded.
const LONGEST_VALUE: usize = 64 << 10;

/// How often each user goes through the URLs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Repetitions {
    Times(u64),
    Once,
}

/// The settings of the file, overridden by the command line.
#[derive(Debug, Clone)]
pub struct SiegeOptions {
    pub rc: PathBuf,
    pub verbose: bool,
    pub quiet: bool,
    pub color: bool,
    pub json: bool,
    pub show_log: bool,
    pub logging: bool,
    pub log_file: PathBuf,
    /// None is GET, whatever -C shows.
    pub get_method: Option<String>,
    pub parser: bool,
    pub follow: bool,
    pub csv: bool,
    pub display_id: bool,
    pub stamp: bool,
    pub full_url: bool,
    pub limit: u64,
    pub http10: bool,
    pub cache: bool,
    pub keep_alive: bool,
    /// Only shown; the engine always reads chunked responses.
    pub chunked: bool,
    pub concurrent: u64,
    pub time: Option<Duration>,
    pub reps: Option<Repetitions>,
    pub file: Option<PathBuf>,
    pub url: Option<String>,
    pub delay_s: f64,
    pub timeout_s: u64,
    pub failures: u64,
    pub internet: bool,
    pub benchmark: bool,
    pub agent: String,
    pub encoding: String,
    pub login: Option<String>,
    pub content_type: Option<String>,
    pub headers: Vec<(String, String)>,
    pub proxy_host: Option<String>,
    pub proxy_port: u16,
    pub proxy_login: Option<String>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub cookies: bool,
    /// Hosts from which page resources are not fetched. The engine only fetches from hosts of the plan anyway.
    pub no_follow: Vec<String>,
    pub mark: Option<String>,
    pub get: bool,
    pub print: bool,
    pub debug: bool,
    pub variables: HashMap<String, String>,
}

/// True for `yes`, `true`, `on` and `1` only.
fn truth(text: &str) -> bool {
    ["true", "yes", "on", "1"].contains(&text.to_ascii_lowercase().as_str())
}

/// `10S`, `5M`, `1H`; minutes without a letter.
pub fn time(flag: &str, text: &str) -> Result<Option<Duration>, Refusal> {
    let number = whole("siege", flag, text, DURATION)?.max(0) as u64;
    let unit = match text.trim().chars().next_back().map(|c| c.to_ascii_uppercase()) {
        Some('S') => 1,
        Some('H') => 3600,
        _ => 60,
    };
    let seconds = number * unit;
    if seconds as f64 > DURATION.most {
        return out_of_bounds("siege", flag, DURATION.error(text));
    }
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// Seconds; 0 if the text is not a number.
pub fn delay(flag: &str, text: &str) -> Result<f64, Refusal> {
    beyond("siege", flag, text, PAUSE)?;
    Ok(text.trim().parse::<f64>().unwrap_or(0.0).max(0.0))
}

/// A request header `Name: value`, from the file or from -H.
pub fn header(setting: &str, text: &str) -> Result<(String, String), Refusal> {
    match header_line(text) {
        Ok(header) => Ok(header),
        Err(_) if !text.contains(':') => refuse(1, tagged("\x1b[1;31m", "fatal", "no ':' in http-header")),
        Err(e) => refuse(1, format!("siege: {setting}: {e}")),
    }
}

/// A whole number, at least 1.
pub fn count(flag: &str, text: &str, bound: &'static Bound) -> Result<u64, Refusal> {
    whole("siege", flag, text, bound).map(|n| n.max(1) as u64)
}

impl SiegeOptions {
    /// The defaults without a file.
    pub fn defaults(rc: PathBuf) -> SiegeOptions {
        SiegeOptions {
            rc,
            verbose: false,
            quiet: false,
            color: true,
            json: false,
            show_log: false,
            logging: false,
            log_file: PathBuf::from("/var/log/log/siege.log"),
            get_method: None,
            parser: false,
            follow: true,
            csv: false,
            display_id: false,
            stamp: false,
            full_url: false,
            limit: 255,
            http10: true,
            cache: false,
            keep_alive: false,
            chunked: false,
            concurrent: 1,
            time: None,
            reps: None,
            file: None,
            url: None,
            delay_s: 0.0,
            timeout_s: 30,
            failures: 1024,
            internet: false,
            benchmark: false,
            agent: AGENT.into(),
            encoding: "*".into(),
            login: None,
            content_type: None,
            headers: Vec::new(),
            proxy_host: None,
            proxy_port: 3128,
            proxy_login: None,
            certificate: None,
            key: None,
            cookies: true,
            no_follow: Vec::new(),
            mark: None,
            get: false,
            print: false,
            debug: false,
            variables: HashMap::new(),
        }
    }

    /// Sets what siege's template says; siege writes it for a user without a settings file.
    fn as_in_the_template(&mut self) {
        (self.verbose, self.json, self.show_log, self.parser, self.chunked) = (true, true, true, true, true);
        (self.http10, self.concurrent) = (false, 25);
        (self.encoding, self.get_method) = ("gzip, deflate".into(), Some("HEAD".into()));
    }

    /// True if siege only shows one transaction.
    pub fn shows_one(&self) -> bool {
        self.get || self.print
    }

    /// One line of the settings file.
    fn set(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let text = || value.to_string();
        match name {
            "verbose" => self.verbose = truth(value),
            "quiet" => self.quiet = truth(value),
            "color" => self.color = truth(value),
            "json_output" => self.json = truth(value),
            "show-logfile" => self.show_log = truth(value),
            "logging" => self.logging = truth(value),
            "logfile" => self.log_file = PathBuf::from(value),
            "gmethod" => self.get_method = Some(text()),
            "parser" => self.parser = truth(value),
            "follow-location" => self.follow = truth(value),
            "csv" => self.csv = truth(value),
            "display-id" => self.display_id = truth(value),
            "chunked" => self.chunked = truth(value),
            "timestamp" => self.stamp = truth(value),
            "fullurl" => self.full_url = truth(value),
            "limit" => self.limit = count(name, value, USERS)?,
            "protocol" => self.http10 = value.eq_ignore_ascii_case("HTTP/1.0"),
            "cache" => self.cache = truth(value),
            "connection" => self.keep_alive = value.eq_ignore_ascii_case("keep-alive"),
            "concurrent" => self.concurrent = count(name, value, USERS)?,
            "time" => self.time = time(name, value)?,
            "reps" => self.reps = reps(name, value)?,
            "file" => self.file = Some(PathBuf::from(value)),
            "url" => self.url = Some(text()),
            "delay" => self.delay_s = delay(name, value)?,
            "timeout" => self.timeout_s = count(name, value, TIMEOUT)?,
            "failures" => self.failures = whole("siege", name, value, REQUESTS)?.max(0) as u64,
            "internet" => self.internet = truth(value),
            "benchmark" => self.benchmark = truth(value),
            "user-agent" => self.agent = text(),
            "accept-encoding" => self.encoding = text(),
            "login" => self.login = Some(text()),
            "proxy-host" => self.proxy_host = Some(text()),
            "proxy-port" => (_, self.proxy_port) = host_and_port("siege", name, &format!(":{value}"))?,
            "proxy-login" => self.proxy_login = Some(text()),
            "ssl-cert" => self.certificate = Some(PathBuf::from(value)),
            "ssl-key" => self.key = Some(PathBuf::from(value)),
            "nofollow" => self.no_follow.push(text()),
            "header" => self.headers.push(header(&format!("header in {}", self.rc.display()), value)?),
            "cookies" => self.cookies = truth(value),
            "login-url" | "ftp-login" | "ssl-ciphers" => {
                let instead = match name {
                    "login-url" => "a plan with a request that is sent once does this: see docs/plan-file.md",
                    "ftp-login" => "FTP is not spoken here",
                    _ => "cipher suites cannot be chosen here",
                };
                return refuse(1, format!("siege: {name} in {}: {instead}", self.rc.display()));
            }
            other => {
                self.variables.insert(other.to_string(), text());
            }
        }
        Ok(())
    }

    pub fn read_rc(&mut self, given: bool) -> Result<(), Refusal> {
        let Ok(text) = files::read_text(&self.rc) else {
            if !given {
                // siege would write its template and read that.
                self.as_in_the_template();
                return Ok(());
            }
            let stars = "*".repeat(50);
            return refuse(
                1,
                format!(
                    "{stars}\nsiege: could not open {}\nrun 'siege.config' to generate a new config file\n{stars}",
                    self.rc.display()
                ),
            );
        };
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                let mut value = value.trim().to_string();
                for (from, to) in &self.variables {
                    // Each line could double the length of the one before.
                    if value.matches(from.as_str()).count() * to.len() > LONGEST_VALUE {
                        return refuse(2, format!("siege: {}: {name}: '{from}' makes it too long", self.rc.display()));
                    }
                    value = value.replace(&format!("$({from})"), to).replace(&format!("${{{from}}}"), to);
                }
                if let Ok(home) = std::env::var("HOME") {
                    value = value.replace("$(HOME)", &home).replace("${HOME}", &home);
                }
                self.set(name.trim(), &value)?;
            }
        }
        Ok(())
    }
}

pub fn reps(flag: &str, text: &str) -> Result<Option<Repetitions>, Refusal> {
    match text {
        "once" => Ok(Some(Repetitions::Once)),
        n => Ok(Some(match whole("siege", flag, n, REQUESTS)? {
            // siege's own number for `once`.
            -1 => Repetitions::Once,
            // Text that is not a number is 0: siege ends at once.
            n => Repetitions::Times(n.max(0) as u64),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_repetitions_are_read() {
        let time = |text: &str| time("-t", text).expect("within bounds").map(|t| t.as_secs());
        assert_eq!((time("10S"), time("2"), time("1h"), time("x")), (Some(10), Some(120), Some(3600), None));
        let reps = |text: &str| reps("-r", text).expect("within bounds");
        assert_eq!(
            (reps(""), reps("x"), reps("-1")),
            (Some(Repetitions::Times(0)), Some(Repetitions::Times(0)), Some(Repetitions::Once))
        );
        assert_eq!(
            (reps("once"), reps("3"), reps("0")),
            (Some(Repetitions::Once), Some(Repetitions::Times(3)), Some(Repetitions::Times(0)))
        );
    }
}
