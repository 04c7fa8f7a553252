//! Screens of every size, of invented experiments.

use std::borrow::Cow;
use std::time::Duration;

use lastdrop_model::documents::{CapacityStep, Trial};
use lastdrop_model::event::{Lead, Outcome, Stage, Suspect, Suspicion, TrialBegan};
use lastdrop_model::run::Mark;
use lastdrop_model::{Event, KeptPlan, Kind, ListenQueue, Plan, Sample, Setting, Settings, Slice};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::{LiveExperiment, Pane, ScreenOptions, draw};

fn buffer(live: &LiveExperiment, manner: &ScreenOptions, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen in memory");
    terminal.draw(|frame| draw(frame, live, manner)).expect("it has room");
    terminal.backend().buffer().clone()
}

fn text(live: &LiveExperiment, manner: &ScreenOptions, size: (u16, u16)) -> String {
    let buffer = buffer(live, manner, size);
    let rows = buffer.content.chunks(usize::from(size.0));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_string() + "\n")
        .collect()
}

fn plan() -> KeptPlan {
    let mut plan = Plan::new("http://10.0.0.1/page".parse().expect("valid"), 1);
    plan.phases[0].duration = Some(Duration::from_secs(20));
    plan.into()
}

fn began(live: &mut LiveExperiment) {
    let plan = plan();
    live.on_event(&Event::Began {
        id: "abc".into(),
        started_unix_ms: 5,
        label: "".into(),
        plan: Cow::Borrowed(&plan),
        environment: Cow::Owned(serde_json::json!({})),
    });
}

fn second(live: &mut LiveExperiment, n: u32) {
    let mut slice = Slice::new(0, n);
    (slice.counts.due, slice.counts.answered, slice.counts.timed_out) = (1000, 990, 10);
    (slice.status[200], slice.status[503]) = (980, 10);
    for i in 0..1000u64 {
        slice.record(Kind::Response, 900 + i * i / 50);
    }
    live.on_event(&Event::Second { slice: Cow::Owned(slice) });
}

fn look(live: &mut LiveExperiment, n: u32) {
    let look = Sample {
        t_s: f64::from(n) + 1.0,
        span_s: 1.0,
        worker_count: 8,
        busy: Some(6),
        cpu_cores: Some(1.25),
        real_memory_bytes: Some(64 << 20),
        listen: vec![ListenQueue { address: "10.0.0.1:80".into(), queue: 3, limit: 511, ..ListenQueue::default() }],
        host: lastdrop_model::HostSample { cores: vec![0.9, 0.8], ..lastdrop_model::HostSample::default() },
        ..Sample::default()
    };
    live.on_event(&Event::Sample { sample: Cow::Owned(look) });
}

fn some_run() -> LiveExperiment {
    let mut live = LiveExperiment::default();
    began(&mut live);
    for n in 0..12 {
        second(&mut live, n);
        look(&mut live, n);
    }
    live.on_event(&Event::Mark { mark: Cow::Owned(Mark { t_s: 4.2, text: "deployed \x1b[2J".into() }) });
    live
}

fn trial(settings: &Settings, objective: f64, valid: bool) -> Trial {
    Trial {
        settings: settings.clone(),
        objective,
        valid,
        why: if valid { String::new() } else { "12 requests without an answer".into() },
        p99_us: 12_300.0,
        unanswered: 0,
        real_memory_bytes: None,
        warmed: "each".into(),
        role: "search".into(),
        keepalive: "off".into(),
        run: "r".into(),
        repeated: 0,
        cut_short: false,
        steps: Vec::new(),
    }
}

fn some_tune() -> LiveExperiment {
    let mut live = LiveExperiment::default();
    live.on_event(&Event::Stage { stage: Stage::Search });
    for (i, (workers, rps)) in [(4, 310.0), (16, 1220.0), (64, 900.0), (128, 0.0)].into_iter().enumerate() {
        let settings = Settings::from([("MaxRequestWorkers".to_string(), Setting::read(&workers.to_string()))]);
        live.on_event(&Event::TrialBegan {
            trial: TrialBegan {
                number: i as u64 + 1,
                role: "search".into(),
                settings: Cow::Borrowed(&settings),
                ..TrialBegan::default()
            },
        });
        began(&mut live);
        for n in 0..3 {
            second(&mut live, n);
            look(&mut live, n);
        }
        let trial = trial(&settings, rps, rps > 0.0);
        live.on_event(&Event::TrialDone { outcome: Outcome::Tune { trial: Cow::Borrowed(&trial) } });
    }
    live.on_event(&Event::Leading {
        lead: Lead {
            what: "MaxRequestWorkers 16".into(),
            ratio: 3.94,
            interval: Some([3.71, 4.18]),
            times: "the throughput".into(),
            rests_on: "4 trials".into(),
        },
    });
    live
}

