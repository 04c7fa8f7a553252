//! Writes the plan file of a recording, short enough to read and edit.

use std::collections::HashSet;

use lastdrop_model::class;
use lastdrop_model::request::check_header;

use super::steps::{ExtractRule, Step};
use super::values::Column;
use super::{PlanOptions, RecordedPlan, RequestBody, find};

pub(crate) fn write(steps: &[Step], columns: &[Column], options: &PlanOptions, mut notes: Vec<String>) -> RecordedPlan {
    let several = steps.iter().any(|s| s.exchange.is_last) && steps.len() > 1;
    let what = if options.independent { "requests, one at random each time" } else { "one user's path" };
    let mut plan = String::new();
    let pick = match (options.independent, several) {
        (true, _) => "weighted",
        (false, true) => "sessions",
        (false, false) => "session",
    };
    plan.push_str(&format!("pick = \"{pick}\"\n"));
    // A second Cookie header would be one too many.
    let own = steps.iter().any(|s| find(&s.headers, "cookie").is_some());
    if let Some(settings) = &options.settings {
        settings.write(own, &mut plan);
    } else if !options.independent {
        plan.push_str(&format!("\n[http]\ncookies = {}\n", !own));
        plan.push_str("compressed = true\ndecode = true\n");
        if steps.iter().any(|s| s.redirects > 0) {
            plan.push_str("redirects = 10\n");
        }
    }
    if options.insecure {
        plan.push_str("\n[tls]\ninsecure = true\n");
    } else if let Some(ca) = &options.ca {
        plan.push_str(&format!("\n[tls]\nca = {}\n", quoted(ca)));
    }
    let parts: usize = steps.iter().map(|s| s.parts).sum();
    if parts > 0 {
        plan.push_str(&format!("\n[page]            # {parts} scripts, images and the like: what pages embed is loaded with them\ncache = true\n"));
    }
    let data = data(columns);
    if data.is_some() {
        plan.push_str(&format!(
            "\n[data]            # a row for each user: {}\nfile = {}\nper = \"user\"\n",
            columns.iter().map(|c| c.0.as_str()).collect::<Vec<_>>().join(", "),
            quoted(&options.data_file)
        ));
        notes.push(format!(
            "{} has what the recorded user entered, for its owner's eyes: add a row for each user",
            options.data_file
        ));
    }
    for (at, step) in steps.iter().enumerate() {
        write_step(step, several && (step.exchange.is_last || at + 1 == steps.len()), &mut plan);
        let files = &step.exchange.files;
        if let RequestBody::Multipart(parts) = &step.exchange.body
            && files.iter().any(|f| f.path.is_none() && parts.get(f.part).is_some_and(|p| p.1.is_empty()))
        {
            notes.push(format!("step {}: what was in a file that was sent is not known; its part is empty", at + 1));
        }
        let body = match &step.exchange.body {
            RequestBody::File(path) => Some(path),
            _ => None,
        };
        for path in files.iter().filter_map(|f| f.path.as_ref()).chain(body) {
            notes.push(format!("step {}: {path} is read when the plan runs, from the plan's folder", at + 1));
        }
        if step.exchange.body == RequestBody::Lost {
            notes
                .push(format!("step {}: what was sent is no text, or not in the recording; its body is empty", at + 1));
        }
    }
    let head = format!("# Recorded: {what}. `lastdrop run FILE -c 50 -d 1m` has fifty users.\n");
    let comment = |note: &String| format!("# {}\n", lastdrop_model::printable::line(note));
    let comments: String = notes.iter().map(comment).collect();
    RecordedPlan { plan: format!("{head}{comments}{plan}"), data, notes }
}

