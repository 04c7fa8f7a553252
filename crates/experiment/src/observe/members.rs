//! The members of the chain: the servers that the user named, and those behind them, found by their connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lab::LabError;
use lastdrop_probe::chain::Chain;
use lastdrop_probe::host::{thread_cpu, timed};
use lastdrop_probe::links::{self, Link, Links};
use lastdrop_probe::listeners::{self, Endpoint};
use lastdrop_probe::process;
use lastdrop_server::{FoundServer, ServerError, ServerRef, find, found_of_process};

/// Connections last for milliseconds: pause between checks, if a check takes only a part of it.
const PAUSE: Duration = Duration::from_millis(15);
/// Pauses as multiples of a check's processor time, which is milliseconds on a machine with many sockets. The multiple
/// grows by one each time: most is found at the beginning.
const PAUSES: std::ops::Range<u32> = 12..48;
/// Maximum number of addresses whose listener is searched for.
const MOST_ENDS: usize = 32;
/// Maximum number of servers: a front may lead to a hundred.
const MOST_SERVERS: usize = 8;

/// A server of the chain.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name.
    pub called: String,
    /// As the user named it; None if it was found behind another server.
    pub named: Option<ServerRef>,
    pub found: FoundServer,
}

impl Member {
    /// Finds a server that the user named.
    fn found(server: &ServerRef) -> Result<Member, ServerError> {
        Ok(Member { called: server.called().into(), named: Some(server.clone()), found: find(server)? })
    }
}

fn programs(servers: &[ServerRef]) -> impl Iterator<Item = &ServerRef> {
    servers.iter().filter(|server| !server.kind.is_host())
}

/// The servers: the one at the URL first, each before those that it connects to.
#[derive(Debug, Clone, Default)]
pub struct Members {
    pub all: Vec<Member>,
    pub links: Links,
    /// Names of servers that take part, too, and may not be examined.
    pub hidden: Vec<String>,
}

/// Which servers may take part.
#[derive(Debug, Clone, Default)]
pub enum Scope {
    /// All that do.
    #[default]
    All,
    /// Only these; others are not examined.
    Only(Vec<Member>),
}

impl Scope {
    /// Restricts the scope to those of these servers that run.
    pub fn only(servers: &[ServerRef]) -> Scope {
        Scope::Only(programs(servers).filter_map(|server| Member::found(server).ok()).collect())
    }

    /// Makes a found server a member, if it may take part.
    fn member(&self, members: &[Member], found: FoundServer) -> Option<Member> {
        match self {
            Scope::All => {
                Some(Member { called: free_name(members, found.kind.name, found.master), named: None, found })
            }
            Scope::Only(all) => all.iter().find(|member| member.found.master == found.master).cloned(),
        }
    }

    /// Returns servers that may take part, but are not members yet. Their connections are checked as often as those of
    /// members, which finds them sooner than a scan of the whole machine.
    fn candidates(&self, members: &[Member]) -> Vec<Member> {
        let Scope::Only(all) = self else { return Vec::new() };
        let takes_part = |one: &Member| members.iter().any(|m| m.found.master == one.found.master);
        all.iter().filter(|one| !takes_part(one)).cloned().collect()
    }

    /// Returns the processes whose connections are followed, apart from the members.
    fn chain(&self) -> Chain {
        match self {
            Scope::All => Chain::of_ourselves(),
            Scope::Only(_) => Chain::default(),
        }
    }
}

/// Finds the servers that the user named, and the one that listens where the load connects to.
///
/// # Errors
/// When a named server is not found.
pub fn named(servers: &[ServerRef], load_to: Option<&Endpoint>, scope: &Scope) -> Result<Vec<Member>, ServerError> {
    let mut all = programs(servers).map(Member::found).collect::<Result<Vec<_>, _>>()?;
    // The server that the load meets takes part, named or not.
    if let Some(front) = load_to.and_then(listeners::owner).filter(|pid| !belongs(&all, *pid))
        && let Some(found) = found_of_process(front).filter(|f| !belongs(&all, f.master))
        && let Some(member) = scope.member(&all, found)
    {
        all.push(member);
    }
    Ok(all)
}

fn belongs(members: &[Member], pid: i32) -> bool {
    process::ancestry(pid).any(|p| members.iter().any(|m| m.found.master == p))
}

