//! Which functions allocate the memory that a class keeps, where the profiler of the language can tell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lastdrop_analyze::code_stacks::CodeStacks;
use lastdrop_model::documents::AllocatingFunction;
use lastdrop_model::plan::ConnectTo;
use lastdrop_server::code::{self, Clock, CodeRequest};
use lastdrop_server::{ServerError, ServerRef, remove_leftover_folders};

use super::memory_classes::ClassPlan;
use super::profile::answered_of;
use crate::lab::LabError;

/// Bounds of the time in which the functions are recorded.
const TIME: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
const MOST_REQUESTS: u64 = 20_000;
const MOST_FUNCTIONS: usize = 20;
/// Functions with a smaller share are left out.
const SMALLEST: f64 = 0.01;

/// Returns the functions that allocate what a class keeps, on a second instance of the server, and a note for the report.
///
/// # Errors
/// If there is no second instance, or the profiler cannot tell.
pub fn functions_of(
    server: &ServerRef,
    class: &ClassPlan,
    users: u32,
    time: Duration,
    stop: &AtomicBool,
) -> Result<(Vec<AllocatingFunction>, String), LabError> {
    remove_leftover_folders();
    let time = time.clamp(TIME.0, TIME.1);
    let url = &class.plan.url;
    let request = CodeRequest { url, language: None, clock: Clock::Cpu, workers: 1, time };
    let template = code::allocations(server, &request)?;
    let mut recorded = template.start(true)?;
    let mut plan = class.load(users, MOST_REQUESTS, time);
    if let Some(address) = recorded.address() {
        plan.network.connect_to = Some(ConnectTo { host: url.host.clone(), port: url.port, address });
    }
    // Warm: what is compiled and cached once is no growth.
    answered_of(&plan, stop)?;
    recorded.begin()?;
    let requests = answered_of(&plan, stop)?;
    if stop.load(Ordering::Relaxed) {
        return Err(LabError::Interrupted);
    }
    if requests == 0 {
        return Err(ServerError::Setting("its second instance did not answer".into()).into());
    }
    let stacks = CodeStacks::of_records(&recorded.finish()?);
    let all = stacks.total() as f64 / requests as f64;
    let function = |row: lastdrop_model::documents::ProfileFunction| {
        let code = row.code?;
        (code.exclusive_share >= SMALLEST).then(|| AllocatingFunction {
            name: code.name,
            file: code.file,
            line: code.line,
            kept_bytes: (code.exclusive_share * all * 10.0).round() / 10.0,
            share: code.exclusive_share,
        })
    };
    let functions = stacks.functions(None).into_iter().filter_map(function).take(MOST_FUNCTIONS).collect();
    let note = format!(
        "functions: {} on a second instance, {requests} requests of `{}`; it counts objects of JavaScript, not the bytes of Buffers",
        template.language().tool(),
        class.name
    );
    Ok((functions, note))
}
