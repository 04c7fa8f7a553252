//! siege 4.0.7.

mod flags;
mod plan;
mod report;
mod settings;
mod tally;

use lastdrop_lab::LabError;
use lastdrop_load::LoadError;
use lastdrop_model::{Exchange, Failure, Fate, Wish, printable};

use self::flags::read;
use self::plan::plan_of;
use self::report::{Block, YELLOW, hit_line, show_block, tagged, transaction, write_log};
use self::tally::Tally;
use super::{Manner, Refusal, carry_out, catch_signals, failed, first_wire, remark};
use crate::stdio::{err, note, out};

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
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
    let plan = plan_of(&o, users)?;
    let loud = !o.json && !o.quiet;
    if loud && !o.get {
        err(format!(
            "** SIEGE 4.0.7\n** Preparing {users} concurrent users for battle.\nThe server is now under siege..."
        ));
    }
    if o.get || o.print {
        let wire = first_wire(&plan);
        if !o.json && !o.quiet {
            out(format!("{}\n", printable::lossless(&wire)));
        }
    }
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut aborted = false;
    // The line on which the siege was announced is ended by the first thing that follows.
    let mut line_open = loud && !o.get && (o.verbose || o.print);
    let mut show = |some: &[Exchange]| {
        for e in some {
            tally.take(e);
            if let (true, Some(raw)) = (o.get || o.print, &e.raw) {
                out(transaction(raw, &o));
            } else if loud && o.verbose && e.fate == Fate::Answered && !o.get && !o.print {
                out(hit_line(e, &o, &plan));
            }
            if e.fate == Fate::Failed(Failure::Connect) {
                if std::mem::take(&mut line_open) {
                    err("\n");
                }
                let why = printable::line(e.error.as_deref().unwrap_or("Connection failed"));
                err(tagged(YELLOW, "error", &format!("socket: unable to connect sock.c:282: {why}\n")));
            }
            if tally.failed >= o.failures && !aborted {
                aborted = true;
                stop.end();
            }
        }
    };
    let wish = if o.get || o.print { Wish::Answers } else { Wish::Exchanges };
    let carried = match carry_out(&plan, wish, &stop, &mut show) {
        Err(LabError::Load(LoadError::Resolve { .. })) => {
            // siege asks for the address again for each request; one failure says as much.
            err(if line_open { "\n" } else { "" });
            err(tagged(YELLOW, "error", "Address resolution failed at sock.c:158 with the following error:\n"));
            err(tagged(YELLOW, "error", "Name or service not known\n"));
            let lost = Tally { failed: plan.phases[0].requests.unwrap_or(1), ..Tally::default() };
            show_block(&o, &Block::of(&lost, 0.0, manner), &lost, false);
            return Ok(0);
        }
        other => other.map_err(|e| failed("siege", e))?,
    };
    if line_open {
        err("\n");
    }
    if aborted {
        note!("siege aborted due to excessive socket failure; you\ncan change the failure threshold in $HOME/.siegerc");
    }
    let block = Block::of(&tally, carried.run.phases[0].duration_s, manner);
    show_block(&o, &block, &tally, o.time.is_some() || carried.signal.is_some());
    write_log(&o, &block)?;
    remark(
        manner,
        &carried.run,
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
