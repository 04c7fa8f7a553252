//! lastdrop's own broker: a nats-server child process with a certificate and tokens that lastdrop makes.
//!
//! The folder is private and identifies the fleet. A broker restarted in it has the same certificate and
//! tokens, so agents reconnect by themselves.
//!
//! | file | what |
//! |---|---|
//! | `lock` | held while the broker is up |
//! | `certificate.pem`, `key.pem`, `token` | made once |
//! | `agents.json` | users of agents that have joined: name and password |
//! | `nats.conf`, `nats.log`, `jetstream/` | nats-server's |

mod admission;
mod child;
mod config;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lastdrop_files::TrustedFile;
use nix::fcntl::{Flock, FlockArg};

use crate::agent::write_whole;
use crate::coordinator::{Fleet, FleetError};
use crate::engine::Stop;
use crate::tokens::Token;
use child::{NatsServer, Version};
use config::Config;
pub use config::authorization_of;

/// From this version on, nats-server flushes a record to disk before acknowledging it.
const SYNC_ALWAYS: Version = Version(2, 10, 0);

/// Address and folder of a broker.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// Port 0 chooses a free port.
    pub listen: SocketAddr,
    pub folder: PathBuf,
    /// The version of lastdrop.
    pub version: String,
}

/// Events of the broker, for its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerEvent {
    /// nats-server is older than 2.10 and acknowledges records before they are on the disk.
    NoSync {
        version: String,
    },
    /// nats-server has ended and is started again.
    Died {
        how: String,
    },
    Back,
    Joined {
        agent: String,
    },
    /// An agent's join request was refused.
    Refused {
        agent: String,
        why: String,
    },
}

/// The reason why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error(
        "there is no nats-server on the PATH (for root: in {}): install it (Debian: apt install nats-server; others: nats.io), or use a broker of yours",
        lastdrop_probe::tool::PATH
    )]
    NotInstalled,
    #[error("nats-server does not start: {0}")]
    Start(String),
    #[error("another broker is up in {}: end it, or name another folder by --dir", .0.display())]
    Taken(PathBuf),
    #[error(
        "cannot listen on {address}: {source}; --listen takes another address or port (a nats-server may be up as a service of the system)"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot use {}: {source}", path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error("{} is no token: remove the folder, and the fleet is a new one", .0.display())]
    Damaged(PathBuf),
    #[error("no certificate can be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("nats-server is up and does not answer: {0}")]
    Fleet(#[from] FleetError),
}

/// A running broker; dropping it stops it.
#[derive(Debug)]
pub struct Broker {
    token: Token,
    url: String,
    news: Receiver<BrokerEvent>,
    ends: Stop,
    supervisor: Option<JoinHandle<()>>,
    pid: Arc<Mutex<Option<u32>>>,
    /// Locked, never read.
    _lock: Flock<File>,
}

