//! Session files as httperf's `--wsesslog` reads them: one request per line, a blank line between sessions, `#` before
//! a comment. The further requests of a burst are indented below its first.
//!
//! `PATH [method=POST] [contents='a b'] [think=SECONDS]`

/// One request of a session: one line of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// Line number, from 1.
    pub line: usize,
    pub path: String,
    pub method: Option<String>,
    pub contents: Option<String>,
    /// Think time after the burst in seconds, as the file writes it.
    pub think: Option<String>,
    /// The line belongs to the burst of the line before.
    pub indented: bool,
}

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct SessionFileError {
    pub line: usize,
    pub what: String,
}

/// Returns the sessions of a file, each with at least one call.
///
/// # Errors
/// With the first line that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Vec<Call>>, SessionFileError> {
    let mut sessions: Vec<Vec<Call>> = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        let bare = line.split('#').next().unwrap_or_default();
        if bare.trim().is_empty() {
            if line.trim().is_empty() && sessions.last().is_some_and(|s| !s.is_empty()) {
                sessions.push(Vec::new());
            }
            continue;
        }
        let mut words = split_quoted(bare).into_iter();
        let mut call = Call {
            line: index + 1,
            path: words.next().unwrap_or_default(),
            indented: line.starts_with([' ', '\t']),
            ..Call::default()
        };
        for word in words {
            let place = match word.split_once('=') {
                Some(("method", _)) => &mut call.method,
                Some(("contents", _)) => &mut call.contents,
                Some(("think", _)) => &mut call.think,
                _ => {
                    return Err(SessionFileError { line: index + 1, what: format!("'{word}' is not understood") });
                }
            };
            *place = word.split_once('=').map(|(_, value)| value.to_string());
        }
        sessions.last_mut().into_iter().for_each(|s| s.push(call.clone()));
    }
    sessions.retain(|s| !s.is_empty());
    Ok(sessions)
}

/// Splits a line into words; single and double quotes keep blanks inside a word.
fn split_quoted(line: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_and_bursts_are_lines_and_their_indents() {
        let text = "# two\n/a think=2.0\n\t/a.png\n\n\n/b method=POST contents='x=1 2' # said\n";
        let sessions = parse(text).expect("sessions");
        let shown: Vec<Vec<(usize, &str, bool)>> =
            sessions.iter().map(|s| s.iter().map(|c| (c.line, c.path.as_str(), c.indented)).collect()).collect();
        assert_eq!(shown, [vec![(2, "/a", false), (3, "/a.png", true)], vec![(6, "/b", false)]]);
        assert_eq!((sessions[0][0].think.as_deref(), sessions[1][0].contents.as_deref()), (Some("2.0"), Some("x=1 2")));
        assert_eq!(parse("/ what=1").map_err(|e| e.to_string()), Err("line 1: 'what=1' is not understood".into()));
        assert!(parse("# nothing\n").expect("no error").is_empty());
    }
}
