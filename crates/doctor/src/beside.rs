//! Looks at all servers of the chain beside a step: a thread for each, one for what their threads are at, their error logs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lastdrop_model::Look;
use lastdrop_model::examination::{ServerSeen, Step};
use lastdrop_probe::census::{Census, Counted, Subject as Counting};
use lastdrop_probe::error_log::ErrorLogs;
use lastdrop_probe::host;
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::looker::{Detail, Looker, Subject};
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::process;

use crate::behind::Members;

const EVERY: Duration = Duration::from_secs(1);

/// Connections of others by the address of their other end, looked at as often as there are looks.
#[derive(Debug, Default)]
struct Clients {
    by_address: BTreeMap<IpAddr, u64>,
    looks: u64,
}

impl Clients {
    fn look(&mut self, master: i32, ports: &[u16]) {
        self.looks += 1;
        let ends = Namespace::of(master).and_then(|n| n.others(ports)).unwrap_or_default();
        for end in ends {
            *self.by_address.entry(end.ip()).or_default() += 1;
        }
    }

    /// The address with the most, its share, and how many connections of others there were on average.
    fn top(&self) -> Option<(String, f64, f64)> {
        let all: u64 = self.by_address.values().sum();
        let (address, most) = self.by_address.iter().max_by_key(|(_, n)| **n)?;
        Some((address.to_string(), *most as f64 / all.max(1) as f64, all as f64 / self.looks.max(1) as f64))
    }
}

/// What is asked of a thread that looks.
enum Ask {
    Begin,
    /// Looks since, what could not be read, and processors that it took.
    End(Sender<Answer>),
}

#[derive(Default)]
struct Answer {
    looks: Vec<Look>,
    unread: Vec<String>,
    cores: f64,
    clients: Clients,
}

struct Watched {
    called: String,
    master: i32,
    asks: Option<Sender<Ask>>,
    thread: Option<JoinHandle<()>>,
    logs: ErrorLogs,
}

/// All of them. Dropped, they end.
pub struct Beside {
    watched: Vec<Watched>,
    census: Census,
    softirq: Option<Vec<(u64, u64)>>,
    own: Option<host::CpuTicks>,
    pub unread: Vec<String>,
    pub cost_cores: f64,
    began: Instant,
}

impl Beside {
    pub fn start(members: &Members, url: Option<&Endpoint>) -> Beside {
        let census = Census::start(
            members.all.iter().map(|m| Counting { master: m.found.master, helpers: m.found.helpers }).collect(),
        );
        let watch = |(place, member): (usize, &crate::behind::Member)| {
            let found = &member.found;
            let subject = Subject {
                master: found.master,
                helpers: found.helpers,
                listeners: found.listeners.clone(),
                status: found.status.clone(),
                url: url.cloned().filter(|_| place == 0),
            };
            let (asks, asked) = channel::<Ask>();
            let work = move || {
                let mut looker = Looker::new(&subject, Detail::Timeline);
                let began = Instant::now();
                let (mut looks, mut clients) = (Vec::new(), Clients::default());
                let ports: Vec<u16> = subject.listeners.iter().map(std::net::SocketAddr::port).collect();
                let mut next = began + EVERY;
                loop {
                    match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        Ok(Ask::Begin) => {
                            looker.look(began.elapsed().as_secs_f64(), false);
                            looks.clear();
                            clients = Clients::default();
                        }
                        Ok(Ask::End(to)) => {
                            looks.push(looker.look(began.elapsed().as_secs_f64(), false));
                            let _ = to.send(Answer {
                                looks: std::mem::take(&mut looks),
                                unread: looker.unread(),
                                cores: looker.cost_cores(),
                                clients: std::mem::take(&mut clients),
                            });
                        }
                        Err(RecvTimeoutError::Timeout) => {
                            looks.push(looker.look(began.elapsed().as_secs_f64(), false));
                            clients.look(subject.master, &ports);
                        }
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    next = Instant::now() + EVERY;
                }
            };
            let thread = thread::Builder::new().name("looks".into()).spawn(work).ok();
            Watched {
                called: member.called.clone(),
                master: found.master,
                asks: Some(asks),
                thread,
                logs: ErrorLogs::of(found.master),
            }
        };
        Beside {
            watched: members.all.iter().enumerate().map(watch).collect(),
            census,
            softirq: None,
            own: None,
            unread: Vec::new(),
            cost_cores: 0.0,
            began: Instant::now(),
        }
    }

