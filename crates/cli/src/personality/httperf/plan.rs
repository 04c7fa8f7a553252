//! What httperf sends, as a plan: connections of some calls each, or the sessions of its workloads.

use std::path::Path;
use std::time::Duration;

use lastdrop_load::files;
use lastdrop_model::request::{Body, Pick, RequestSpec, Think};
use lastdrop_model::{KeepAlive, Load, Phase, Plan, Url};

use super::flags::{Begin, Order, Work, seconds, usage};
use crate::personality::{Refusal, seed};

/// Most connections at once, as select(2) has it in the original.
const MOST_CONNECTIONS: u32 = 1024 - 3;
/// Sessions that are written out beyond what a file of them names.
const MOST_STEPS: usize = 100_000;

/// Escapes of --add-header: `\n`, `\r`, `\a`, `\\`, and three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('a') => out.push('\x07'),
            Some(d @ '0'..='7') => {
                let mut n = d as u32 - '0' as u32;
                while let Some(d) = rest.peek().and_then(|c| c.to_digit(8)).filter(|_| n < 64) {
                    n = n * 8 + d;
                    rest.next();
                }
                out.extend(char::from_u32(n));
            }
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

/// A request as httperf sends it.
fn spec(o: &Order, url: &Url, path: &str, method: Option<&str>, body: Option<&str>) -> Result<RequestSpec, Refusal> {
    let mut spec = RequestSpec::get(url.with_path(path));
    spec.literal = true;
    spec.method = method.or(o.method.as_deref()).unwrap_or("GET").to_string();
    let mut headers: Vec<(String, String)> = vec![("User-Agent".into(), "httperf/0.9.0".into())];
    headers.push(("Accept".into(), String::new()));
    // The original leaves the port away.
    let host = o.server_name.clone().unwrap_or_else(|| o.server.clone());
    headers.push(("Host".into(), if o.no_host { String::new() } else { host }));
    let http10 = o.http_version.as_deref() == Some("1.0");
    headers.push(("Connection".into(), if http10 { "keep-alive".into() } else { String::new() }));
    for line in unescape(&o.headers).lines().map(|l| l.trim_end_matches('\r')).filter(|l| !l.is_empty()) {
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.trim().to_string(), value.trim().to_string())),
            None => return usage(&format!("--add-header: '{line}' is not a header; write 'Name: value\\n'")),
        }
    }
    if let Some(body) = body {
        spec.body = Body::Text(body.to_string());
    }
    spec.headers = headers;
    Ok(spec)
}

/// Sessions out of a --wsesslog file: each a list of bursts, each a list of requests and the pause after it.
fn session_log(o: &Order, url: &Url, think_s: f64, file: &str) -> Result<Vec<Vec<RequestSpec>>, Refusal> {
    let text = files::read_text(Path::new(file)).or_else(|_| usage(&format!("can't open {file}")))?;
    let mut sessions: Vec<Vec<RequestSpec>> = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        let line_of = |what: &str| usage(&format!("{file}: line {}: {what}", index + 1));
        let bare = line.split('#').next().unwrap_or_default();
        if bare.trim().is_empty() {
            if line.trim().is_empty() && sessions.last().is_some_and(|s| !s.is_empty()) {
                sessions.push(Vec::new());
            }
            continue;
        }
        let mut words = split_quoted(bare);
        let path = words.remove(0);
        let (mut method, mut contents, mut think) = (None, None, None);
        for word in words {
            match word.split_once('=') {
                Some(("method", m)) => method = Some(m.to_string()),
                Some(("contents", c)) => contents = Some(c.to_string()),
                Some(("think", t)) => {
                    think = Some(seconds(&format!("{file}: line {}: think", index + 1), t, "think time")?)
                }
                _ => return line_of(&format!("'{word}' is not understood")),
            }
        }
        let mut request = spec(o, url, &path, method.as_deref(), contents.as_deref())?;
        let indented = line.starts_with([' ', '\t']);
        let session = sessions.last_mut().map_or(&mut [][..], |s| s.as_mut_slice());
        if let Some(before) = session.last_mut().filter(|_| !indented) {
            // A new burst: the pause comes before it.
            if before.think.is_none() {
                before.think = Some(Think::Fixed(Duration::from_secs_f64(think_s.max(0.0))));
            }
        }
        if let Some(t) = think {
            request.think = Some(Think::Fixed(Duration::from_secs_f64(t.max(0.0))));
        } else if indented && let Some(before) = session.last_mut() {
            // Inside of a burst nobody thinks; what its first line says comes after its last.
            request.think = before.think.take();
        }
        if let Some(s) = sessions.last_mut() {
            s.push(request);
        }
    }
    sessions.retain(|s| !s.is_empty());
    if sessions.is_empty() { usage(&format!("no sessions in {file}")) } else { Ok(sessions) }
}

