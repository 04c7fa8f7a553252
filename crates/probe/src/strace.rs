//! System calls of a running server, from strace.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::sample::Syscall;

use crate::ProbeError;
use crate::attached::AttachedTool;
use crate::process;
use crate::socket_names::SocketNames;

/// Calls that serving a request may consist of or wait in. A question mark precedes calls that some architectures do
/// not have.
const CALLS: &str = "trace=%file,%network,read,readv,pread64,preadv,write,writev,pwrite64,pwritev,sendfile,splice,\
    close,fstat,lseek,getdents64,flock,fsync,fdatasync,ftruncate,dup,?dup2,pipe2,ioctl,fallocate,copy_file_range,\
    ?poll,ppoll,?select,pselect6,?epoll_wait,epoll_pwait,?epoll_pwait2,futex,fcntl,nanosleep,clock_nanosleep,wait4,waitid,\
    semop,semtimedop,io_getevents,?pause,rt_sigtimedwait,rt_sigsuspend";
/// How a request begins, as strace prints bytes: three methods, and `FCGI_BEGIN_REQUEST`.
const BEGINNINGS: [&str; 4] = ["\"GET /", "\"POST /", "\"HEAD /", r#""\1\1\0\1\0\10"#];
/// Calls that write, and how responses begin.
const WRITES: [&str; 4] = [" write(", " writev(", " sendto(", " sendmsg("];
const ANSWERS: [&str; 2] = ["\"HTTP/1.", r#""\1\6\0\1"#];
/// How often processes are chosen again after all chosen ones have ended.
const TRIES: usize = 5;
/// How long attaching may take.
const ATTACH_LIMIT: Duration = Duration::from_secs(15);

/// An attached strace.
#[derive(Debug)]
pub struct Strace {
    child: AttachedTool,
    output: PathBuf,
    requests: usize,
    answers: usize,
    /// Offset up to which the output has been searched for requests and responses.
    counted_to: u64,
}

impl Strace {
    /// Attaches to processes and to their future children. `output` is a file to write to.
    ///
    /// # Errors
    /// When strace is missing or not permitted, or all processes have ended.
    pub fn attach(pids: &[i32], output: &Path) -> Result<Strace, ProbeError> {
        Strace::attach_to(|| pids.to_vec(), output)
    }

    /// Like `attach`, for processes that may end at any moment: if all processes from `choose` have ended, it is called
    /// again.
    ///
    /// # Errors
    /// As [`Strace::attach`].
    pub fn attach_to(mut choose: impl FnMut() -> Vec<i32>, output: &Path) -> Result<Strace, ProbeError> {
        for _ in 0..TRIES {
            if let Some(strace) = Strace::try_attach(&choose(), output)? {
                return Ok(strace);
            }
        }
        let what = "the processes that were to be traced had ended each time; do workers live long enough?".into();
        Err(ProbeError::Tool { tool: "strace", what })
    }

    /// Returns None if all processes have ended.
    fn try_attach(pids: &[i32], output: &Path) -> Result<Option<Strace>, ProbeError> {
        let failed = |source: std::io::Error| ProbeError::Tool { tool: "strace", what: source.to_string() };
        let advice = "strace is not installed; on Debian: apt-get install strace";
        let missing = |_| failed(std::io::Error::other(advice));
        let mut command = crate::tool::command("strace", "records the system calls of a server").map_err(missing)?;
        command.args(["-f", "-y", "-T", "-s", "300", "-e", CALLS, "-e", "signal=none", "-o"]).arg(output);
        for pid in pids {
            command.args(["-p", &pid.to_string()]);
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let errors = child.stderr.take().ok_or_else(|| failed(std::io::Error::other("it has no output")))?;
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Once all processes are attached, the receiver is gone; the pipe still has to be drained.
                let _ = tell.send(line);
            }
        });
        let strace =
            Strace { child: AttachedTool(child), output: output.to_path_buf(), requests: 0, answers: 0, counted_to: 0 };
        let deadline = Instant::now() + ATTACH_LIMIT;
        let (mut attached, mut gone, mut refused, mut problem) = (0, 0, 0, String::new());
        while attached + gone + refused < pids.len() {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(" attached") => attached += 1,
                Ok(line) => match Refusal::of(&line) {
                    Some(refusal) if refusal.has_ended() => gone += 1,
                    refusal => {
                        refused += usize::from(refusal.is_some());
                        problem = line;
                    }
                },
                Err(_) => break,
            }
        }
        if gone == pids.len() {
            return Ok(None);
        }
        if attached == 0 {
            let source = std::io::Error::other(if problem.is_empty() {
                "it did not attach in time".to_string()
            } else {
                format!("{problem}; root may trace any process, others their own where kernel.yama.ptrace_scope is 0")
            });
            return Err(failed(source));
        }
        Ok(Some(strace))
    }

    /// Returns the HTTP and FastCGI requests whose beginning was traced so far, both read and written.
    pub fn requests(&mut self) -> usize {
        let mut news = Vec::new();
        let read = fs::File::open(&self.output).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.counted_to))?;
            file.read_to_end(&mut news)
        });
        self.counted_to += read.unwrap_or(0) as u64;
        // A marker that is cut between two reads is not counted.
        let text = String::from_utf8_lossy(&news);
        self.requests += BEGINNINGS.iter().map(|words| text.matches(words).count()).sum::<usize>();
        let answers = |line: &&str| {
            WRITES.iter().any(|call| line.contains(call)) && ANSWERS.iter().any(|words| line.contains(words))
        };
        self.answers += text.lines().filter(answers).count();
        self.requests
    }

    /// Returns the HTTP and FastCGI responses that had been written at the last call of `requests`. A caller that waits
    /// for responses traces complete requests.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.answers
    }

    /// Returns the processor time that strace has used so far.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.child.cost()
    }

    /// Detaches from the processes and returns the traced calls. `known` has the sockets that existed before.
    ///
    /// # Errors
    /// When the output cannot be read.
    pub fn finish(mut self, known: SocketNames) -> Result<Vec<Syscall>, ProbeError> {
        self.child.end();
        let path = self.output.display().to_string();
        // Paths are bytes; strace escapes what is not printable.
        let text = fs::read(&self.output).map_err(|source| ProbeError::Read { path, source })?;
        Ok(parse(&String::from_utf8_lossy(&text), known))
    }
}

