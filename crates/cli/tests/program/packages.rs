//! The products of `./x dist`: a static binary, a Debian package, a container; and the example that checks a build. The test uses
//! each as a user would who has nothing else of ours. It needs root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::common::{CommandOutput, Folder, Target};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Builds everything with the profile that is tested.
fn make(folder: &Path) {
    let binary = Path::new(env!("CARGO_BIN_EXE_lastdrop"));
    let profile = binary.parent().and_then(Path::file_name).expect("a profile").to_string_lossy().into_owned();
    let target = binary.ancestors().nth(2).expect("a target folder");
    let made = Command::new(Path::new(SOURCE).join("packaging/dist"))
        .arg(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("PROFILE", if profile == "debug" { "dev" } else { &profile })
        .env("LEVEL", "0")
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The folder with the products, built once.
fn dist() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let _ = fs::remove_dir_all(&folder);
        make(&folder);
        folder
    })
}

fn package() -> PathBuf {
    let files = fs::read_dir(dist()).expect("readable").filter_map(|e| Some(e.ok()?.path()));
    let mut all: Vec<PathBuf> = files.filter(|f| f.extension().is_some_and(|e| e == "deb")).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Unpacks the package's files into a folder.
fn unpacked(folder: &Folder) -> PathBuf {
    let root = folder.join("root");
    succeeds(Command::new("dpkg-deb").arg("-x").arg(package()).arg(&root));
    root
}

/// Runs a command that has to succeed; returns its stdout and stderr.
fn succeeds(command: &mut Command) -> (String, String) {
    let output =
        command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?} (./x test installs it): {e}"));
    let done = CommandOutput::of(output, &[]);
    assert_eq!(done.code, 0, "{command:?}: {done:?}");
    (done.stdout, done.stderr)
}

/// The commands in the help of the program, or of one of its commands.
fn listed(of: &[&str]) -> BTreeSet<String> {
    let (help, _) = succeeds(Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(of).arg("-h"));
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    lines
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| Some(l.split_whitespace().next()?.into()))
        .collect()
}

/// The commands of the program.
fn commands() -> BTreeSet<String> {
    let commands = listed(&[]);
    assert!(commands.len() > 20 && commands.contains("tune") && commands.contains("help"), "{commands:?}");
    commands
}

