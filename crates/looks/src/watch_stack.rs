//! Looks at one server or several again and again, and finds out which of them talk to each other, and which node of another
//! machine is not as the others of its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lastdrop_analyze::nodes::{Node, differing};
use lastdrop_model::Settings;
use lastdrop_model::documents::{ChainServer, StackWatchDocument, WatchDocument, WatchOutput};
use lastdrop_probe::links::{LinkTracker, Links};
use lastdrop_server::{ServerError, ServerRef};

use crate::databases::{DatabaseOptions, Databases, Nearby};
use crate::watch::{FoundElsewhere, WatchElsewhere, Watcher, kind};

/// At first connections are looked for as often as that, so that those of a short look are seen; they may last for a
/// millisecond only.
const EAGER: Duration = Duration::from_millis(20);
const EAGER_FOR: Duration = Duration::from_secs(3);
/// Then as seldom as makes this share of a processor, but not more often than this.
const SHARE: f64 = 0.005;
const OFTEN: Duration = Duration::from_millis(200);
/// The settings of nodes are read again after so many looks, and when one is started anew.
const SETTINGS_EVERY: u32 = 15;

/// Counters of the kernel that count connections which were not taken.
const REFUSALS: [&str; 2] = ["ListenDrops", "ListenOverflows"];

/// Servers under watch.
#[derive(Debug)]
pub struct Watchers {
    members: Vec<Member>,
    databases: Databases,
    /// Databases of this machine that were not named: watched as soon as somebody is connected to them.
    nearby: Vec<Nearby>,
    /// Where there are several, or one and a database nearby.
    seeker: Option<Seeker>,
    /// Those of other machines, in the order of their places among all.
    nodes: Vec<NodeWatch>,
}

/// A server of another machine.
struct NodeWatch {
    called: String,
    /// Among all that were named.
    place: usize,
    watch: Box<dyn WatchElsewhere>,
    settings: Option<Settings>,
    /// Looks until they are read again.
    settings_in: u32,
    /// Why nothing is seen of it.
    trouble: Option<String>,
}

impl std::fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeWatch").field("called", &self.called).finish_non_exhaustive()
    }
}