/// strace's message that it cannot attach to a process: `strace: attach: ptrace(PTRACE_SEIZE, 12): Operation not
/// permitted`.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    pid: i32,
    no_such_process: bool,
}

impl Refusal {
    fn of(line: &str) -> Option<Refusal> {
        let (_, call) = line.split_once("ptrace(")?;
        let (arguments, why) = call.split_once(')')?;
        let pid = arguments.rsplit(", ").next()?.parse().ok()?;
        Some(Refusal { pid, no_such_process: why.contains("No such process") })
    }

    /// Returns true if the process has ended. A zombie still exists and may not be traced, even by root.
    fn has_ended(&self) -> bool {
        self.no_such_process || process::has_ended(self.pid)
    }
}

/// Returns true if a process is being traced. A process that has ended counts as traced: there is nothing to miss.
#[must_use]
pub fn is_traced(pid: i32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    !status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|n| n.trim() == "0"))
}

/// How often a call is made to time it; the median counts.
const TIMES: usize = 31;

/// Measures what a call on a file takes now by making it ourselves, because tracing costs more than the call. None for
/// calls that could have effects, and if our result differs from the server's.
#[must_use]
pub fn time_again(call: &str, path: &str, error: Option<&str>) -> Option<f64> {
    let name = CString::new(path).ok()?;
    let opens = call == "open" || call == "openat";
    let looks = ["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"].contains(&call);
    // Opening a device or a pipe may have effects.
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
            // SAFETY: a descriptor of ours that nothing else uses.
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

/// Parses strace's output (`-f -y -T -o`), in the order in which calls returned. Unknown lines are left out. Sockets
/// appear as numbers: `known` has the names of some, the traced calls give those of the others.
#[must_use]
pub fn parse(text: &str, mut known: SocketNames) -> Vec<Syscall> {
    let mut begun: HashMap<&str, String> = HashMap::new();
    let mut calls = Vec::new();
    let mut take = |pid: &str, call: &str| {
        known.learn(call);
        calls.extend(parse_call(pid, &known.tell(call)));
    };
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if let Some(start) = rest.strip_suffix(" <unfinished ...>") {
            begun.insert(pid, start.to_string());
        } else if let Some((_, end)) = rest.strip_prefix("<... ").and_then(|r| r.split_once(" resumed>")) {
            if let Some(start) = begun.remove(pid) {
                take(pid, &format!("{start}{end}"));
            }
        } else {
            take(pid, rest);
        }
    }
    calls
}

