//! A small plan and a second of its run, for tests.

use lastdrop_model::{Counts, KeptPlan, Kind, Plan, Slice};

pub fn some_plan() -> Plan {
    Plan::new("http://127.0.0.1/".parse().expect("valid"), 7)
}

pub fn plan() -> KeptPlan {
    some_plan().into()
}

pub fn second(n: u32) -> Slice {
    let mut s = Slice::new(0, n);
    s.counts = Counts { due: 10, sent: 10, answered: 9, ..Counts::default() };
    s.status[200] = 9;
    for i in 0..9 {
        s.record(Kind::Response, 100 + i);
    }
    s
}
