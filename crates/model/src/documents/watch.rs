//! `lastdrop.watch/1`: the state of one or several servers at one moment.

use serde::{Deserialize, Serialize};

use super::NodeDifference;
use crate::database::DatabaseSample;
use crate::sample::{Sample, WorkerSample};

pub const WATCH_SCHEMA: &str = "lastdrop.watch/1";

/// State of a server at one moment, as `watch` shows it; differences cover `span_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchDocument {
    pub schema: String,
    pub server: String,
    pub software: String,
    pub master: i32,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    pub workers: Vec<WorkerSample>,
    #[serde(flatten)]
    pub look: Sample,
    /// Databases at the end of its chain, or the server itself if it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<DatabaseSample>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// Processors that sampling uses.
    pub cost_cores: f64,
}

/// Several servers at one moment: all workers, a sample of each server, and the connections between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StackWatchDocument {
    pub schema: String,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// Real memory of all servers; absent if one of them is unknown.
    pub real_memory_bytes: Option<u64>,
    pub workers: Vec<ServerWorker>,
    #[serde(rename = "looks")]
    pub samples: Vec<ServerSample>,
    pub chain: Vec<ChainServer>,
    /// The servers that are databases, and other databases at the end of the chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<DatabaseSample>,
    /// Nodes that differ from the others of their kind.
    #[serde(default)]
    pub differs: Vec<NodeDifference>,
    /// Processors that sampling uses.
    pub cost_cores: f64,
}

/// A worker of one of several servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerWorker {
    /// Name of its server.
    pub server: String,
    #[serde(flatten)]
    pub worker: WorkerSample,
}

/// The sample of one of several servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSample {
    /// Name of the server.
    pub server: String,
    /// Name on a command line.
    pub named: String,
    pub software: String,
    pub master: i32,
    #[serde(flatten)]
    pub look: Sample,
    pub unread: Vec<String>,
    pub cost_cores: f64,
}

/// A server in a chain. Addresses are `127.0.0.1:80`, or `unix:/run/x.sock`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainServer {
    pub server: String,
    pub kind: String,
    pub listens: Vec<String>,
    /// Addresses of other watched servers that it has connected to since the watch began, and which server listens
    /// there.
    pub connects: Vec<String>,
    pub to: Vec<String>,
}

impl StackWatchDocument {
    /// Combines the documents of several named servers.
    #[must_use]
    pub fn of(servers: Vec<(String, WatchDocument)>, chain: Vec<ChainServer>) -> StackWatchDocument {
        let mut all = StackWatchDocument { schema: WATCH_SCHEMA.into(), chain, ..StackWatchDocument::default() };
        all.real_memory_bytes = servers.iter().map(|(_, d)| d.look.real_memory_bytes).sum();
        for (server, d) in servers {
            all.unix_ms = all.unix_ms.max(d.unix_ms);
            all.cost_cores += d.cost_cores;
            all.databases.extend(d.databases);
            let of_server = |worker| ServerWorker { server: server.clone(), worker };
            all.workers.extend(d.workers.into_iter().map(of_server));
            let (named, software, master) = (d.server, d.software, d.master);
            let (look, unread, cost_cores) = (d.look, d.unread, d.cost_cores);
            all.samples.push(ServerSample { server, named, software, master, look, unread, cost_cores });
        }
        all
    }

    /// Returns the samples of a server that is a database, or without a name those of databases that are not watched
    /// servers.
    fn databases_of(&self, server: Option<&str>) -> Vec<DatabaseSample> {
        let is_watched = |d: &DatabaseSample| self.samples.iter().any(|l| Some(&l.server) == d.server.as_ref());
        let of = |d: &&DatabaseSample| server.map_or_else(|| !is_watched(d), |name| d.server.as_deref() == Some(name));
        self.databases.iter().filter(of).cloned().collect()
    }

    /// Returns the databases that are not among the watched servers.
    #[must_use]
    pub fn other_databases(&self) -> Vec<DatabaseSample> {
        self.databases_of(None)
    }

    /// Returns one document per server, named by both its names if they differ.
    #[must_use]
    pub fn servers(&self) -> Vec<WatchDocument> {
        let alone = |look: &ServerSample| WatchDocument {
            schema: self.schema.clone(),
            server: match look.named.split_once(':') {
                _ if look.named == look.server => look.named.clone(),
                Some((kind, config)) if kind == look.server => format!("{kind}:{config}"),
                _ => format!("{} ({})", look.server, look.named),
            },
            software: look.software.clone(),
            master: look.master,
            unix_ms: self.unix_ms,
            workers: self.workers.iter().filter(|w| w.server == look.server).map(|w| w.worker.clone()).collect(),
            look: look.look.clone(),
            databases: self.databases_of(Some(&look.server)),
            unread: look.unread.clone(),
            cost_cores: look.cost_cores,
        };
        self.samples.iter().map(alone).collect()
    }
}

/// The document of a watch: one server, or several.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum WatchOutput {
    Several(StackWatchDocument),
    One(Box<WatchDocument>),
}

impl WatchOutput {
    /// Reads either document.
    ///
    /// # Errors
    /// When the text is neither document, or of another version.
    pub fn read(text: &str) -> Result<WatchOutput, serde_json::Error> {
        let value: serde_json::Value = crate::read_json(text)?;
        if value.get("schema").and_then(serde_json::Value::as_str) != Some(WATCH_SCHEMA) {
            return Err(serde::de::Error::custom(format!("it is no {WATCH_SCHEMA}")));
        }
        if value.get("looks").is_some() {
            return crate::read_json(text).map(WatchOutput::Several);
        }
        crate::read_json(text).map(WatchOutput::One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_put_together_and_taken_apart() {
        let worker = |pid| WorkerSample { pid, ..WorkerSample::default() };
        let one = |server: &str, workers: Vec<WorkerSample>, real: Option<u64>| WatchDocument {
            server: server.into(),
            workers,
            look: Sample { real_memory_bytes: real, ..Sample::default() },
            ..WatchDocument::default()
        };
        let web = one("nginx:/a", vec![worker(1), worker(2)], Some(5));
        let pool = one("php-fpm:/b", vec![worker(3)], Some(7));
        let all = StackWatchDocument::of(vec![("web".into(), web), ("php-fpm".into(), pool.clone())], Vec::new());
        assert_eq!(all.real_memory_bytes, Some(12));
        let text = serde_json::to_string(&WatchOutput::Several(all.clone())).expect("JSON");
        assert!(text.contains("\"server\":\"web\",\"pid\":2"), "{text}");
        assert_eq!(WatchOutput::read(&text).expect("the same"), WatchOutput::Several(all.clone()));
        let apart = all.servers();
        assert_eq!((apart[0].server.as_str(), apart[0].workers.len()), ("web (nginx:/a)", 2));
        assert_eq!(apart[1], WatchDocument { schema: WATCH_SCHEMA.into(), ..pool.clone() });
        let text = serde_json::to_string(&WatchOutput::One(Box::new(apart[1].clone()))).expect("JSON");
        assert_eq!(WatchOutput::read(&text).expect("the same"), WatchOutput::One(Box::new(apart[1].clone())));
        assert!(WatchOutput::read("{}").is_err_and(|e| e.to_string().contains("it is no lastdrop.watch/1")));
        let unknown =
            StackWatchDocument::of(vec![("a".into(), pool), ("b".into(), one("x", Vec::new(), None))], Vec::new());
        assert_eq!(unknown.real_memory_bytes, None);
    }
}
