//! Hides the secrets of our command line from `ps`.
//!
//! Every user of a machine can read all command lines. The kernel shows the memory that holds the arguments, so lastdrop
//! overwrites the secrets there, as curl does. A reader in the first microseconds after the start still sees them. Only a
//! plan file, or a shell that reads the password from a file, keeps it off the command line.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use lastdrop_model::secrets;

/// The secret part of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secret {
    Whole,
    /// `user:password`
    Login,
    /// `Name: value`, where the name is a secret's; several are separated by `\n`.
    Header,
    /// `name=value`
    Field,
    /// A password before the host, and the values of the query.
    Url,
}

type Table = &'static [(char, &'static str, Secret)];

/// Options of lastdrop itself.
const OWN: Table = &[
    ('\0', "basic", Secret::Login),
    ('\0', "digest", Secret::Login),
    ('\0', "bearer", Secret::Whole),
    ('\0', "token", Secret::Whole),
    ('\0', "proxy", Secret::Url),
    ('\0', "url", Secret::Url),
    ('\0', "to", Secret::Url),
    ('\0', "db", Secret::Url),
    ('\0', "body", Secret::Whole),
    ('\0', "form", Secret::Field),
    ('\0', "part", Secret::Field),
    ('H', "header", Secret::Header),
];
const AB: Table =
    &[('A', "", Secret::Login), ('P', "", Secret::Login), ('C', "", Secret::Whole), ('H', "", Secret::Header)];
/// siege, wrk, httperf: the personalities that take headers.
const OTHERS: Table =
    &[('H', "header", Secret::Header), ('\0', "add-header", Secret::Header), ('\0', "uri", Secret::Url)];

/// Hides the secrets of our command line. `personality` is the program that lastdrop acts as, if any.
pub fn hide_secrets(personality: Option<&str>, args: &[OsString]) {
    let table = match personality {
        None => OWN,
        Some("ab") => AB,
        Some(_) => OTHERS,
    };
    let Some((start, length)) = place_of_arguments() else { return };
    // If the kernel's range is not the length of our arguments, we do not know where they are.
    let lengths: usize = args.iter().map(|a| a.len() + 1).sum();
    if lengths != length {
        return;
    }
    let mut at = start;
    let mut next = None;
    for (i, arg) in args.iter().enumerate() {
        let mut secrets = if i == 0 { Vec::new() } else { secrets_of(table, &arg.to_string_lossy(), &mut next) };
        if arg.to_str().is_none() && !secrets.is_empty() {
            // A replacement character is longer than the bytes that it replaces: hide all of such an argument.
            secrets = the_only(0..arg.len());
        }
        for secret in &secrets {
            // SAFETY: our command line is at `start` and has `length` bytes, says the kernel. The standard library gave us
            // the same arguments, so `at + secret.end` is inside. They are on the writable stack of the main thread, and no
            // other thread runs yet. Nothing holds a reference: the standard library copies them on request.
            unsafe { std::ptr::write_bytes((at + secret.start) as *mut u8, b'*', secret.len()) };
        }
        at += arg.as_bytes().len() + 1;
    }
}

/// Address and length of the arguments of this process: fields 48 and 49 of /proc/self/stat (proc_pid_stat(5)).
fn place_of_arguments() -> Option<(usize, usize)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may have spaces; field 3 follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(48 - 3);
    let (start, end): (usize, usize) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (start > 0 && end > start).then(|| (start, end - start))
}

