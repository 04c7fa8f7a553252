//! The live view on a real terminal, tmux's: its content, its keys, and that the terminal is restored afterwards.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Folder, Target, processes_with, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A terminal of 80×24 with a shell.
struct Screen<'a> {
    folder: &'a Folder,
    socket: PathBuf,
}

impl<'a> Screen<'a> {
    /// Runs the program there, stores the terminal's settings before and after it, and prints its exit code.
    fn start(folder: &'a Folder, program: &str, variables: &[(&str, &str)]) -> Screen<'a> {
        let screen = Screen { folder, socket: folder.join("tmux") };
        let script = folder.join("script");
        let whole = |name: &str| format!("stty -a >{0}.part; mv {0}.part {0}\n", folder.join(name).display());
        let exe = env!("CARGO_BIN_EXE_lastdrop");
        let text = format!("{}{exe} {program}\necho \"code $?\"\n{}exec cat\n", whole("before"), whole("after"));
        fs::write(&script, text).expect("written");
        let mut tmux = screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh"]);
        tmux.arg(&script).env_remove("CI").env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8");
        tmux.env("LASTDROP_STORE", folder.join("runs.sqlite")).env("LASTDROP_STATE", folder.join("state"));
        tmux.envs(variables.iter().copied()).stdin(Stdio::null());
        assert!(tmux.status().expect("tmux is there").success(), "a session of tmux");
        screen
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).arg("-u").args(args);
        command
    }

    fn ask(&self, args: &[&str]) -> String {
        let output = self.tmux(args).output().expect("tmux is there");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The text on the screen.
    fn text(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// The text on the screen with its styles.
    fn styled(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e"])
    }

    /// The normal screen with its history.
    fn printed(&self) -> String {
        self.ask(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    fn press(&self, keys: &[&str]) {
        assert!(self.tmux(&["send-keys"]).args(keys).status().expect("tmux is there").success(), "{keys:?}");
    }

    fn shows(&self, what: &str) {
        wait_until(&format!("{what:?} on the screen"), || self.text().contains(what));
    }

    /// Waits for the end, and asserts that the terminal is restored.
    fn end(&self) -> String {
        wait_until("the end of the program", || self.folder.join("after").exists());
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).expect("written");
        assert_eq!(read("before"), read("after"));
        assert_eq!(self.ask(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]), "0 1\n");
        self.printed()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

/// The numbers of the colours in a text.
fn colours(text: &str) -> Vec<u32> {
    let codes = text.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m').map(|(codes, _)| codes));
    let numbers = codes.flat_map(|c| c.split(';')).filter_map(|n| n.parse().ok());
    numbers.filter(|n| matches!(n, 30..=38 | 40..=48 | 90..=107)).collect()
}

#[test]
fn a_run_is_seen_live_marked_and_stopped_with_its_report() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4", "--service", "2ms"]);
    let screen = Screen::start(&folder, &format!("run {} -c 4 -d 10m", target.url()), &[]);
    for part in ["due", "answered", "p99", "200 × ", "workers", "queue", "left", "q stop"] {
        screen.shows(part);
    }
    assert!(!colours(&screen.styled()).is_empty(), "{}", screen.styled());
    screen.press(&["m"]);
    screen.shows("mark: ");
    screen.press(&["-l", "deployed"]);
    screen.shows("mark: deployed");
    screen.press(&["Enter"]);
    screen.shows("mark: deployed\n");
    screen.shows("▲");
    screen.press(&["?"]);
    screen.shows("mark this moment");
    screen.press(&["x"]);
    screen.press(&["p"]);
    screen.shows("PAUSED");
    screen.press(&["p"]);
    screen.press(&["3"]);
    screen.shows("established");
    screen.press(&["q"]);
    let printed = screen.end();
    for part in ["code 130", "ended early: interrupted", "mark at ", "deployed"] {
        assert!(printed.contains(part), "{part}:\n{printed}");
    }
    let shown = folder.run(&["show", "last"]).stdout;
    assert!(shown.contains("deployed"), "{shown}");
    let page = folder.run(&["report", "last", "-o", "-"]).stdout;
    assert!(page.contains("deployed"), "the page has the mark");
}

#[test]
fn a_run_that_ends_by_itself_leaves_its_report_on_the_normal_screen() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let screen = Screen::start(&folder, &format!("run {} -c 2 -n 200", target.url()), &[]);
    let printed = screen.end();
    assert!(printed.contains("code 0") && printed.contains("200 × 200"), "{printed}");
    assert!(!printed.contains("q stop"), "nothing of the view is left:\n{printed}");
}

#[test]
fn signals_end_it_with_its_report_and_a_sane_terminal() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let folder = Folder::new();
        let target = Target::start(&folder, &[]);
        let screen = Screen::start(&folder, &format!("run {} -c 2 -d 10m", target.url()), &[]);
        screen.shows("200 × ");
        let found = processes_with(&target.url());
        let [pid] = found[..] else { panic!("one process has the URL: {found:?}") };
        kill(Pid::from_raw(pid), signal).expect("told");
        let printed = screen.end();
        assert!(printed.contains(&format!("code {code}")) && printed.contains("ended early"), "{printed}");
    }
}

