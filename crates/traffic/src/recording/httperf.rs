//! Reads workloads of httperf: `--wlog` (paths, each ended by a zero byte) and `--wsesslog` (sessions of bursts). They
//! name no server; the user gives it.

use lastdrop_model::{Url, session_file};

use super::{RecordedExchange, RecordingError, RequestBody, is_method};

/// Longest pause in seconds.
const MOST_SECONDS: f64 = 86_400.0;

/// Reads the paths of a wlog.
///
/// # Errors
/// It has no path.
pub fn read_wlog(text: &str, server: &Url) -> Result<Vec<RecordedExchange>, RecordingError> {
    let paths = text.split('\0').map(|p| p.trim_matches(['\n', '\r'])).filter(|p| !p.is_empty());
    let all: Vec<RecordedExchange> = paths.map(|p| request(p, "GET", server)).collect::<Result<_, _>>()?;
    if all.is_empty() { Err(RecordingError("there is no path in it".into())) } else { Ok(all) }
}

fn request(path: &str, method: &str, server: &Url) -> Result<RecordedExchange, RecordingError> {
    let url = server.join(path).map_err(|e| RecordingError(e.to_string()))?;
    if !is_method(method) {
        return Err(RecordingError(format!("'{method}' is no method")));
    }
    Ok(RecordedExchange::of(&method.to_ascii_uppercase(), url))
}

/// Reads the sessions of a wsesslog (see [`session_file`]).
///
/// # Errors
/// The line that does not parse.
pub fn read_wsesslog(text: &str, server: &Url) -> Result<Vec<RecordedExchange>, RecordingError> {
    let sessions = session_file::parse(text).map_err(|e| RecordingError(e.to_string()))?;
    let mut all: Vec<RecordedExchange> = Vec::new();
    for calls in &sessions {
        let (mut clock_us, mut pause_us) = (0, 0);
        for call in calls {
            let wrong = |what: String| RecordingError(format!("line {}: {what}", call.line));
            if !call.indented {
                clock_us += std::mem::take(&mut pause_us);
            }
            if let Some(think) = &call.think {
                let seconds: f64 = think.parse().map_err(|_| wrong(format!("'{think}' is no number of seconds")))?;
                pause_us = (seconds.clamp(0.0, MOST_SECONDS) * 1e6) as i64;
            }
            let method = call.method.as_deref().unwrap_or("GET");
            let mut exchange = request(&call.path, method, server).map_err(|e| wrong(e.0))?;
            (exchange.begin_us, exchange.end_us) = (clock_us, clock_us);
            let contents = call.contents.clone().unwrap_or_default();
            exchange.body = RequestBody::of("application/x-www-form-urlencoded", contents);
            all.push(exchange);
        }
        // One session needs no mark.
        all.last_mut().into_iter().for_each(|last| last.is_last = sessions.len() > 1);
    }
    if all.is_empty() { Err(RecordingError("there is no session in it".into())) } else { Ok(all) }
}
