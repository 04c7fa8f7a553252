//! Reads the events of a JVM's flight recording as `jfr print` writes them:
//!
//! ```text
//! jdk.ThreadSleep {
//!   startTime = 07:05:39.483
//!   duration = 104 ms
//!   eventThread = "pool-1-thread-4" (javaThreadId = 24)
//!   stackTrace = [
//!     java.lang.Thread.sleep(long)
//!     Shop.lambda$main$0(HttpExchange) line: 15
//!   ]
//! }
//! ```
//!
//! A recording names classes and no files. The file is therefore the one in which Java's convention has the class.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::time::Duration;

use super::{Clock, likely_lines, without_shared_start};

/// Time between two samples of a thread: the shortest that JFR knew for long.
pub const PERIOD: Duration = Duration::from_millis(10);
/// Events of a thread that waits.
pub const WAITS: &[&str] = &[
    "jdk.ThreadSleep",
    "jdk.ThreadPark",
    "jdk.JavaMonitorWait",
    "jdk.JavaMonitorEnter",
    "jdk.SocketRead",
    "jdk.SocketWrite",
    "jdk.FileRead",
    "jdk.FileWrite",
    "jdk.FileForce",
];
/// Functions in which a thread waits for work.
const IDLE: &[&str] = &[
    "ThreadPoolExecutor.getTask",
    "ForkJoinPool.awaitWork",
    "QueuedThreadPool.idleJobPoll",
    "TimerThread.mainLoop",
    "ReferenceQueue.remove",
];
/// Functions in which servers answer a request: the JDK's own, Tomcat, Jetty, Undertow. Where there is one, all else is
/// the work of other threads.
const ANSWERS: &[&str] =
    &["ServerImpl$Exchange.run", "CoyoteAdapter.service", "HttpChannel.handle", "Connectors.executeRootHandler"];
/// Threads that work for the recording itself.
const RECORDERS: &[&str] = &["Attach Listener", "JFR "];

/// A frame as printed: the function, and the line where it was.
type PrintedFrame = (String, u32);

/// An event with a stack, outermost caller first.
#[derive(Debug, Default)]
struct FlightEvent {
    name: String,
    thread: String,
    us: u64,
    /// The peer, or the file, that a thread waited for.
    subject: String,
    stack: Vec<PrintedFrame>,
}

/// Turns printed events into a record.
pub fn record_of(printed: impl BufRead, clock: Clock) -> io::Result<String> {
    let mut events = Vec::new();
    read(printed, |event| events.push(event))?;
    events.retain(|event| !event.stack.is_empty() && !RECORDERS.iter().any(|name| event.thread.starts_with(name)));
    if clock == Clock::Wall {
        let has = |event: &FlightEvent, of: &[&str]| {
            event.stack.iter().any(|(name, _)| of.iter().any(|end| name.ends_with(end)))
        };
        events.retain(|event| !has(event, IDLE));
        if events.iter().any(|event| has(event, ANSWERS)) {
            events.retain(|event| has(event, ANSWERS));
        }
    }
    let lines = likely_lines(events.iter().map(|event| (event.stack.as_slice(), 1)));
    let is_wait = |event: &FlightEvent| WAITS.contains(&event.name.as_str());
    let samples = events.iter().filter(|event| !is_wait(event)).count();
    let frame =
        |(name, _): &PrintedFrame| format!("{name}|{}|{}", file_of(name), lines.get(name.as_str()).unwrap_or(&0));
    let mut stacks: HashMap<Vec<String>, u64> = HashMap::new();
    for event in &events {
        let subject = Some(&event.subject).filter(|text| !text.is_empty()).map(|text| format!("{text}||0"));
        let stack = event.stack.iter().map(frame).chain(subject).collect();
        let us = if is_wait(event) { event.us } else { PERIOD.as_micros() as u64 };
        *stacks.entry(stack).or_default() += us;
    }
    let mut stacks: Vec<(Vec<String>, u64)> = stacks.into_iter().collect();
    stacks.sort();
    without_shared_start(&mut stacks);
    let lines = stacks.iter().map(|(stack, us)| format!("s\t{}\t{us}\n", stack.join(";")));
    Ok(format!("n\tsamples\t{samples}\n") + &lines.collect::<String>())
}

/// Reads one event after the other.
fn read(printed: impl BufRead, mut found: impl FnMut(FlightEvent)) -> io::Result<()> {
    let mut event = FlightEvent::default();
    let mut in_stack = false;
    for line in printed.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let text = line.trim();
        if in_stack {
            match text {
                "]" => in_stack = false,
                _ => event.stack.extend(frame_of(text)),
            }
        } else if text == "}" {
            event.stack.reverse();
            found(std::mem::take(&mut event));
        } else if let Some(name) = text.strip_suffix(" {") {
            event = FlightEvent { name: name.into(), ..FlightEvent::default() };
        } else if let Some((name, value)) = text.split_once(" = ") {
            match name {
                "duration" => event.us = micros_of(value),
                "sampledThread" | "eventThread" => event.thread = quoted(value).into(),
                "address" | "path" if event.name != "jdk.ThreadPark" => event.subject = plain(quoted(value)),
                "port" => event.subject = format!("{}:{value}", event.subject),
                "stackTrace" => in_stack = value == "[",
                _ => {}
            }
            // The addresses of monitors say nothing.
            if event.name.starts_with("jdk.JavaMonitor") {
                event.subject.clear();
            }
        }
    }
    Ok(())
}