fn write_step(step: &Step, is_last: bool, to: &mut String) {
    let e = &step.exchange;
    // Braces would be templates in a name too.
    let shown = class::pattern(&e.method, &e.url.path);
    to.push_str(&format!("\n[[request]]       # {}\n", lastdrop_model::printable::line(&shown)));
    let natural = if matches!(step.body, RequestBody::Nothing | RequestBody::Lost) { "GET" } else { "POST" };
    if e.method != natural {
        to.push_str(&format!("method = {}\n", quoted(&e.method)));
    }
    to.push_str(&format!("url = {}\n", quoted(&format!("{}{}", e.url.origin(), step.path))));
    let has_type = step.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-type"));
    let repeats = matches!(&step.body, RequestBody::Form(fields) if !has_one_of_each(fields));
    let form = ("Content-Type".to_string(), "application/x-www-form-urlencoded".to_string());
    let headers: Vec<_> = step.headers.iter().chain((repeats && !has_type).then_some(&form)).collect();
    if !headers.is_empty() {
        let all: Vec<String> = headers.iter().map(|(n, v)| format!("{} = {}", quoted(n), quoted(v))).collect();
        to.push_str(&format!("headers = {{ {} }}\n", all.join(", ")));
    }
    match &step.body {
        RequestBody::Nothing | RequestBody::Lost => {}
        RequestBody::File(path) => to.push_str(&format!("body_file = {}\n", quoted(path))),
        RequestBody::Text(text) => to.push_str(&format!("body = {}\n", quoted(text))),
        RequestBody::Form(fields) if has_one_of_each(fields) => {
            let all: Vec<String> = fields.iter().map(|(n, v)| format!("{} = {}", quoted(n), quoted(v))).collect();
            to.push_str(&format!("form = {{ {} }}\n", all.join(", ")));
        }
        RequestBody::Form(fields) => {
            let all: Vec<String> =
                fields.iter().map(|(n, v)| format!("{}={}", encoded(n), encoded_template(v))).collect();
            to.push_str(&format!("body = {}\n", quoted(&all.join("&"))));
        }
        RequestBody::Multipart(parts) => {
            let part = |(at, (n, v)): (usize, &(String, String))| {
                let file = e.files.iter().find(|f| f.part == at);
                let more = |name: &str, value: Option<&String>| {
                    value.map_or(String::new(), |value| format!(", {name} = {}", quoted(value)))
                };
                let content = match file.and_then(|f| f.path.as_ref()) {
                    Some(path) => format!("file = {}", quoted(path)),
                    None => format!("value = {}", quoted(v)),
                };
                let file_name = more("filename", file.and_then(|f| f.name.as_ref()));
                let kind = more(
                    "type",
                    file.and_then(|f| f.content_type.as_ref())
                        .filter(|kind| check_header("Content-Type", kind).is_ok()),
                );
                format!("{{ name = {}, {content}{file_name}{kind} }}", quoted(n))
            };
            to.push_str(&format!(
                "multipart = [{}]\n",
                parts.iter().enumerate().map(part).collect::<Vec<_>>().join(", ")
            ));
        }
    }
    if !step.expect.is_empty() {
        let all: Vec<String> = step.expect.iter().map(|e| quoted(e)).collect();
        to.push_str(&format!("expect = [{}]\n", all.join(", ")));
    }
    for (name, rule) in &step.extract {
        let rule = match rule {
            ExtractRule::Header(name) => format!("header = {}", quoted(name)),
            ExtractRule::Regex(regex) => format!("regex = {}", quoted(regex)),
            ExtractRule::Json(pointer) => format!("json = {}", quoted(pointer)),
            ExtractRule::Url(regex) => format!("url = {}", quoted(regex)),
        };
        to.push_str(&format!("extract.{name} = {{ {rule} }}\n"));
    }
    if step.think_us > 0 {
        to.push_str(&format!("think = \"{}ms\"\n", (step.think_us + 50_000) / 100_000 * 100));
    }
    if is_last {
        to.push_str("last = true\n");
    }
}

/// Whether each name occurs once, as a TOML table requires.
fn has_one_of_each(fields: &[(String, String)]) -> bool {
    let mut names = HashSet::new();
    fields.iter().all(|(name, _)| names.insert(name))
}

/// Percent-encodes a text, except the names of values.
fn encoded_template(text: &str) -> String {
    if text.starts_with("{{") && text.ends_with("}}") && !text.starts_with("{{{{") {
        text.into()
    } else {
        encoded(text)
    }
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        match b {
            b' ' => out.push('+'),
            b if b.is_ascii_alphanumeric() || b"-_.*".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

/// A TOML string; a literal one for texts with backslashes, if possible.
pub(crate) fn quoted(text: &str) -> String {
    if text.contains(['\\', '"']) && !text.contains(['\'', '\n']) && !text.chars().any(char::is_control) {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// CSV with a line of names and one row.
fn data(columns: &[Column]) -> Option<String> {
    if columns.is_empty() {
        return None;
    }
    let cell = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let names: Vec<&str> = columns.iter().map(|c| c.0.as_str()).collect();
    let values: Vec<String> = columns.iter().map(|c| cell(&c.1)).collect();
    Some(format!("{}\n{}\n", names.join(","), values.join(",")))
}
