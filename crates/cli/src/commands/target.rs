//! `lastdrop target`

use anyhow::Result;
use lastdrop_target::{Layers, MasterError, STATUS_PATH};

use crate::args::TargetArgs;
use crate::exit::{Exit, UsageError};

pub fn target(args: TargetArgs) -> Result<Exit> {
    if args.end_with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    }
    let mut flags = toml::Table::new();
    macro_rules! flag {
        ($($name:ident),*) => {
            $(if let Some(value) = args.$name {
                flags.insert(stringify!($name).into(), toml::Value::from(value));
            })*
        };
    }
    flag!(
        listen,
        workers,
        service,
        contention,
        coherency,
        body,
        memory,
        shared_memory,
        leak,
        unshare,
        startup,
        max_requests_per_worker,
        keepalive,
        keepalive_timeout,
        max_keepalive_requests,
        backlog,
        stall_at,
        stall_for,
        error_every,
        close_every,
        reset_every,
        hang_every,
        seed
    );
    // A restart may happen in another directory.
    let absolute = |path: Option<std::path::PathBuf>| path.map(|p| std::path::absolute(&p).unwrap_or(p));
    let log = absolute(args.log.map(Into::into));
    if let Some(log) = log {
        flags.insert("log".into(), log.to_string_lossy().into_owned().into());
    }
    let layers = Layers { file: absolute(args.config), flags, overlay: absolute(args.overlay) };
    let result = lastdrop_target::run(layers, absolute(args.pid_file), |address, config| {
        eprintln!(
            "lastdrop target: http://{address}/ with {} workers; status at http://{address}{STATUS_PATH}?auto; Ctrl-C ends it",
            config.workers
        );
    });
    match result {
        Err(MasterError::Config(e)) => Err(UsageError(e.to_string()).into()),
        other => Ok(other.map(|()| Exit::Done)?),
    }
}