fn parse_call(pid: &str, line: &str) -> Option<Syscall> {
    let (name, rest) = line.split_once('(')?;
    // Arguments may contain anything, so the last " = " counts.
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let seconds = result.rsplit_once('<')?.1.strip_suffix('>')?.parse().ok()?;
    let error = result.strip_prefix("-1 ").and_then(|e| e.split_whitespace().next()).map(str::to_string);
    let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments);
    let path = object(name, arguments, result);
    let operation = match name {
        _ if OPERATIONS.contains(&name) => operation(arguments),
        // A query to a name server contains its subject, which strace prints as a string.
        "sendto" | "sendmmsg" if arguments.contains("in-addr") || arguments.contains("ip6\\4arpa") => REVERSE.into(),
        "read" | "recvfrom" | "recvmsg" if REFUSALS.iter().any(|words| arguments.contains(words)) => REFUSED.into(),
        _ => String::new(),
    };
    Some(Syscall { pid: pid.parse().ok()?, call: name.to_string(), path, operation, error, seconds })
}

/// Operation of a call that looks up the name of an address (reverse DNS).
pub const REVERSE: &str = "reverse";
/// Operation of a call that reads a database's refusal of further connections.
pub const REFUSED: &str = "refused";
/// Text of this refusal: MariaDB and MySQL, PostgreSQL, Redis.
const REFUSALS: &[&str] = &[
    "Too many connections",
    "max_user_connections",
    "too many clients already",
    "remaining connection slots",
    "too many connections for",
    "max number of clients reached",
];
/// Calls whose second argument is their operation.
const OPERATIONS: &[&str] = &["futex", "fcntl", "flock"];

fn operation(arguments: &str) -> String {
    let rest = descriptor(arguments).map_or(arguments, |(_, end)| &arguments[end..]);
    let second = rest.split(", ").nth(1).unwrap_or_default();
    second.split([',', ')']).next().unwrap_or_default().to_string()
}

/// Calls that wait for any of several descriptors.
const ANY_OF: &[&str] = &["poll", "ppoll", "select", "pselect6"];

/// Returns the object of a call: the file it names, or the file or connection of its descriptor.
fn object(name: &str, arguments: &str, result: &str) -> String {
    if ANY_OF.contains(&name) {
        return ready(arguments, result).or_else(|| descriptor(arguments)).map_or(String::new(), |(behind, _)| behind);
    }
    // openat(AT_FDCWD</dir>, "file", …); relative names are below the folder of the descriptor.
    let (behind, rest) = match descriptor(arguments) {
        Some((behind, end)) => (Some(behind), &arguments[end..]),
        None => (None, arguments),
    };
    let quoted = rest.split('"').nth(1).filter(|_| names_a_file(name, rest));
    match (quoted, behind) {
        (Some(file), _) if file.starts_with('/') => file.to_string(),
        (Some(""), Some(folder)) => folder,
        (Some(file), Some(folder)) if folder.starts_with('/') => format!("{}/{file}", folder.trim_end_matches('/')),
        (Some(file), _) => file.to_string(),
        // connect(5<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}, 16)
        (None, _) if name == "connect" || name == "sendto" && rest.contains("sa_family=") => peer(rest),
        (None, Some(behind)) => behind,
        (None, None) => String::new(),
    }
}

