//! http_load, 09 March 2016.

mod counts;
mod flags;
mod plan;
mod report;

use lastdrop_model::{CaptureLevel, Exchange};

use self::counts::HttpLoadCounts;
use self::flags::read;
use self::plan::plan_of;
use self::report::report;
use super::{Compatibility, Refusal, carry_out, catch_signals, failed, remark};
use crate::stdio::out;

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(args)?;
    let plan = plan_of(&o)?;
    let stop = catch_signals()?;
    let mut counts = HttpLoadCounts::default();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| counts.take(e, &o, &plan));
    // A checksum needs the bodies of the responses.
    let wish = if o.checksum { CaptureLevel::Answers } else { CaptureLevel::Exchanges };
    let finished = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("http_load", e))?;
    let phase = &finished.run.phases[0];
    out(report(&o, &counts, phase.duration_s, phase.connections.peak));
    remark(
        compatibility,
        &finished.run,
        "http_load has no percentiles and no time from the beginning to the end of a fetch; its fetches include those that failed",
    );
    Ok(0)
}