#[test]
fn a_second_signal_ends_it_where_it_is_with_a_sane_terminal() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let screen = Screen::start(&folder, &format!("run {} -c 2 -d 10m", target.url()), &[]);
    screen.shows("200 × ");
    let found = processes_with(&target.url());
    let [pid] = found[..] else { panic!("one process has the URL: {found:?}") };
    // Both signals are pending when it continues, so it has no time for an orderly end between them.
    for signal in [Signal::SIGSTOP, Signal::SIGTERM, Signal::SIGINT, Signal::SIGCONT] {
        kill(Pid::from_raw(pid), signal).expect("told");
    }
    let printed = screen.end();
    assert!(printed.contains("code 130") || printed.contains("code 143"), "{printed}");
}

/// The children of a process.
fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").filter_map(Result::ok);
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<_>>()).collect()
}

#[test]
fn neither_a_killed_child_nor_two_interrupts_leave_the_terminal_behind() {
    let folder = Folder::new();
    let screen = Screen::start(&folder, "demo", &[("TMPDIR", folder.path().to_str().expect("text"))]);
    screen.shows("200 × ");
    let config = folder.path().display().to_string();
    let demo = || {
        processes_with("demo").into_iter().find(|pid| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0demo\0"))
                && String::from_utf8_lossy(&variables).contains(&format!("TMPDIR={config}"))
        })
    };
    let pid = demo().expect("it runs");
    wait_until("its server", || !children(pid).is_empty());
    children(pid).into_iter().for_each(|child| {
        // It may have been replaced in the meantime.
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    });
    // It may already have ended by itself.
    for _ in 0..2 {
        let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
    }
    screen.end();
    wait_until("the end of its servers", || processes_with(&format!("{config}/.tmp")).is_empty());
}

#[test]
fn ctrl_c_is_the_signal_that_it_is_without_a_view() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let screen = Screen::start(&folder, &format!("run {} -c 2 -d 10m", target.url()), &[]);
    screen.shows("200 × ");
    screen.press(&["C-c"]);
    // The shell gets the signal, too, as without a view, and the script ends with the program.
    wait_until("the report", || {
        let printed = screen.printed();
        printed.contains("ended early: interrupted") || screen.ask(&["list-sessions"]).is_empty()
    });
    let shown = folder.run(&["show", "last"]).stdout;
    assert!(shown.contains("ended early: interrupted"), "{shown}");
}

#[test]
fn no_colour_where_none_is_wanted() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let screen = Screen::start(&folder, &format!("run {} -c 2 -d 10m", target.url()), &[("NO_COLOR", "1")]);
    screen.shows("200 × ");
    let styled = screen.styled();
    assert_eq!(colours(&styled), [0; 0], "{styled}");
    screen.press(&["q"]);
    screen.end();
}

#[test]
fn an_experiment_shows_its_trials() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let program = format!("compare --live {} --aa --blocks 200 -d 100ms", target.url());
    let screen = Screen::start(&folder, &program, &[]);
    for part in ["trials", "block 2 of 200", "between"] {
        screen.shows(part);
    }
    // Either of two equal sides may lead.
    wait_until("the best on the screen", || {
        ["best so far", "best of others"].iter().any(|best| screen.text().contains(best))
    });
    screen.press(&["q"]);
    assert!(screen.end().contains("code 130"));
}

#[test]
fn where_no_terminal_is_there_are_lines() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let (errors, program) =
        (folder.join("errors"), format!("compare --live {} --aa --blocks 4 -d 100ms", target.url()));
    // stdout is a terminal here, stderr is not.
    let screen = Screen::start(&folder, &format!("{program} 2>{}", errors.display()), &[]);
    screen.end();
    let lines = fs::read_to_string(errors).expect("written");
    assert!(lines.contains("1/4  A ") && !lines.contains('\x1b'), "{lines:?}");
    drop(screen);
    let done = folder.run(&["run", &target.url(), "-n", "20", "--view", "full"]);
    assert!(done.code == 0 && done.stderr.contains("no terminal") && !done.stderr.contains('\x1b'), "{done:?}");
    let done = folder.run(&["run", &target.url(), "-n", "20", "--quiet", "--view", "full"]);
    assert!(done.code == 0 && done.stderr.is_empty() && done.stdout.is_empty(), "{done:?}");
}
