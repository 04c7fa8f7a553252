//! lwp-bench, a Perl client once called crashme. Its original flags are lost; these are ours.

mod counts;
mod flags;
mod plan;
mod report;

use lastdrop_model::{CaptureLevel, Exchange};

use self::counts::LwpBenchCounts;
use self::flags::read;
use self::plan::plan_of;
use self::report::report;
use super::{Compatibility, Refusal, carry_out, catch_signals, failed, remark};
use crate::stdio::out;

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(args)?;
    let plan = plan_of(&o)?;
    let stop = catch_signals()?;
    let mut counts = LwpBenchCounts::default();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| counts.take(e));
    let finished = carry_out(&plan, CaptureLevel::Exchanges, &stop, &mut show).map_err(|e| failed("lwp-bench", e))?;
    out(report(&o, &counts, finished.run.phases[0].duration_s));
    remark(compatibility, &finished.run, "its latency is a mean: half of the requests may have been much slower");
    Ok(0)
}