/// Words; quotes of either kind keep blanks together.
fn split_quoted(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.trim().chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => words.last_mut().into_iter().for_each(|w| w.push(c)),
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                if words.last().is_some_and(|w| !w.is_empty()) {
                    words.push(String::new());
                }
            }
            None => words.last_mut().into_iter().for_each(|w| w.push(c)),
        }
    }
    words
}

/// Sessions as lists of requests, and how many are begun.
fn sessions(o: &Order, url: &Url) -> Result<(Vec<Vec<RequestSpec>>, u64), Refusal> {
    let calls = o.num_calls.clamp(1, MOST_STEPS as u64) as usize;
    let one = |path: &str| spec(o, url, path, None, None);
    // Each session takes the next of the list.
    let in_turn = |paths: &[String], calls: usize| -> Result<Vec<Vec<RequestSpec>>, Refusal> {
        // Once around, every path has been at every place.
        (0..paths.len().min(MOST_STEPS / calls.max(1) + 1))
            .map(|s| (0..calls).map(|c| one(&paths[(s * calls + c) % paths.len()])).collect())
            .collect()
    };
    match &o.work {
        Work::Plain => Ok((vec![(0..calls).map(|_| one(&o.uri)).collect::<Result<_, _>>()?], o.num_conns)),
        Work::Sessions(n, calls, think) => {
            let mut steps = Vec::new();
            for call in 0..(*calls).clamp(1, MOST_STEPS as u64) {
                let mut s = one(&o.uri)?;
                // Thinking comes after each burst.
                s.think =
                    ((call + 1) % o.burst.max(1) == 0).then(|| Think::Fixed(Duration::from_secs_f64(think.max(0.0))));
                steps.push(s);
            }
            Ok((vec![steps], *n))
        }
        Work::SessionLog(n, think, file) => Ok((session_log(o, url, *think, file)?, *n)),
        Work::Uris(wrap, file) => {
            let bytes = files::read(Path::new(file)).or_else(|_| usage(&format!("can't open {file}")))?;
            let paths: Vec<String> = bytes
                .split(|b| *b == 0)
                .map(|p| String::from_utf8_lossy(p).trim().to_string())
                .filter(|p| !p.is_empty())
                .collect();
            if paths.is_empty() {
                return usage(&format!("no URIs in {file}"));
            }
            let limit = if *wrap { o.num_conns } else { o.num_conns.min((paths.len() / calls) as u64) };
            Ok((in_turn(&paths, calls)?, limit))
        }
        Work::Set(files, miss) => {
            // A file's digits are its folders; a call moves on to the next with the given probability.
            let prefix = if o.uri == "/" { "" } else { o.uri.as_str() };
            let name = |i: u64| {
                let digits = i.to_string();
                let mut path = prefix.to_string();
                for d in digits.chars() {
                    path.push('/');
                    path.push(d);
                }
                format!("{path}.html")
            };
            let (mut file, mut owed) = (0, 0.0);
            let many = (o.num_conns as usize * calls).min(MOST_STEPS);
            let mut paths = Vec::with_capacity(many);
            for _ in 0..many {
                paths.push(name(file));
                owed += miss;
                if owed >= 1.0 {
                    owed -= 1.0;
                    file = (file + 1) % (*files).max(1);
                }
            }
            Ok((in_turn(&paths, calls)?, o.num_conns))
        }
    }
}

pub fn plan_of(o: &Order, url: &Url) -> Result<Plan, Refusal> {
    let calls = if let Work::Sessions(_, calls, _) = o.work { calls } else { o.num_calls };
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
    plan.http.http10 = o.http_version.as_deref() == Some("1.0");
    plan.http.cookies = o.cookies;
    // Without a timeout httperf waits for good; nobody does.
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
            Begin::InTurn => Load::closed(1),
            Begin::Rate(rate, arrivals) => Load::open(rate, arrivals, most),
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
        let pause = |s: f64| Some(Think::Fixed(Duration::from_secs_f64(s)));
        assert_eq!((sessions[0][0].think, sessions[0][1].think), (None, pause(0.2)));
        assert_eq!((sessions[1][0].method.as_str(), &sessions[1][0].body), ("POST", &Body::Text("x y".into())));
        assert_eq!(unescape("a\\nb\\101"), "a\nbA");
    }
}
