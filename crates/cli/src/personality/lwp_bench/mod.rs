//! lwp-bench, the Perl client that was called crashme. None of its flags survive: these are ours.

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
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| tally.take(e));
    let carried = carry_out(&plan, CaptureLevel::Exchanges, &stop, &mut show).map_err(|e| failed("lwp-bench", e))?;
    out(report(&o, &tally, carried.run.phases[0].duration_s));
    remark(manner, &carried.run, "its latency is a mean: half of the requests may have been much slower");
    Ok(0)
}
