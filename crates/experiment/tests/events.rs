//! Tests that a run's report contains nothing beyond what its observers were shown.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::thread;

use lastdrop_experiment::lab::{Lab, Observer};
use lastdrop_model::run::RunBuilder;
use lastdrop_model::{CaptureLevel, Event, Load, Plan};

/// Records the events it is shown.
struct Tape(Vec<String>);

impl Observer for Tape {
    fn on_event(&mut self, event: &Event<'_>) {
        self.0.push(serde_json::to_string(event).expect("events are JSON"));
    }

    fn capture_level(&self) -> CaptureLevel {
        CaptureLevel::Exchanges
    }
}

/// Starts a server for this many requests, each on a connection of its own, and returns its address.
fn server(requests: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().take(requests) {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    format!("http://{address}/")
}

#[test]
fn a_report_is_made_again_from_what_an_observer_wrote_down() {
    let mut plan = Plan::new(server(20).parse().expect("a URL"), 1);
    plan.keepalive = lastdrop_model::KeepAlive::Off;
    plan.phases[0].load = Load::closed(1);
    (plan.phases[0].requests, plan.phases[0].duration) = (Some(20), None);
    let stop = AtomicBool::new(false);
    let mut tape = Tape(Vec::new());
    let mut lab = Lab::new(&stop, vec![Box::new(&mut tape)]);
    lab.observe = false;
    let run = lab.run(&plan, "once").expect("a run");
    drop(lab);

    let mut builder = RunBuilder::new(&plan);
    let (mut first, mut requests, mut end) = (None, 0, None);
    for line in &tape.0 {
        assert!(end.is_none(), "nothing comes after the end: {line}");
        match serde_json::from_str(line).expect("own output") {
            Event::Began { id, label, .. } => first = Some((id.to_string(), label.to_string())),
            _ if first.is_none() => panic!("before the beginning: {line}"),
            Event::Second { slice } => builder.add(&slice),
            Event::Exchanges { exchanges } => requests += exchanges.len(),
            Event::PhaseEnd { phase, duration_us, peak } => builder.end_phase(phase, duration_us, peak),
            Event::Ended { run } => end = Some(run.into_owned()),
            _ => {}
        }
    }
    assert_eq!(first, Some((run.id.clone(), "once".into())));
    assert_eq!(requests, 20);
    assert_eq!(builder.into_reports(), run.phases);
    assert_eq!(end, Some(run));
}

#[test]
fn a_run_without_any_load_is_told_as_failed() {
    let mut plan = Plan::new("https://127.0.0.1:9/".parse().expect("a URL"), 1);
    plan.tls.ca = Some("/nonexistent/ca.pem".into());
    let stop = AtomicBool::new(false);
    let mut tape = Tape(Vec::new());
    let mut lab = Lab::new(&stop, vec![Box::new(&mut tape)]);
    lab.observe = false;
    let error = lab.run(&plan, "").expect_err("there is no such file");
    drop(lab);
    let last = tape.0.last().expect("something was told");
    assert!(last.starts_with(r#"{"event":"failed""#) && last.contains(&error.to_string()), "{last}");
}
