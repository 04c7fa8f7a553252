//! Samples one or several servers repeatedly and finds out which of them are connected. Also finds the nodes on other
//! machines that differ from the others of their kind.

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

use crate::machine::Machine;
use crate::observe::databases::{DatabaseOptions, Databases, UnnamedDatabase};
use crate::observe::watch::{ServerInfo, ServerWatch, Watcher, kind};

/// How often connections are searched at first, so that short watches see them too; a connection may last for only a
/// millisecond.
const EAGER: Duration = Duration::from_millis(20);
const EAGER_FOR: Duration = Duration::from_secs(3);
/// Afterwards the search uses this share of a processor, but runs at most every `OFTEN`.
const SHARE: f64 = 0.005;
const OFTEN: Duration = Duration::from_millis(200);
/// Settings of nodes are read again after this many samples, and after a restart of the node.
const SETTINGS_EVERY: u32 = 15;

/// Kernel counters of connections that were not accepted.
const REFUSALS: [&str; 2] = ["ListenDrops", "ListenOverflows"];

/// Servers under watch.
#[derive(Debug)]
pub struct Watchers {
    members: Vec<LocalServer>,
    databases: Databases,
    /// Databases of this machine that were not named: watched as soon as a watched server is connected to them.
    nearby: Vec<UnnamedDatabase>,
    /// Present if there are several servers, or one and a database nearby.
    link_watcher: Option<LinkWatcher>,
    /// Servers on other machines, in the order in which they were named.
    nodes: Vec<NodeWatch>,
}

/// A server of another machine.
struct NodeWatch {
    called: String,
    /// Index among all named servers.
    place: usize,
    watch: Box<dyn ServerWatch>,
    settings: Option<Settings>,
    /// Samples until the settings are read again.
    settings_in: u32,
    /// Why it could not be sampled.
    trouble: Option<String>,
}

impl std::fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeWatch").field("called", &self.called).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct LocalServer {
    called: String,
    watcher: Watcher,
    gone: bool,
}

impl Watchers {
    /// Finds the servers and takes a first sample of each as the base for differences.
    ///
    /// # Errors
    /// When one is not found, or may not be inspected.
    pub fn start(
        servers: &[ServerRef],
        options: &DatabaseOptions,
        machine: &dyn Machine,
    ) -> Result<Watchers, ServerError> {
        let all: Vec<ServerRef> = servers.iter().flat_map(ServerRef::each).collect();
        let mut nodes = Vec::new();
        for (place, server) in all.iter().enumerate().filter(|(_, server)| server.is_elsewhere()) {
            let (called, watch) = (server.called().to_string(), machine.watch(server)?);
            nodes.push(NodeWatch { called, place, watch, settings: None, settings_in: 0, trouble: None });
        }
        let start = |server: &ServerRef| {
            let watcher = Watcher::start(server)?;
            Ok(LocalServer { called: server.called().into(), watcher, gone: false })
        };
        let members = all
            .iter()
            .filter(|server| !server.is_elsewhere())
            .map(start)
            .collect::<Result<Vec<LocalServer>, ServerError>>()?;
        let known: Vec<(String, i32)> = members.iter().map(|m| (m.called.clone(), m.watcher.found().master)).collect();
        let databases = Databases::start(options, &known);
        let nearby = databases.nearby(&known);
        let masters: Vec<i32> =
            known.iter().map(|(_, master)| *master).chain(nearby.iter().map(|n| n.master)).collect();
        let link_watcher = (masters.len() > 1).then(|| LinkWatcher::start(masters));
        Ok(Watchers { members, databases, nearby, link_watcher, nodes })
    }

    /// Takes samples; looks again for servers that have ended. With `patient`, reads every process's memory now and
    /// waits for status pages. None if there is nothing to sample. A node that cannot be reached is left out and
    /// reported by [`Watchers::alert`].
    ///
    /// # Errors
    /// When the only server cannot be reached, or none of several.
    pub fn look(&mut self, patient: bool) -> Result<Option<WatchOutput>, ServerError> {
        let Watchers { nodes, members, .. } = self;
        let alone = nodes.len() + members.len() == 1;
        let mut seen = thread::scope(|scope| {
            let looking = nodes.iter_mut().map(|node| scope.spawn(move || node.look(patient, !alone)));
            // In parallel: finding out that a node is lost takes a while.
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
                if let Some(link_watcher) = self.link_watcher.as_ref().filter(|_| !member.gone) {
                    lock(&link_watcher.masters)[place] = member.watcher.found().master;
                }
            }
            documents.push((member.called.clone(), member.watcher.look(patient)));
            member.gone |= !member.watcher.is_alive();
        }
        let seen = self.link_watcher.as_ref().map(|link_watcher| lock(&link_watcher.seen).clone()).unwrap_or_default();
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

    /// Returns the nodes in the form in which they are compared.
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
                kind: node.watch.info().kind,
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
        let server = |(place, member): (usize, &LocalServer)| {
            let found = member.watcher.found();
            let mut listens: BTreeSet<String> = found.listeners.iter().map(ToString::to_string).collect();
            listens.extend(seen.listens.get(place).into_iter().flatten().map(ToString::to_string));
            let own = seen.links.iter().filter(|link| link.from == place);
            let ways = own.filter_map(|link| Some((link.via.to_string(), self.called(link.to)?)));
            let (connects, to) = ways.unzip();
            let listens = listens.into_iter().collect();
            ChainServer { server: member.called.clone(), kind: kind(found), listens, connects, to }
        };
        let database = |(place, nearby): (usize, &UnnamedDatabase)| {
            let listens = seen.listens.get(place).into_iter().flatten().map(ToString::to_string).collect();
            let (server, kind) = (nearby.called.clone()?, nearby.kind.name.into());
            Some(ChainServer { server, kind, listens, ..ChainServer::default() })
        };
        let others = (self.members.len()..).zip(&self.nearby).filter_map(database);
        let node = |node: &NodeWatch| {
            let ServerInfo { kind, listens, .. } = node.watch.info();
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

    /// Returns a server that has ended and is being looked for.
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
    /// Takes a sample, and reads the settings if they are due and compared. None if the server has ended and is being
    /// looked for.
    fn look(&mut self, patient: bool, compared: bool) -> Result<Option<WatchDocument>, ServerError> {
        let (document, alive) = self.watch.sample(patient)?;
        if compared && alive && self.settings_in == 0 {
            self.settings = self.watch.settings();
            self.settings_in = SETTINGS_EVERY;
        }
        // A server that has ended may have other settings when it is back.
        self.settings_in = if alive { self.settings_in.saturating_sub(1) } else { 0 };
        Ok(Some(document))
    }
}

/// Searches for connections on a thread of its own, which ends when this is dropped.
#[derive(Debug)]
struct LinkWatcher {
    masters: Arc<Mutex<Vec<i32>>>,
    /// Every connection since the start; of everything else the latest.
    seen: Arc<Mutex<Links>>,
    /// Dropped when the watch is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinkWatcher {
    fn start(masters: Vec<i32>) -> LinkWatcher {
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
        LinkWatcher { masters, seen, over: Some(over), thread }
    }
}

impl Drop for LinkWatcher {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
