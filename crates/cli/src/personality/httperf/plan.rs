//! The plan of httperf's requests: connections with several calls, or the sessions of its workloads.

use std::path::Path;
use std::time::Duration;

use lastdrop_load::files;
use lastdrop_model::http_options::Version;
use lastdrop_model::request::{Body, Pick, RequestSpec, ThinkTime};
use lastdrop_model::{KeepAlive, Load, Phase, Plan, Url, raw, session_file};

use super::flags::{ConnectionSchedule, HttperfOptions, UriSource, Workload, seconds, usage};
use crate::personality::{Refusal, seed};

/// Limit of simultaneous connections, as in the original, which uses select(2).
const MOST_CONNECTIONS: u32 = 1024 - 3;
/// Limit of the generated calls in a plan.
const MOST_STEPS: usize = 100_000;

/// Escapes of --add-header: `\n` ends a line of HTTP, `\r`, `\a` (which is a line feed), `\\`, and a byte by its octal digits.
fn unescape(text: &str) -> String {
    let mut out: Vec<u8> = Vec::new();
    let bytes = raw::bytes(text);
    let mut rest = bytes.iter().copied().peekable();
    while let Some(b) = rest.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        match rest.next() {
            Some(b'n') => out.extend(b"\r\n"),
            Some(b'r') => out.push(b'\r'),
            Some(b'a') => out.push(b'\n'),
            Some(d @ b'0'..=b'7') => {
                let mut n = d - b'0';
                while let Some(d) = rest.next_if(|d| (b'0'..=b'7').contains(d)) {
                    n = n.wrapping_mul(8).wrapping_add(d - b'0');
                }
                out.push(n);
            }
            Some(other) => out.push(other),
            None => out.push(b'\\'),
        }
    }
    raw::text(&out)
}

/// A request as httperf sends it.
fn spec(o: &HttperfOptions, url: &Url, path: &str, method: Option<&str>, body: Option<&str>) -> RequestSpec {
    let mut spec = RequestSpec::get(url.with_path(path));
    spec.literal = true;
    spec.method = method.or(o.method.as_deref()).unwrap_or("GET").to_string();
    let mut lines = String::from("User-Agent: httperf/0.9.0\r\n");
    if o.http_version == (1, 0) {
        lines.push_str("Connection: keep-alive\r\n");
    }
    if !o.no_host {
        // The original omits the port.
        lines.push_str(&format!("Host: {}\r\n", o.server_name.as_ref().unwrap_or(&o.server)));
    }
    lines.push_str(&unescape(&o.headers));
    if let Some(body) = body {
        lines.push_str(&format!("Content-length: {}\r\n", raw::bytes(body).len()));
        spec.body = Body::Text(body.to_string());
    }
    spec.lines = Some(lines);
    spec
}

/// The sessions of a --wsesslog file. The last request of a burst has the pause after it.
fn session_log(o: &HttperfOptions, url: &Url, think_s: f64, file: &str) -> Result<Vec<Vec<RequestSpec>>, Refusal> {
    let text = files::read_text(Path::new(file)).or_else(|_| usage(&format!("can't open {file}")))?;
    let read = session_file::parse(&text).or_else(|e| usage(&format!("{file}: {e}")))?;
    let mut sessions: Vec<Vec<RequestSpec>> = Vec::new();
    for calls in &read {
        let mut session: Vec<RequestSpec> = Vec::new();
        for call in calls {
            let think = match &call.think {
                Some(t) => Some(seconds(&format!("{file}: line {}: think", call.line), t, "think time")?),
                None => None,
            };
            let mut request = spec(o, url, &call.path, call.method.as_deref(), call.contents.as_deref());
            if let Some(before) = session.last_mut().filter(|_| !call.indented) {
                // A new burst: the pause comes before it.
                if before.think.is_none() {
                    before.think = Some(ThinkTime::Fixed(Duration::from_secs_f64(think_s.max(0.0))));
                }
            }
            if let Some(t) = think {
                request.think = Some(ThinkTime::Fixed(Duration::from_secs_f64(t.max(0.0))));
            } else if call.indented
                && let Some(before) = session.last_mut()
            {
                // There is no pause within a burst; the pause of its first line comes after its last request.
                request.think = before.think.take();
            }
            session.push(request);
        }
        sessions.push(session);
    }
    if sessions.is_empty() { usage(&format!("no sessions in {file}")) } else { Ok(sessions) }
}

/// The paths of successive calls, and whether they start again at the end.
fn paths(o: &HttperfOptions, calls: usize, sessions: u64) -> Result<(Vec<String>, bool), Refusal> {
    match &o.uris {
        None => Ok((vec![o.uri.clone()], true)),
        Some(UriSource::List(wrap, file)) => {
            let bytes = files::read(Path::new(file)).or_else(|_| usage(&format!("can't open {file}")))?;
            let paths: Vec<String> =
                bytes.split(|b| *b == 0).map(<[u8]>::trim_ascii).filter(|p| !p.is_empty()).map(raw::text).collect();
            if paths.is_empty() { usage(&format!("no URIs in {file}")) } else { Ok((paths, *wrap)) }
        }
        Some(UriSource::Set(files, miss)) => {
            // The digits of a file's number are its folders. The miss rate is the share of calls that move on to the next file.
            let prefix = if o.uri == "/" { "" } else { o.uri.as_str() };
            let name = |i: u64| {
                let folders: String = i.to_string().chars().map(|d| format!("/{d}")).collect();
                format!("{prefix}{folders}.html")
            };
            let (mut file, mut owed) = (0, 0.0);
            let mut next = || {
                let path = name(file);
                owed += miss;
                if owed >= 1.0 {
                    owed -= 1.0;
                    file = (file + 1) % (*files).max(1);
                }
                path
            };
            let many = usize::try_from(sessions).unwrap_or(MOST_STEPS).saturating_mul(calls).clamp(1, MOST_STEPS);
            Ok(((0..many).map(|_| next()).collect(), true))
        }
    }
}

