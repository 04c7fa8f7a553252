//! The environment of a program that lastdrop runs to ask it something: a fixed PATH and a plain English locale. Of the
//! server's variables it contains those that its configuration or application may need, but never those that tell a
//! loader, library or interpreter where to find code.

use lastdrop_probe::tool;

/// Variables that belong to one start of a server, or that lead programs to a user's own files.
const NOT_ASKED: &[&str] = &[
    "FPM_SOCKETS",
    "HOME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LANG",
    "LANGUAGE",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGNAME",
    "MAIL",
    "MAINPID",
    "NGINX",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PATH",
    "PWD",
    "SHELL",
    "SUDO_COMMAND",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "USER",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Returns the environment for a question, given the server's.
pub fn of_question(of_server: &[(String, String)]) -> Vec<(String, String)> {
    let passes = |(name, _): &&(String, String)| {
        !NOT_ASKED.contains(&name.as_str())
            && !tool::loads_code(name)
            && !["LC_", "SSH_", "XDG_", "DBUS_", "SSL_CERT_"].iter().any(|begins| name.starts_with(begins))
    };
    let ours = [("PATH", tool::PATH), ("LANG", "C.UTF-8")].map(|(name, value)| (name.to_string(), value.to_string()));
    ours.into_iter().chain(of_server.iter().filter(passes).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_loads_code_passes_and_what_a_configuration_names_does() {
        let server =
            ["LD_PRELOAD", "PYTHONPATH", "PERL5OPT", "RUBYOPT", "HOME", "PATH", "BASH_ENV", "NOTIFY_SOCKET", "LC_ALL"]
                .into_iter()
                .chain(["APACHE_RUN_USER", "PORT", "DATABASE_URL"]);
        let server: Vec<_> = server.map(|name| (name.to_string(), "theirs".to_string())).collect();
        let asked = of_question(&server);
        let theirs: Vec<_> =
            asked.iter().filter(|(_, value)| value == "theirs").map(|(name, _)| name.as_str()).collect();
        assert_eq!(theirs, ["APACHE_RUN_USER", "PORT", "DATABASE_URL"]);
        assert!(asked.iter().any(|(name, value)| name == "PATH" && value == tool::PATH));
    }
}