/// Begins to watch a server of another machine.
pub type StartElsewhere<'a> = &'a dyn Fn(&ServerRef) -> Result<Box<dyn WatchElsewhere>, ServerError>;

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
    pub fn start(
        servers: &[ServerRef],
        options: &DatabaseOptions,
        elsewhere: StartElsewhere<'_>,
    ) -> Result<Watchers, ServerError> {
        let all: Vec<ServerRef> = servers.iter().flat_map(ServerRef::each).collect();
        let mut nodes = Vec::new();
        for (place, server) in all.iter().enumerate().filter(|(_, server)| server.is_elsewhere()) {
            let (called, watch) = (server.called().to_string(), elsewhere(server)?);
            nodes.push(NodeWatch { called, place, watch, settings: None, settings_in: 0, trouble: None });
        }
        let start = |server: &ServerRef| {
            let watcher = Watcher::start(server)?;
            Ok(Member { called: server.called().into(), watcher, gone: false })
        };
        let members = all
            .iter()
            .filter(|server| !server.is_elsewhere())
            .map(start)
            .collect::<Result<Vec<Member>, ServerError>>()?;
        let known: Vec<(String, i32)> = members.iter().map(|m| (m.called.clone(), m.watcher.found().master)).collect();
        let databases = Databases::start(options, &known);
        let nearby = databases.nearby(&known);
        let masters: Vec<i32> =
            known.iter().map(|(_, master)| *master).chain(nearby.iter().map(|n| n.master)).collect();
        let seeker = (masters.len() > 1).then(|| Seeker::start(masters));
        Ok(Watchers { members, databases, nearby, seeker, nodes })
    }

    /// Looks; at those that have ended after looking for them anew. With `patient`, every process's memory is read now and
    /// status pages are waited for. None where there is nothing to look at. A node that cannot be asked is left out, and told by
    /// [`Watchers::alert`].
    ///
    /// # Errors
    /// When none of several, or the only one, can be asked.
    pub fn look(&mut self, patient: bool) -> Result<Option<WatchOutput>, ServerError> {
        let Watchers { nodes, members, .. } = self;
        let alone = nodes.len() + members.len() == 1;
        let mut seen = thread::scope(|scope| {
            let looking = nodes.iter_mut().map(|node| scope.spawn(move || node.look(patient, !alone)));
            // All at once: of one that is lost it takes a while to know it.
            let looking: Vec<_> = looking.collect();
            looking.into_iter().map(|look| look.join().unwrap_or(Ok(None))).collect::<Vec<_>>()
        });
        if self.members.is_empty() && !self.nodes.is_empty() && seen.iter().all(Result::is_err) {
            return seen.swap_remove(0).map(|_| None);
        }
        let mut of_nodes = Vec::new();
        for (node, seen) in self.nodes.iter_mut().zip(seen) {
            node.trouble = seen.as_ref().err().map(ToString::to_string);
            if let Some(document) = seen.ok().flatten() {
                of_nodes.push((node.place, node.called.clone(), document));
            }
        }
        if alone && !self.nodes.is_empty() {
            return Ok(of_nodes.pop().map(|(_, _, document)| WatchOutput::One(Box::new(document))));
        }
        Ok(self.look_here(patient, of_nodes))
    }

    fn look_here(&mut self, patient: bool, of_nodes: Vec<(usize, String, WatchDocument)>) -> Option<WatchOutput> {
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
        if self.members.len() == 1 && self.nodes.is_empty() {
            return documents
                .pop()
                .map(|(_, document)| WatchOutput::One(Box::new(WatchDocument { databases, ..document })));
        }
        for place in seen.unseen.iter().filter(|place| **place < self.members.len()) {
            let unread = "who it is connected to: its sockets are those of another user (run as root)";
            documents[*place].1.unread.push(unread.into());
        }
        let differs = differing(&self.compared(&of_nodes));
        for (place, called, document) in of_nodes {
            documents.insert(place.min(documents.len()), (called, document));
        }
        let of_all = StackWatchDocument::of(documents, self.chain(&seen));
        Some(WatchOutput::Several(StackWatchDocument { databases, differs, ..of_all }))
    }

    /// Nodes as they are compared with each other.
    fn compared(&self, looks: &[(usize, String, WatchDocument)]) -> Vec<Node> {
        let of = |(_, called, document): &(usize, String, WatchDocument)| {
            let node = self.nodes.iter().find(|node| node.called == *called)?;
            let look = &document.look;
            let refused = look.kernel.iter().filter(|(name, _)| REFUSALS.contains(&name.as_str()));
            let mut errors: BTreeMap<String, u64> = refused.map(|(name, n)| (name.clone(), *n)).collect();
            errors.extend(look.host.oom_kills.map(|n| ("oom_kills".to_string(), n)));
            errors.insert("lines of the kernel log".into(), look.log.len() as u64);
            Some(Node {
                server: called.clone(),
                kind: node.watch.found().kind.clone(),
                settings: node.settings.clone(),
                real_memory_bytes: look.real_memory_bytes,
                requests_rps: look.requests_rps,
                span_s: look.span_s,
                errors,
            })
        };
        looks.iter().filter_map(of).collect()
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
            ChainServer { server: member.called.clone(), kind: kind(found), listens, connects, to }
        };
        let database = |(place, nearby): (usize, &Nearby)| {
            let listens = seen.listens.get(place).into_iter().flatten().map(ToString::to_string).collect();
            let (server, kind) = (nearby.called.clone()?, nearby.kind.name.into());
            Some(ChainServer { server, kind, listens, ..ChainServer::default() })
        };
        let others = (self.members.len()..).zip(&self.nearby).filter_map(database);
        let node = |node: &NodeWatch| {
            let FoundElsewhere { kind, listens, .. } = node.watch.found().clone();
            ChainServer { server: node.called.clone(), kind, listens, ..ChainServer::default() }
        };
        let mut all: Vec<ChainServer> = self.members.iter().enumerate().map(server).collect();
        for of in &self.nodes {
            all.insert(of.place.min(all.len()), node(of));
        }
        all.extend(others);
        all
    }

    fn called(&self, place: usize) -> Option<String> {
        let nearby = || self.nearby.get(place - self.members.len())?.called.clone();
        self.members.get(place).map(|m| m.called.clone()).or_else(nearby)
    }

    /// Who has ended and is being looked for.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        if let Some(trouble) = self.nodes.iter().find_map(|node| node.trouble.clone()) {
            return Some(format!("{trouble}; it is asked again"));
        }
        let member = self.members.iter().find(|m| m.gone)?;
        let what = if self.members.len() > 1 { format!("{} has", member.called) } else { "the server has".into() };
        let master = member.watcher.found().master;
        Some(format!("{what} ended (process {master} is gone); looking for it again"))
    }
}

impl NodeWatch {
    /// A look, and the settings where they are due and are compared. None: it has ended, and is being looked for.
    fn look(&mut self, patient: bool, compared: bool) -> Result<Option<WatchDocument>, ServerError> {
        let (document, alive) = self.watch.look(patient)?;
        if compared && alive && self.settings_in == 0 {
            self.settings = self.watch.settings();
            self.settings_in = SETTINGS_EVERY;
        }
        // One that has ended has other settings when it is there again.
        self.settings_in = if alive { self.settings_in.saturating_sub(1) } else { 0 };
        Ok(Some(document))
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
            let (began, mut tracker) = (Instant::now(), LinkTracker::default());
            loop {
                let turn = Instant::now();
                let masters = lock(&of).clone();
                let now = tracker.look(&masters);
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