fn free_name(members: &[Member], kind: &str, pid: i32) -> String {
    match members.iter().any(|m| m.called == kind) || kind == "pid" {
        false => kind.to_string(),
        true => match process::name(pid).filter(|name| kind == "pid" && !members.iter().any(|m| m.called == *name)) {
            Some(name) => name,
            None => format!("{kind}-{pid}"),
        },
    }
}

/// Follows connections on a thread of its own while load is on.
pub struct ConnectionFollower {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Members, Duration)>>,
}

impl ConnectionFollower {
    pub fn start(members: Vec<Member>, load_to: Option<Endpoint>, scope: &Scope) -> ConnectionFollower {
        let over = Arc::new(AtomicBool::new(false));
        let (within, theirs) = (scope.clone(), Arc::clone(&over));
        let work = move || timed(|| follow(members, load_to.as_ref(), &within, &theirs));
        ConnectionFollower { over, thread: thread::Builder::new().name("following".into()).spawn(work).ok() }
    }

    /// Stops after a last check. Returns the members, and the processor time that it took.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn end(mut self) -> Result<(Members, Duration), LabError> {
        self.over.store(true, Ordering::Relaxed);
        let found = self.thread.take().and_then(|thread| thread.join().ok());
        found.ok_or_else(|| LabError::Other("looking for servers failed".into()))
    }
}

