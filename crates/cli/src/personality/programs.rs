//! The table of personalities, and the choice of one.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;

use lastdrop_model::raw;
use signal_hook::consts::SIGHUP;

use super::{Compatibility, Refusal, ab, http_load, httperf, lwp_bench, siege, wrk};
use crate::exit::Exit;
use crate::{signals, stdio};

/// Runs a personality with its arguments; returns its exit code.
type Main = fn(&[String], Compatibility) -> Result<u8, Refusal>;

const ALL: &[(&str, Main)] = &[
    ("ab", ab::main),
    ("siege", siege::main),
    ("httperf", httperf::main),
    ("http_load", http_load::main),
    ("lwp-bench", lwp_bench::main),
    ("wrk", wrk::main),
    ("wrk2", wrk::main2),
];

/// A personality and its arguments.
#[derive(Debug)]
pub struct Invocation {
    pub name: &'static str,
    main: Main,
    args: Vec<String>,
}

/// The personality named by the program's own name (`argv[0]`) or by its first argument, and the other arguments.
pub fn chosen(args: &[OsString]) -> Option<Invocation> {
    let args: Vec<String> = args.iter().map(|a| raw::text(a.as_bytes())).collect();
    let called = Path::new(args.first()?).file_name()?.to_string_lossy().into_owned();
    let named = |name: &str| ALL.iter().find(|(n, _)| *n == name);
    let ((name, main), skip) = match (named(&called), args.get(1).and_then(|a| named(a))) {
        (Some(found), _) => (found, 1),
        (None, Some(found)) => (found, 2),
        (None, None) => return None,
    };
    Some(Invocation { name, main: *main, args: args[skip..].to_vec() })
}

/// Runs a personality.
pub fn run(chosen: &Invocation) -> ExitCode {
    let (main, args) = (chosen.main, &chosen.args);
    let has = |switch: &str| args.iter().any(|a| a == switch);
    // Some scripts read stdout and stderr together, so only people get the line that the originals do not print.
    let remark = match std::env::var("LASTDROP_REMARK").as_deref() {
        _ if has("--no-remark") => false,
        _ if has("--remark") => true,
        Ok("always") => true,
        Ok("never") => false,
        _ => stdio::err_is_terminal(),
    };
    let compatibility = Compatibility { like_the_original: has("--like-the-original"), remark };
    let own = ["--like-the-original", "--no-remark", "--remark"];
    let args: Vec<String> = args.iter().filter(|a| !own.contains(&a.as_str())).cloned().collect();
    let code = main(&args, compatibility).unwrap_or_else(|refusal| {
        if !refusal.message.as_str().is_empty() {
            stdio::err(refusal.message);
            stdio::err("\n");
        }
        refusal.code
    });
    if signals::is_hung_up() || stdio::has_lost_terminal() {
        return Exit::Signal(SIGHUP).into();
    }
    // A report that could not be written is a failure.
    let lost = stdio::lost_something();
    ExitCode::from(if code == 0 { u8::from(lost) } else { code })
}
