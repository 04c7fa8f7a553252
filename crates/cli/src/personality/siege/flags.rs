//! The flags of siege.

use std::path::{Path, PathBuf};

use lastdrop_model::bounds::USERS;

use super::report::{YELLOW, config, tagged};
use super::settings::{Repetitions, SiegeOptions, count, delay, header, reps, time};
use crate::personality::getopt::{Argument, Opt, Style, opt, parse};
use crate::personality::{Refusal, path_of, refuse};
use crate::stdio::{err, note, out};

const USAGE: &str = include_str!("usage.txt");
const COPYRIGHT: &str = "Copyright (C) 2018 by Jeffrey Fulmer, et al.\n\
    This is free software; see the source for copying conditions.\n\
    There is NO warranty; not even for MERCHANTABILITY or FITNESS\nFOR A PARTICULAR PURPOSE.\n";

const TABLE: &[Opt] = &[
    opt('V', "version", Argument::None),
    opt('h', "help", Argument::None),
    opt('v', "verbose", Argument::None),
    opt('q', "quiet", Argument::None),
    opt('C', "config", Argument::None),
    opt('D', "debug", Argument::None),
    opt('N', "no-parser", Argument::None),
    opt('F', "no-follow", Argument::None),
    opt('p', "print", Argument::None),
    opt('g', "get", Argument::None),
    opt('l', "log", Argument::Optional),
    opt('i', "internet", Argument::None),
    opt('b', "benchmark", Argument::None),
    opt('r', "reps", Argument::Required),
    opt('t', "time", Argument::Required),
    opt('f', "file", Argument::Required),
    opt('d', "delay", Argument::Required),
    opt('c', "concurrent", Argument::Required),
    opt('m', "mark", Argument::Required),
    opt('H', "header", Argument::Required),
    opt('R', "rc", Argument::Required),
    opt('A', "user-agent", Argument::Required),
    opt('T', "content-type", Argument::Required),
    opt('j', "json-output", Argument::None),
];

pub fn usage<T>() -> Result<T, Refusal> {
    out(USAGE);
    refuse(0, "SIEGE 4.0.7")
}

/// The settings file, and whether -R names it: the file of -R, SIEGERC, the user's, or the system's.
fn rc_of(options: &[(usize, Option<String>)]) -> (PathBuf, bool) {
    if let Some((_, Some(file))) = options.iter().find(|(at, _)| TABLE[*at].short == 'R') {
        return (PathBuf::from(file), true);
    }
    if let Ok(file) = std::env::var("SIEGERC") {
        return (PathBuf::from(file), false);
    }
    let own = std::env::var("HOME").map(|home| Path::new(&home).join(".siege/siege.conf"));
    match own {
        Ok(file) if file.exists() => (file, false),
        _ => (PathBuf::from("/etc/siege/siegerc"), false),
    }
}

pub fn read(args: &[String]) -> Result<SiegeOptions, Refusal> {
    let parsed = parse("siege", Style::Long, TABLE, args);
    // siege parses its command line twice, the first time up to -R, and prints its errors both times.
    let to_rc = parsed.options.iter().position(|(at, _)| TABLE[*at].short == 'R').unwrap_or(usize::MAX);
    for (e, _) in parsed.errors.iter().zip(&parsed.errors_at).filter(|(_, before)| **before <= to_rc) {
        note!("{e}");
        if e.contains("requires an argument") {
            return usage();
        }
    }
    let mut show = false;
    let (rc, given) = rc_of(&parsed.options);
    let mut o = SiegeOptions::defaults(rc);
    o.read_rc(given)?;
    let mut errors = parsed.errors.iter().zip(parsed.errors_at).peekable();
    for (index, (at, value)) in parsed.options.into_iter().enumerate() {
        while let Some((e, _)) = errors.next_if(|(_, before)| *before <= index) {
            note!("{e}");
        }
        let value = value.unwrap_or_default();
        match TABLE[at].short {
            'V' => return refuse(0, format!("SIEGE 4.0.7\n\n{COPYRIGHT}")),
            'h' => return usage(),
            'v' => o.verbose = true,
            'q' => o.quiet = true,
            'D' => o.debug = true,
            'N' => o.parser = false,
            'F' => o.follow = false,
            'p' => (o.print, o.concurrent, o.reps, o.time) = (true, 1, Some(Repetitions::Times(1)), None),
            'g' => o.get = true,
            'l' => {
                o.logging = true;
                if !value.is_empty() {
                    o.log_file = path_of(&value);
                }
            }
            'i' => o.internet = true,
            'b' => o.benchmark = true,
            'r' => o.reps = reps("-r", &value)?,
            't' => o.time = time("-t", &value)?,
            'f' => o.file = Some(path_of(&value)),
            'd' => o.delay_s = delay("-d", &value)?,
            'c' => o.concurrent = count("-c", &value, USERS)?,
            'm' => {
                o.logging = true;
                o.mark = Some(value);
            }
            'H' => o.headers.push(header("-H", &value)?),
            'A' => o.agent = value,
            'T' => o.content_type = Some(value),
            'j' => o.json = true,
            'C' => show = true,
            _ => {}
        }
    }
    errors.for_each(|(e, _)| note!("{e}"));
    // The last one counts.
    if let Some(url) = parsed.words.last() {
        o.url = Some(url.clone());
    }
    if show {
        out(config(&o));
        return refuse(0, "");
    }
    if o.url.is_none() && o.file.is_none() {
        return usage();
    }
    if let (Some(time), Some(Repetitions::Times(1..))) = (o.time, o.reps) {
        let seconds = time.as_secs();
        err(tagged(
            YELLOW,
            "error",
            &format!(
                "CONFIG conflict: selected time and repetition based testing\ndefaulting to time-based testing: {seconds} \
                 seconds\n"
            ),
        ));
        o.reps = None;
    }
    if o.get {
        (o.concurrent, o.reps, o.time, o.logging) = (1, Some(Repetitions::Times(1)), None, false);
    }
    if o.shows_one() {
        o.parser = false;
    }
    Ok(o)
}