#[test]
fn the_static_binary_runs_where_there_is_nothing_else() {
    let folder = Folder::new();
    let (root, target) = (folder.join("empty"), Target::start(&folder, &["--workers", "2"]));
    fs::create_dir(&root).expect("a folder");
    fs::copy(dist().join("lastdrop"), root.join("lastdrop")).expect("copied");
    let inside = |args: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(&root).arg("/lastdrop").args(args).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin").stdin(Stdio::null());
        CommandOutput::of(command.output().expect("chroot (these tests want root)"), args)
    };
    let version = inside(&["--version"]);
    assert_eq!(
        (version.code, version.stdout),
        (0, format!("lastdrop {}\n", env!("CARGO_PKG_VERSION"))),
        "{}",
        version.stderr
    );
    // Without /etc/hosts and a name server, localhost is still loopback, and other names do not resolve.
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{}/", target.port);
        let done = inside(&["run", &url, "-n", "20", "-c", "2", "--no-store", "--json", "-"]);
        assert_eq!(done.code, 0, "{done:?}");
        let run: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(run["phases"][0]["requests"]["answered"], 20, "{run}");
    }
    let unknown = inside(&["run", "http://no.such.name.invalid/", "-n", "1", "--no-store"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no.such.name.invalid"), "{unknown:?}");
    let (headers, _) = succeeds(Command::new("readelf").arg("-l").arg(root.join("lastdrop")));
    assert!(!headers.contains("INTERP"), "it wants a loader: {headers}");
}

#[test]
fn lintian_has_nothing_to_say_of_the_package() {
    let (said, _) =
        succeeds(Command::new("lintian").args(["--allow-root", "--fail-on", "error,warning"]).arg(package()));
    assert!(!said.lines().any(|l| l.starts_with("E:") || l.starts_with("W:")), "{said}");
    let (overridden, _) = succeeds(Command::new("lintian").args(["--allow-root", "--show-overrides"]).arg(package()));
    let tags: BTreeSet<&str> =
        overridden.lines().filter_map(|l| l.strip_prefix("O: lastdrop: ")?.split(' ').next()).collect();
    assert_eq!(tags, BTreeSet::from(["shared-library-lacks-prerequisites"]), "{overridden}");
}

#[test]
fn the_package_has_what_it_says() {
    let (control, _) = succeeds(Command::new("dpkg-deb").arg("-I").arg(package()));
    let version = format!(" Version: {}\n", env!("CARGO_PKG_VERSION"));
    for line in [" Package: lastdrop\n", &version, " Section: web\n", " Architecture: "] {
        assert!(control.contains(line), "{line}: {control}");
    }
    assert!(!control.contains("Depends:"), "a static binary needs nothing: {control}");
    let (listed, _) = succeeds(Command::new("dpkg-deb").arg("-c").arg(package()));
    assert!(listed.lines().all(|l| l.contains(" root/root ")), "{listed}");
    let mode =
        |path: &str| listed.lines().find(|l| l.ends_with(&format!(" ./{path}"))).and_then(|l| l.split(' ').next());
    for (path, wanted) in [
        ("usr/bin/lastdrop", "-rwxr-xr-x"),
        ("usr/share/man/man1/lastdrop.1.gz", "-rw-r--r--"),
        ("usr/share/bash-completion/completions/lastdrop", "-rw-r--r--"),
        ("usr/share/zsh/vendor-completions/_lastdrop", "-rw-r--r--"),
        ("usr/share/fish/vendor_completions.d/lastdrop.fish", "-rw-r--r--"),
        ("lib/systemd/system/lastdrop-guard.service", "-rw-r--r--"),
        ("lib/systemd/system/lastdrop-watch.service", "-rw-r--r--"),
        ("etc/default/lastdrop-guard", "-rw-r--r--"),
        ("usr/share/doc/lastdrop/copyright", "-rw-r--r--"),
        ("usr/share/doc/lastdrop/changelog.gz", "-rw-r--r--"),
        ("usr/share/doc/lastdrop/THIRD-PARTY.gz", "-rw-r--r--"),
        ("usr/share/doc/lastdrop/manual.md.gz", "-rw-r--r--"),
        ("usr/share/doc/lastdrop/commands/run.md.gz", "-rw-r--r--"),
    ] {
        assert_eq!(mode(path), Some(wanted), "{path}: {listed}");
    }
    let kinds = fs::read_dir(Path::new(SOURCE).join("crates/server/kinds")).expect("readable").count();
    assert_eq!(listed.matches("./usr/share/lastdrop/kinds/").count(), kinds + 1, "{listed}");
    let folder = Folder::new();
    let root = unpacked(&folder);
    let (sums, _) = succeeds(Command::new("dpkg-deb").arg("--info").arg(package()).arg("md5sums"));
    fs::write(folder.join("sums"), sums).expect("written");
    succeeds(Command::new("md5sum").args(["--quiet", "-c"]).arg(folder.join("sums")).current_dir(&root));
    let (version, _) = succeeds(Command::new(root.join("usr/bin/lastdrop")).arg("--version"));
    assert_eq!(version, format!("lastdrop {}\n", env!("CARGO_PKG_VERSION")));
    let (prerm, _) = succeeds(Command::new("dpkg-deb").arg("--info").arg(package()).arg("prerm"));
    fs::write(folder.join("prerm"), prerm).expect("written");
    succeeds(Command::new("sh").arg("-n").arg(folder.join("prerm")));
}

#[test]
fn made_twice_it_is_the_same() {
    let folder = Folder::new();
    let again = folder.join("again");
    let first = package();
    make(&again);
    let second = again.join(first.file_name().expect("a name"));
    assert!(
        fs::read(&first).expect("a package") == fs::read(second).expect("another"),
        "two packages of one commit differ"
    );
}

#[test]
fn shells_read_the_completions_and_complete_by_them() {
    let folder = Folder::new();
    let root = unpacked(&folder);
    let bash = root.join("usr/share/bash-completion/completions/lastdrop");
    let zsh = root.join("usr/share/zsh/vendor-completions/_lastdrop");
    let fish = root.join("usr/share/fish/vendor_completions.d/lastdrop.fish");
    for (shell, file) in [("bash", &bash), ("zsh", &zsh), ("fish", &fish)] {
        let (_, said) = succeeds(Command::new(shell).arg("-n").arg(file).env("HOME", folder.path()));
        assert_eq!(said, "", "{shell}");
    }
    let complete = |words: &str, last: usize| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={last}; _lastdrop lastdrop \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash.display()
        );
        succeeds(Command::new("bash").args(["--norc", "-c", &script]))
            .0
            .lines()
            .map(str::to_string)
            .collect::<BTreeSet<_>>()
    };
    let offered = complete("lastdrop ''", 1);
    for command in commands() {
        assert!(offered.contains(&command), "bash does not know {command}: {offered:?}");
    }
    assert!(!offered.contains("watchdog") && !offered.contains("completions"), "{offered:?}");
    assert!(complete("lastdrop capacity --obj", 2).contains("--objective"));
    let known = format!("source {}; complete -C 'lastdrop tune --min-g'", fish.display());
    let (offered, _) = succeeds(Command::new("fish").args(["--no-config", "-c", &known]).env("HOME", folder.path()));
    assert!(offered.contains("--min-gain"), "{offered}");
}

