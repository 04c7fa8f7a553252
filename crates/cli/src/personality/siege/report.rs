//! The output of siege: its settings, a line for each hit, the report at the end, and its log file.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_load::describe;
use lastdrop_model::{Exchange, Plan, Printable, RequestOutcome, printable, secrets};

use super::counts::SiegeCounts;
use super::settings::{Repetitions, SiegeOptions};
use crate::personality::{Compatibility, Refusal, day, local_time};
use crate::stdio::{err, out};

/// Resolution of siege's clock.
const TICK_S: f64 = 0.01;
pub const YELLOW: &str = "\x1b[1;33m";
const PLAIN: &str = "\x1b[0m";

/// The settings, as -C shows them.
pub fn config(o: &SiegeOptions) -> String {
    let mut out = format!(
        "CURRENT  SIEGE  CONFIGURATION\n{}\nEdit the resource file to change the settings.\n{}\n",
        o.agent,
        "-".repeat(46)
    );
    let yes = |b: bool| b.to_string();
    let no_time = || "n/a".to_string();
    let rows = [
        ("version:", "4.0.7".into()),
        ("verbose:", yes(o.verbose && !o.json && !o.quiet)),
        ("color:", yes(o.color)),
        ("quiet:", yes(o.quiet || o.json)),
        ("debug:", yes(o.debug)),
        ("protocol:", if o.http10 { "HTTP/1.0" } else { "HTTP/1.1" }.into()),
        ("HTML parser:", if o.parser { "enabled" } else { "disabled" }.into()),
        ("get method:", o.get_method.clone().unwrap_or_else(|| "HEAD".into())),
        ("connection:", if o.keep_alive { "keep-alive" } else { "close" }.into()),
        ("concurrent users:", o.concurrent.to_string()),
        ("time to run:", o.time.map_or_else(no_time, |t| format!("{} seconds", t.as_secs()))),
        (
            "repetitions:",
            match o.reps {
                Some(Repetitions::Times(n)) => n.to_string(),
                _ => no_time(),
            },
        ),
        ("socket timeout:", o.timeout_s.to_string()),
        ("cache enabled:", yes(o.cache)),
        ("accept-encoding:", o.encoding.clone()),
        ("delay:", format!("{:.3} sec", o.delay_s)),
        ("internet simulation:", yes(o.internet)),
        ("benchmark mode:", yes(o.benchmark)),
        ("failures until abort:", o.failures.to_string()),
        ("named URL:", o.url.clone().unwrap_or_else(|| "none".into())),
        ("URLs file:", o.file.as_ref().map_or_else(|| "/etc/siege/urls.txt".into(), |f| f.display().to_string())),
        ("thread limit:", o.limit.to_string()),
        ("logging:", yes(o.logging)),
        ("log file:", o.log_file.display().to_string()),
        ("resource file:", o.rc.display().to_string()),
        ("timestamped output:", yes(o.stamp)),
        ("comma separated output:", yes(o.csv)),
        ("allow redirects:", yes(o.follow)),
        ("allow zero byte data:", "true".into()),
        ("allow chunked encoding:", yes(o.chunked)),
        ("upload unique files:", "true".into()),
        ("json output:", yes(o.json)),
    ];
    for (label, value) in rows {
        let _ = writeln!(out, "{label:<32}{value}");
    }
    if !o.no_follow.is_empty() {
        out.push_str("no-follow:\n");
        for host in &o.no_follow {
            let _ = writeln!(out, " - {host}");
        }
    }
    for label in ["proxy auth:", "www auth:"] {
        let _ = writeln!(out, "{label:<32}");
    }
    out
}