/// Returns what the first descriptor of the arguments refers to, such as `5</dev/null<char 1:3>>` or
/// `fd=5<TCP:[a->b]>`, and where its text ends.
fn descriptor(arguments: &str) -> Option<(String, usize)> {
    let start = arguments.find('<')?;
    let before = &arguments[..start];
    let number = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let counts = number.len() < before.len() && (number.is_empty() || number.ends_with(['=', '[', ' ']));
    if !counts && !before.ends_with("AT_FDCWD") {
        return None;
    }
    // strace escapes these brackets in names. The remaining ones are its own: nested, or the arrow of a connection.
    let (mut depth, mut quoted, mut last) = (0, false, ' ');
    for (i, c) in arguments[start..].char_indices() {
        match c {
            '"' => quoted = !quoted,
            '<' if !quoted => depth += 1,
            '>' if !quoted && last != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let inside = &arguments[start + 1..start + i];
            let name = if inside.starts_with('/') { inside.split('<').next().unwrap_or(inside) } else { inside };
            return Some((name.to_string(), start + i + 1));
        }
        last = c;
    }
    None
}

/// Returns the descriptor that poll or select reported as ready.
fn ready(arguments: &str, result: &str) -> Option<(String, usize)> {
    let told = result.split_once("fd=").or_else(|| result.split_once("in ["))?.1;
    let number = &told[..told.find(|c: char| !c.is_ascii_digit())?];
    let starts = [format!("fd={number}<"), format!("[{number}<"), format!(" {number}<")];
    let at = starts.iter().find_map(|s| arguments.find(s.as_str()))?;
    descriptor(&arguments[at..])
}

fn names_a_file(name: &str, arguments: &str) -> bool {
    // For the other calls, quoted text is data.
    let data = ["read", "write", "recv", "send", "pread", "pwrite", "connect", "getsockopt", "setsockopt", "writev"];
    let before = arguments.split_once('"').map(|(before, _)| before);
    // Within braces it is part of a structure: an address.
    !data.iter().any(|d| name.starts_with(d)) && before.is_some_and(|b| !b.contains('{'))
}

/// Returns the address in the arguments of a call: `127.0.0.1:80`, `unix:/run/x.sock`.
pub(crate) fn peer(arguments: &str) -> String {
    let between =
        |from: &str, to: char| arguments.split_once(from).map(|(_, rest)| rest.split(to).next().unwrap_or(""));
    if let Some(path) = unix_path(arguments) {
        return format!("unix:{path}");
    }
    let port = between("htons(", ')').unwrap_or("?");
    if let Some((_, rest)) = arguments.split_once("inet_pton(AF_INET6, \"") {
        return format!("[{}]:{port}", rest.split('"').next().unwrap_or_default());
    }
    format!("{}:{port}", between("inet_addr(\"", '"').unwrap_or("?"))
}