/// The secret parts of an argument. `next` is the kind of secret that the argument before it announces. A cluster of short
/// options may have two readings: this then hides too much rather than too little, and nothing else depends on it.
fn secrets_of(table: Table, arg: &str, next: &mut Option<Secret>) -> Vec<Range<usize>> {
    if let Some(kind) = next.take() {
        return secrets_in(kind, arg);
    }
    let moved = |by: usize, kind: Secret| -> Vec<Range<usize>> {
        secrets_in(kind, &arg[by..]).into_iter().map(|r| r.start + by..r.end + by).collect()
    };
    if !arg.starts_with('-') || arg == "-" {
        return secrets_in(Secret::Url, arg);
    }
    let name = arg.trim_start_matches('-');
    let dashes = arg.len() - name.len();
    let (long, value) = name.split_once('=').map_or((name, None), |(long, _)| (long, Some(dashes + long.len() + 1)));
    // The original programs accept an unambiguous beginning of an option, and some of them a single dash.
    if let Some((_, _, kind)) =
        table.iter().find(|(_, l, _)| !long.is_empty() && l.starts_with(long) && (dashes > 1 || long.len() > 1))
    {
        match value {
            Some(at) => return moved(at, *kind),
            None => *next = Some(*kind),
        }
    }
    if dashes == 1 {
        for (i, letter) in name.char_indices() {
            if let Some((_, _, kind)) = table.iter().find(|(s, ..)| *s == letter) {
                let at = dashes + i + letter.len_utf8();
                if at < arg.len() {
                    return moved(at, *kind);
                }
                *next = Some(*kind);
            }
        }
    }
    Vec::new()
}

fn the_only(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

fn secrets_in(kind: Secret, text: &str) -> Vec<Range<usize>> {
    match kind {
        Secret::Whole => the_only(0..text.len()),
        Secret::Login => secrets::in_login(text).into_iter().collect(),
        // siege's URLs may have a body: 'http://h/login POST user=u&pass=p'.
        Secret::Url => match text.split_once(' ') {
            Some((url, rest)) => {
                let mut all = secrets::in_url(url);
                all.extend(rest.find(' ').map(|at| url.len() + 1 + at + 1..text.len()));
                all
            }
            None => secrets::in_url(text),
        },
        Secret::Field => text.find('=').map(|at| at + 1..text.len()).into_iter().collect(),
        Secret::Header => match text.split_once(':') {
            // If there are several headers, hide all from the first value on.
            Some((name, _)) if secrets::is_secret(name) || text.contains("\\n") || text.contains('\n') => {
                the_only(name.len() + 1..text.len())
            }
            Some(_) => Vec::new(),
            None => the_only(0..text.len()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn shown(table: Table, line: &str) -> String {
        let mut next = None;
        let words = line.split(' ').map(|word| {
            let mut bytes = word.as_bytes().to_vec();
            for r in secrets_of(table, word, &mut next) {
                bytes[r].fill(b'*');
            }
            String::from_utf8(bytes).expect("whole characters are replaced")
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn secrets_of_a_command_line_are_found_however_they_are_written() {
        for (line, without) in [
            ("run http://h/ --basic u:pw -c 5", "run http://h/ --basic u:** -c 5"),
            ("run --basic=u:pw --bearer tok", "run --basic=u:** --bearer ***"),
            ("run -HAuthorization:x -H Accept:y", "run -HAuthorization:* -H Accept:y"),
            ("run -kH Cookie:a=b", "run -kH Cookie:***"),
            ("run --form p=pw --part f=@x --body {}", "run --form p=** --part f=** --body **"),
            ("run --proxy http://u:pw@h:1 http://h/?token=x", "run --proxy http://u:**@h:1 http://h/?token=*"),
        ] {
            assert_eq!(shown(OWN, line), without);
        }
        assert_eq!(shown(AB, "-n 5 -kA u:pw -C a=b -Pu:pw http://h/"), "-n 5 -kA u:** -C *** -Pu:** http://h/");
        assert_eq!(
            shown(OTHERS, "-add-h Cookie:x --add-header=X:y\\nCookie:z"),
            "-add-h Cookie:* --add-header=X:***********"
        );
    }

    #[test]
    fn every_option_that_takes_a_secret_is_in_the_table() {
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                let Some(value) = arg.get_value_names().and_then(|v| v.first()).map(|v| v.as_str()) else { continue };
                let long = arg.get_long().unwrap_or_default();
                let secret = ["USER:PASSWORD", "TOKEN", "LINE", "FIELD", "PART"].contains(&value)
                    || ["body", "proxy", "url"].contains(&long);
                let known = OWN.iter().any(|(_, l, _)| *l == long);
                assert!(!secret || known, "{} --{long} {value}: ps would show it", command.get_name());
            }
        }
    }
}
