//! Runs a program on a configuration: with the rights of the server, in its folder, for a bounded time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_probe::process::Birth;

use crate::ServerError;
use crate::adapter::Facts;
use crate::execution::{ProgramOutput, Question};
use crate::restart::Launch;

/// Longest time for a configuration test: some load the whole application.
const LIMIT: Duration = Duration::from_secs(60);

const PYTHONS: &[&str] = &["python", "pypy"];
/// Our variable that names folders of Python modules.
const FOLDERS: &str = "LASTDROP_PYTHON_FOLDERS";
/// Runs a script like Python does, with those folders added to its path.
const ADDS_FOLDERS: &str = "\
import sys
sys.path.pop(0)
import os.path, runpy
sys.argv = sys.argv[1:]
sys.path[0:0] = [os.path.dirname(sys.argv[0])] + os.environ['LASTDROP_PYTHON_FOLDERS'].split(':')
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// The output of a finished command.
pub struct CommandOutput {
    pub command: String,
    pub passed: bool,
    /// Standard error; standard output if that is empty.
    pub said: String,
    output: String,
}

impl CommandOutput {
    /// The value of a setting in a line `name = value`.
    pub fn value(&self, name: &str) -> Option<String> {
        self.output.lines().rev().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_string())
        })
    }
}

/// Folders of modules that a Python program was started with. `PYTHONPATH` itself is not passed on: the interpreter
/// would execute code in them (sitecustomize.py) before anything else.
fn python_folders(program: &Path, launch: &Launch) -> Vec<PathBuf> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let paths = launch.environment.iter().filter(|(name, _)| name == "PYTHONPATH").map(|(_, value)| value);
    let folders = paths.flat_map(|value| value.split(':')).filter(|folder| folder.starts_with('/'));
    if PYTHONS.iter().any(|python| name.starts_with(python)) {
        folders.map(PathBuf::from).collect()
    } else {
        Vec::new()
    }
}

/// True if a folder entry is Python code. Folders with other content need not be checked for their owner.
fn is_module(path: &Path) -> bool {
    const CODE: &[&str] = &["egg", "py", "pyc", "pyd", "so", "zip"];
    let end = path.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| CODE.contains(&end)) || path.join("__init__.py").exists()
}

/// Makes a Python command line add the folders before it runs its script. A command line with other words before the
/// script is not changed.
fn with_folders(argv: Vec<String>) -> Vec<String> {
    match argv.as_slice() {
        [python, script, rest @ ..] if !script.starts_with('-') => {
            [python.as_str(), "-c", ADDS_FOLDERS, script].map(str::to_string).into_iter().chain(rest.to_vec()).collect()
        }
        _ => argv,
    }
}

/// Runs a command of a kind. Returns `None` if the kind has no such command, or if the command line that it needs is
/// unknown.
pub fn ask(words: &[&str], facts: &Facts, launch: &Launch, file: &Path) -> Result<Option<CommandOutput>, ServerError> {
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
    // The first word is the server's name for itself; its program may be an interpreter.
    let own = matches!(words.first(), Some(&"{argv}" | &"{program}"));
    let exe = if own { PathBuf::from(&program) } else { argv.first().map(PathBuf::from).unwrap_or_default() };
    let birth = Birth { environment: launch.environment.clone(), ..birth.clone() };
    let folders = python_folders(&exe, launch);
    let argv = if folders.is_empty() { argv } else { with_folders(argv) };
    let question =
        Question::new(&birth, "the server tests its configuration, or tells its settings").program(&exe).argv(&argv);
    let joined = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":");
    let question = if folders.is_empty() { question } else { question.variable(FOLDERS, &joined) };
    let modules = folders.iter().flat_map(fs::read_dir).flatten().filter_map(Result::ok).map(|entry| entry.path());
    let modules = modules.filter(|path| is_module(path));
    let code = birth.code.iter().chain(&folders).cloned().chain(modules).chain([file.to_path_buf()]);
    let ProgramOutput { passed, output, errors } = question.reads(code).like_the_server().within(LIMIT).ask()?;
    let said = if errors.trim().is_empty() { output.trim().to_string() } else { errors.trim().to_string() };
    Ok(Some(CommandOutput { command: shown, passed, said, output }))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn folders_of_python_reach_its_script_and_nothing_in_them_is_executed_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("lib")).expect("a folder");
        fs::write(at("lib/ours.py"), "NAME = 'found'\n").expect("written");
        fs::write(at("lib/sitecustomize.py"), "raise SystemExit('executed too early')\n").expect("written");
        fs::write(at("script"), "import sys, ours\nprint(ours.NAME, *sys.argv[1:])\n").expect("written");
        let script = at("script").display().to_string();
        let argv = with_folders(["python3", &script, "a", "-b"].map(str::to_string).to_vec());
        let mut python = Command::new(&argv[0]);
        python.args(&argv[1..]).env_remove("PYTHONPATH").env(FOLDERS, at("lib")).current_dir(folder.path());
        let output = python.output().expect("python3 is here");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "found a -b\n", "{output:?}");
        let otherwise = ["python3", "-m", "gunicorn"].map(str::to_string).to_vec();
        assert_eq!(with_folders(otherwise.clone()), otherwise);
    }
}
