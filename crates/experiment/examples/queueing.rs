//! Compares `lastdrop run` with queueing theory: a target with exponential service and W workers under Poisson arrivals
//! is an M/M/W queue, which Erlang's formulas describe. Also prints the spread of simulations of the same length.
//!
//! cargo run --release -p lastdrop-lab --example queueing -- [SECONDS [SERVICE_MS]]
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

#[path = "../tests/mmw/mod.rs"]
mod mmw;

use std::process::{Command, Stdio};

use mmw::{erlang, simulate};

const WARM_UP_S: f64 = 5.0;
const SIMULATIONS: u64 = 200;

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<f64>().expect("a number"));
    let seconds = args.next().unwrap_or(30.0);
    let service_ms = args.next().unwrap_or(20.0);
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or("target".into());
    let lastdrop = format!("{folder}/release/lastdrop");
    let url = "http://127.0.0.1:18483/";
    println!(
        "{seconds} s each, service {service_ms} ms; measured / Erlang, and the range of 95 of 100 simulations of that length"
    );
    println!("workers  load     mean    simulated        p99    simulated      within 5 % or the range");
    for workers in [1u32, 4, 16] {
        let mut target = Command::new(&lastdrop)
            .args(["target", "--listen", "127.0.0.1:18483", "--workers", &workers.to_string()])
            .args(["--service", &format!("exp {service_ms}ms")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a release build of lastdrop");
        std::thread::sleep(std::time::Duration::from_millis(500));
        for load in [0.3, 0.6, 0.8, 0.9] {
            let rate = load * f64::from(workers) / service_ms * 1e3;
            let output = Command::new(&lastdrop)
                .args(["run", url, "-r", &rate.to_string(), "--arrivals", "poisson", "--keepalive", "off"])
                .args(["--warm-up", &format!("{WARM_UP_S}s"), "-d", &format!("{seconds}s"), "--timeout", "60s"])
                .args(["--connections", "5000", "--no-store", "--quiet", "--json", "-"])
                .output()
                .expect("lastdrop runs");
            let run: serde_json::Value = serde_json::from_slice(&output.stdout).expect("its JSON");
            let phase =
                run["phases"].as_array().and_then(|p| p.iter().find(|p| p["measured"] == true)).expect("a phase");
            let theory = erlang(workers, load, service_ms * 1e3);
            let simulated: Vec<_> = (0..SIMULATIONS)
                .map(|seed| simulate(workers, load, service_ms * 1e3, WARM_UP_S, seconds, seed))
                .collect();
            let mut within = true;
            let mut line = format!("{workers:>7}  {load:>4}");
            for (field, theory, simulated) in [
                ("mean", theory.mean, simulated.iter().map(|r| r.mean).collect::<Vec<_>>()),
                ("p99", theory.p99, simulated.iter().map(|r| r.p99).collect()),
            ] {
                let measured = phase["latency_us"]["response"][field].as_f64().expect("a latency") / theory;
                let mut ratios: Vec<f64> = simulated.iter().map(|x| x / theory).collect();
                ratios.sort_by(f64::total_cmp);
                let at = |q: f64| ratios[(q * ratios.len() as f64) as usize];
                let (low, high) = (at(0.025), at(0.975));
                within &= (measured - 1.0).abs() <= 0.05 || (low..=high).contains(&measured);
                line += &format!("   {measured:>6.3}  {low:>5.3}–{high:<5.3}");
            }
            println!("{line}   {}", if within { "yes" } else { "NO" });
        }
        let _ = Command::new("kill").arg(target.id().to_string()).status();
        let _ = target.wait();
    }
}