#[test]
fn there_is_a_man_page_for_each_command_and_it_reads_without_a_warning() {
    let folder = Folder::new();
    let pages = unpacked(&folder).join("usr/share/man/man1");
    let names: BTreeSet<String> = fs::read_dir(&pages)
        .expect("readable")
        .filter_map(|e| Some(e.ok()?.file_name().to_str()?.strip_suffix(".1.gz")?.to_string()))
        .collect();
    let mut wanted = BTreeSet::from(["lastdrop".to_string()]);
    for command in commands().iter().filter(|c| *c != "help") {
        wanted.insert(format!("lastdrop-{command}"));
        let parts = listed(&[command]);
        wanted.extend(parts.iter().filter(|c| *c != "help").map(|part| format!("lastdrop-{command}-{part}")));
    }
    assert_eq!(names, wanted);
    let files: Vec<PathBuf> = names.iter().map(|name| pages.join(format!("{name}.1.gz"))).collect();
    let mut man = Command::new("man");
    man.args(["--warnings", "-E", "UTF-8", "-P", "cat", "-l"]).args(&files);
    let (text, said) = succeeds(man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "120"));
    assert_eq!(said, "");
    let read: Vec<&str> = text.split("SYNOPSIS").skip(1).collect();
    assert_eq!(read.len(), names.len(), "{text}");
    assert!(read.iter().all(|page| page.contains("Examples:")), "{text}");
    // It notices what `man` ignores: an unclosed page, an unknown macro.
    for page in &files {
        let (lint, _) = succeeds(Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(page));
        assert_eq!(lint, "", "{}", page.display());
    }
}

#[test]
fn systemd_takes_the_units_and_the_program_their_command_lines() {
    let folder = Folder::new();
    let root = unpacked(&folder);
    for (unit, command) in [("lastdrop-guard", "guard"), ("lastdrop-watch", "watch")] {
        let file = root.join(format!("lib/systemd/system/{unit}.service"));
        let text = fs::read_to_string(&file).expect("readable");
        // The program is not at the path in the unit, because it is not installed here.
        let here = folder.join(&format!("{unit}.service"));
        fs::write(&here, text.replace("/usr/bin/lastdrop", &root.join("usr/bin/lastdrop").display().to_string()))
            .expect("written");
        let (_, said) = succeeds(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&here));
        assert!(!said.contains(unit), "{said}");
        let starts = text.lines().find_map(|l| l.strip_prefix("ExecStart=")).expect("what it starts").to_string();
        let defaults = root.join(format!("etc/default/{unit}"));
        let end = if command == "watch" { " --once --replay /nonexistent" } else { " --duration never" };
        // Check that unknown words are noticed: the added one is refused.
        let line = starts.replace("/usr/bin/lastdrop", &root.join("usr/bin/lastdrop").display().to_string());
        let script = format!(". {}; {line}{end}", defaults.display());
        let done = CommandOutput::of(Command::new("sh").args(["-c", &script]).output().expect("sh"), &[]);
        let refused = if command == "watch" { "cannot be used with" } else { "never" };
        assert!(done.code == 2 && done.stderr.contains(refused), "{unit}: {done:?}");
    }
}