/// Returns the path in the address of a unix socket.
fn unix_path(arguments: &str) -> Option<&str> {
    let start = arguments.split_once("sun_path=\"").or_else(|| arguments.split_once("sun_path=@\""))?;
    start.1.split('"').next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
        let calls = parse(LINES, SocketNames::default());
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

    #[test]
    fn what_stands_behind_descriptors_is_taken_apart() {
        let rows = r#"1 write(2</dev/null<char 1:3>>, "x", 1) = 1 <0.000001>
1 fcntl(3</tmp/.ZendSem.3TmF1l>(deleted), F_SETLKW, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = 0 <0.000958>
1 flock(6</srv/lock file>, LOCK_EX) = 0 <0.300000>
1 recvfrom(5<TCPv6:[[::1]:80->[::1]:4000]>, "GET", 3, 0, NULL, NULL) = 3 <0.000001>
1 shutdown(5<UNIX-STREAM:[11->12,"/run/fpm.sock"]>, SHUT_WR) = 0 <0.000001>
1 futex(0x7f0012, FUTEX_WAIT_PRIVATE, 0, NULL) = 0 <0.000001>
1 clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0, tv_nsec=30000000}, NULL) = 0 <0.030114>
1 poll([{fd=7<TCP:[127.0.0.1:1->127.0.0.1:3306]>, events=POLLIN}, {fd=8<TCP:[127.0.0.1:2->127.0.0.1:6379]>, events=POLLIN}], 2, 10 <unfinished ...>
1 <... poll resumed>) = 1 ([{fd=8, revents=POLLIN}]) <0.200000>
1 poll([{fd=7<TCP:[127.0.0.1:1->127.0.0.1:3306]>, events=POLLIN}], 1, 10) = 0 (Timeout) <0.010000>
1 select(6, [4<pipe:[9]> 5<TCP:[127.0.0.1:3->127.0.0.1:5432]>], NULL, NULL, {tv_sec=1, tv_usec=0}) = 1 (in [5], left {tv_sec=0, tv_usec=9}) <0.1>
1 sendto(6<UDP:[77]>, "\225\1\0\0\1\0\0\0\0\0\0\0011\0010\0010\003127\7in-addr\4arpa\0\0\f\0\1", 40, MSG_NOSIGNAL, NULL, 0) = 40 <0.1>
1 recvfrom(5<TCP:[127.0.0.1:3->127.0.0.1:3306]>, "\27\0\0\0\377\20\4Too many connections", 8192, 0, NULL, NULL) = 27 <0.1>
1 epoll_wait(7<anon_inode:[eventpoll]>, [{events=EPOLLIN, data={u32=1, u64=1}}], 512, -1) = 1 <1.055430>
"#;
        let seen: Vec<(String, String)> =
            parse(rows, SocketNames::default()).into_iter().map(|c| (c.path, c.operation)).collect();
        let seen: Vec<(&str, &str)> = seen.iter().map(|(p, o)| (p.as_str(), o.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("/dev/null", ""),
                ("/tmp/.ZendSem.3TmF1l", "F_SETLKW"),
                ("/srv/lock file", "LOCK_EX"),
                ("TCPv6:[[::1]:80->[::1]:4000]", ""),
                ("UNIX-STREAM:[11->12,\"/run/fpm.sock\"]", ""),
                ("", "FUTEX_WAIT_PRIVATE"),
                ("", ""),
                ("TCP:[127.0.0.1:2->127.0.0.1:6379]", ""),
                ("TCP:[127.0.0.1:1->127.0.0.1:3306]", ""),
                ("TCP:[127.0.0.1:3->127.0.0.1:5432]", ""),
                ("UDP:[77]", "reverse"),
                ("TCP:[127.0.0.1:3->127.0.0.1:3306]", "refused"),
                ("anon_inode:[eventpoll]", ""),
            ]
        );
    }

    #[test]
    #[allow(clippy::disallowed_methods, clippy::zombie_processes)]
    fn a_process_that_has_ended_is_no_refusal() {
        let zombie = Command::new("true").spawn().expect("true is there");
        let pid = zombie.id().cast_signed();
        while !process::has_ended(pid) {
            thread::sleep(Duration::from_millis(1));
        }
        let line = |pid: i32| format!("strace: attach: ptrace(PTRACE_SEIZE, {pid}): Operation not permitted");
        let refusal = Refusal::of(&line(pid)).expect("a refusal");
        assert!(refusal.has_ended(), "{refusal:?}");
        // A living process that may not be traced is a refusal.
        let living = std::process::id().cast_signed();
        assert!(Refusal::of(&line(living)).is_some_and(|r| !r.has_ended()));
        assert_eq!(Refusal::of("strace: Process 12 attached"), None);
    }

    #[test]
    fn sockets_have_the_names_that_they_had_and_those_that_calls_give_them() {
        let rows = r#"1 accept4(3<socket:[10]>, {sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr("127.0.0.2")}, [16], SOCK_CLOEXEC <unfinished ...>
2 socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_TCP) = 5<socket:[20]> <0.1>
2 setsockopt(5<socket:[20]>, SOL_TCP, TCP_NODELAY, [1], 4) = 0 <0.1>
2 connect(5<socket:[20]>, {sa_family=AF_INET, sin_port=htons(3306), sin_addr=inet_addr("127.0.0.1")}, 16) = -1 EINPROGRESS (Operation now in progress) <0.1>
1 <... accept4 resumed>) = 4<socket:[11]> <0.1>
1 read(4<socket:[11]>, "GET /<socket:[20]> HTTP/1.1", 8000) = 3 <0.1>
1 read(6<socket:[12]>, "GET", 8000) = 3 <0.1>
2 poll([{fd=5<socket:[20]>, events=POLLIN}], 1, 10) = 1 ([{fd=5, revents=POLLIN}]) <0.1>
2 socket(AF_UNIX, SOCK_STREAM, 0) = 7<socket:[30]> <0.1>
2 connect(7<socket:[30]>, {sa_family=AF_UNIX, sun_path="/run/db.sock"}, 31) = 0 <0.1>
2 sendto(7<socket:[30]>, "q", 1, MSG_DONTWAIT, NULL, 0) = 1 <0.1>
3 accept(8<socket:[40]>, {sa_family=AF_UNIX}, [2]) = 9<socket:[41]> <0.1>
3 read(9<socket:[41]>, "r", 1) = 1 <0.1>
3 write(10<socket:[51]>, "r", 1) = 1 <0.1>
3 accept4(11<socket:[13]>, NULL, NULL, SOCK_CLOEXEC) = 12<socket:[14]> <0.1>
3 write(12<socket:[14]>, "H", 1) = 1 <0.1>
3 socket(AF_INET, SOCK_DGRAM|SOCK_CLOEXEC, IPPROTO_IP) = 13<socket:[60]> <0.1>
3 connect(13<socket:[60]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}, 16) = 0 <0.1>
3 recvfrom(13<socket:[60]>, "a", 1, 0, NULL, NULL) = 1 <0.1>
"#;
        let mut known = SocketNames::default();
        for (inode, name) in [
            (10, "TCP:[127.0.0.1:80]"),
            (12, "TCP:[127.0.0.1:80->127.0.0.1:7]"),
            (13, "TCPv6:[[::1]:80]"),
            (40, "UNIX-STREAM:[40,\"/run/fpm.sock\"]"),
        ] {
            known.insert(inode, name.into());
        }
        let calls = parse(rows, known);
        let paths: Vec<(&str, &str)> = calls.iter().map(|c| (c.call.as_str(), c.path.as_str())).collect();
        assert_eq!(
            paths,
            [
                ("socket", ""),
                ("setsockopt", "TCP:[20]"),
                ("connect", "127.0.0.1:3306"),
                ("accept4", "TCP:[127.0.0.1:80]"),
                ("read", "TCP:[127.0.0.1:80->127.0.0.2:9]"),
                ("read", "TCP:[127.0.0.1:80->127.0.0.1:7]"),
                ("poll", "TCP:[->127.0.0.1:3306]"),
                ("socket", ""),
                ("connect", "unix:/run/db.sock"),
                ("sendto", "unix:/run/db.sock"),
                ("accept", "UNIX-STREAM:[40,\"/run/fpm.sock\"]"),
                ("read", "UNIX-STREAM:[41->,\"/run/fpm.sock\"]"),
                ("write", "socket:[51]"),
                ("accept4", "TCPv6:[[::1]:80]"),
                ("write", "TCPv6:[[::1]:80->?14]"),
                ("socket", ""),
                ("connect", "127.0.0.53:53"),
                ("recvfrom", "UDP:[->127.0.0.53:53]"),
            ]
        );
    }
}
