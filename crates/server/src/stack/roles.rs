//! What a search needs of a stack: which server has the pool, and which knobs exist.

use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Knob, Role, Setting, Settings};
use serde_json::Value;

use super::{Stack, StackMember};
use crate::ServerError;
use crate::health::Health;
use crate::member::Member;
use crate::operations::{CountWorkers, Operation, OperationCall, read};
use crate::session::Session;

/// A member of a stack that has processes, on this or another machine.
#[derive(Clone, Copy)]
pub struct Server<'a> {
    /// Its position among the members, which identifies it.
    place: usize,
    part: &'a dyn Member,
}

impl std::fmt::Debug for Server<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.part.name()).finish_non_exhaustive()
    }
}

impl<'a> Server<'a> {
    /// Its position among the members, which identifies it.
    #[must_use]
    pub fn place(self) -> usize {
        self.place
    }

    /// Its session, if it is on this machine.
    #[must_use]
    pub fn session(self) -> Option<&'a Session> {
        self.part.session()
    }

    /// Carries out an operation.
    ///
    /// # Errors
    /// If its machine cannot be asked.
    pub fn operate<O: Operation>(self, operation: O) -> Result<O::Answer, ServerError> {
        read(self.call(operation.into())?)
    }

    /// Like [`Server::operate`], for an operation that came from another machine.
    ///
    /// # Errors
    /// As [`Server::operate`].
    pub fn call(self, call: OperationCall) -> Result<Value, ServerError> {
        self.part.operate(call)
    }

    /// Number of workers now, on all its machines; 0 if these cannot be asked.
    #[must_use]
    pub fn count_workers(self) -> usize {
        self.operate(CountWorkers).unwrap_or(0)
    }

    /// As [`Member::size`].
    ///
    /// # Errors
    /// If its machine cannot be asked.
    pub fn size(self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        self.part.size(memory)
    }

    /// Processors of its machine.
    #[must_use]
    pub fn cores(self) -> u64 {
        self.part.cores()
    }

    fn has_pool(self) -> bool {
        self.part.knobs().iter().any(|knob| knob.role == Some(Role::PoolSize))
    }
}

impl Stack {
    /// The member at this position, if it has processes.
    #[must_use]
    pub fn server(&self, place: usize) -> Option<Server<'_>> {
        let part = self.members.get(place)?.part.as_ref();
        part.has_processes().then_some(Server { place, part })
    }

    /// The servers among the members; those with a pool of adjustable size come first.
    fn servers(&self) -> Vec<(&StackMember, Server<'_>)> {
        let mut all: Vec<_> =
            self.members.iter().enumerate().filter_map(|(place, m)| Some((m, self.server(place)?))).collect();
        all.sort_by_key(|(_, server)| !server.has_pool());
        all
    }

    /// The server whose workers are counted, warmed up and measured: the first with a pool, otherwise the first.
    #[must_use]
    pub fn pool(&self) -> Option<Server<'_>> {
        self.servers().first().map(|(_, server)| *server)
    }

    /// Number of workers of all servers now.
    #[must_use]
    pub fn count_workers(&self) -> usize {
        self.servers().iter().map(|(_, server)| server.count_workers()).sum()
    }

    /// The health check, if a URL was given.
    #[must_use]
    pub fn health(&self) -> Option<&Health> {
        let of_a_server = || self.servers().iter().find_map(|(_, server)| server.session()?.health());
        self.health.as_ref().or_else(of_a_server)
    }

    /// The knobs of all servers with this role, each with its setting's name in this stack and its server; servers with
    /// a pool come first.
    #[must_use]
    pub fn knobs(&self, role: Role) -> Vec<(String, &'static Knob, Server<'_>)> {
        let mut all = Vec::new();
        for (member, server) in self.servers() {
            let own = member.part.knobs().into_iter().filter(|k| k.role == Some(role));
            all.extend(own.map(|knob| (self.full(member, knob.name), knob, server)));
        }
        all
    }

    /// All knobs of all members, including the host: the setting's name in this stack, the knob, and the server if it
    /// has processes.
    #[must_use]
    pub fn all_knobs(&self) -> Vec<(String, &'static Knob, Option<Server<'_>>)> {
        let mut all = Vec::new();
        for (place, member) in self.members.iter().enumerate() {
            let named = |knob: &'static Knob| (self.full(member, knob.name), knob, self.server(place));
            all.extend(member.part.knobs().into_iter().map(named));
        }
        all
    }

    /// The first knob with this role, and its setting's name.
    #[must_use]
    pub fn knob(&self, role: Role) -> Option<(String, &'static Knob)> {
        self.knobs(role).into_iter().next().map(|(name, knob, _)| (name, knob))
    }

    /// The present value of that knob; its default if `settings` do not contain it.
    #[must_use]
    pub fn value(&self, role: Role, settings: &Settings) -> Option<Setting> {
        let (name, knob) = self.knob(role)?;
        settings.get(&name).cloned().or_else(|| Some(Setting::read(knob.default)))
    }
}
