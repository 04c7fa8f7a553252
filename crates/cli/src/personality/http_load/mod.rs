//! http_load, 09 March 2016.

mod flags;
mod plan;
mod report;
mod tally;

use lastdrop_model::{CaptureLevel, Exchange};

use self::flags::read;
use self::plan::plan_of;
use self::report::report;
use self::tally::Tally;
use super::{Manner, Refusal, carry_out, catch_signals, failed, remark};
use crate::stdio::out;

pub fn main(args: &[String], manner: Manner) -> Result<u8, Refusal> {
    let o = read(args)?;
    let plan = plan_of(&o)?;
    let stop = catch_signals()?;
    let mut tally = Tally::default();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| tally.take(e, &o, &plan));
    // What is the same and what is not is told by the answers themselves.
    let wish = if o.checksum { CaptureLevel::Answers } else { CaptureLevel::Exchanges };
    let carried = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("http_load", e))?;
    let phase = &carried.run.phases[0];
    out(report(&o, &tally, phase.duration_s, phase.connections.peak));
    remark(
        manner,
        &carried.run,
        "http_load has no percentiles and no time from the beginning to the end of a fetch; its fetches include those that failed",
    );
    Ok(0)
}
