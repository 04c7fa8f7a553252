//! `profile --code`: functions of known shares in a real mod_perl are found, and nothing is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Apache, Folder, number, processes_with, wait_until};

/// Functions that burn 60, 30 and 10 % of the time.
const PERL: &str = "use strict;

sub heavy { my $x = 0; $x += sqrt($_) for 1 .. 60000; $x }
sub middle { my $x = 0; $x += sqrt($_) for 1 .. 30000; $x }
sub light { my $x = 0; $x += sqrt($_) for 1 .. 10000; $x }
print \"Content-Type: text/plain\\n\\n\";
heavy(); middle(); light();
print \"ok\\n\";
";

fn apache_with_planted_functions(folder: &Folder) -> Apache {
    let apache = Apache::small(folder);
    let page = apache.folder.join("htdocs/perl/planted.pl");
    fs::write(&page, PERL).expect("written");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o755)).expect("its mode");
    apache
}

/// A folder for temporary files that is empty at the end, if nothing is left behind.
fn temporary(folder: &Folder) -> PathBuf {
    let path = folder.join("tmp");
    fs::create_dir(&path).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).expect("its mode");
    path
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("readable").filter_map(|e| Some(e.ok()?.path())).collect()
}

/// Asserts that these functions come first, with these shares of the time in the page.
fn assert_shares(profile: &Value, file: &str, expected: &[(&str, f64, u64)]) {
    let rows = profile["functions"].as_array().expect("functions");
    assert_eq!(rows[0]["name"], expected[0].0, "{profile:#}");
    for (name, share, line) in expected {
        let row = rows.iter().find(|row| row["name"] == *name).unwrap_or_else(|| panic!("{name}: {profile:#}"));
        let found = number(&row["exclusive_share"]);
        assert!((found - share).abs() <= 0.05, "{name}: {found}");
        assert!(number(&row["cumulative_share"]) >= found, "{row}");
        assert!(row["file"].as_str().is_some_and(|path| path.ends_with(file)), "{row}");
        assert_eq!(row["line"], *line, "{row}");
    }
    assert!(number(&profile["overhead"]) >= 0.0 && number(&profile["requests"]) > 0.0, "{profile:#}");
}

#[test]
fn functions_of_perl_are_found_by_a_second_instance_that_leaves_nothing() {
    let folder = Folder::new();
    let apache = apache_with_planted_functions(&folder);
    let (name, url, temporary) = (apache.name(), apache.url("/perl/planted.pl"), temporary(&folder));
    let before = apache.tree();
    let (json, flame) = (folder.join("code.json").display().to_string(), folder.join("code.svg").display().to_string());
    let args = ["profile", &name, "--code", "--url", &url, "-c", "2", "-d", "1s", "--json", &json, "--flame", &flame];
    let done = folder.lastdrop(&args).env("TMPDIR", &temporary).output().expect("runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let profile: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&profile["schema"], &profile["language"]), (&"lastdrop.profile/1".into(), &"perl".into()));
    assert_shares(&profile, "planted.pl", &[("heavy", 0.6, 3), ("middle", 0.3, 4), ("light", 0.1, 5)]);
    // Each request calls it once. A request that was cut off at the end is counted by one side only.
    let (calls, requests) = (number(&profile["functions"][0]["calls"]), number(&profile["requests"]));
    assert!((calls - requests).abs() <= 4.0, "{calls} calls, {requests} requests");
    assert!(text.contains("Look at heavy first (") && text.contains("who calls whom"), "{text}");
    assert!(fs::read_to_string(&flame).expect("written").contains("heavy ("), "a flame graph of Perl's functions");
    assert_eq!((entries(&temporary), apache.masters().len()), (vec![], 1), "nothing is left behind");
    assert!(apache.tree() == before, "the server's files are untouched");

    // What a killed one leaves ends by itself, and a restore takes its folder away.
    let command = ["profile", &name, "--code", "--url", &url, "-c", "2", "-d", "60s"];
    let mut killed = folder.lastdrop(&command);
    let mut killed = killed.env("TMPDIR", &temporary).stdout(Stdio::null()).spawn().expect("runs");
    wait_until("a second instance", || entries(&temporary).iter().any(|f| f.join("pid").exists()));
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait_until("the end of the second instance", || processes_with(&temporary.to_string_lossy()).is_empty());
    let restored = folder.lastdrop(&["restore"]).env("TMPDIR", &temporary).output().expect("runs");
    assert!(restored.status.success() && entries(&temporary).is_empty(), "{restored:?}");
}

#[test]
fn a_profiler_that_is_not_installed_is_named_with_the_command_that_installs_it() {
    let folder = Folder::new();
    let apache = apache_with_planted_functions(&folder);
    let profile = ["profile", &apache.name(), "--code", "--url", &apache.url("/perl/planted.pl"), "-d", "1s"];
    let command = folder.lastdrop(&profile);
    let hide = "for d in /usr/lib/*/perl5/*/Devel; do mount -t tmpfs none $d || exit 9; done; exec \"$@\"";
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", hide, "sh"]).arg(command.get_program()).args(command.get_args());
    let output =
        hidden.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Devel::NYTProf is not installed") && said.contains("libdevel-nytprof-perl"), "{said}");
    let other = folder.run(&["profile", "pid:1", "--code", "--url", &apache.url("/")]);
    assert!(other.code == 1 && other.stderr.contains("mod_perl"), "{other:?}");
    let without = folder.run(&["profile", &apache.name(), "--code"]);
    assert!(without.code == 2 && without.stderr.contains("--url"), "{without:?}");
}
