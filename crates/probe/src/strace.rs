//! System calls of a running server, by strace.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::look::Syscall;

use crate::ProbeError;
use crate::attached::Attached;

/// Calls that a request may be made of; those that only wait for something to do are left out.
const CALLS: &str = "trace=%file,%network,read,readv,pread64,preadv,write,writev,pwrite64,pwritev,sendfile,splice,\
    close,fstat,lseek,getdents64,flock,fsync,fdatasync,ftruncate,dup,dup2,pipe2,ioctl,fallocate,copy_file_range";
/// How long attaching may take.
const ATTACH_LIMIT: Duration = Duration::from_secs(15);

/// A strace that is attached.
#[derive(Debug)]
pub struct Strace {
    child: Attached,
    output: PathBuf,
}

impl Strace {
    /// Attaches to processes, and to those that they fork from now on. `output` is a file to write to.
    ///
    /// # Errors
    /// When strace is missing, or the system lets it not.
    pub fn attach(pids: &[i32], output: &Path) -> Result<Strace, ProbeError> {
        let failed = |source: std::io::Error| ProbeError::Tool { tool: "strace", what: source.to_string() };
        let mut command = Command::new("strace");
        command.args(["-f", "-yy", "-T", "-s", "300", "-e", CALLS, "-e", "signal=none", "-o"]).arg(output);
        for pid in pids {
            command.args(["-p", &pid.to_string()]);
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| {
                let advice = "strace is not installed; on Debian: apt-get install strace";
                if e.kind() == std::io::ErrorKind::NotFound { failed(std::io::Error::other(advice)) } else { failed(e) }
            })?;
        let errors = child.stderr.take().ok_or_else(|| failed(std::io::Error::other("it has no output")))?;
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Nobody listens any more once all are attached; the pipe is emptied all the same.
                let _ = tell.send(line);
            }
        });
        let strace = Strace { child: Attached(child), output: output.to_path_buf() };
        let deadline = Instant::now() + ATTACH_LIMIT;
        let (mut attached, mut gone, mut problem) = (0, 0, String::new());
        while attached + gone < pids.len() {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(" attached") => attached += 1,
                Ok(line) => {
                    // A worker that ended before its turn came.
                    gone += usize::from(line.contains("No such process"));
                    problem = line;
                }
                Err(_) => break,
            }
        }
        if attached == 0 {
            let source = std::io::Error::other(if problem.is_empty() {
                "it did not attach in time".to_string()
            } else {
                format!("{problem}; root may trace any process, others their own where kernel.yama.ptrace_scope is 0")
            });
            return Err(failed(source));
        }
        Ok(strace)
    }

    /// Lets go of the processes; the calls that were seen.
    ///
    /// # Errors
    /// When the output cannot be read.
    pub fn finish(mut self) -> Result<Vec<Syscall>, ProbeError> {
        self.child.end();
        let path = self.output.display().to_string();
        // Paths are bytes; strace escapes what is not printable.
        let text = fs::read(&self.output).map_err(|source| ProbeError::Read { path, source })?;
        Ok(parse(&String::from_utf8_lossy(&text)))
    }
}

/// Is somebody tracing this process? One that has ended is counted as traced: there is nothing to miss.
#[must_use]
pub fn is_traced(pid: i32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    !status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|n| n.trim() == "0"))
}

/// How often a call is made to time it; the median counts.
const TIMES: usize = 31;

/// What a call on a file takes now, by making it ourselves: tracing costs more than what it measures. None for calls
/// that could do something, and where we get another result than the server.
#[must_use]
pub fn time_again(call: &str, path: &str, error: Option<&str>) -> Option<f64> {
    let name = CString::new(path).ok()?;
    let opens = call == "open" || call == "openat";
    let looks = ["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"].contains(&call);
    // Opening a device or a pipe may do something.
    let plain = fs::symlink_metadata(path).map_or(true, |m| m.is_file() || m.is_dir());
    if !path.starts_with('/') || !plain || !(opens || looks) {
        return None;
    }
    let mut times = [0.0; TIMES];
    for time in &mut times {
        let start = Instant::now();
        // SAFETY: the name and the structure live for the calls; the descriptor is closed again.
        let result = unsafe {
            if opens {
                libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK)
            } else {
                let mut stat = std::mem::zeroed::<libc::stat64>();
                libc::lstat64(name.as_ptr(), &raw mut stat)
            }
        };
        *time = start.elapsed().as_secs_f64();
        let failed = (result < 0).then(std::io::Error::last_os_error);
        if opens && result >= 0 {
            // SAFETY: a descriptor of ours that nobody else has.
            unsafe { libc::close(result) };
        }
        let errno = failed.and_then(|e| e.raw_os_error());
        let same = match error {
            None => errno.is_none(),
            Some("ENOENT") => errno == Some(libc::ENOENT),
            Some("ENOTDIR") => errno == Some(libc::ENOTDIR),
            Some(_) => false,
        };
        if !same {
            return None;
        }
    }
    times.sort_by(f64::total_cmp);
    Some(times[TIMES / 2])
}

/// Reads strace's output (`-f -yy -T -o`). Lines that it does not understand are left out.
#[must_use]
pub fn parse(text: &str) -> Vec<Syscall> {
    let mut begun: HashMap<&str, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if let Some(start) = rest.strip_suffix(" <unfinished ...>") {
            begun.insert(pid, start.to_string());
        } else if let Some((_, end)) = rest.strip_prefix("<... ").and_then(|r| r.split_once(" resumed>")) {
            if let Some(start) = begun.remove(pid) {
                calls.extend(parse_call(pid, &format!("{start}{end}")));
            }
        } else {
            calls.extend(parse_call(pid, rest));
        }
    }
    calls
}

