//! The developers' tools: runs each command of `./x`, each lab and each script for a moment, so that a broken one is noticed.
//! Those that take long or compile are only inspected.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Folder};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn run(folder: &Folder, program: &str, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(Path::new(SOURCE).join(program));
    command.args(args).current_dir(SOURCE).stdin(Stdio::null()).env("LASTDROP", env!("CARGO_BIN_EXE_lastdrop"));
    // Rows of labs go into another folder than those of real labs.
    CommandOutput::of(command.env("CARGO_TARGET_DIR", folder.path()).output().expect("it runs"), &[])
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
    // A new command has to be tried here or in another test: packages (dist), load (simulate); developers run the rest all day.
    let tried = ["bench", "book", "check", "demo", "dist", "fmt", "fuzz", "install", "lab", "simulate", "test"];
    assert_eq!(commands, tried.into_iter().collect());
    for command in commands {
        assert!(help.contains(&format!("./x {command}")), "{command}: {help}");
    }
    assert_eq!(run(&folder, "x", &["no-such-command"]).code, 2);
}

#[test]
fn roots_demo_and_labs_in_a_clone_of_an_ordinary_users_run_as_that_user() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let clone = folder.join("clone");
    let script = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
    };
    // The fake build writes a program that prints who executes it.
    let program = "printf '#!/bin/sh\\nid -u\\n' > target/release/lastdrop && chmod 755 target/release/lastdrop";
    script(&folder.join("bin/cargo"), &format!("mkdir -p target/release && {program}"));
    script(&folder.join("bin/rustc"), "echo rustc 99.0");
    script(&clone.join("labs/who"), "id -u");
    fs::copy(Path::new(SOURCE).join("x"), clone.join("x")).expect("copied");
    fs::write(clone.join("Cargo.toml"), "rust-version = \"1.0\"\n").expect("written");
    fs::write(clone.join("packages.txt"), "[build]\n[test]\n[lab]\n").expect("written");
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").expect("a PATH"));
    for owner in [65_534, 0] {
        assert!(Command::new("chown").args(["-R", &owner.to_string()]).arg(&clone).status().expect("runs").success());
        for words in [&["demo"][..], &["lab", "who"]] {
            let mut x = Command::new(clone.join("x"));
            x.args(words).env("PATH", &path).env_remove("CARGO_TARGET_DIR").stdin(Stdio::null());
            let done = CommandOutput::of(x.output().expect("it runs"), words);
            assert_eq!((done.code, done.stdout.trim()), (0, owner.to_string().as_str()), "{done:?}");
        }
    }
}

#[test]
fn each_line_of_the_threat_model_names_a_test_that_is_there() {
    let page = fs::read_to_string(Path::new(SOURCE).join("docs/security.md")).expect("readable");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| it ")).collect();
    let threats = rows.iter().filter(|row| row.matches('|').count() == 5).skip(1);
    let mut named = 0;
    for row in threats {
        let test = row.rsplit('|').nth(1).expect("a last column");
        if test.contains("./x fuzz") {
            continue;
        }
        let names: Vec<(&str, &str)> =
            test.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for (module, name) in names {
            let of_crate =
                test.split_once(name).and_then(|(_, rest)| rest.split(',').next()?.split_once('(')).map(|(_, c)| c);
            let folder = match of_crate.and_then(|rest| rest.split(')').next()) {
                Some(name) => format!("crates/{name}"),
                None => "crates/cli/tests/program".into(),
            };
            let holds = |file: &PathBuf| {
                let is_module = file.file_stem().is_some_and(|stem| stem == module);
                is_module && fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")))
            };
            assert!(all_files(&Path::new(SOURCE).join(&folder)).iter().any(holds), "{module}::{name} in {folder}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

/// All files below a folder.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { all_files(&path) } else { vec![path] }).collect()
}

#[test]
fn mistakes_can_still_be_put_back() {
    let folder = Folder::new();
    let done = run(&folder, "tests/mutants/run", &["--check"]);
    let all = ["tests/mutants", "tests/mutants/experiments"].map(files).concat();
    let patches = all.iter().filter(|p| p.extension().is_some_and(|e| e == "patch")).count();
    assert!(patches > 40 && done.code == 0, "{done:?}");
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
            // It has read all of its parts.
            let list = run(&folder, &lab, &["--list"]);
            assert!(list.code == 0 && list.stdout.lines().count() > 2, "{lab}: {list:?}");
        }
    }
    let soaked = run(&folder, "labs/soak", &["0.03", "50"]);
    assert!(soaked.code == 0 && soaked.stdout.matches("answered").count() == 2, "{soaked:?}");
    let tails = run(&folder, "labs/tails", &["1", "6", "code"]);
    assert!(tails.code == 0 && tails.stdout.contains("of 1, and its time in"), "{tails:?}");
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
    // This one is no target of libFuzzer.
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
