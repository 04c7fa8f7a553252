//! Finds the databases at the end of a chain: the named ones, those of URLs, and those on this machine that a watched
//! server connects to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_database::{Access, DatabaseAddress, DatabaseWatcher, Password};
use lastdrop_model::{DatabaseSample, DatabaseService};
use lastdrop_probe::links::links;
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::process::{self, ProcessInfo};
use lastdrop_server::{Kind, kinds};

/// How long a sample waits for the response of a database.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENT: Duration = Duration::from_secs(5);

/// How to connect to databases.
#[derive(Debug, Clone, Default)]
pub struct DatabaseOptions {
    pub urls: Vec<Access>,
    /// Used for all databases named without a password.
    pub password: Option<Password>,
    /// A PEM file of authorities that signed the certificates of databases.
    pub ca: Option<PathBuf>,
}

/// Databases under watch.
#[derive(Debug)]
pub struct Databases {
    options: DatabaseOptions,
    /// Each with the name of its server, if that is one of the watched servers.
    watched: Vec<(Option<String>, DatabaseWatcher)>,
}

/// A database that runs on this machine and was not named.
#[derive(Debug)]
pub(crate) struct UnnamedDatabase {
    pub master: i32,
    pub kind: &'static Kind,
    service: DatabaseService,
    /// Its name, once it is watched.
    pub called: Option<String>,
}

/// Returns the database service of a process, if it is a database.
fn service_of(master: i32) -> Option<DatabaseService> {
    kinds::of(&process::look(master)?).database
}

impl Databases {
    /// Starts watching the databases among the servers, each given by name and master, and those of the URLs. A URL
    /// belongs to the first server of its kind that has no URL yet.
    #[must_use]
    pub fn start(options: &DatabaseOptions, servers: &[(String, i32)]) -> Databases {
        let mut databases = Databases { options: options.clone(), watched: Vec::new() };
        let mut urls = options.urls.clone();
        for (called, master) in servers {
            let Some(service) = service_of(*master) else { continue };
            let named = urls.iter().position(|url| url.service == service).map(|at| urls.remove(at));
            databases.add(Some(called.clone()), named.unwrap_or_else(|| local(service, *master)));
        }
        for url in urls {
            databases.add(None, url);
        }
        databases
    }

    fn add(&mut self, server: Option<String>, access: Access) {
        if !lastdrop_server::abilities::abilities().databases {
            return;
        }
        let access = access.or_password(self.options.password.as_ref()).or_ca(self.options.ca.as_deref());
        self.watched.push((server, DatabaseWatcher::start(access)));
    }

    /// Returns the databases of this machine that are not among these servers, and whose kind no URL names.
    pub(crate) fn nearby(&self, servers: &[(String, i32)]) -> Vec<UnnamedDatabase> {
        let named = |service| self.options.urls.iter().any(|url| url.service == service);
        let all = process::all();
        let of_kind = |p: &ProcessInfo| {
            let kind = kinds::of(p);
            kind.database.filter(|service| !named(*service)).map(|service| (p.pid, p.parent, kind, service))
        };
        let running: Vec<(i32, i32, &'static Kind, DatabaseService)> = all.iter().filter_map(of_kind).collect();
        // PostgreSQL's connections are children of its master.
        let is_child = |parent: i32| running.iter().any(|(pid, ..)| *pid == parent);
        let is_named = |pid: i32| servers.iter().any(|(_, master)| *master == pid);
        let masters = running.iter().filter(|(pid, parent, ..)| !is_child(*parent) && !is_named(*pid));
        masters
            .map(|(master, _, kind, service)| UnnamedDatabase {
                master: *master,
                kind,
                service: *service,
                called: None,
            })
            .collect()
    }

    /// Starts watching one of them under the name of its kind, with a number if that name is taken.
    pub(crate) fn watch(&mut self, nearby: &mut UnnamedDatabase, servers: &[&str]) {
        let taken =
            |name: &str| servers.contains(&name) || self.watched.iter().any(|(of, _)| of.as_deref() == Some(name));
        let numbered = (2..).map(|n| format!("{}-{n}", nearby.kind.name));
        let called = std::iter::once(nearby.kind.name.to_string()).chain(numbered).find(|name| !taken(name));
        nearby.called.clone_from(&called);
        self.add(called, local(nearby.service, nearby.master));
    }

    /// Returns what happened in each since the previous call. With `patient`, waits for slow responses.
    pub fn looks(&mut self, patient: bool) -> Vec<DatabaseSample> {
        let patience = if patient { PATIENT } else { PATIENCE };
        let look = |(server, watcher): &mut (Option<String>, DatabaseWatcher)| DatabaseSample {
            server: server.clone(),
            ..watcher.look(patience)
        };
        self.watched.iter_mut().map(look).collect()
    }

    /// Returns the processor time that querying has used on our side.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.watched.iter().map(|(_, watcher)| watcher.cost()).sum()
    }
}

/// Returns how to reach a database of this machine: its unix socket, otherwise its TCP address, otherwise its default
/// socket.
fn local(service: DatabaseService, master: i32) -> Access {
    let listens = links(&[master]).listens.pop().unwrap_or_default();
    let name = match service {
        DatabaseService::Mysql => ".sock",
        DatabaseService::Postgresql => ".s.PGSQL.",
    };
    // MySQL has a second socket for another protocol.
    let of_clients = |path: &Path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.contains(name) && !file.contains("mysqlx")
    };
    let unix = listens.iter().find_map(|at| match at {
        Endpoint::Unix(path) if of_clients(path) => Some(DatabaseAddress::Unix(path.clone())),
        _ => None,
    });
    let tcp = listens.iter().find_map(|at| match at {
        Endpoint::Tcp(address) if address.ip().is_unspecified() => {
            Some(DatabaseAddress::Tcp("localhost".into(), address.port()))
        }
        Endpoint::Tcp(address) => Some(DatabaseAddress::Tcp(address.ip().to_string(), address.port())),
        Endpoint::Unix(_) => None,
    });
    let by_default = || {
        DatabaseAddress::Unix(PathBuf::from(match service {
            DatabaseService::Mysql => "/run/mysqld/mysqld.sock",
            DatabaseService::Postgresql => "/run/postgresql/.s.PGSQL.5432",
        }))
    };
    Access::local(service, unix.or(tcp).unwrap_or_else(by_default), master)
}