/// Sessions as lists of requests, and the number of sessions to start.
fn sessions(o: &HttperfOptions, url: &Url) -> Result<(Vec<Vec<RequestSpec>>, u64), Refusal> {
    let (count, calls, think) = match &o.work {
        Workload::SessionLog(n, think, file) => return Ok((session_log(o, url, *think, file)?, *n)),
        Workload::Plain => (o.num_conns, o.num_calls, None),
        Workload::Sessions(n, calls, think) => (*n, *calls, Some(*think)),
    };
    let calls = calls.clamp(1, MOST_STEPS as u64) as usize;
    let (paths, wrap) = paths(o, calls, count)?;
    let call = |path: &str, index: usize| {
        let mut spec = spec(o, url, path, None, None);
        // The pause comes after each burst.
        let ends = (index as u64 + 1).is_multiple_of(o.burst.max(1));
        spec.think = think.filter(|_| ends).map(|s| ThinkTime::Fixed(Duration::from_secs_f64(s.max(0.0))));
        spec
    };
    if !wrap {
        // Each path of the list once.
        let all = paths.chunks(calls).take(MOST_STEPS / calls + 1);
        let sessions: Vec<Vec<RequestSpec>> =
            all.map(|c| c.iter().enumerate().map(|(i, p)| call(p, i)).collect()).collect();
        let begun = count.min(sessions.len() as u64);
        return Ok((sessions, begun));
    }
    // Each session goes on in the list where the one before stopped; enough sessions for the pattern to repeat.
    let around = if paths.len() == 1 { 1 } else { paths.len().min(MOST_STEPS / calls + 1) };
    let session = |s: usize| (0..calls).map(|c| call(&paths[(s * calls + c) % paths.len()], c)).collect();
    Ok(((0..around).map(session).collect(), count))
}

pub fn plan_of(o: &HttperfOptions, url: &Url) -> Result<Plan, Refusal> {
    let calls = if let Workload::Sessions(_, calls, _) = o.work { calls } else { o.num_calls };
    if calls > MOST_STEPS as u64 {
        return usage(&format!("{calls} calls on a connection are more than the {MOST_STEPS} that can be sent here"));
    }
    let (sessions, count) = sessions(o, url)?;
    let mut plan = Plan::new(url.clone(), seed());
    plan.requests.clear();
    for session in sessions {
        plan.requests.extend(session);
        if let Some(last) = plan.requests.last_mut() {
            last.last = true;
        }
    }
    plan.pick = Pick::Sessions;
    plan.keepalive = KeepAlive::On;
    let has_sessions = matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..));
    plan.abandon.session_with_connection = !has_sessions;
    plan.abandon.lost_is_sent_again = has_sessions;
    plan.abandon.session_with_status = o.failure_status.filter(|_| has_sessions).and_then(|s| s.try_into().ok());
    if o.http_version == (1, 0) {
        plan.http.version = Version::Http10;
    }
    plan.http.cookies = o.cookies;
    // Without a timeout httperf waits forever; we wait ten minutes.
    let patience = if o.timeout > 0.0 { o.timeout + o.think_timeout } else { 600.0 };
    plan.timeout = Duration::from_secs_f64(patience.min(86_400.0)).max(Duration::from_micros(1));
    plan.drain = plan.timeout;
    plan.network.receive_buffer_bytes = Some(o.receive_buffer).filter(|n| *n > 0);
    plan.network.send_buffer_bytes = Some(o.send_buffer).filter(|n| *n > 0);
    plan.tls.insecure = true;
    plan.tls.resumption = !o.no_reuse;
    let most = o.max_connections.unwrap_or(MOST_CONNECTIONS).max(1);
    plan.phases = vec![Phase {
        name: "main".into(),
        measured: true,
        load: match o.begin {
            ConnectionSchedule::InTurn => Load::closed(1),
            ConnectionSchedule::Rate(rate, arrivals) => Load::open(rate, arrivals, most),
        },
        requests: Some(count),
        duration: None,
    }];
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::flags::read;
    use super::*;

    #[test]
    fn a_file_of_sessions_is_read_with_its_bursts_and_pauses() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "# c\n/a think=0.2\n  /b\n/c\n\n/d method=POST contents='x y'\n";
        fs::write(file.path(), text).expect("written");
        let o = read(&[]).expect("valid");
        let url: Url = "http://h/".parse().expect("valid");
        let sessions = session_log(&o, &url, 1.0, &file.path().to_string_lossy()).expect("valid");
        let paths = |s: &[RequestSpec]| s.iter().map(|r| r.url.path.clone()).collect::<Vec<_>>();
        assert_eq!(
            (paths(&sessions[0]), paths(&sessions[1])),
            (vec!["/a".into(), "/b".into(), "/c".into()], vec!["/d".into()])
        );
        let pause = |s: f64| Some(ThinkTime::Fixed(Duration::from_secs_f64(s)));
        assert_eq!((sessions[0][0].think, sessions[0][1].think), (None, pause(0.2)));
        assert_eq!((sessions[1][0].method.as_str(), &sessions[1][0].body), ("POST", &Body::Text("x y".into())));
        assert_eq!(unescape("a\\nb\\101\\a\\\\é"), "a\r\nbA\n\\é");
    }
}