impl Broker {
    /// Starts nats-server, waits until it answers, and restarts it whenever it ends.
    ///
    /// # Errors
    /// If nats-server is not installed, the address or the folder is in use, or it does not answer within 20
    /// s.
    pub fn start(options: &BrokerOptions) -> Result<Broker, BrokerError> {
        let version = child::version()?;
        let (folder, lock) = folder(&options.folder)?;
        let token = credentials(&folder)?;
        let listen = free(options.listen)?;
        let url = format!("tls://{}", SocketAddr::new(reachable(listen.ip()), listen.port()));
        let (tell, news) = channel();
        if version < SYNC_ALWAYS {
            let _ = tell.send(BrokerEvent::NoSync { version: version.to_string() });
        }
        let users =
            BrokerUsers { folder: folder.clone(), listen, token: token.clone(), sync_always: version >= SYNC_ALWAYS };
        let agents = users.read()?;
        users.write(&agents)?;
        let pid = Arc::new(Mutex::new(None));
        let ends = Stop::default();
        let local = format!("tls://{}", SocketAddr::new(loopback(listen.ip()), listen.port()));
        let keeper = Supervisor {
            users,
            pid: Arc::clone(&pid),
            tell,
            ends: ends.clone(),
            local,
            version: options.version.clone(),
        };
        // PR_SET_PDEATHSIG is bound to the thread that starts the child, so that thread is the supervisor.
        let (up, is_up) = channel();
        let supervisor = std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || keeper.keep(agents, &up))
            .map_err(|source| BrokerError::Disk { path: folder.clone(), source })?;
        let broker = Broker { token, url, news, ends, supervisor: Some(supervisor), pid, _lock: lock };
        match is_up.recv() {
            Ok(Ok(())) => Ok(broker),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(BrokerError::Start("its supervisor has ended".into())),
        }
    }

    /// The address for agents and coordinators.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The process id of nats-server, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        *self.pid.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the next event; `None` if there is none within `timeout`.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<BrokerEvent> {
        match self.news.recv_timeout(timeout) {
            Ok(news) => Some(news),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(timeout);
                None
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.ends.ask("the broker is ended");
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

/// The users of nats-server, and its configuration.
#[derive(Debug)]
struct BrokerUsers {
    folder: PathBuf,
    listen: SocketAddr,
    token: Token,
    sync_always: bool,
}

impl BrokerUsers {
    fn read(&self) -> Result<BTreeMap<String, String>, BrokerError> {
        let path = self.folder.join("agents.json");
        let read = TrustedFile::open(&path).and_then(|file| file.read(MOST_FILE_BYTES)).map_err(io::Error::from);
        match read {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| BrokerError::Damaged(path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(source) => Err(BrokerError::Disk { path, source }),
        }
    }

    fn write(&self, agents: &BTreeMap<String, String>) -> Result<(), BrokerError> {
        let config = Config {
            host: match self.listen.ip() {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            },
            port: self.listen.port(),
            folder: &self.folder,
            coordinator_password: self.token.password(),
            agents_password: self.token.agent_token().password(),
            agents,
            sync_always: self.sync_always,
        };
        let json = serde_json::to_vec(agents)
            .map_err(|e| BrokerError::Disk { path: self.folder.clone(), source: e.into() })?;
        for (name, bytes) in [("agents.json", json), ("nats.conf", config.text().into_bytes())] {
            let path = self.folder.join(name);
            write_whole(&path, &bytes).map_err(|source| BrokerError::Disk { path, source })?;
        }
        Ok(())
    }
}

/// Keeps nats-server running and answers join requests, in a thread of its own.
struct Supervisor {
    users: BrokerUsers,
    pid: Arc<Mutex<Option<u32>>>,
    tell: Sender<BrokerEvent>,
    ends: Stop,
    /// The address by which lastdrop connects to it.
    local: String,
    version: String,
}

impl Supervisor {
    fn keep(self, mut agents: BTreeMap<String, String>, up: &Sender<Result<(), BrokerError>>) {
        let mut child = match NatsServer::start(&self.users.folder) {
            Ok(child) => child,
            Err(e) => return drop(up.send(Err(e))),
        };
        self.note(&child);
        let fleet = match self.reach(&mut child) {
            Ok(fleet) => fleet,
            Err(e) => {
                child.end();
                return drop(up.send(Err(e)));
            }
        };
        let joins = admission::open(&fleet);
        let _ = up.send(Ok(()));
        let mut pause = Duration::from_millis(50);
        while !self.ends.is_asked() {
            if let Some(how) = child.has_ended() {
                *self.pid.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
                let _ = self.tell.send(BrokerEvent::Died { how });
                if self.ends.wait(pause) {
                    break;
                }
                pause = (pause * 2).min(Duration::from_secs(2));
                match NatsServer::start(&self.users.folder) {
                    Ok(again) => {
                        child = again;
                        self.note(&child);
                        let _ = self.tell.send(BrokerEvent::Back);
                    }
                    Err(e) => drop(self.tell.send(BrokerEvent::Died { how: e.to_string() })),
                }
                continue;
            }
            if child.age() > Duration::from_secs(10) {
                pause = Duration::from_millis(50);
            }
            if let Some(request) = joins.next(Duration::from_millis(100)) {
                self.answer(&fleet, &child, &mut agents, request);
            }
        }
        child.end();
    }

    fn note(&self, child: &NatsServer) {
        *self.pid.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(child.pid());
    }

    /// Waits until nats-server answers.
    fn reach(&self, child: &mut NatsServer) -> Result<Fleet, BrokerError> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match Fleet::connect(&self.local, &self.users.token, &self.version) {
                Ok(fleet) => return Ok(fleet),
                Err(e) if Instant::now() > deadline => return Err(e.into()),
                Err(_) => {}
            }
            if child.has_ended().is_some() {
                return Err(BrokerError::Start(child.last_words()));
            }
            if self.ends.wait(Duration::from_millis(50)) {
                return Err(BrokerError::Start("it was told to end".into()));
            }
        }
    }

    /// Admits an agent or refuses it.
    fn answer(
        &self,
        fleet: &Fleet,
        child: &NatsServer,
        agents: &mut BTreeMap<String, String>,
        request: admission::JoinRequest,
    ) {
        let name = request.join.name.clone();
        let refused = match agents.get(&name) {
            Some(password) if *password == request.join.password => None,
            // The agent's folder was lost, or this is another machine. It may take the name only if no agent
            // of that name is connected.
            Some(_) if admission::is_there(fleet, &name) => {
                Some("there is one of that name: give this one another --name".to_owned())
            }
            _ => {
                let former = agents.insert(name.clone(), request.join.password.clone());
                let changed = self.users.write(agents).map_err(|e| e.to_string()).and_then(|()| child.read_again());
                if changed.is_err() {
                    match former {
                        Some(former) => agents.insert(name.clone(), former),
                        None => agents.remove(&name),
                    };
                }
                changed.err()
            }
        };
        let _ = self.tell.send(match &refused {
            None => BrokerEvent::Joined { agent: name },
            Some(why) => BrokerEvent::Refused { agent: name, why: why.clone() },
        });
        request.answer(fleet, refused);
    }
}

