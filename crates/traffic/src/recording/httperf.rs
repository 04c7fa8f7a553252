//! Workloads of httperf: `--wlog` (paths, each ended by a zero byte) and `--wsesslog` (sessions of bursts). They name no server: that is
//! asked for.

use lastdrop_model::Url;

use super::{Exchange, RecordingError, Sent};

/// More is no workload.
const MOST_SECONDS: f64 = 86_400.0;

/// Reads the paths of a wlog.
///
/// # Errors
/// When there is none in it.
pub fn read_wlog(text: &str, server: &Url) -> Result<Vec<Exchange>, RecordingError> {
    let paths = text.split('\0').map(|p| p.trim_matches(['\n', '\r'])).filter(|p| !p.is_empty());
    let all: Result<Vec<Exchange>, RecordingError> = paths.map(|p| request(p, "GET", server)).collect();
    match all?.as_slice() {
        [] => Err(RecordingError("there is no path in it".into())),
        all => Ok(all.to_vec()),
    }
}

fn request(path: &str, method: &str, server: &Url) -> Result<Exchange, RecordingError> {
    let url = server.join(path).map_err(|e| RecordingError(e.to_string()))?;
    let is_method = !method.is_empty() && method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-');
    if !is_method {
        return Err(RecordingError(format!("'{method}' is no method")));
    }
    Ok(Exchange::of(&method.to_ascii_uppercase(), url))
}

/// Reads the sessions of a wsesslog: a line a request, indented those of one burst, a blank line between two sessions.
///
/// # Errors
/// With the line that is not understood.
pub fn read_wsesslog(text: &str, server: &Url) -> Result<Vec<Exchange>, RecordingError> {
    let mut all: Vec<Exchange> = Vec::new();
    let (mut clock_us, mut pause_us) = (0i64, 0i64);
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| RecordingError(format!("line {}: {what}", index + 1));
        let bare = line.split('#').next().unwrap_or_default();
        if bare.trim().is_empty() {
            if line.trim().is_empty()
                && let Some(last) = all.last_mut()
            {
                last.is_last = true;
                (clock_us, pause_us) = (0, 0);
            }
            continue;
        }
        let indented = line.starts_with([' ', '\t']);
        if !indented {
            clock_us += std::mem::take(&mut pause_us);
        }
        let words = words(bare);
        let (mut method, mut contents) = ("GET", String::new());
        for word in &words[1..] {
            match word.split_once('=') {
                Some(("method", m)) => method = m,
                Some(("contents", c)) => contents = c.to_string(),
                Some(("think", t)) => {
                    let seconds: f64 = t.parse().map_err(|_| wrong(format!("'{t}' is no number of seconds")))?;
                    pause_us = (seconds.clamp(0.0, MOST_SECONDS) * 1e6) as i64;
                }
                _ => return Err(wrong(format!("'{word}' is not understood"))),
            }
        }
        let mut exchange = request(&words[0], method, server).map_err(|e| wrong(e.0))?;
        (exchange.begin_us, exchange.end_us) = (clock_us, clock_us);
        if !contents.is_empty() {
            exchange.body = Sent::of("application/x-www-form-urlencoded", contents);
        }
        all.push(exchange);
    }
    // One session needs no mark.
    if all.iter().filter(|e| e.is_last).count() == 1 && all.last().is_some_and(|e| e.is_last) {
        all.iter_mut().for_each(|e| e.is_last = false);
    }
    if all.is_empty() { Err(RecordingError("there is no session in it".into())) } else { Ok(all) }
}

/// Words; quotes of either kind keep blanks together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.trim().chars() {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                if words.last().is_some_and(|w| !w.is_empty()) {
                    words.push(String::new());
                }
            }
            _ => words.last_mut().into_iter().for_each(|w| w.push(c)),
        }
    }
    words
}