fn some_diagnosis() -> LiveExperiment {
    let mut live = some_run();
    let suspect = |id: &str, title: &str, confidence| Suspect {
        id: id.into(),
        title: title.into(),
        reason: "busy workers 8".into(),
        confidence,
    };
    live.on_event(&Event::Suspicion {
        suspicion: Suspicion {
            suspects: vec![
                suspect("workers-exhausted", "every worker is at work, connections wait", 90),
                suspect("slow-upstream", "the server waits for another service", 60),
            ]
            .into(),
            excluded: vec!["cpu-saturated".into(), "fd-limit".into(), "oom-kill".into()].into(),
        },
    });
    live
}

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 60), (60, 15)];

#[test]
fn a_run_shows_load_latency_answers_and_server_on_every_screen() {
    let live = some_run();
    for size in SIZES {
        let screen = text(&live, &ScreenOptions::default(), size);
        for part in ["GET http://10.0.0.1/page", "due", "1,000/s", "990/s", "p99", "503 × 120", "timed out 120"] {
            assert!(screen.contains(part), "{part} at {size:?}:\n{screen}");
        }
        for part in ["6 of 8", "1.25 of 2", "3 of 511", "0:08 left", "q stop"] {
            assert!(screen.contains(part), "{part} at {size:?}:\n{screen}");
        }
        assert!(size.1 < 20 || screen.contains("mark: deployed \\x1b[2J"), "{size:?}:\n{screen}");
        assert!(screen.contains('▲') && screen.contains('█'), "{size:?}:\n{screen}");
    }
}

#[test]
fn a_tune_shows_its_trials_and_who_is_ahead() {
    let live = some_tune();
    for size in SIZES {
        let screen = text(&live, &ScreenOptions::default(), size);
        for part in ["best so far", "3.94 times the throughput"] {
            assert!(screen.contains(part), "{part} at {size:?}:\n{screen}");
        }
    }
    let screen = text(&live, &ScreenOptions::default(), (120, 40));
    for part in ["search · trial 4", "★  2     1,220/s", "12 requests without an answer", "workers"] {
        assert!(screen.contains(part), "{part}:\n{screen}");
    }
}

#[test]
fn a_diagnosis_shows_suspects_and_what_is_excluded() {
    let live = some_diagnosis();
    for size in SIZES {
        let manner = ScreenOptions { pane: Pane::Doctor, ..ScreenOptions::default() };
        let screen = text(&live, &manner, size);
        for part in ["90 % every worker is at work", "60 % the server waits", "cpu-saturated  fd-limit  oom-kill"] {
            assert!(screen.contains(part), "{part} at {size:?}:\n{screen}");
        }
    }
    let screen = text(&live, &ScreenOptions::default(), (80, 24));
    assert!(screen.contains("suspected") && screen.contains("every worker is at work"), "{screen}");
}

#[test]
fn no_screen_is_too_small_and_none_too_early() {
    for live in [LiveExperiment::default(), some_run(), some_tune(), some_diagnosis()] {
        for pane in Pane::ALL {
            for size in [(1, 1), (8, 2), (20, 5), (23, 9), (40, 11), (80, 8), (149, 7), (151, 6), (500, 3), (300, 100)]
            {
                let manner =
                    ScreenOptions { pane, help: size.0 % 2 == 1, colour: true, skip: 1000, ..ScreenOptions::default() };
                buffer(&live, &manner, size);
                let manner = ScreenOptions { writing: Some("x".repeat(300)), ..manner };
                buffer(&live, &manner, size);
            }
        }
    }
}

#[test]
fn without_colour_there_is_none() {
    for live in [some_run(), some_tune(), some_diagnosis()] {
        for pane in Pane::ALL {
            let plain = |colour| {
                let manner = ScreenOptions { pane, colour, stopping: true, ..ScreenOptions::default() };
                buffer(&live, &manner, (120, 40)).content.iter().all(|c| c.fg == Color::Reset && c.bg == Color::Reset)
            };
            assert!(plain(false), "{pane:?}");
            assert!(!plain(true), "{pane:?}");
        }
    }
}