fn quoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.split('"').next()).unwrap_or(value)
}

fn plain(text: &str) -> String {
    text.replace(['|', '\t', ';'], "_")
}

/// Reads `package.Class$Inner.method(Type, Type) line: 12`. The classes of lambdas have a number of their own each.
fn frame_of(text: &str) -> Option<PrintedFrame> {
    let (name, rest) = text.split_once('(')?;
    let line = rest.rsplit_once("line: ").and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0);
    let name = match name.split_once("$$Lambda") {
        Some((class, rest)) => format!("{class}$$Lambda.{}", rest.rsplit('.').next().unwrap_or_default()),
        None => name.to_string(),
    };
    Some((plain(&name), line))
}

/// The file where a class is by convention: `shop/Cart.java` of `shop.Cart$Line.price`.
fn file_of(function: &str) -> String {
    let class = function.rsplit_once('.').map_or(function, |(class, _)| class);
    let (package, class) = class.rsplit_once('.').map_or(("", class), |(package, class)| (package, class));
    let outer = class.split('$').next().filter(|name| !name.is_empty()).unwrap_or(class);
    let folder = if package.is_empty() { String::new() } else { package.replace('.', "/") + "/" };
    format!("{folder}{outer}.java")
}

/// Reads `48.2 ms`, or `1 m 2 s`.
fn micros_of(text: &str) -> u64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let us = words.chunks(2).filter_map(|pair| {
        let number: f64 = pair.first()?.replace(',', ".").parse().ok()?;
        let unit = match *pair.get(1)? {
            "ns" => 1e-3,
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            "m" => 6e7,
            "h" => 3.6e9,
            _ => return None,
        };
        Some(number * unit)
    });
    us.sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, fields: &str, frames: &[&str]) -> String {
        let frames: String = frames.iter().map(|frame| format!("    {frame}\n")).collect();
        format!("{name} {{\n  startTime = 07:05:39.483\n{fields}  stackTrace = [\n{frames}    ...\n  ]\n}}\n\n")
    }

    const RUN: &str = "sun.net.httpserver.ServerImpl$Exchange.run() line: 831";
    const MAIN: &str = "shop.Cart.lambda$main$0(HttpExchange) line: 15";

    #[test]
    fn samples_and_waits_add_up_and_threads_without_work_are_left_out() {
        let worker = "  sampledThread = \"pool-1-thread-3\" (javaThreadId = 23)\n";
        let waiter = |us: &str| format!("  duration = {us}\n  eventThread = \"pool-1-thread-3\" (javaThreadId = 23)\n");
        let heavy = |line: u32| format!("shop.Cart$Line.heavy(int, String) line: {line}");
        let sample = |line: u32| event("jdk.ExecutionSample", worker, &[&heavy(line), MAIN, RUN]);
        let printed = [
            sample(9),
            sample(8),
            sample(9),
            event("jdk.ExecutionSample", "  sampledThread = \"Attach Listener\" (javaThreadId = 1)\n", &[MAIN, RUN]),
            event("jdk.ThreadSleep", &waiter("104 ms"), &["java.lang.Thread.sleep(long)", MAIN, RUN]),
            event(
                "jdk.ThreadPark",
                &(waiter("1.5 s") + "  address = 0x69DC00FC0\n"),
                &["java.util.concurrent.ThreadPoolExecutor.getTask() line: 1062"],
            ),
            event(
                "jdk.SocketRead",
                &(waiter("1 m 2 s") + "  host = \"\"\n  address = \"127.0.0.1\"\n  port = 5432\n"),
                &["db.Driver$$Lambda$14+0x0000000801003200.123.read() line: 7", MAIN, RUN],
            ),
            "jdk.ThreadSleep {\n  stackTrace = N/A\n}\nnonsense\n".into(),
        ];
        let record = |clock| record_of(printed.concat().as_bytes(), clock).expect("read");
        let main = "shop.Cart.lambda$main$0|shop/Cart.java|15";
        let run = "sun.net.httpserver.ServerImpl$Exchange.run|sun/net/httpserver/ServerImpl.java|831";
        assert_eq!(
            record(Clock::Wall),
            "n\tsamples\t3\ns\tdb.Driver$$Lambda.read|db/Driver.java|7;127.0.0.1:5432||0\t62000000\n\
             s\tjava.lang.Thread.sleep|java/lang/Thread.java|0\t104000\n\
             s\tshop.Cart$Line.heavy|shop/Cart.java|9\t30000\n"
        );
        let cpu = record_of(sample(9).as_bytes(), Clock::Cpu).expect("read");
        assert_eq!(cpu, format!("n\tsamples\t1\ns\t{run};{main};shop.Cart$Line.heavy|shop/Cart.java|9\t10000\n"));
    }

    #[test]
    fn what_is_no_recording_gives_an_empty_record() {
        for text in ["", "}\n", "a {\n", "x = y\n  stackTrace = [\n(\n", "\u{fffd} {\n  duration = 1,5 parsecs\n}\n"] {
            assert_eq!(record_of(text.as_bytes(), Clock::Wall).expect("read"), "n\tsamples\t0\n", "{text}");
        }
    }
}