/// Creates and locks the folder.
fn folder(path: &Path) -> Result<(PathBuf, Flock<File>), BrokerError> {
    let failed = |source| BrokerError::Disk { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    let file = TrustedFile::create(&path.join("lock")).map_err(|e| failed(e.into()))?.into_file();
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| BrokerError::Taken(path.clone()))?;
    Ok((path, lock))
}

/// Large enough for the names of all agents.
const MOST_FILE_BYTES: u64 = 64 << 20;

/// Returns the token; creates certificate and token if they are missing.
fn credentials(folder: &Path) -> Result<Token, BrokerError> {
    let path = folder.join("token");
    match TrustedFile::open(&path).and_then(|file| file.read(MOST_FILE_BYTES)).map_err(io::Error::from) {
        Ok(text) => return Token::parse(&String::from_utf8_lossy(&text)).map_err(|_| BrokerError::Damaged(path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(BrokerError::Disk { path, source }),
    }
    // Clients compare the certificate's digest, never its names.
    let made = rcgen::generate_simple_self_signed(["lastdrop".to_owned(), "localhost".to_owned()])?;
    let disk = |path: PathBuf| move |source| BrokerError::Disk { path, source };
    let token = Token::new(made.cert.der()).map_err(disk(path.clone()))?;
    // The token is written last: if it exists, so do the other files.
    let files = [
        ("certificate.pem", made.cert.pem()),
        ("key.pem", made.signing_key.serialize_pem()),
        ("token", token.to_string()),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        write_whole(&path, text.as_bytes()).map_err(disk(path.clone()))?;
    }
    Ok(token)
}

/// Replaces port 0 by a port that is free now.
fn free(address: SocketAddr) -> Result<SocketAddr, BrokerError> {
    let bound = TcpListener::bind(address).and_then(|l| l.local_addr());
    bound.map_err(|source| BrokerError::Listen { address, source })
}

/// Returns the address by which others can reach this machine. For a wildcard address that is the source
/// address of the route to the internet; nothing is sent.
fn reachable(ip: IpAddr) -> IpAddr {
    if !ip.is_unspecified() {
        return ip;
    }
    let towards = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
    };
    towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9")).unwrap_or(loopback(ip))
}

fn loopback(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    }
}