    pub fn begin(&mut self) {
        for watched in &mut self.watched {
            if let Some(asks) = &watched.asks {
                let _ = asks.send(Ask::Begin);
            }
            watched.logs.news();
        }
        self.census.begin();
        self.softirq = Some(host::softirq_ticks());
        self.own = host::CpuTicks::now();
    }

    /// What was seen since, into a step.
    pub fn end(&mut self, step: &mut Step) {
        let counted = self.census.counted();
        let mut cost = self.census.cost().as_secs_f64() / self.began.elapsed().as_secs_f64().max(1.0);
        for (place, watched) in self.watched.iter_mut().enumerate() {
            let (to, answer) = channel();
            let asked = watched.asks.as_ref().is_some_and(|asks| asks.send(Ask::End(to)).is_ok());
            let Answer { looks, unread, cores, clients } =
                asked.then(|| answer.recv_timeout(Duration::from_secs(20)).ok()).flatten().unwrap_or_default();
            cost += cores;
            if place == 0 {
                machine(&looks, step);
            }
            let mut seen = seen(&watched.called, &looks, counted.get(place).cloned().unwrap_or_default());
            let news = watched.logs.news();
            (seen.log, seen.log_samples) = (news.counts, news.samples);
            // Those of another server of the chain are no clients.
            if let Some((address, share, connections)) = clients.top().filter(|_| place == 0) {
                (seen.top_client, seen.other_clients) = (Some((address, share)), connections);
            }
            seen.zombies = process::zombies_of(watched.master);
            step.servers.push(seen);
            for what in unread {
                let what = if self.unread.len() < 20 { format!("{}: {what}", watched.called) } else { continue };
                if !self.unread.contains(&what) {
                    self.unread.push(what);
                }
            }
        }
        self.cost_cores = self.cost_cores.max(cost);
        if let Some(before) = self.softirq.take() {
            let share = |(now, then): ((u64, u64), (u64, u64))| {
                let all = now.1.saturating_sub(then.1);
                if all == 0 { 0.0 } else { now.0.saturating_sub(then.0) as f64 / all as f64 }
            };
            step.softirq = host::softirq_ticks().into_iter().zip(before).map(share).collect();
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for watched in &mut self.watched {
            watched.asks = None;
            if let Some(thread) = watched.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// A mean over looks, each weighted by the time that it covers.
fn mean(looks: &[Look], of: impl Fn(&Look) -> Option<f64>) -> Option<f64> {
    let (mut sum, mut time) = (0.0, 0.0);
    for look in looks {
        if let Some(value) = of(look) {
            sum += value * look.span_s.max(1e-3);
            time += look.span_s.max(1e-3);
        }
    }
    (time > 0.0).then_some(sum / time)
}

fn machine(looks: &[Look], step: &mut Step) {
    let processors = looks.iter().map(|l| l.host.cores.len()).max().unwrap_or(0);
    step.cores = (0..processors).map(|i| mean(looks, |l| l.host.cores.get(i).copied()).unwrap_or(0.0)).collect();
    step.steal = mean(looks, |l| l.host.steal).unwrap_or(0.0);
    let names: std::collections::BTreeSet<&String> = looks.iter().flat_map(|l| l.pressure.keys()).collect();
    step.pressure = names
        .into_iter()
        .filter_map(|name| Some((name.clone(), mean(looks, |l| l.pressure.get(name).copied())?)))
        .collect();
    let sum = |of: fn(&Look) -> Option<u64>| looks.iter().filter_map(of).sum::<u64>();
    step.swapped_pages = sum(|l| l.host.swap_in_pages) + sum(|l| l.host.swap_out_pages);
    step.oom_kills = sum(|l| l.host.oom_kills);
    step.kernel_log = looks.iter().flat_map(|l| l.log.iter().cloned()).take(10).collect();
}

fn seen(called: &str, looks: &[Look], counted: Counted) -> ServerSeen {
    let most = |of: fn(&Look) -> Option<u64>| looks.iter().filter_map(of).max();
    let mut seen = ServerSeen {
        server: called.into(),
        workers_first: counted.workers_first,
        workers_last: counted.workers_last,
        workers_most: counted.workers_most,
        born: counted.born,
        readings: counted.readings,
        threads: counted.threads,
        waits: counted.waits,
        hottest_thread_cores: counted.hottest_thread_cores,
        hottest_process_cores: counted.hottest_process_cores,
        cpu_cores: mean(looks, |l| l.cpu_cores),
        status_busy: mean(looks, |l| l.scoreboard.as_ref().and(l.busy).map(|n| n as f64)),
        queued: most(|l| l.queued),
        status_waits_s: looks.iter().filter_map(|l| l.status_waits_s).reduce(f64::max),
        local_ports: most(|l| l.local_ports),
        conntrack: most(|l| l.conntrack),
        conntrack_limit: most(|l| l.conntrack_limit),
        real_memory_bytes: most(|l| l.real_memory_bytes),
        private_bytes: most(|l| l.private_bytes),
        ..ServerSeen::default()
    };
    for look in looks {
        for (name, n) in &look.kernel {
            *seen.kernel.entry(name.clone()).or_default() += n;
        }
        for (name, n) in &look.sockets {
            let so_far = seen.sockets.entry(name.clone()).or_default();
            *so_far = so_far.max(*n as f64);
        }
        if let Some(fds) = look.fds.filter(|n| seen.fds.is_none_or(|m| m < *n)) {
            (seen.fds, seen.fds_limit) = (Some(fds), look.fds_limit);
        }
        if let Some(held) = &look.ports_held
            && seen.ports_held.is_none_or(|n| n < held.time_wait)
        {
            (seen.ports_held, seen.ports_held_to) = (Some(held.time_wait), held.to.clone());
        }
        for group in &look.cgroups {
            seen.throttled_us += group.throttled_us.unwrap_or(0);
            seen.throttled_periods += group.throttled_periods.unwrap_or(0);
            seen.memory_high += group.memory_high.unwrap_or(0);
            seen.memory_max += group.memory_max.unwrap_or(0);
            seen.group_oom_kills += group.oom_kills.unwrap_or(0);
            seen.pids_refused += group.pids_refused.unwrap_or(0);
            if let Some(limit) = group.cpu_limit_cores {
                seen.cpu_limit_cores = Some(seen.cpu_limit_cores.map_or(limit, |l: f64| l.min(limit)));
            }
        }
    }
    queue(looks, &mut seen);
    scoreboard(looks, &mut seen);
    seen
}

/// The listener with the longest queue on average, in parts of its limit.
fn queue(looks: &[Look], seen: &mut ServerSeen) {
    let mut all: BTreeMap<&str, (f64, f64, u64, u64)> = BTreeMap::new();
    for look in looks {
        for listener in &look.listen {
            let (sum, n, most, limit) = all.entry(&listener.address).or_default();
            *sum += listener.queue_mean.unwrap_or(listener.queue as f64);
            *n += 1.0;
            *most = (*most).max(listener.queue);
            *limit = listener.limit;
        }
    }
    let longest = all.into_iter().max_by(|(_, a), (_, b)| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    if let Some((address, (sum, n, most, limit))) = longest {
        seen.queue_mean = Some(sum / n);
        seen.queue_most = Some(most);
        seen.queue_limit = Some(limit);
        seen.queue_at = address.into();
    }
}

fn scoreboard(looks: &[Look], seen: &mut ServerSeen) {
    let boards: Vec<&String> = looks.iter().filter_map(|l| l.scoreboard.as_ref()).collect();
    for board in &boards {
        for letter in board.chars() {
            *seen.scoreboard.entry(letter.to_string()).or_default() += 1.0 / boards.len() as f64;
        }
    }
}
