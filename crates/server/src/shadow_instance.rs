//! A second instance of a server next to the first. It shows what the server could do without: whether it still
//! answers, what can be left out, and how much memory that saves. Each kind has its own way to create one from the
//! server's configuration.

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::examination::ModuleTrial;
use lastdrop_probe::status::Answer;
use lastdrop_probe::{ProbeError, memory, process, tool};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Total time for all instances with something left out, except the end of the last one.
pub const MOST_TIME: Duration = Duration::from_secs(4);
/// Interval for polling an instance that starts or ends.
pub const POLL: Duration = Duration::from_millis(5);
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Fields that differ between any two answers, or name the modules.
const OWN_FIELDS: &[&str] = &["age", "date", "etag", "expires", "server"];

/// The part of an answer that must be the same.
#[derive(Debug, PartialEq, Eq)]
pub struct ComparableAnswer {
    pub status: u16,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl ComparableAnswer {
    pub fn of(answer: &Answer) -> ComparableAnswer {
        let mut fields: Vec<_> = answer.fields.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.clone())).collect();
        fields.retain(|(name, _)| !OWN_FIELDS.contains(&name.as_str()));
        for (name, value) in &mut fields {
            // A new session has a new id and a new expiry each time.
            if name == "set-cookie" {
                value.truncate(value.iter().position(|b| *b == b'=').unwrap_or(value.len()));
            }
        }
        ComparableAnswer { status: answer.status, fields, body: answer.body.clone() }
    }

    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_slice())
    }

    /// Returns an instance's answer, if it is the same each time and has the status and content type of the server's
    /// own answer.
    ///
    /// # Errors
    /// In words, why its answers prove nothing.
    pub fn stable<E: ToString>(
        mut instance: impl FnMut() -> Result<Answer, E>,
        server: impl FnOnce() -> Result<Answer, E>,
    ) -> Result<ComparableAnswer, String> {
        let mut ask = || instance().map_err(|e| format!("its second instance: {}", e.to_string()));
        let (one, two) = (ComparableAnswer::of(&ask()?), ComparableAnswer::of(&ask()?));
        if one != two {
            return Err("the answer differs from request to request by itself".into());
        }
        let own = ComparableAnswer::of(&server().map_err(|e| e.to_string())?);
        if own.status != one.status {
            return Err(format!("a second instance of it answers {} where it answers {}", one.status, own.status));
        }
        let kind = |seen: &ComparableAnswer| {
            let value = String::from_utf8_lossy(seen.field("content-type").unwrap_or(b"nothing")).into_owned();
            value.to_ascii_lowercase()
        };
        if kind(&own) != kind(&one) {
            let (one, own) = (kind(&one), kind(&own));
            return Err(format!("a second instance of it answers with {one} where it answers with {own}"));
        }
        Ok(one)
    }
}

/// Finds modules that can be left out together, by bisection: a half without which it fails is split again. Needed
/// modules, and those for which time ran out, go to `tried`. Modules that others depend on come last.
pub fn dispensable<E>(
    candidates: &[String],
    works: &mut impl FnMut(&[String]) -> Result<Option<bool>, E>,
    tried: &mut ModuleTrial,
) -> Result<Vec<String>, E> {
    let mut gone: Vec<String> = Vec::new();
    let mut open = vec![candidates.to_vec()];
    while let Some(part) = open.pop().filter(|p| !p.is_empty()) {
        let without = [gone.as_slice(), &part].concat();
        match works(&without)? {
            Some(true) => gone = without,
            Some(false) if part.len() == 1 => tried.needed.extend(part),
            Some(false) => {
                let (first, second) = part.split_at(part.len() / 2);
                open.extend([second.to_vec(), first.to_vec()]);
            }
            None => tried.undecided.extend(part),
        }
    }
    Ok(gone)
}

/// Processes of an instance, in their own session; they end when this is dropped.
#[derive(Debug)]
pub struct InstanceProcesses {
    child: Child,
    /// The signal at which it ends in good order.
    ended_by: Signal,
}

