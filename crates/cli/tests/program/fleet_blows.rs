//! The fault injection of `./x lab fleet`, once each instead of fifty times: an agent, its engine, the broker, the coordinator,
//! a link, disks, clocks, messages.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::Folder;

#[test]
fn a_blow_of_each_kind_loses_nothing_and_counts_nothing_twice() {
    let folder = Folder::new();
    let mut lab = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs/fleet"));
    // Most of such a run is waiting, so many can run at once.
    lab.args(["--times", "1", "--seconds", "3", "--lanes", "12"]);
    lab.env("LASTDROP", env!("CARGO_BIN_EXE_lastdrop")).env("CARGO_TARGET_DIR", folder.path()).stdin(Stdio::null());
    let output = lab.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let kept = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(kept >= 15, "{said}");
}
