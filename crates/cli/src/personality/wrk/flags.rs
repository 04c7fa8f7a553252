//! The flags of wrk and wrk2.

use lastdrop_model::bounds::{Bound, DURATION, RATE, THREADS, TIMEOUT, USERS};
use lastdrop_model::request::header_line;

use crate::personality::getopt::{Argument, Opt, Style, opt, parse};
use crate::personality::{Refusal, beyond, out_of_bounds, refuse};
use crate::stdio::{note, out};

/// wrk, or wrk2, whose binary has the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Wrk,
    Wrk2,
}

impl Program {
    fn usage(self) -> &'static str {
        match self {
            Program::Wrk => include_str!("usage.txt"),
            Program::Wrk2 => include_str!("usage2.txt"),
        }
    }

    fn version(self) -> &'static str {
        match self {
            Program::Wrk => "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\n",
            Program::Wrk2 => "wrk 4.0.0 [epoll] Copyright (C) 2012 Will Glozer\n",
        }
    }
}

const TABLE: &[Opt] = &[
    opt('c', "connections", Argument::Required),
    opt('d', "duration", Argument::Required),
    opt('t', "threads", Argument::Required),
    opt('s', "script", Argument::Required),
    opt('H', "header", Argument::Required),
    opt('L', "latency", Argument::None),
    opt('T', "timeout", Argument::Required),
    opt('r', "help", Argument::None),
    opt('v', "version", Argument::None),
    opt('R', "rate", Argument::Required),
    opt('U', "u_latency", Argument::None),
    opt('B', "batch_latency", Argument::None),
];

#[derive(Debug)]
pub struct WrkOptions {
    pub connections: u64,
    pub duration_s: u64,
    pub threads: u64,
    pub timeout_s: u64,
    pub headers: Vec<(String, String)>,
    pub latency: bool,
    /// Also report times from when a request was sent.
    pub uncorrected: bool,
    pub rate: Option<u64>,
    pub url: String,
}

/// Prints wrk's usage, which goes to stdout.
pub fn usage<T>(program: Program, why: &str) -> Result<T, Refusal> {
    if !why.is_empty() {
        note!("{why}");
    }
    out(program.usage());
    refuse(1, "")
}

/// A number with a unit: `1k`, `2m`.
fn with_unit(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let scale = match &text[end..] {
        "" => 1,
        unit => {
            let mut letters = unit.chars();
            let letter = letters.next()?.to_ascii_lowercase();
            if letters.next().is_some() {
                return None;
            }
            units.iter().find(|(u, _)| *u == letter)?.1
        }
    };
    number.checked_mul(scale)
}

fn count(text: &str) -> Option<u64> {
    with_unit(text, &[('k', 1000), ('m', 1_000_000), ('g', 1_000_000_000)])
}

fn seconds(text: &str) -> Option<u64> {
    with_unit(text, &[('s', 1), ('m', 60), ('h', 3600)])
}

pub fn read(program: Program, args: &[String]) -> Result<WrkOptions, Refusal> {
    let parsed = parse("wrk", Style::Long, TABLE, args);
    let mut o = WrkOptions {
        connections: 10,
        duration_s: 10,
        threads: 2,
        timeout_s: 2,
        headers: Vec::new(),
        latency: false,
        uncorrected: false,
        rate: None,
        url: String::new(),
    };
    let (mut complaint, known_to) = (parsed.errors.first().cloned(), parsed.errors_at.first().copied());
    for (at, value) in parsed.options.into_iter().take(known_to.unwrap_or(usize::MAX)) {
        let value = value.unwrap_or_default();
        let flag = format!("-{}", TABLE[at].short);
        let number = |to: &mut u64, read: fn(&str) -> Option<u64>, bound: &'static Bound| {
            beyond("wrk", &flag, &value, bound)?;
            match read(&value) {
                Some(n) if n as f64 > bound.most => out_of_bounds("wrk", &flag, bound.error(&value)),
                Some(n) => {
                    *to = n;
                    Ok(())
                }
                None => usage(program, ""),
            }
        };
        match TABLE[at].long {
            "connections" => number(&mut o.connections, count, USERS)?,
            "duration" => number(&mut o.duration_s, seconds, DURATION)?,
            "threads" => number(&mut o.threads, count, THREADS)?,
            "timeout" => number(&mut o.timeout_s, seconds, TIMEOUT)?,
            "rate" => {
                let mut rate = 0;
                number(&mut rate, count, RATE)?;
                o.rate = Some(rate);
            }
            "header" => match header_line(&value) {
                Ok(header) => o.headers.push(header),
                Err(e) => return refuse(1, format!("wrk: -H: {e}")),
            },
            "latency" => o.latency = true,
            "u_latency" => (o.latency, o.uncorrected) = (true, true),
            // Without pipelining each request is a batch.
            "batch_latency" => {}
            "version" => out(program.version()),
            "script" => {
                return refuse(
                    1,
                    format!(
                        "wrk: -s {value}: Lua is not spoken here. A plan does what scripts are written for: several requests, \
                         bodies, headers, values out of answers; see docs/plan-file.md, then: lastdrop run plan.toml"
                    ),
                );
            }
            _ => {
                complaint.get_or_insert_default();
            }
        }
    }
    if let Some(why) = complaint {
        return usage(program, &why);
    }
    let Some(url) = parsed.words.first() else { return usage(program, "") };
    o.url.clone_from(url);
    if o.threads == 0 || o.duration_s == 0 {
        return usage(program, "");
    }
    if o.connections < o.threads {
        return usage(program, "number of connections must be >= threads");
    }
    if o.rate == Some(0) || program == Program::Wrk2 && o.rate.is_none() {
        return usage(program, "Throughput MUST be specified with the --rate or -R option");
    }
    Ok(o)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_can_do_is_refused_with_its_bound() {
        let order = |text: &str| read(Program::Wrk, &text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        for line in ["-c 4294967306", "-c inf", "-d 99999999999h", "-t 257", "-T nan", "-R 1e300", "-R 11m"] {
            let refusal = order(&format!("{line} http://h/")).expect_err(line);
            assert!(
                refusal.code == 2 && refusal.message.as_str().starts_with(&format!("wrk: {line}: ")),
                "{refusal:?}"
            );
        }
        assert_eq!(order("-c 1m -R 10m -d 1h http://h/").expect("the most").connections, 1_000_000);
    }

    #[test]
    fn wrk2_wants_a_rate() {
        let order = |text: &str| read(Program::Wrk2, &text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        assert!(order("-c 1 -t 1 http://h/").is_err() && order("-c 1 -t 1 -R 0 http://h/").is_err());
        let o = order("-c 1 -t 1 -R 2k -U -B http://h/").expect("valid");
        assert_eq!((o.rate, o.latency, o.uncorrected), (Some(2000), true, true));
    }

    #[test]
    fn numbers_may_have_units() {
        assert_eq!((seconds("2m"), count("1k"), count("x"), seconds("1x")), (Some(120), Some(1000), None, None));
    }
}
