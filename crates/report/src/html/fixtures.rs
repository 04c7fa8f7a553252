//! Runs for this crate's tests.

use lastdrop_model::run::{End, RUN_SCHEMA, RunBuilder};
use lastdrop_model::{Counts, Generator, KeptPlan, Kind, Plan, Run, Slice, Validity};

/// Returns a run of this many seconds with this many answers per second.
pub(crate) fn run_of(seconds: u32, answers: u64) -> Run {
    let plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
    let mut builder = RunBuilder::new(&plan);
    for second in 0..seconds {
        let mut slice = Slice::new(0, second);
        slice.counts =
            Counts { due: answers, sent: answers, answered: answers, answered_in_time: answers, ..Counts::default() };
        slice.status[200] = answers;
        for i in 0..answers {
            let us = 400 + i * 37 + u64::from(second % 7) * 90;
            slice.record(Kind::Response, us);
            slice.record(Kind::Service, us);
        }
        builder.add(&slice);
    }
    builder.end_phase(0, u64::from(seconds) * 1_000_000, 10);
    Run {
        schema: RUN_SCHEMA.into(),
        id: "cafe0001".into(),
        seed: 1,
        started_unix_ms: 1_700_000_000_000,
        label: String::new(),
        end: End::Finished,
        environment: serde_json::json!({}),
        plan: KeptPlan::from(&plan),
        phases: builder.into_reports(),
        generator: Generator::default(),
        pool: None,
        server: None,
        validity: Validity::default(),
        replay: None,
        joined_log: None,
        anatomy: None,
        agents: Vec::new(),
        marks: Vec::new(),
        objectives: Vec::new(),
    }
}
