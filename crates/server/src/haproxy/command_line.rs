//! HAProxy's command line, and which part of it belongs to a single start.
//!
//! A master that executes itself adds `-sf PID… -x SOCKET` (`mworker_reload`) for the moment of the reload. In the
//! worker that it starts they remain; up to 2.4, in the master too.

use std::path::PathBuf;

/// Options that name what to take over from a predecessor; process ids or one word follow.
pub const PASSING: &[&str] = &["-sf", "-st", "-x"];

/// Variables that HAProxy sets for itself. In a new process's environment they would make it believe that it is being
/// reloaded.
const OWN_VARIABLES: &[&str] = &[
    "HAPROXY_MWORKER",
    "HAPROXY_MWORKER_REEXEC",
    "HAPROXY_MWORKER_WAIT_ONLY",
    "HAPROXY_PROCESSES",
    "HAPROXY_CLI",
    "HAPROXY_MASTER_CLI",
    "HAPROXY_CFGFILES",
    "HAPROXY_STARTUP_VERSION",
    "HAPROXY_STARTUPLOGS_FD",
    "HAPROXY_LOCALPEER",
    "HAPROXY_LOAD_SUCCESS",
    "HAPROXY_BRANCH",
];

/// A parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Files and folders of the configuration.
    pub configs: Vec<PathBuf>,
    /// The folder that it changes to before it reads them.
    pub folder: Option<PathBuf>,
    /// `-W` or `-Ws`.
    pub has_master: bool,
    /// `-D`, unless `-db` or `-d` is given.
    pub detaches: bool,
    pub stays: bool,
    /// `-n`: overrides the configuration.
    pub maxconn: bool,
    /// `-p`: the pid file.
    pub pid_file: Option<PathBuf>,
    /// Other options, which a test needs too.
    others: Vec<String>,
}

impl CommandLine {
    pub fn read(argv: &[String]) -> CommandLine {
        let mut read = CommandLine::default();
        let mut words = argv.iter().skip(1).peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-f" => read.configs.extend(words.next().map(PathBuf::from)),
                "--" => read.configs.extend(words.by_ref().map(PathBuf::from)),
                "-C" => read.folder = words.next().map(PathBuf::from),
                "-W" | "-Ws" => read.has_master = true,
                "-D" => read.detaches = true,
                "-d" | "-db" => read.stays = true,
                "-q" | "-V" | "-c" => {}
                "-p" => read.pid_file = words.next().map(PathBuf::from),
                "-S" | "-x" => drop(words.next()),
                "-sf" | "-st" => while words.next_if(|word| word.parse::<i32>().is_ok()).is_some() {},
                "-n" | "-N" | "-m" | "-L" => {
                    read.maxconn |= word == "-n";
                    read.others.extend([Some(word), words.next()].into_iter().flatten().cloned());
                }
                _ => read.others.push(word.clone()),
            }
        }
        read
    }

    /// The command line that tests files as the server would read them.
    pub fn test(&self, program: &str, files: &[PathBuf]) -> Vec<String> {
        let mut argv = vec![program.to_string(), "-c".into()];
        argv.extend(self.others.iter().cloned());
        argv.extend(files.iter().flat_map(|file| ["-f".to_string(), file.display().to_string()]));
        argv
    }
}

/// A command line without what belongs to a single start.
pub fn lasting(argv: &[String]) -> Vec<String> {
    lastdrop_probe::process::without(argv, PASSING)
}

/// Returns the environment that it was started with, without HAProxy's own variables.
pub fn given(environment: &[(String, String)]) -> Vec<(String, String)> {
    environment.iter().filter(|(name, _)| !OWN_VARIABLES.contains(&name.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn a_command_line_is_taken_apart() {
        let line = argv("haproxy -Ws -D -f a -f b -p x.pid -n 50 -sf 12 13 -x sock -dr -S /m,level -C /etc -- c d");
        let read = CommandLine::read(&line);
        assert_eq!(read.configs, ["a", "b", "c", "d"].map(PathBuf::from));
        assert!(read.has_master && read.detaches && !read.stays && read.maxconn);
        assert_eq!(read.folder.as_deref(), Some(std::path::Path::new("/etc")));
        assert_eq!(read.test("haproxy", &["/t".into()]), argv("haproxy -c -n 50 -dr -f /t"));
    }

    #[test]
    fn what_a_reload_adds_does_not_count() {
        let own = argv("haproxy -W -f a");
        for other in ["haproxy -sf 12 13 -x sockpair@3 -W -f a", "haproxy -W -f a -sf 7 -x /s", "haproxy -sf -W -f a"] {
            assert_eq!(lasting(&argv(other)), own, "{other}");
        }
        let variables = [("HAPROXY_PROCESSES".to_string(), "x".to_string()), ("HAPROXY_SITE".into(), "y".into())];
        assert_eq!(given(&variables), variables[1..]);
    }
}