#[test]
fn on_a_large_screen_everything_about_the_load_stands_together() {
    let mut live = LiveExperiment::default();
    began(&mut live);
    let mut slice = Slice::new(0, 0);
    (20_000..40_000).step_by(100).for_each(|us| slice.record(Kind::Response, us));
    live.on_event(&Event::Second { slice: Cow::Owned(slice) });
    let screen =
        text(&live, &ScreenOptions { elapsed: Duration::from_secs(95), ..ScreenOptions::default() }, (200, 60));
    let row = |what: &str| screen.lines().position(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}:\n{screen}"));
    assert_eq!(row("0:00"), row("max") + 1, "{screen}");
    assert!(row("answers  ") < 14, "{screen}");
}

#[test]
fn the_clock_of_several_runs_tells_how_much_of_it_was_load() {
    let mut live = LiveExperiment::default();
    let manner = ScreenOptions { elapsed: Duration::from_secs(95), ..ScreenOptions::default() };
    let title = |live: &LiveExperiment| text(live, &manner, (80, 24)).lines().next().unwrap_or_default().to_string();
    began(&mut live);
    (0..4).for_each(|n| second(&mut live, n));
    assert!(title(&live).ends_with(" 1:35") && !title(&live).contains("of load"), "{}", title(&live));
    began(&mut live);
    (0..2).for_each(|n| second(&mut live, n));
    assert!(title(&live).ends_with(" 0:06 of load in 1:35"), "{}", title(&live));
}

#[test]
fn what_was_tried_under_another_load_is_not_the_best() {
    let mut live = some_tune();
    let settings = Settings::from([("KeepAlive".to_string(), Setting::read("On"))]);
    let trial = Trial { role: "advice".into(), ..trial(&settings, 9000.0, true) };
    live.on_event(&Event::TrialDone { outcome: Outcome::Tune { trial: Cow::Borrowed(&trial) } });
    let screen = text(&live, &ScreenOptions::default(), (120, 40));
    let starred = screen.lines().find(|l| l.contains('★')).expect("a best one");
    assert!(starred.contains("1,220/s") && screen.contains("9,000/s"), "{screen}");
}

#[test]
fn a_rate_that_failed_bounds_the_one_that_held() {
    let mut live = LiveExperiment::default();
    for (rate, ok) in [(100.0, true), (400.0, false), (200.0, true), (300.0, false)] {
        let step = CapacityStep {
            rate,
            ok,
            role: "search".into(),
            seconds: 3.0,
            answered_rps: rate,
            p50_us: 1500.0,
            p99_us: 9000.0,
            errors: 0.0,
            why: if ok { "" } else { "p99 is 900 ms" }.into(),
            run: String::new(),
        };
        live.on_event(&Event::TrialDone { outcome: Outcome::Capacity { step: Cow::Owned(step) } });
    }
    let screen = text(&live, &ScreenOptions::default(), (80, 24));
    assert!(screen.contains("200/s held, 300/s not"), "{screen}");
}

#[test]
fn a_line_that_is_cut_off_says_so() {
    let mut live = some_tune();
    let long = ("KeepAliveTimeout".repeat(2), Setting::read("15"));
    let settings = Settings::from([long, ("workers".to_string(), Setting::read("150"))]);
    let trial = trial(&settings, 50.0, true);
    live.on_event(&Event::TrialDone { outcome: Outcome::Tune { trial: Cow::Borrowed(&trial) } });
    for (width, is_whole) in [(80, false), (120, true)] {
        let screen = text(&live, &ScreenOptions::default(), (width, 60));
        let row = screen.lines().find(|l| l.contains("KeepAliveTimeoutKeep")).expect("its row");
        assert_eq!((row.contains("workers 150"), row.contains('…')), (is_whole, !is_whole), "{row}");
    }
}

#[test]
fn one_more_second_changes_few_cells() {
    let mut live = LiveExperiment::default();
    began(&mut live);
    for n in 0..5 {
        second(&mut live, n);
    }
    let before = buffer(&live, &ScreenOptions::default(), (80, 24));
    second(&mut live, 5);
    let after = buffer(&live, &ScreenOptions::default(), (80, 24));
    let changed = before.diff(&after).len();
    assert!(changed < 120, "{changed} of 1920 cells");
}