impl InstanceProcesses {
    /// Starts an instance that ends with lastdrop, however that ends.
    pub fn start(command: Command) -> std::io::Result<InstanceProcesses> {
        InstanceProcesses::start_ended_by(command, Signal::SIGTERM)
    }

    /// Starts a program that ends at another signal than SIGTERM.
    pub fn start_ended_by(mut command: Command, ended_by: Signal) -> std::io::Result<InstanceProcesses> {
        use std::os::unix::process::CommandExt;
        let us = Pid::this();
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(move || tool::end_with_parent(us, ended_by));
        }
        command.spawn().map(|child| InstanceProcesses { child, ended_by })
    }

    pub fn master(&self) -> i32 {
        self.child.id() as i32
    }

    /// Exit status, if it has ended.
    pub fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    pub fn workers(&self) -> Vec<i32> {
        process::child_pids(self.master())
    }

    /// Asks it to end and waits until it has. Returns false if it has not in time.
    pub fn end(&mut self, limit: Duration) -> bool {
        let _ = kill(Pid::from_raw(self.master()), self.ended_by);
        let until = Instant::now() + limit;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// Mean PSS of its workers, in bytes.
    pub fn worker_bytes(&self) -> Result<Option<u64>, ProbeError> {
        let all = memory::of_group(&self.workers())?;
        Ok(all.iter().map(|m| m.pss).sum::<u64>().checked_div(all.len() as u64))
    }
}

impl Drop for InstanceProcesses {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // It is a session leader, so its pid is its process group's id.
        let pid = Pid::from_raw(self.master());
        let _ = kill(pid, self.ended_by);
        let end = Instant::now() + END_TIMEOUT;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL);
        }
        let _ = killpg(pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_finds_what_is_needed_and_says_what_it_had_no_time_for() {
        let all: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let mut tries = 0;
        let mut tried = ModuleTrial::default();
        let mut works = |without: &[String]| {
            tries += 1;
            Ok::<_, ()>(Some(!without.contains(&"3".into()) && !without.contains(&"17".into())))
        };
        let unused = dispensable(&all, &mut works, &mut tried).expect("no errors");
        assert_eq!((unused.len(), &tried.needed), (18, &vec!["3".to_string(), "17".to_string()]));
        assert!(tries < 20, "{tries}");
        let mut tried = ModuleTrial::default();
        let gone = dispensable(&all, &mut |_: &[String]| Ok::<_, ()>(None), &mut tried).expect("no errors");
        assert_eq!((gone.len(), tried.undecided.len()), (0, 20));
    }

    #[test]
    fn an_answer_counts_where_it_is_the_same_each_time_and_of_the_servers_sort() {
        let answer = |status: u16, cookie: &str, body: &str| {
            let fields = [("Content-Type", "text/html"), ("Set-Cookie", cookie), ("Date", cookie)];
            let fields = fields.map(|(n, v)| (n.to_string(), v.as_bytes().to_vec())).to_vec();
            Answer { status, fields, body: body.as_bytes().to_vec() }
        };
        let mut sessions = ["PHPSESSID=1; path=/", "PHPSESSID=2; path=/"].into_iter();
        let mut next = || Ok::<_, String>(answer(200, sessions.next().unwrap_or_default(), "ok"));
        let seen = ComparableAnswer::stable(&mut next, || Ok(answer(200, "x", "compressed"))).expect("stable");
        assert_eq!((seen.status, seen.field("set-cookie")), (200, Some(b"PHPSESSID".as_slice())));
        let mut n = 0;
        let mut counting = || {
            n += 1;
            Ok::<_, String>(answer(200, "", &n.to_string()))
        };
        let said = ComparableAnswer::stable(&mut counting, || Ok(answer(200, "", ""))).expect_err("differs");
        assert!(said.contains("differs from request to request"), "{said}");
        let said = ComparableAnswer::stable(|| Ok::<_, String>(answer(500, "", "")), || Ok(answer(200, "", "")))
            .expect_err("not");
        assert!(said.contains("answers 500 where it answers 200"), "{said}");
    }
}
