//! The table of programs, and which of them is meant.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;

use lastdrop_model::raw;
use signal_hook::consts::SIGHUP;

use super::{Manner, Refusal, ab, http_load, httperf, lwp_bench, siege, wrk};
use crate::exit::Exit;
use crate::{signals, stdio};

/// Arguments to an exit code, or why not.
type Main = fn(&[String], Manner) -> Result<u8, Refusal>;

const ALL: &[(&str, Main)] = &[
    ("ab", ab::main),
    ("siege", siege::main),
    ("httperf", httperf::main),
    ("http_load", http_load::main),
    ("lwp-bench", lwp_bench::main),
    ("wrk", wrk::main),
    ("wrk2", wrk::main2),
];

/// A personality and what it was asked for.
#[derive(Debug)]
pub struct Chosen {
    pub name: &'static str,
    main: Main,
    args: Vec<String>,
}

/// The personality that is meant, by the name that the program was called under or by its first argument, and the
/// arguments that are for it.
pub fn chosen(args: &[OsString]) -> Option<Chosen> {
    let args: Vec<String> = args.iter().map(|a| raw::text(a.as_bytes())).collect();
    let called = Path::new(args.first()?).file_name()?.to_string_lossy().into_owned();
    let named = |name: &str| ALL.iter().find(|(n, _)| *n == name);
    let ((name, main), skip) = match (named(&called), args.get(1).and_then(|a| named(a))) {
        (Some(found), _) => (found, 1),
        (None, Some(found)) => (found, 2),
        (None, None) => return None,
    };
    Some(Chosen { name, main: *main, args: args[skip..].to_vec() })
}

/// Runs a personality.
pub fn run(chosen: &Chosen) -> ExitCode {
    let (main, args) = (chosen.main, &chosen.args);
    let has = |switch: &str| args.iter().any(|a| a == switch);
    // Scripts read stdout and stderr together: what the originals do not say is for people.
    let remark = match std::env::var("LASTDROP_REMARK").as_deref() {
        _ if has("--no-remark") => false,
        _ if has("--remark") => true,
        Ok("always") => true,
        Ok("never") => false,
        _ => stdio::err_is_terminal(),
    };
    let manner = Manner { like_the_original: has("--like-the-original"), remark };
    let own = ["--like-the-original", "--no-remark", "--remark"];
    let args: Vec<String> = args.iter().filter(|a| !own.contains(&a.as_str())).cloned().collect();
    let code = main(&args, manner).unwrap_or_else(|refusal| {
        if !refusal.message.as_str().is_empty() {
            stdio::err(refusal.message);
            stdio::err("\n");
        }
        refusal.code
    });
    if signals::is_hung_up() || stdio::has_lost_terminal() {
        return Exit::Signal(SIGHUP).into();
    }
    // A report that nobody got is no success.
    let lost = stdio::lost_something();
    ExitCode::from(if code == 0 { u8::from(lost) } else { code })
}
