//! What developers have beside the program: each command of `./x`, each lab and each script, tried for a moment, so that one that is broken is
//! noticed. What takes long or compiles is looked through.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Done, Folder};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn run(folder: &Folder, program: &str, args: &[&str]) -> Done {
    let mut command = Command::new(Path::new(SOURCE).join(program));
    command.args(args).current_dir(SOURCE).stdin(Stdio::null()).env("LASTDROP", env!("CARGO_BIN_EXE_lastdrop"));
    // Rows of labs go where those of real ones are not.
    Done::of(command.env("CARGO_TARGET_DIR", folder.path()).output().expect("it runs"), &[])
}

fn files(folder: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(Path::new(SOURCE).join(folder)).expect("a folder").map(|e| e.expect("an entry").path());
    all.filter(|path| path.is_file()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn each_command_of_x_is_known_and_stands_in_its_help() {
    let folder = Folder::new();
    let help = run(&folder, "x", &[]).stdout;
    let script = fs::read_to_string(Path::new(SOURCE).join("x")).expect("readable");
    let commands: BTreeSet<&str> = script
        .lines()
        .filter_map(|line| line.strip_suffix(')'))
        .filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    // A new one is to be tried here, or by another test: packages (dist), load (simulate), the rest by whoever runs them all day.
    let tried = ["bench", "book", "check", "demo", "dist", "fmt", "fuzz", "install", "lab", "simulate", "test"];
    assert_eq!(commands, tried.into_iter().collect());
    for command in commands {
        assert!(help.contains(&format!("./x {command}")), "{command}: {help}");
    }
    assert_eq!(run(&folder, "x", &["no-such-command"]).code, 2);
}

#[test]
fn mistakes_can_still_be_put_back_into_the_engine() {
    let folder = Folder::new();
    let done = run(&folder, "tests/mutants/run", &["--check"]);
    let patches = files("tests/mutants").iter().filter(|p| p.extension().is_some_and(|e| e == "patch")).count();
    assert!(patches > 20 && done.code == 0, "{done:?}");
    assert_eq!(done.stdout, format!("{patches} mutants, {patches} fit\n"));
}

#[test]
fn each_lab_begins() {
    let folder = Folder::new();
    let labs = files("labs");
    assert!(labs.len() >= 7, "{labs:?}");
    for lab in &labs {
        let lab = format!("labs/{}", name(lab));
        let help = run(&folder, &lab, &["--help"]);
        assert!(help.code == 0 && help.stdout.contains(&lab["labs/".len()..]), "{lab}: {help:?}");
        if help.stdout.contains("--list") {
            // It has read all that it consists of.
            let list = run(&folder, &lab, &["--list"]);
            assert!(list.code == 0 && list.stdout.lines().count() > 2, "{lab}: {list:?}");
        }
    }
    let soaked = run(&folder, "labs/soak", &["0.03", "50"]);
    assert!(soaked.code == 0 && soaked.stdout.matches("answered").count() == 2, "{soaked:?}");
}

#[test]
fn each_fuzz_target_is_in_its_list_and_in_its_manifest() {
    let script = fs::read_to_string(Path::new(SOURCE).join("fuzz/run")).expect("readable");
    let list = script.lines().find_map(|line| line.strip_prefix("all=(")?.strip_suffix(')')).expect("a list");
    let listed: BTreeSet<String> = list.split_whitespace().map(String::from).collect();
    let mut there: BTreeSet<String> =
        files("fuzz/fuzz_targets").iter().map(|path| name(path).trim_end_matches(".rs").to_string()).collect();
    let manifest = fs::read_to_string(Path::new(SOURCE).join("fuzz/Cargo.toml")).expect("readable");
    for target in &there {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not in fuzz/Cargo.toml");
    }
    // Not libFuzzer's.
    there.insert("command_lines".into());
    assert_eq!(listed, there);
}

#[test]
fn each_script_can_be_read_by_its_interpreter() {
    let scripts = ["", "labs", "labs/kinds.d", "benches", "tests", "tests/mutants", "fuzz", "packaging", ".ci"];
    let mut read = 0;
    for path in scripts.iter().flat_map(|folder| files(folder)) {
        let text = String::from_utf8_lossy(&fs::read(&path).expect("readable")).into_owned();
        let first = text.lines().next().unwrap_or_default().to_string();
        let mut command = match () {
            () if first.starts_with("#!") && first.contains("bash") => Command::new("bash"),
            () if first.starts_with("#!") && first.contains("python3") => Command::new("python3"),
            () => continue,
        };
        let file = path.display().to_string();
        if first.contains("python3") {
            command.args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())", &file]);
        } else {
            command.args(["-n", &file]);
        }
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        read += 1;
    }
    assert!(read > 15, "{read}");
}
