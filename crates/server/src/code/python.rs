//! py-spy, for gunicorn, uWSGI and other processes of CPython.
//!
//! It reads the memory of the workers from outside, 250 times per second at random moments, and stops a worker while it
//! reads. With `--gil` it counts the thread that holds
//! the interpreter's lock, which is the one that computes; with `--idle` also those that wait.
//!
//! A thread that waits for a processor holds the lock. So requests that take less than a time slice of the kernel's (3 to
//! 4 ms) are seen with a bias if more processes compute than there are processors: functions that planted 60, 25 and 15 % of
//! 5 ms then had 51, 30 and 19 %; of 55 ms they had 57, 27 and 16 %.

use std::path::Path;
use std::time::Duration;

use super::outside::{FREQUENCY, OutsideProfiler};
use super::{Clock, Language, without_shared_start};

/// The function in which a worker of gunicorn answers a request; all else is its wait for the next.
const ANSWERS: &str = "handle_request";
/// The file in which event loops wait for the next event.
const SELECTORS: &str = "/selectors.py|";

pub static PY_SPY: OutsideProfiler = OutsideProfiler {
    language: Language::Python,
    program: "py-spy",
    why: "samples the functions of a Python server",
    says: "Sampling process",
    begins_within: Duration::ZERO,
    options,
    record_of,
};

fn options(pid: i32, clock: Clock, file: &Path) -> Vec<String> {
    let (pid, frequency, file) = (pid.to_string(), FREQUENCY.to_string(), file.display().to_string());
    let which = match clock {
        Clock::Cpu => "--gil",
        Clock::Wall => "--idle",
    };
    // Longer than any profile: it is ended.
    let whole = ["record", "--pid", &pid, "--subprocesses", "--function", "--full-filenames", "--duration", "100000"];
    let how = ["--rate", &frequency, which, "--format", "raw", "--output", &file];
    whole.into_iter().chain(how).map(str::to_string).collect()
}

/// Turns py-spy's lines into a record. A line is a stack and a number of samples; the stack begins with
/// `process PID:"TITLE"` for the master and for the worker, and a frame is `NAME (FILE:LINE)`.
fn record_of(raw: &str, clock: Clock, sampled: Duration) -> String {
    let mut stacks: Vec<(Vec<String>, u64, bool)> = Vec::new();
    for line in raw.lines() {
        let Some((stack, samples)) = line.rsplit_once(' ') else { continue };
        let Ok(samples) = samples.parse::<u64>() else { continue };
        let frames: Vec<String> = stack.split(';').filter_map(frame_of).collect();
        if !frames.is_empty() {
            stacks.push((frames, samples, stack.contains(";process ")));
        }
    }
    // The master only waits for its workers. Of its one thread, py-spy has a sample of each round, also where it was too
    // late for some.
    let mut us_per_sample = 1_000_000 / FREQUENCY;
    let of_master = stacks.iter().filter(|(.., of_worker)| !of_worker).map(|(_, samples, _)| samples).sum();
    if clock == Clock::Wall && stacks.iter().any(|(.., of_worker)| *of_worker) {
        us_per_sample = (sampled.as_micros() as u64).checked_div(of_master).unwrap_or(us_per_sample);
    }
    if stacks.iter().any(|(.., of_worker)| *of_worker) {
        stacks.retain(|(.., of_worker)| *of_worker);
    }
    if clock == Clock::Wall {
        let answers = |frames: &[String]| frames.iter().any(|frame| is_named(frame, ANSWERS));
        if stacks.iter().any(|(frames, ..)| answers(frames)) {
            stacks.retain(|(frames, ..)| answers(frames));
        }
        stacks.retain(|(frames, ..)| !frames.last().is_some_and(|frame| frame.contains(SELECTORS)));
    }
    let mut stacks: Vec<_> = stacks.into_iter().map(|(frames, samples, _)| (frames, samples)).collect();
    without_shared_start(&mut stacks);
    let all: u64 = stacks.iter().map(|(_, samples)| samples).sum();
    let lines =
        stacks.iter().map(|(frames, samples)| format!("s\t{}\t{}\n", frames.join(";"), samples * us_per_sample));
    format!("n\tsamples\t{all}\n") + &lines.collect::<String>()
}

/// True if a frame is of a function of this name, or of a method of this name in any class.
fn is_named(frame: &str, name: &str) -> bool {
    frame.split('|').next().and_then(|whole| whole.rsplit('.').next()) == Some(name)
}

fn frame_of(text: &str) -> Option<String> {
    let (name, place) = text.rsplit_once(" (")?;
    let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
    let line: u32 = line.parse().ok()?;
    let plain = |text: &str| text.replace(['|', '\t'], "_");
    Some(format!("{}|{}|{line}", plain(name), plain(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_the_master_and_waits_for_a_request_are_left_out() {
        let begin = "process 1:\"gunicorn: master [a;b]\";process 2:\"gunicorn: worker\";run (/g/sync.py:112)";
        let raw = format!(
            "process 1:\"gunicorn: master [a]\";Arbiter.sleep (/g/arbiter.py:3) 500\n{begin};SyncWorker.wait (/g/sync.py:33) 70\n\
             {begin};SyncWorker.handle_request (/g/sync.py:163);application (/srv/a.py:22);heavy (/srv/a.py:1) 20\n\
             {begin};SyncWorker.handle_request (/g/sync.py:163);application (/srv/a.py:22) 10\nnonsense\n"
        );
        // In 5 s there were 500 samples, not 1250.
        let record = |raw: &str, clock| record_of(raw, clock, Duration::from_secs(5));
        assert_eq!(
            record(&raw, Clock::Wall),
            "n\tsamples\t30\ns\tapplication|/srv/a.py|22;heavy|/srv/a.py|1\t200000\ns\tapplication|/srv/a.py|22\t100000\n"
        );
        let cpu = record(&raw, Clock::Cpu);
        assert!(cpu.starts_with("n\tsamples\t100\ns\tSyncWorker.wait|/g/sync.py|33\t280000\n"), "{cpu}");
        assert_eq!(record("", Clock::Cpu), "n\tsamples\t0\n");
    }

    #[test]
    fn an_event_loop_that_waits_is_left_out_of_the_time_that_passes() {
        let raw = "run (/app.py:1);EpollSelector.select (/usr/lib/python3.11/selectors.py:451) 90\nrun (/app.py:1);work (/app.py:9) 10\n";
        let record = record_of(raw, Clock::Wall, Duration::from_secs(1));
        assert_eq!(record, "n\tsamples\t10\ns\trun|/app.py|1;work|/app.py|9\t40000\n");
    }
}