#[test]
fn a_container_of_it_has_nothing_else() {
    let folder = Folder::new();
    let image = folder.join("image");
    let place = |command: &mut Command| {
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(folder.join("storage"))
            .arg("--runroot")
            .arg(folder.join("run"));
    };
    let mut build = Command::new("buildah");
    place(&mut build);
    build.args(["build", "--isolation", "chroot", "-t", "lastdrop-test"]).arg(dist());
    succeeds(&mut build);
    let mut push = Command::new("buildah");
    place(&mut push);
    succeeds(push.args(["push", "lastdrop-test"]).arg(format!("oci:{}", image.display())));
    // An image in OCI layout: its configuration, and layers, which are archives.
    let read = |digest: &str| fs::read(image.join("blobs").join(digest.replace(':', "/"))).expect("a blob");
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
    let digest = |v: &serde_json::Value| v["digest"].as_str().expect("a digest").to_string();
    let index = json(&fs::read(image.join("index.json")).expect("an index"));
    let manifest = json(&read(&digest(&index["manifests"][0])));
    let config = json(&read(&digest(&manifest["config"])));
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/lastdrop"]), "{config}");
    let root = folder.join("container");
    fs::create_dir(&root).expect("a folder");
    for layer in manifest["layers"].as_array().expect("layers") {
        let file = image.join("blobs").join(digest(layer).replace(':', "/"));
        succeeds(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(&root));
    }
    let (files, _) = succeeds(Command::new("find").args([".", "-type", "f"]).current_dir(&root));
    let files: BTreeSet<&str> = files.lines().collect();
    assert_eq!(files, BTreeSet::from(["./etc/ssl/certs/ca-certificates.crt", "./usr/bin/lastdrop"]));
    let target = Target::start(&folder, &["--workers", "2"]);
    let mut inside = Command::new("chroot");
    inside.arg(&root).args(["/usr/bin/lastdrop", "run", &target.url(), "-n", "5", "-c", "1"]).env_clear();
    for variable in config["config"]["Env"].as_array().expect("an environment") {
        let (name, value) = variable.as_str().and_then(|v| v.split_once('=')).expect("a variable");
        inside.env(name, value);
    }
    succeeds(inside.env("PATH", "/usr/sbin:/usr/bin"));
    assert!(root.join("data/runs.sqlite").exists(), "runs are kept");
}

#[test]
fn the_ci_example_fails_a_build_that_is_slower_and_no_other() {
    let folder = Folder::new();
    let (fast, slow) = (
        Target::start(&folder, &["--workers", "4", "--service", "5ms"]),
        Target::start(&folder, &["--workers", "4", "--service", "25ms"]),
    );
    let bin = Path::new(env!("CARGO_BIN_EXE_lastdrop")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let check = |results: &str, old: &Target, new: &Target, objective: &str| {
        let mut script = Command::new(Path::new(SOURCE).join("examples/ci/regression"));
        script.args([old.url(), new.url()]).env("PATH", &path).env("RESULTS", folder.join(results)).env("USERS", "2");
        script.env("BLOCKS", "6").env("STRETCH", "200ms");
        script.env("OBJECTIVE", objective).env("TIME", "1s").env("RATE", "20").stdin(Stdio::null());
        CommandOutput::of(script.output().expect("sh"), &[results])
    };
    let slower = check("slower", &fast, &slow, "");
    assert_eq!(slower.code, 3, "{slower:?}");
    assert!(folder.join("slower/compare.html").exists() && folder.join("slower/compare.json").exists());
    assert!(slower.stdout.contains("B is worse"), "{slower:?}");
    // One objective that every machine meets, and one that every machine misses.
    let faster = check("faster", &slow, &fast, "p50<30s");
    assert_eq!(faster.code, 0, "{faster:?}");
    let missed = check("missed", &slow, &fast, "p50<1us");
    assert_eq!(missed.code, 3, "{missed:?}");
    let junit = fs::read_to_string(folder.join("missed/objective.xml")).expect("a report");
    assert!(junit.contains("<failure"), "{junit}");
    let usage = Command::new(Path::new(SOURCE).join("examples/ci/regression")).output().expect("sh");
    assert_eq!(usage.status.code(), Some(2));
    for file in ["gitlab-ci.yml", "github.yml"] {
        let text = fs::read_to_string(Path::new(SOURCE).join("examples/ci").join(file)).expect("readable");
        assert!(text.contains("examples/ci/regression http://"), "{file}");
    }
}
