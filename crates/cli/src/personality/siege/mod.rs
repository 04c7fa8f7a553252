//! siege 4.0.7.

mod counts;
mod flags;
mod lines;
mod plan;
mod report;
mod settings;

use lastdrop_experiment::lab::LabError;
use lastdrop_load::LoadError;
use lastdrop_model::{CaptureLevel, Exchange, Failure, RequestOutcome, printable};

use self::counts::SiegeCounts;
use self::flags::read;
use self::plan::{WITH_BODY, plan_of};
use self::report::{ReportBlock, YELLOW, hit_line, show_block, tagged, transaction, write_log};
use self::settings::{Repetitions, SiegeOptions};
use super::{Compatibility, Refusal, carry_out, catch_signals, failed, remark};
use crate::stdio::{err, note, out};

const READ_ERROR: &str = "socket: read error Connection reset by peer sock.c:635: Connection reset by peer\n";

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(args)?;
    let mut users = o.concurrent;
    if users > o.limit {
        users = o.limit;
        let line = "=".repeat(64);
        out(format!(
            "\n{line}\nWARNING: The number of users is capped at {}.  To increase this\n         limit, search your .siegerc file for \
             'limit' and change\n         its value. Make sure you read the instructions there...\n{line}\n",
            o.limit
        ));
    }
    let nothing = o.reps == Some(Repetitions::Times(0));
    // A plan has at least one request, even if siege sends none.
    let plan = match nothing {
        true => plan_of(&SiegeOptions { reps: Some(Repetitions::Times(1)), time: None, ..o.clone() }, users)?,
        false => plan_of(&o, users)?,
    };
    let loud = !o.json && !o.quiet;
    if loud && !o.get {
        err(format!(
            "** SIEGE 4.0.7\n** Preparing {users} concurrent users for battle.\nThe server is now under siege..."
        ));
    }
    // The first output after the announcement ends its line.
    let mut line_open = loud && !o.get && (o.verbose || o.print);
    if nothing {
        err(if line_open { "\n" } else { "" });
        let none = SiegeCounts::default();
        let block = ReportBlock::of(&none, 0.0, compatibility);
        show_block(&o, &block, &none, false);
        write_log(&o, &block, false)?;
        return Ok(0);
    }
    let wires =
        if o.shows_one() { lastdrop_load::preview(&plan).map(|p| p.requests).unwrap_or_default() } else { Vec::new() };
    let stop = catch_signals()?;
    let mut counts = SiegeCounts::default();
    let mut show = |some: &[Exchange]| {
        for e in some {
            counts.take(e);
            let is_line = matches!(e.fate, RequestOutcome::Answered | RequestOutcome::Failed(Failure::Protocol));
            if let Some(wire) = wires.get(e.request as usize) {
                let wire = printable::lossless(wire);
                // siege shows requests that have a body even with -q.
                if WITH_BODY.contains(&plan.requests[e.request as usize].method.as_str()) {
                    out(format!("{wire}\n\n"));
                } else if loud {
                    out(format!("{wire}\n"));
                }
                out(transaction(e.raw.as_deref().unwrap_or_default(), &o));
            } else if loud && o.verbose && is_line {
                out(hit_line(e, &o, &plan));
            }
            let why = match e.fate {
                RequestOutcome::Failed(Failure::Connect) => {
                    let why = printable::line(e.error.as_deref().unwrap_or("Connection failed"));
                    format!("socket: unable to connect sock.c:282: {why}\n")
                }
                RequestOutcome::Failed(Failure::Reset) => READ_ERROR.to_string(),
                _ => continue,
            };
            if std::mem::take(&mut line_open) {
                err("\n");
            }
            err(tagged(YELLOW, "error", &why));
        }
    };
    let wish = if o.shows_one() { CaptureLevel::Answers } else { CaptureLevel::Exchanges };
    let finished = match carry_out(&plan, wish, &stop, &mut show) {
        Err(LabError::Load(LoadError::Resolve { .. })) => {
            // siege resolves the address for each request; one error message is enough.
            err(if line_open { "\n" } else { "" });
            err(tagged(YELLOW, "error", "Address resolution failed at sock.c:158 with the following error:\n"));
            err(tagged(YELLOW, "error", "Name or service not known\n"));
            let lost = SiegeCounts { failed: plan.phases[0].requests.unwrap_or(1), ..SiegeCounts::default() };
            show_block(&o, &ReportBlock::of(&lost, 0.0, compatibility), &lost, false);
            return Ok(0);
        }
        other => other.map_err(|e| failed("siege", e))?,
    };
    if line_open {
        err("\n");
    }
    let aborted = o.failures > 0 && counts.failed >= o.failures;
    if aborted && loud {
        note!("siege aborted due to excessive socket failure; you\ncan change the failure threshold in $HOME/.siegerc");
    }
    let block = ReportBlock::of(&counts, finished.run.phases[0].duration_s, compatibility);
    show_block(&o, &block, &counts, o.time.is_some() || finished.signal.is_some());
    write_log(&o, &block, aborted)?;
    remark(
        compatibility,
        &finished.run,
        "siege has no percentiles and a clock of 10 ms; a closed loop: while the server stalls nobody else asks",
    );
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_no_run_can_do_is_refused_with_its_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let rc = folder.path().join("rc");
        let order = |line: &str, settings: &str| {
            fs::write(&rc, settings).expect("written");
            let words = format!("-R {} {line} http://h/", rc.display());
            read(&words.split_whitespace().map(str::to_string).collect::<Vec<_>>())
        };
        for line in [
            "-d inf",
            "-d 18446744073709551615",
            "-d nan",
            "-t 99999999999H",
            "-t 9999999H",
            "-t inf",
            "-c 99999999999",
            "-r 1e300",
        ] {
            let refusal = order(line, "").expect_err(line);
            assert!(
                refusal.code == 2 && refusal.message.as_str().starts_with(&format!("siege: {line}: ")),
                "{refusal:?}"
            );
        }
        for setting in ["delay = inf", "timeout = 99999999999", "limit = 1e300", "proxy-port = 99999"] {
            let refusal = order("", setting).expect_err(setting);
            let name = setting.split(' ').next().expect("a name");
            assert!(
                refusal.code == 2 && refusal.message.as_str().starts_with(&format!("siege: {name} ")),
                "{refusal:?}"
            );
        }
        let bomb: String = (1..40).map(|i| format!("V{i} = $(V{0})$(V{0})\n", i - 1)).collect();
        assert_eq!(order("", &format!("V0 = {}\n{bomb}", "x".repeat(100))).expect_err("a bomb").code, 2);
        let o = order("-c 2 -r 9999999999", "").expect("each of them is possible");
        assert_eq!(plan_of(&o, 2).expect_err("both are not").code, 2);
    }
}