fn parse_call(pid: &str, line: &str) -> Option<Syscall> {
    let (name, rest) = line.split_once('(')?;
    // Arguments may contain anything but " = " after their closing bracket, of which the last counts.
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let seconds = result.rsplit_once('<')?.1.strip_suffix('>')?.parse().ok()?;
    let error = result.strip_prefix("-1 ").and_then(|e| e.split_whitespace().next()).map(str::to_string);
    let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments);
    Some(Syscall { pid: pid.parse().ok()?, call: name.to_string(), path: object(name, arguments), error, seconds })
}

/// What a call is about: the file it names, or the file or connection behind its descriptor.
fn object(name: &str, arguments: &str) -> String {
    // openat(AT_FDCWD</dir>, "file", …); relative names are below the folder of the descriptor.
    let descriptor = arguments
        .split_once('<')
        .filter(|(before, _)| before.chars().all(|c| c.is_ascii_digit()) || before.ends_with("AT_FDCWD"));
    let behind = descriptor.map(|(_, after)| {
        // A connection's arrow is no end: TCP:[a->b].
        let end = match (after.find('['), after.find(']')) {
            (Some(open), Some(close)) if after.find('>').is_none_or(|arrow| open < arrow) => close + 1,
            _ => after.find('>').unwrap_or(after.len()),
        };
        &after[..end]
    });
    let quoted = arguments.split('"').nth(1).filter(|_| names_a_file(name, arguments));
    match (quoted, behind) {
        (Some(file), _) if file.starts_with('/') => file.to_string(),
        (Some(""), Some(folder)) => folder.to_string(),
        (Some(file), Some(folder)) if folder.starts_with('/') => format!("{}/{file}", folder.trim_end_matches('/')),
        (Some(file), _) => file.to_string(),
        // connect(5<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}, 16)
        (None, _) if name == "connect" || name == "sendto" && arguments.contains("sa_family=") => peer(arguments),
        (None, Some(behind)) => behind.to_string(),
        (None, None) => String::new(),
    }
}

fn names_a_file(name: &str, arguments: &str) -> bool {
    // Of other calls the text in quotes is data.
    let data = ["read", "write", "recv", "send", "pread", "pwrite", "connect", "getsockopt", "setsockopt", "writev"];
    let before = arguments.split_once('"').map(|(before, _)| before);
    // Within braces it is part of a structure: an address.
    !data.iter().any(|d| name.starts_with(d)) && before.is_some_and(|b| !b.contains('{'))
}

fn peer(arguments: &str) -> String {
    let between =
        |from: &str, to: char| arguments.split_once(from).map(|(_, rest)| rest.split(to).next().unwrap_or(""));
    if let Some(path) = between("sun_path=\"", '"').or_else(|| between("sun_path=@\"", '"')) {
        return format!("unix:{path}");
    }
    let port = between("htons(", ')').unwrap_or("?");
    let host = between("inet_addr(\"", '"').or_else(|| {
        let rest = arguments.split_once("inet_pton(AF_INET6, \"")?.1;
        rest.split('"').next()
    });
    format!("{}:{port}", host.unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"100 accept4(4<TCP:[127.0.0.1:80]>, {sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr("127.0.0.1")}, [128 => 16], SOCK_CLOEXEC <unfinished ...>
101 openat(AT_FDCWD</srv>, "/srv/.htaccess", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory) <0.000012>
100 <... accept4 resumed>) = 9<TCP:[127.0.0.1:80->127.0.0.1:9]> <1.500000>
100 read(9<TCP:[127.0.0.1:80->127.0.0.1:9]>, "GET / = 1 HTTP/1.1\r\n", 8000) = 20 <0.000010>
100 newfstatat(AT_FDCWD</srv>, "a b/x\"y", {st_mode=S_IFREG|0644, st_size=3, ...}, 0) = 0 <0.000007>
100 fstat(5</srv/page.html>, {st_mode=S_IFREG|0644, st_size=3, ...}) = 0 <0.000003>
100 connect(6<UDP:[77]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}, 16) = 0 <0.000030>
100 connect(7<UNIX-STREAM:[78]>, {sa_family=AF_UNIX, sun_path="/run/db.sock"}, 110) = -1 ENOENT (No such file or directory) <0.000005>
100 writev(9<TCP:[127.0.0.1:80->127.0.0.1:9]>, [{iov_base="HTTP/1.1 200 OK\r\n", iov_len=17}], 1) = 17 <0.000040>
102 +++ exited with 0 +++
100 read(9<TCP:[127.0.0.1:80->127.0.0.1:9]>,  <unfinished ...>
"#;

    #[test]
    fn calls_are_read_with_what_they_are_about() {
        let calls = parse(LINES);
        let rows: Vec<(&str, &str, Option<&str>)> =
            calls.iter().map(|c| (c.call.as_str(), c.path.as_str(), c.error.as_deref())).collect();
        assert_eq!(
            rows,
            [
                ("openat", "/srv/.htaccess", Some("ENOENT")),
                ("accept4", "TCP:[127.0.0.1:80]", None),
                ("read", "TCP:[127.0.0.1:80->127.0.0.1:9]", None),
                ("newfstatat", "/srv/a b/x\\", None),
                ("fstat", "/srv/page.html", None),
                ("connect", "127.0.0.53:53", None),
                ("connect", "unix:/run/db.sock", Some("ENOENT")),
                ("writev", "TCP:[127.0.0.1:80->127.0.0.1:9]", None),
            ]
        );
        assert_eq!((calls[0].pid, calls[0].seconds), (101, 0.000_012));
    }
}
