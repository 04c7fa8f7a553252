//! Reads the pages of the manual for tests: the commands in their blocks, headings, links.

use std::collections::BTreeSet;

/// A command of a page.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its line in the page.
    pub line: usize,
    pub text: String,
    /// Why it is not run, if the page says so: `<!-- not run: REASON -->` before its block.
    pub not_run: Option<String>,
}

/// Programs that begin a command in a block without a language.
const PROGRAMS: &[&str] = &[
    "lastdrop",
    "ab",
    "siege",
    "curl",
    "ln",
    "chromium",
    "certutil",
    "apt-get",
    "cargo",
    "./x",
    "examples/mod_perl/server",
];

/// The commands of a page: every line of a ```sh block, and the lines of other blocks that begin with a program. A line that
/// ends in `\` continues in the next one.
pub fn commands(page: &str) -> Vec<Step> {
    let (mut steps, mut fence, mut not_run): (Vec<Step>, Option<String>, Option<String>) = (Vec::new(), None, None);
    let (mut was_code, mut goes_on) = (false, false);
    for (index, line) in page.lines().enumerate() {
        if let Some(word) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(word.trim().to_string()) };
            if fence.is_none() {
                not_run = None;
            }
            continue;
        }
        let code = fence.is_some() || line.starts_with("    ");
        if !code {
            if was_code && fence.is_none() && !line.trim().is_empty() {
                not_run = None;
            }
            if let Some(reason) = line.trim().strip_prefix("<!-- not run: ") {
                not_run = Some(reason.trim_end_matches("-->").trim().to_string());
            }
            was_code = was_code && line.trim().is_empty();
            continue;
        }
        was_code = true;
        let text = line.trim();
        let is_shell = fence.as_deref() == Some("sh");
        let first = text.split_whitespace().next().unwrap_or_default();
        if goes_on {
            let last = steps.last_mut().expect("there is a line that goes on");
            last.text = format!("{} {}", last.text.trim_end_matches('\\').trim_end(), text);
        } else if (is_shell && !text.is_empty() && !text.starts_with('#')) || PROGRAMS.contains(&first) {
            steps.push(Step { line: index + 1, text: text.into(), not_run: not_run.clone() });
        } else {
            continue;
        }
        goes_on = text.ends_with('\\');
    }
    steps
}

/// The anchors that mdBook and GitHub make of a page's headings.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut all = BTreeSet::new();
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        all.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    all
}

/// Targets of links and pictures, outside code: `file.md#anchor`.
pub fn links(page: &str) -> Vec<String> {
    let mut fenced = false;
    let mut all = Vec::new();
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        if fenced || line.starts_with("    ") {
            continue;
        }
        // Text in backticks is not a link.
        let plain: String = line.split('`').step_by(2).collect();
        for part in plain.split("](").skip(1) {
            all.extend(part.split(')').next().map(str::to_string));
        }
    }
    all
}