/// The line of a hit.
pub fn hit_line(e: &Exchange, o: &SiegeOptions, plan: &Plan) -> Printable {
    // siege reports 418 and no body for a response that is not HTTP.
    let (status, bytes) = if e.fate == RequestOutcome::Answered { (e.status, e.body_bytes) } else { (418, 0) };
    let spec = &plan.requests[e.request as usize];
    let (method, path) = e
        .detour
        .as_ref()
        .map_or((spec.method.as_str(), spec.url.path.as_str()), |d| (d.method.as_str(), d.path.as_str()));
    let path = secrets::url(path);
    let url = format!("{}{path}", spec.url.origin());
    let seconds = e.service_us() as f64 / 1e6;
    let protocol = if e.http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let now = e.done.unwrap_or(e.due) / 1_000_000;
    let stamp = if o.stamp { format!("[{}, {}] ", day(now), date(now)) } else { String::new() };
    let shown = if o.full_url || method != "GET" { url.as_str() } else { &path };
    // Users are numbered from 0. Without a number of the user, the connection's is shown.
    let user = if e.unit > 0 { (e.unit >> 40) - 1 } else { e.connection & u64::from(u32::MAX) };
    let line = if o.csv {
        let mark = o.mark.as_ref().map_or_else(String::new, |mark| format!("{mark},"));
        let id = if o.display_id { format!("{user:4},") } else { String::new() };
        format!("{stamp}{mark}{id}{protocol},{status},{seconds:6.2},{bytes:7},{shown},{},{}", e.request, date(now))
    } else if o.display_id {
        format!("{user:4}) {protocol} {status} {seconds:6.2} secs: {bytes:7} bytes ==> {method:<4} {shown}")
    } else {
        format!("{stamp}{protocol} {status}    {seconds:5.2} secs: {bytes:7} bytes ==> {method:<4} {shown}")
    };
    let color = match status {
        200..300 => "\x1b[0;34m",
        300..400 => "\x1b[0;36m",
        400..500 => "\x1b[0;35m",
        _ => "\x1b[0;31m",
    };
    let line = printable::line(&line);
    if o.color { Printable::new().control(color).text(&line).control(PLAIN).text("\n") } else { (line + "\n").into() }
}

/// `[error] …` with the word in its colour.
pub fn tagged(color: &'static str, word: &str, text: &str) -> Printable {
    Printable::new().text("[").control(color).text(word).control(PLAIN).text("] ").text(text)
}

/// `2026-11-22 09:32:09`
fn date(unix_s: u64) -> String {
    let t = local_time(unix_s);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        t.tm_year + 1900,
        t.tm_mon + 1,
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec
    )
}

/// Prints the report, as JSON to stdout or as text to stderr. `lifted`: the run was ended by time or by a signal.
pub fn show_block(o: &SiegeOptions, block: &ReportBlock, t: &SiegeCounts, lifted: bool) {
    if o.json {
        err("\n");
        out(block.json(o.debug.then_some(t.ok200)));
    } else if !o.quiet {
        let lifting = if lifted { "\nLifting the server siege..." } else { "" };
        err(format!("{lifting}\n{} \n", block.text(o.debug, t.ok200)));
    }
}

/// A response as -g and -p show it.
pub fn transaction(raw: &[u8], o: &SiegeOptions) -> String {
    let text = printable::lossless(raw);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if o.print {
        format!("{body}\n")
    } else if o.json || o.quiet {
        String::new()
    } else {
        format!("{head}\r\n\r\n\n")
    }
}

/// The numbers of the report.
pub struct ReportBlock {
    hits: u64,
    availability: f64,
    elapsed_s: f64,
    megabytes: f64,
    response_s: f64,
    rate: f64,
    throughput: f64,
    concurrency: f64,
    ok: u64,
    failed: u64,
    longest_s: f64,
    shortest_s: f64,
}

impl ReportBlock {
    pub fn of(t: &SiegeCounts, elapsed_s: f64, compatibility: Compatibility) -> ReportBlock {
        // siege's clock counts hundredths of a second; a run shorter than that has no rate.
        let tick = |s: f64| if compatibility.like_the_original { (s / TICK_S).round() * TICK_S } else { s };
        let elapsed_s = tick(elapsed_s);
        let per_second = |x: f64| if elapsed_s > 0.0 { x / elapsed_s } else { 0.0 };
        let like = compatibility.like_the_original;
        let hits = if like { t.hits + t.garbage } else { t.hits };
        let all = hits + t.failed;
        let available = if like { hits } else { t.ok };
        let busy_s = tick(t.times.sum() / 1e6);
        ReportBlock {
            hits,
            // siege counts a 403 as available.
            availability: if all == 0 { 0.0 } else { available as f64 / all as f64 * 100.0 },
            elapsed_s,
            megabytes: t.bytes as f64 / 1_048_576.0,
            // siege divides the sum of all times by the number of hits, so its mean may exceed the longest time.
            response_s: match if like { hits } else { t.times.count() } {
                0 => 0.0,
                n => busy_s / n as f64,
            },
            rate: per_second(hits as f64),
            throughput: per_second(t.bytes as f64 / 1_048_576.0),
            concurrency: per_second(busy_s),
            ok: t.ok,
            failed: t.failed,
            longest_s: tick(t.times.max() as f64 / 1e6),
            shortest_s: tick(t.times.min() as f64 / 1e6),
        }
    }