impl Drop for ConnectionFollower {
    /// Tells the thread to stop.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Returns the topmost process that listens there, in any network namespace.
fn owner_of(end: &Endpoint) -> Option<i32> {
    match end {
        Endpoint::Tcp(address) => listeners::owners_anywhere(*address).first().copied(),
        Endpoint::Unix(_) => listeners::owner(end),
    }
}

/// Adds a found server at the end of the list, so that indexes stay the same. Returns its name if it may not be
/// examined.
fn take_in(found: FoundServer, scope: &Scope, members: &mut Vec<Member>, takes_part: &mut Vec<bool>) -> Option<String> {
    let what = free_name(&[], found.kind.name, found.master);
    let Some(member) = scope.member(members, found) else { return Some(what) };
    members.push(member);
    takes_part.push(true);
    None
}

/// Follows connections until `over` is set, while load is on.
fn follow(mut members: Vec<Member>, to: Option<&Endpoint>, scope: &Scope, over: &AtomicBool) -> Members {
    let mut chain = scope.chain();
    members.iter().for_each(|m| chain.add(m.found.master));
    let mut known: BTreeSet<i32> = chain.members().into_iter().collect();
    let mut seen = Links::default();
    let mut takes_part = vec![true; members.len()];
    members.extend(scope.candidates(&members));
    takes_part.resize(members.len(), false);
    let (mut links, mut hidden, mut asked) = (links::LinkTracker::default(), BTreeSet::new(), BTreeSet::new());
    let mut turn = 0u32;
    loop {
        let begun = thread_cpu();
        let last = over.load(Ordering::Relaxed);
        // This reads the open files of the whole machine, so it runs only every eighth time.
        if turn.is_multiple_of(8) || last {
            chain.look(to);
            for pid in chain.members() {
                let fresh = known.insert(pid);
                if let Some(place) = members.iter().position(|m| m.found.master == pid) {
                    takes_part[place] = true;
                }
                let fresh = fresh && members.len() < MOST_SERVERS && !belongs(&members, pid);
                let Some(found) = fresh.then(|| found_of_process(pid)).flatten() else { continue };
                hidden.extend(take_in(found, scope, &mut members, &mut takes_part));
            }
        }
        turn += 1;
        let masters: Vec<i32> = members.iter().map(|m| m.found.master).collect();
        let now = links.look(&masters);
        // The listener at a newly seen address is searched for once, as that reads the files of the whole machine, too.
        for end in now
            .others
            .iter()
            .filter(|end| asked.len() < MOST_ENDS && !asked.contains(*end))
            .cloned()
            .collect::<Vec<_>>()
        {
            asked.insert(end.clone());
            let new = |pid: &i32| members.len() < MOST_SERVERS && !belongs(&members, *pid);
            let Some(found) = owner_of(&end).filter(new).and_then(found_of_process) else { continue };
            chain.add(found.master);
            known.insert(found.master);
            hidden.extend(take_in(found, scope, &mut members, &mut takes_part));
        }
        let before = std::mem::replace(&mut seen, now);
        seen.links.extend(before.links);
        if last {
            break;
        }
        thread::sleep(PAUSE.max((thread_cpu() - begun) * (PAUSES.start + turn).min(PAUSES.end)));
    }
    Members { hidden: hidden.into_iter().collect(), ..in_order(members, &takes_part, seen, to) }
}

/// Sorts the members: the one at the URL first, then those that it connects to, and so on. Of the candidates, only
/// those take part that a member connects to.
fn in_order(members: Vec<Member>, takes_part: &[bool], seen: Links, to: Option<&Endpoint>) -> Members {
    let listens = |place: usize| {
        let own = &members[place].found.listeners;
        let at = |end: &Endpoint| match end {
            Endpoint::Tcp(_) => own.iter().any(|l| end.fitness(l) > 0),
            Endpoint::Unix(path) => seen
                .listens
                .get(place)
                .is_some_and(|all| all.iter().any(|e| matches!(e, Endpoint::Unix(p) if p == path))),
        };
        to.is_some_and(at)
    };
    let sure = |place: &usize| takes_part.get(*place) == Some(&true);
    let mut order: Vec<usize> = (0..members.len()).filter(|place| sure(place) && listens(*place)).collect();
    let mut next = 0;
    loop {
        if next == order.len() {
            let rest = (0..members.len()).find(|place| sure(place) && !order.contains(place));
            order.extend(rest);
        }
        let Some(place) = order.get(next).copied() else { break };
        next += 1;
        let ends: Vec<usize> = seen.links.iter().filter(|l| l.from == place).map(|l| l.to).collect();
        for end in ends {
            if !order.contains(&end) {
                order.push(end);
            }
        }
    }
    let new_place = |old: usize| order.iter().position(|o| *o == old);
    let links = Links {
        links: seen
            .links
            .iter()
            .filter_map(|l| Some(Link { from: new_place(l.from)?, to: new_place(l.to)?, via: l.via.clone() }))
            .collect(),
        listens: order.iter().map(|o| seen.listens.get(*o).cloned().unwrap_or_default()).collect(),
        unseen: seen.unseen.iter().filter_map(|o| new_place(*o)).collect(),
        others: BTreeSet::new(),
    };
    let mut taken: Vec<Option<Member>> = members.into_iter().map(Some).collect();
    Members { all: order.iter().filter_map(|o| taken[*o].take()).collect(), links, hidden: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(called: &str, port: u16) -> Member {
        let server: ServerRef = "target".parse().expect("a server");
        let found = FoundServer {
            name: called.into(),
            kind: server.kind,
            software: String::new(),
            master: i32::from(port),
            prefork: false,
            helpers: &[],
            listeners: vec![([127, 0, 0, 1], port).into()],
            status: None,
        };
        Member { called: called.into(), named: None, found }
    }

    #[test]
    fn of_those_that_may_take_part_only_those_do_that_one_connects_to() {
        let all = ["pool", "front", "idle", "cache", "back"];
        let members: Vec<Member> = all.iter().zip(1..).map(|(called, port)| member(called, port)).collect();
        let to = Endpoint::Tcp(([127, 0, 0, 1], 2).into());
        let link = |from, to| Link { from, to, via: Endpoint::Tcp(([127, 0, 0, 1], 9).into()) };
        let links = [link(1, 0), link(0, 4), link(2, 3)].into();
        let listens = vec![BTreeSet::new(); all.len()];
        // The first two are known to take part; the rest may be behind them.
        let seen = Links { links, listens, unseen: vec![2, 4], others: BTreeSet::new() };
        let known = [true, true, false, false, false];
        let in_order = in_order(members, &known, seen, Some(&to));
        let called: Vec<&str> = in_order.all.iter().map(|m| m.called.as_str()).collect();
        assert_eq!(called, ["front", "pool", "back"]);
        let links: Vec<(usize, usize)> = in_order.links.links.iter().map(|l| (l.from, l.to)).collect();
        assert_eq!((links, in_order.links.unseen), (vec![(0, 1), (1, 2)], vec![2]));
        assert_eq!(in_order.links.listens.len(), 3);
    }
}
