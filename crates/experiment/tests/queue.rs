//! Tests the whole path from arrivals to the report against queueing theory, in simulated time.

mod mmw;

use mmw::{erlang, simulate};

#[test]
fn erlangs_formulas_are_right_where_they_are_known() {
    // M/M/1: mean s/(1 − ρ), p99 = mean · ln 100.
    let r = erlang(1, 0.8, 1.0);
    assert!((r.mean - 5.0).abs() < 1e-9 && (r.p99 - 5.0 * 100f64.ln()).abs() < 1e-6, "{r:?}");
    // M/M/2 at ρ = ½: C = 1/3, mean = 1 + 1/3.
    assert!((erlang(2, 0.5, 1.0).mean - 4.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_queue_in_simulated_time_is_erlangs_within_two_percent() {
    const SERVICE_US: f64 = 20_000.0;
    let hold = |workers: u32| {
        for load in [0.3, 0.6, 0.8, 0.9] {
            // Near saturation successive values are correlated for long, so more customers are needed.
            let customers = if load > 0.85 { 2e7 } else { 2e6 };
            let rate = load * f64::from(workers) / SERVICE_US * 1e6;
            let measured = simulate(workers, load, SERVICE_US, 60.0, customers / rate, 11);
            let theory = erlang(workers, load, SERVICE_US);
            for (what, measured, theory) in [("mean", measured.mean, theory.mean), ("p99", measured.p99, theory.p99)] {
                let off = measured / theory - 1.0;
                assert!(off.abs() < 0.02, "{workers} workers at {load}: {what} is off by {:.2} %", off * 100.0);
            }
        }
    };
    std::thread::scope(|scope| {
        for workers in [1, 4, 16] {
            scope.spawn(move || hold(workers));
        }
    });
}