    fn text(&self, debug: bool, ok200: u64) -> String {
        let mut out = format!(
            "Transactions:\t\t{:12} hits\nAvailability:\t\t{:12.2} %\nElapsed time:\t\t{:12.2} secs\n\
             Data transferred:\t{:12.2} MB\nResponse time:\t\t{:12.2} secs\nTransaction rate:\t{:12.2} trans/sec\n\
             Throughput:\t\t{:12.2} MB/sec\nConcurrency:\t\t{:12.2}\nSuccessful transactions:{:12}\n",
            self.hits,
            self.availability,
            self.elapsed_s,
            self.megabytes,
            self.response_s,
            self.rate,
            self.throughput,
            self.concurrency,
            self.ok,
        );
        if debug {
            let _ = writeln!(out, "HTTP OK received:\t{ok200:12}");
        }
        let _ = write!(
            out,
            "Failed transactions:\t{:12}\nLongest transaction:\t{:12.2}\nShortest transaction:\t{:12.2}\n",
            self.failed, self.longest_s, self.shortest_s
        );
        out
    }

    fn json(&self, ok200: Option<u64>) -> String {
        let ok200 = ok200.map_or_else(String::new, |n| format!("\t\"http_ok_received\":\t\t{n:12},\n"));
        format!(
            "{{\t\"transactions\":\t\t\t{:12},\n\t\"availability\":\t\t\t{:12.2},\n\t\"elapsed_time\":\t\t\t{:12.2},\n\
             \t\"data_transferred\":\t\t{:12.2},\n\t\"response_time\":\t\t{:12.2},\n\t\"transaction_rate\":\t\t{:12.2},\n\
             \t\"throughput\":\t\t\t{:12.2},\n\t\"concurrency\":\t\t\t{:12.2},\n\t\"successful_transactions\":\t{:12},\n{ok200}\
             \t\"failed_transactions\":\t\t{:12},\n\t\"longest_transaction\":\t\t{:12.2},\n\t\"shortest_transaction\":\t\t{:12.2}\n}}\n",
            self.hits,
            self.availability,
            self.elapsed_s,
            self.megabytes,
            self.response_s,
            self.rate,
            self.throughput,
            self.concurrency,
            self.ok,
            self.failed,
            self.longest_s,
            self.shortest_s
        )
    }
}

/// Appends the line of the run to the log file, after the mark.
pub fn write_log(o: &SiegeOptions, b: &ReportBlock, aborted: bool) -> Result<(), Refusal> {
    if !o.logging {
        return Ok(());
    }
    // siege writes each part by itself and prints an error for each.
    let mut parts = Vec::new();
    if let Some(mark) = &o.mark {
        parts.push(format!("**** {mark} ****\n"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    parts.push(format!(
        "{},{:7},{:11.2},{:12},{:11.2},{:12.2},{:12.2},{:12.2},{:8},{:8}\n",
        date(now),
        b.hits,
        b.elapsed_s,
        b.megabytes as u64,
        b.response_s,
        b.rate,
        b.throughput,
        b.concurrency,
        b.ok,
        b.failed
    ));
    if aborted {
        parts.push("**** siege aborted due to excessive socket failure. ****\n".into());
    }
    if !o.log_file.exists() {
        parts[0].insert_str(
            0,
            "      Date & Time,  Trans,  Elap Time,  Data Trans,  Resp Time,  Trans Rate,  Throughput,  Concurrent,    OKAY,   Failed\n",
        );
    }
    let path = o.log_file.display();
    let append = |text: &String| {
        let file = fs::OpenOptions::new().create(true).append(true).open(&o.log_file);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
    };
    let written: Vec<_> = parts.iter().map(append).collect();
    if o.show_log {
        out(format!(
            "LOG FILE: {path}\nYou can disable this log file notification by editing\n{} and changing 'show-logfile' to \
             false.\n",
            std::env::var("HOME").map_or_else(|_| o.rc.display().to_string(), |h| format!("{h}/.siege/siege.conf"))
        ));
    }
    for e in written.into_iter().filter_map(Result::err) {
        err(tagged(YELLOW, "error", &format!("unable to create log file: {path}: {}\n", describe(&e))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_hundredths_has_no_rate_for_what_took_less() {
        let mut t = SiegeCounts { hits: 2, ..SiegeCounts::default() };
        t.times.record(1000);
        let like = |like_the_original| Compatibility { like_the_original, remark: false };
        assert!((ReportBlock::of(&t, 0.004, like(false)).rate - 500.0).abs() < 1e-9);
        assert!(ReportBlock::of(&t, 0.004, like(true)).rate.abs() < 1e-9);
    }
}
