//! rbspy, for Puma and other processes of Ruby.
//!
//! It reads the memory of the workers from outside, 250 times per second, and stops a worker while it reads. Of each
//! process it sees the thread that runs Ruby. With `--on-cpu` it reads only while a thread of the process runs or waits
//! for a processor. A thread that waits has released the interpreter's lock, and is not seen: so there is no profile of
//! the time that passes.
//!
//! Functions of C have no name there; the function of Ruby that calls one has its time. A block has the name of the
//! method in which it stands, and is counted as that method.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::outside::{FREQUENCY, OutsideProfiler};
use super::{Clock, Language, likely_lines, without_shared_start};

pub static RBSPY: OutsideProfiler = OutsideProfiler {
    language: Language::Ruby,
    program: "rbspy",
    why: "samples the functions of a Ruby server",
    says: "is recording traces",
    // It says so before it looks for its processes, every second.
    begins_within: Duration::from_millis(1200),
    options,
    record_of,
};

fn options(pid: i32, _: Clock, file: &Path) -> Vec<String> {
    let (pid, frequency) = (pid.to_string(), FREQUENCY.to_string());
    let (raw, file) = (file.with_extension("gz").display().to_string(), file.display().to_string());
    let whole = ["record", "--pid", &pid, "--subprocesses", "--on-cpu", "--silent", "--rate", &frequency];
    let how = ["--format", "collapsed", "--file", &file, "--raw-file", &raw];
    whole.into_iter().chain(how).map(str::to_string).collect()
}

/// Turns rbspy's lines into a record. A line is a stack and a number of samples; a frame is `NAME - FILE:LINE`.
fn record_of(samples: &str, _: Clock, _: Duration) -> String {
    let stacks = samples.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        let mut frames: Vec<(String, u32)> = stack.split(';').filter_map(frame_of).collect();
        // A block beneath its own method.
        frames.dedup_by(|block, method| {
            let is_same = block.0 == method.0;
            if is_same {
                method.1 = block.1;
            }
            is_same
        });
        Some((frames, count.parse::<u64>().ok()?)).filter(|(frames, _)| !frames.is_empty())
    });
    let stacks: Vec<_> = stacks.collect();
    let lines = likely_lines(stacks.iter().map(|(frames, count)| (frames.as_slice(), *count)));
    let named = |(name, _): &(String, u32)| format!("{name}|{}", lines.get(name.as_str()).unwrap_or(&0));
    let mut merged: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (frames, count) in &stacks {
        *merged.entry(frames.iter().map(named).collect()).or_default() += count;
    }
    let mut merged: Vec<(Vec<String>, u64)> = merged.into_iter().collect();
    without_shared_start(&mut merged);
    let all: u64 = merged.iter().map(|(_, count)| count).sum();
    let lines = merged.iter().map(|(frames, n)| format!("s\t{}\t{}\n", frames.join(";"), n * 1_000_000 / FREQUENCY));
    format!("n\tsamples\t{all}\n") + &lines.collect::<String>()
}

/// Reads a frame of Ruby's: `name|file`, and the line.
fn frame_of(text: &str) -> Option<(String, u32)> {
    let (name, place) = text.trim().split_once(" - ")?;
    if name.ends_with("[c function]") {
        return None;
    }
    let (file, line) = place.rsplit_once(':').map_or((place, 0), |(file, line)| (file, line.parse().unwrap_or(0)));
    let method = name.rsplit_once(" in ").map_or(name, |(_, method)| method);
    let plain = |text: &str| text.replace(['|', '\t'], "_");
    Some((format!("{}|{}", plain(method), plain(file)), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_as_their_method_and_functions_of_c_as_their_caller() {
        let begin = "<main> - /usr/bin/puma:28;run - /gems/puma/server.rb:40";
        let samples = format!(
            "{begin};price - /srv/a.rb:4;(unknown) [c function] - (unknown);block in price - /srv/a.rb:5 20\n\
             {begin};price - /srv/a.rb:4;(unknown) [c function] - (unknown) 9\n\
             {begin};price - /srv/a.rb:4;each - /srv/b.rb:1;block (2 levels) in price - /srv/a.rb:6 1\n\
             nonsense\n;; 3\n{begin} x\n"
        );
        assert_eq!(
            record_of(&samples, Clock::Cpu, Duration::ZERO),
            "n\tsamples\t30\ns\tprice|/srv/a.rb|5\t116000\ns\tprice|/srv/a.rb|5;each|/srv/b.rb|1;price|/srv/a.rb|5\t4000\n"
        );
        assert_eq!(record_of("", Clock::Cpu, Duration::ZERO), "n\tsamples\t0\n");
    }
}
