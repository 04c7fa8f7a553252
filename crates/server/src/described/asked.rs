//! Asks a program about a configuration: with the rights of the server, in its folder, for a bounded time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_probe::process::Birth;

use crate::ServerError;
use crate::adapter::Facts;
use crate::execution::{Answer, Question};
use crate::restart::Launch;

/// How long a test of a configuration may take: some load the whole application.
const LIMIT: Duration = Duration::from_secs(60);

/// What a program has said.
pub struct Told {
    pub command: String,
    pub passed: bool,
    /// On its standard error; where there is nothing, on its standard output.
    pub said: String,
    output: String,
}

impl Told {
    /// The value of a setting: `name = value`.
    pub fn value(&self, name: &str) -> Option<String> {
        self.output.lines().rev().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_string())
        })
    }
}

/// Asks with a command of a kind. None: the kind has no such command, or nobody knows the command line that it needs.
pub fn ask(words: &[&str], facts: &Facts, launch: &Launch, file: &Path) -> Result<Option<Told>, ServerError> {
    if words.is_empty() || (words.contains(&"{argv}") && launch.argv.is_empty()) {
        return Ok(None);
    }
    let birth = &facts.birth;
    let program = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    let config = facts.config.as_ref().map(|c| c.display().to_string()).unwrap_or_default();
    let mut argv: Vec<String> = Vec::new();
    for word in words {
        match *word {
            "{argv}" => argv.extend(launch.argv.clone()),
            word => argv.push(
                word.replace("{program}", &program)
                    .replace("{config}", &config)
                    .replace("{file}", &file.display().to_string()),
            ),
        }
    }
    let shown = argv.join(" ");
    // The first word is what the server calls itself; its program may be an interpreter.
    let own = matches!(words.first(), Some(&"{argv}" | &"{program}"));
    let exe = if own { PathBuf::from(&program) } else { argv.first().map(PathBuf::from).unwrap_or_default() };
    let birth = Birth { environment: launch.environment.clone(), ..birth.clone() };
    let question =
        Question::new(&birth, "the server tests its configuration, or tells its settings").program(&exe).argv(&argv);
    let code = birth.code.iter().cloned().chain([file.to_path_buf()]);
    let Answer { passed, output, errors } = question.reads(code).like_the_server().within(LIMIT).ask()?;
    let said = if errors.trim().is_empty() { output.trim().to_string() } else { errors.trim().to_string() };
    Ok(Some(Told { command: shown, passed, said, output }))
}
