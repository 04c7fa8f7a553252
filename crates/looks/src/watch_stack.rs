//! Looks at one server or several again and again, and finds out which of them talk to each other.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lastdrop_model::documents::{ChainServer, StackWatchDocument, WatchDocument, Watched};
use lastdrop_probe::links::{Links, links};
use lastdrop_server::{ServerError, ServerRef};

use crate::databases::{DatabaseOptions, Databases, Nearby};
use crate::watch::Watcher;

/// At first connections are looked for as often as that, so that those of a short look are seen; they may last for a
/// millisecond only.
const EAGER: Duration = Duration::from_millis(20);
const EAGER_FOR: Duration = Duration::from_secs(3);
/// Then as seldom as makes this share of a processor, but not more often than this.
const SHARE: f64 = 0.005;
const OFTEN: Duration = Duration::from_millis(200);

/// Servers under watch.
#[derive(Debug)]
pub struct Watchers {
    members: Vec<Member>,
    databases: Databases,
    /// Databases of this machine that were not named: watched as soon as somebody is connected to them.
    nearby: Vec<Nearby>,
    /// Where there are several, or one and a database nearby.
    seeker: Option<Seeker>,
}

#[derive(Debug)]
struct Member {
    called: String,
    watcher: Watcher,
    gone: bool,
}

impl Watchers {
    /// Finds the servers and looks once, so that the next look tells differences.
    ///
    /// # Errors
    /// When one is not found, or may not be looked at.
    pub fn start(servers: &[ServerRef], options: &DatabaseOptions) -> Result<Watchers, ServerError> {
        let start = |server: &ServerRef| {
            let watcher = Watcher::start(server)?;
            Ok(Member { called: server.called().into(), watcher, gone: false })
        };
        let members = servers.iter().map(start).collect::<Result<Vec<Member>, ServerError>>()?;
        let known: Vec<(String, i32)> = members.iter().map(|m| (m.called.clone(), m.watcher.found().master)).collect();
        let databases = Databases::start(options, &known);
        let nearby = databases.nearby(&known);
        let masters: Vec<i32> =
            known.iter().map(|(_, master)| *master).chain(nearby.iter().map(|n| n.master)).collect();
        let seeker = (masters.len() > 1).then(|| Seeker::start(masters));
        Ok(Watchers { members, databases, nearby, seeker })
    }

    /// Looks; at those that have ended after looking for them anew. With `patient`, every process's memory is read now and
    /// status pages are waited for. None where there is nothing to look at.
    pub fn look(&mut self, patient: bool) -> Option<Watched> {
        let mut documents = Vec::new();
        for (place, member) in self.members.iter_mut().enumerate() {
            if member.gone {
                member.gone = !member.watcher.find_again();
                if let Some(seeker) = self.seeker.as_ref().filter(|_| !member.gone) {
                    lock(&seeker.masters)[place] = member.watcher.found().master;
                }
            }
            documents.push((member.called.clone(), member.watcher.look(patient)));
            member.gone |= !member.watcher.is_alive();
        }
        let seen = self.seeker.as_ref().map(|seeker| lock(&seeker.seen).clone()).unwrap_or_default();
        for (place, nearby) in (self.members.len()..).zip(&mut self.nearby) {
            if nearby.called.is_none() && seen.links.iter().any(|link| link.to == place) {
                let names: Vec<&str> = self.members.iter().map(|m| m.called.as_str()).collect();
                self.databases.watch(nearby, &names);
            }
        }
        let databases = self.databases.looks(patient);
        if self.members.len() == 1 {
            return documents
                .pop()
                .map(|(_, document)| Watched::One(Box::new(WatchDocument { databases, ..document })));
        }
        for place in seen.unseen.iter().filter(|place| **place < self.members.len()) {
            let unread = "who it is connected to: its sockets are those of another user (run as root)";
            documents[*place].1.unread.push(unread.into());
        }
        let of_all = StackWatchDocument::of(documents, self.chain(&seen));
        Some(Watched::Several(StackWatchDocument { databases, ..of_all }))
    }

    fn chain(&self, seen: &Links) -> Vec<ChainServer> {
        let server = |(place, member): (usize, &Member)| {
            let found = member.watcher.found();
            let mut listens: BTreeSet<String> = found.listeners.iter().map(ToString::to_string).collect();
            listens.extend(seen.listens.get(place).into_iter().flatten().map(ToString::to_string));
            let own = seen.links.iter().filter(|link| link.from == place);
            let ways = own.filter_map(|link| Some((link.via.to_string(), self.called(link.to)?)));
            let (connects, to) = ways.unzip();
            let listens = listens.into_iter().collect();
            // What is named by a process is of no kind.
            let kind = if found.kind.programs.is_empty() { found.software.clone() } else { found.kind.name.into() };
            ChainServer { server: member.called.clone(), kind, listens, connects, to }
        };
        let database = |(place, nearby): (usize, &Nearby)| {
            let listens = seen.listens.get(place).into_iter().flatten().map(ToString::to_string).collect();
            let (server, kind) = (nearby.called.clone()?, nearby.kind.name.into());
            Some(ChainServer { server, kind, listens, ..ChainServer::default() })
        };
        let others = (self.members.len()..).zip(&self.nearby).filter_map(database);
        self.members.iter().enumerate().map(server).chain(others).collect()
    }

    fn called(&self, place: usize) -> Option<String> {
        let nearby = || self.nearby.get(place - self.members.len())?.called.clone();
        self.members.get(place).map(|m| m.called.clone()).or_else(nearby)
    }

    /// Who has ended and is being looked for.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        let member = self.members.iter().find(|m| m.gone)?;
        let what = if self.members.len() > 1 { format!("{} has", member.called) } else { "the server has".into() };
        let master = member.watcher.found().master;
        Some(format!("{what} ended (process {master} is gone); looking for it again"))
    }
}

/// Looks for connections on a thread of its own, which ends with it.
#[derive(Debug)]
struct Seeker {
    masters: Arc<Mutex<Vec<i32>>>,
    /// Every connection since the beginning; of the rest the latest.
    seen: Arc<Mutex<Links>>,
    /// Let go of when the watch is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seeker {
    fn start(masters: Vec<i32>) -> Seeker {
        let (masters, seen) = (Arc::new(Mutex::new(masters)), Arc::new(Mutex::new(Links::default())));
        let (over, is_over) = channel::<()>();
        let (of, into) = (Arc::clone(&masters), Arc::clone(&seen));
        let seek = move || {
            let began = Instant::now();
            loop {
                let turn = Instant::now();
                let masters = lock(&of).clone();
                let now = links(&masters);
                let mut all = lock(&into);
                let before = std::mem::replace(&mut *all, now);
                all.links.extend(before.links);
                drop(all);
                let seldom = turn.elapsed().mul_f64(1.0 / SHARE).max(OFTEN);
                let pause = if began.elapsed() < EAGER_FOR { EAGER } else { seldom };
                if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("links".into()).spawn(seek).ok();
        Seeker { masters, seen, over: Some(over), thread }
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
