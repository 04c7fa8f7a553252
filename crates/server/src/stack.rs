//! Several servers that are changed together: a site is a proxy in front of a pool in front of a database.
//!
//! Each has its own [`Session`], with a journal that contains its stack and its position in it. Locks are taken in
//! order of name: of two runs that want the same servers, the first gets all. Every journal is on disk before anything
//! changes. Changes go from the first member to the last and are undone in reverse, by [`crate::restore_all`] too. If
//! one member cannot be restored, the others still are. All are restored before any health check, because a member may
//! need the others to answer.
//!
//! A setting of a stack is NAME.SETTING. A single server has plain names; if the user has named it, both are valid.
//!
//! A member may be on another machine, or the same server on several machines: then it is
//! one member with the same settings everywhere. In that case the health check is made from here, because a URL may
//! mean something else there.

use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_model::{Knob, Setting, Settings, Url};

use crate::ServerError;
use crate::adapter::{Adapter, EffectiveSettings};
use crate::adapters::{discover, not_elsewhere};
use crate::change::{Change, ConfigScope, Directives};
use crate::group::Group;
use crate::health::{Health, ask, wait_until_it_answers};
use crate::host::{Host, HostSession, SOMAXCONN};
use crate::journal::{StackPlace, lock_all};
use crate::kinds;
use crate::member::{ContainedMember, Member};
use crate::other_traffic::OtherTrafficPolicy;
use crate::page_cache::{CacheOffer, PageCache};
use crate::persisted_in::PersistedIn;
use crate::restore::{RestoreReport, RestoredServer};
use crate::server_ref::{ServerRef, check_called_apart};
use crate::session::{Session, tell_on_the_way_out};

mod roles;

pub use roles::Server;

/// Opens a server that is on one other machine, as a member of a stack with this position.
pub type OpenMember<'a> = &'a dyn Fn(&ServerRef, Option<StackPlace>) -> Result<Box<dyn Member>, ServerError>;

struct StackMember {
    /// The member's name in the stack.
    called: String,
    /// True if the user chose the name.
    named: bool,
    part: Box<dyn Member>,
}

/// Persisted settings that can still be undone: by member, where they are.
#[derive(Debug)]
#[must_use = "they are undone unless they are settled"]
pub struct PendingPersist(Vec<(usize, PersistedIn)>);

impl PendingPersist {
    /// Where each member's settings are.
    pub fn kept(&self) -> impl Iterator<Item = &PersistedIn> {
        self.0.iter().map(|(_, kept)| kept)
    }
}

/// Servers that are being changed.
pub struct Stack {
    members: Vec<StackMember>,
    original: EffectiveSettings,
    /// The listen queue limit that a trial gave the host; `None` for its own. A listener has the limit from when it
    /// began to listen.
    queues: Option<Setting>,
    /// Checked from here if a member is remote.
    health: Option<Health>,
}

/// Restored servers whose health has not been checked yet.
#[derive(Debug)]
#[must_use = "their journals stay until they are asked"]
pub struct PendingRestore(pub(crate) Vec<(usize, Result<RestoredServer, ServerError>)>);

impl PendingRestore {
    /// Restores files and processes of all open members: the host before the servers on it, the servers in reverse
    /// order, and each one even if others fail.
    pub(crate) fn of<'a>(members: impl Iterator<Item = &'a mut Box<dyn Member>>) -> PendingRestore {
        let mut open: Vec<_> = members.enumerate().filter(|(_, member)| member.is_open()).collect();
        open.reverse();
        open.sort_by_key(|(_, member)| !member.is_host());
        PendingRestore(open.into_iter().map(|(i, member)| (i, member.restore_files())).collect())
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").field("servers", &self.name()).finish_non_exhaustive()
    }
}

impl Stack {
    /// Finds the servers, takes their locks, checks that each is healthy and not used by others, and writes their
    /// journals. Changes nothing.
    ///
    /// # Errors
    /// If two have the same name or are the same server; otherwise as [`Session::open`].
    pub fn open(servers: &[ServerRef], url: Option<&Url>, others: &OtherTrafficPolicy) -> Result<Stack, ServerError> {
        Stack::open_with(servers, url, others, &not_here)
    }

    /// Opens one server as a member of a stack that another machine controls.
    ///
    /// # Errors
    /// As [`Stack::open`].
    pub fn open_for(
        server: &ServerRef,
        place: Option<StackPlace>,
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
    ) -> Result<Stack, ServerError> {
        Stack::open_all(std::slice::from_ref(server), place, url, others, &not_here)
    }

    /// Like [`Stack::open`], with servers on other machines, which `elsewhere` opens.
    ///
    /// # Errors
    /// As [`Stack::open`].
    pub fn open_with(
        servers: &[ServerRef],
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
        elsewhere: OpenMember<'_>,
    ) -> Result<Stack, ServerError> {
        Stack::open_all(servers, None, url, others, elsewhere)
    }

    fn open_all(
        servers: &[ServerRef],
        of: Option<StackPlace>,
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
        elsewhere: OpenMember<'_>,
    ) -> Result<Stack, ServerError> {
        check_called_apart(servers).map_err(ServerError::Setting)?;
        let several = servers.len() > 1;
        let about = |server: &ServerRef| {
            let called = server.called().to_string();
            move |e: ServerError| if several { e.of(&called) } else { e }
        };
        let mut found: Vec<(&ServerRef, Box<dyn Adapter>)> = Vec::new();
        let here = || servers.iter().filter(|server| !server.is_elsewhere());
        for server in here().filter(|server| !server.kind.is_host()) {
            let adapter = discover(server).map_err(about(server))?;
            let same = found.iter().find(|(_, other)| other.facts().birth.pid == adapter.facts().birth.pid);
            if let Some((other, _)) = same {
                let what = format!("'{other}' and '{server}' are the same server");
                return Err(ServerError::Setting(format!("{what} ({}); name it once", adapter.facts().name)));
            }
            found.push((server, adapter));
        }
        let masters: Vec<i32> = found.iter().map(|(_, adapter)| adapter.facts().birth.pid).collect();
        let names: Vec<String> = found.iter().map(|(_, adapter)| adapter.facts().name.clone()).collect();
        let mut locks = lock_all(names.iter().map(String::as_str));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let stack = format!("{}-{}", std::process::id(), since.as_nanos());
        let mut members: Vec<(&ServerRef, Box<dyn Member>)> = Vec::new();
        // The host is changed before the servers on it are started.
        for server in here().filter(|server| server.kind.is_host()) {
            let first = found.first().map(|(_, adapter)| adapter.facts().birth.pid);
            let session = Host::beside(server, first).and_then(|host| HostSession::open(host, others));
            members.push((server, Box::new(session.map_err(about(server))?)));
        }
        for (place, ((server, adapter), name)) in found.into_iter().zip(&names).enumerate() {
            if adapter.contained().is_some() {
                let effective = adapter.effective().map_err(about(server))?;
                members.push((server, Box::new(ContainedMember(adapter, effective))));
                continue;
            }
            let own = StackPlace { stack: stack.clone(), called: server.called().to_string(), place };
            let own = of.clone().or(several.then_some(own));
            let lock = locks.remove(name).unwrap_or(Err(ServerError::Unrestored)).map_err(about(server))?;
            let beside: Vec<i32> = masters.iter().copied().filter(|m| *m != adapter.facts().birth.pid).collect();
            let session = Session::open_in(own, &beside, adapter, lock, url, others);
            members.push((server, Box::new(session.map_err(about(server))?)));
        }
        for (place, server) in servers.iter().enumerate().filter(|(_, server)| server.is_elsewhere()) {
            let called = server.called().to_string();
            let own = several.then(|| StackPlace { stack: stack.clone(), called, place });
            let open = |server: &ServerRef| elsewhere(server, own.clone());
            let mut parts = server.each().iter().map(open).collect::<Result<Vec<_>, _>>().map_err(about(server))?;
            let part = if parts.len() == 1 { parts.swap_remove(0) } else { Box::new(Group::of(parts)?) };
            members.push((server, part));
        }
        // The order of changes: hosts before servers, and these in the order in which they were named.
        let place = |server: &ServerRef| servers.iter().position(|other| other.called() == server.called());
        members.sort_by_key(|(server, _)| (!server.kind.is_host(), place(server)));
        let away = members.iter().any(|(_, member)| !member.is_here());
        let mut opened = Stack::of(members);
        if let Some(url) = url.filter(|_| away) {
            opened.health = Some(ask(url)?);
        }
        Ok(opened)
    }

    /// A stack of open servers, in the order in which they are changed.
    #[must_use]
    pub fn of(members: Vec<(&ServerRef, Box<dyn Member>)>) -> Stack {
        let member = |(server, part): (&ServerRef, Box<dyn Member>)| StackMember {
            called: server.called().to_string(),
            named: server.name.is_some(),
            part,
        };
        let members = members.into_iter().map(member).collect();
        let mut stack = Stack { members, original: EffectiveSettings::default(), queues: None, health: None };
        stack.original = stack.effective();
        stack
    }

    /// Waits until the site answers as at the start, if that is checked from here.
    fn wait_healthy(&self) -> Result<(), ServerError> {
        self.health.as_ref().map_or(Ok(()), wait_until_it_answers)
    }

    /// True if there is more than one member.
    #[must_use]
    pub fn is_several(&self) -> bool {
        self.members.len() > 1
    }

    /// The servers as named on a command line.
    #[must_use]
    pub fn name(&self) -> String {
        let name = |member: &StackMember| {
            let name = member.part.name();
            if member.named && self.is_several() { format!("{}={name}", member.called) } else { name.to_string() }
        };
        self.members.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The members on this machine, as their journals name them.
    #[must_use]
    pub fn members(&self) -> Vec<String> {
        let here = self.members.iter().filter(|member| member.part.is_here());
        here.map(|member| member.part.name().to_string()).collect()
    }

    /// Name of the member at this position.
    #[must_use]
    pub fn called(&self, place: usize) -> Option<&str> {
        self.members.get(place).map(|member| member.called.as_str())
    }

    /// Qualified name of a member's setting.
    fn full(&self, member: &StackMember, name: &str) -> String {
        if self.is_several() { format!("{}.{name}", member.called) } else { name.to_string() }
    }

    /// Settings of a member with qualified names.
    fn all_full(&self, member: &StackMember, settings: Settings) -> Settings {
        settings.into_iter().map(|(name, value)| (self.full(member, &name), value)).collect()
    }

    /// Splits a qualified name into member and setting.
    fn member_of<'a>(&self, name: &'a str) -> Result<(usize, &'a str), ServerError> {
        if let [only] = self.members.as_slice() {
            let own = name.strip_prefix(&only.called).and_then(|rest| rest.strip_prefix('.')).filter(|_| only.named);
            let plain = only.part.knobs().iter().any(|k| k.name == name);
            return Ok((0, own.filter(|_| !plain).unwrap_or(name)));
        }
        // A user's kind may have a dot in its name.
        let is_of = |member: &StackMember| name.strip_prefix(&member.called)?.strip_prefix('.');
        let found = self.members.iter().enumerate().filter_map(|(i, member)| Some((i, is_of(member)?)));
        found.min_by_key(|(_, rest)| rest.len()).ok_or_else(|| {
            let called: Vec<&str> = self.members.iter().map(|m| m.called.as_str()).collect();
            let having = self.members.iter().find(|m| m.part.knobs().iter().any(|k| k.name == name));
            let example = having.map_or_else(String::new, |m| format!(", such as {}.{name}", m.called));
            ServerError::Setting(format!(
                "'{name}' does not say which server it is of: of several a setting is NAME.SETTING{example}; the servers \
                 are {}",
                called.join(", ")
            ))
        })
    }

    /// Splits settings by member, with each member's own names.
    fn parts(&self, settings: &Settings) -> Result<Vec<Settings>, ServerError> {
        let mut parts = vec![Settings::new(); self.members.len()];
        for (name, value) in settings {
            let (member, own) = self.member_of(name)?;
            if parts[member].insert(own.into(), value.clone()).is_some() {
                return Err(ServerError::Setting(format!(
                    "{own} is set twice, as {name} and without the server's name"
                )));
            }
        }
        Ok(parts)
    }

    /// Splits a change by member.
    fn changes(&self, change: &Change) -> Result<Vec<Change>, ServerError> {
        let mut parts: Vec<Change> = self.parts(&change.settings)?.into_iter().map(Change::from).collect();
        for line in change.directives.lines() {
            let (member, own) = self.member_of(line)?;
            parts[member].push(own);
        }
        for part in parts.iter_mut().filter(|part| !part.directives.lines().is_empty()) {
            part.scope.clone_from(&change.scope);
        }
        match (parts.as_mut_slice(), &change.cache) {
            (_, None) => {}
            ([only], Some(cache)) => only.cache = Some(cache.clone()),
            _ => return Err(ServerError::Setting("a cache is tried on one server alone".into())),
        }
        Ok(parts)
    }

    /// Renames settings to the names in this stack: unqualified for a single server.
    ///
    /// # Errors
    /// With the setting that belongs to no member.
    pub fn settings(&self, settings: &Settings) -> Result<Settings, ServerError> {
        let parts = self.parts(settings)?;
        Ok(self.members.iter().zip(parts).flat_map(|(member, part)| self.all_full(member, part)).collect())
    }

    fn effective(&self) -> EffectiveSettings {
        let mut all = EffectiveSettings::default();
        for member in &self.members {
            let own = member.part.original().clone();
            all.settings.extend(self.all_full(member, own.settings));
            all.sources.extend(own.sources.into_iter().map(|(name, source)| (self.full(member, &name), source)));
            let note = |note| if self.is_several() { format!("{}: {note}", member.called) } else { note };
            all.notes.extend(own.notes.into_iter().map(note));
        }
        all
    }

    /// All settings at the start.
    #[must_use]
    pub fn original(&self) -> &EffectiveSettings {
        &self.original
    }

    /// Abbreviations of settings for tables of results: (setting, abbreviation).
    #[must_use]
    pub fn abbreviations(&self) -> Vec<(String, String)> {
        let short = |member: &StackMember| -> Vec<(String, String)> {
            let of = |k: &Knob| Some((self.full(member, k.name), self.full(member, k.short?)));
            member.part.knobs().into_iter().filter_map(of).collect()
        };
        self.members.iter().flat_map(short).collect()
    }

    /// Adds the member's name to its error.
    fn about(&self, member: &StackMember) -> impl FnOnce(ServerError) -> ServerError + use<> {
        let called = self.is_several().then(|| member.called.clone());
        move |e| match called {
            Some(called) => e.of(&called),
            None => e,
        }
    }

    /// Checks that the servers have these settings and that they can take these values.
    ///
    /// # Errors
    /// With the unknown name, or the range.
    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        let parts = self.parts(settings)?;
        self.members.iter().zip(parts).try_for_each(|(m, part)| m.part.check_names(&part).map_err(self.about(m)))
    }

    /// Reads a change of one or more lines, separated by `;`, as [`Change::read`]. Of several servers each line begins
    /// with its server's name, NAME.LINE. `scope` says where directives apply.
    ///
    /// # Errors
    /// With the line that belongs to no server, or that its server does not take.
    pub fn change(&self, text: &str, scope: Option<&ConfigScope>) -> Result<Change, ServerError> {
        let mut all = Change { scope: scope.cloned(), ..Change::default() };
        for line in Directives::read(text).lines() {
            let (member, own) = self.member_of(line)?;
            let member = &self.members[member];
            let takes_directives = member.part.takes_directives();
            if scope.is_some() && !takes_directives {
                let title = kinds::titles(|k| k.directives);
                let what = format!("--at is about directives of {title}, and {} has none", member.called);
                return Err(ServerError::Setting(what));
            }
            let knobs = if scope.is_some() { Vec::new() } else { member.part.knobs() };
            let read = Change::read(own, takes_directives, &knobs).map_err(ServerError::Setting)?;
            all.settings.extend(self.all_full(member, read.settings));
            read.directives.lines().iter().for_each(|line| all.push(&self.full(member, line)));
        }
        self.check_names(&all.settings)?;
        Ok(all)
    }

    /// Describes what a change does to the configurations, a line for each place; empty if it changes nothing.
    ///
    /// # Errors
    /// With the place that is not there.
    pub fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        let mut all = Vec::new();
        for (member, part) in self.members.iter().zip(self.changes(change)?) {
            let lines = member.part.preview(&part).map_err(self.about(member))?;
            let named = |line| if self.is_several() { format!("{}: {line}", member.called) } else { line };
            all.extend(lines.into_iter().map(named));
        }
        Ok(all)
    }

    /// The lines of configuration that make a cache on trial one for all visitors.
    ///
    /// # Errors
    /// If the server has no such cache, is on another machine, or its configuration is not fit for one.
    pub fn cache_lines(&self, cache: &PageCache) -> Result<Vec<String>, ServerError> {
        let session = self.members.first().and_then(|member| member.part.session());
        let session =
            session.ok_or_else(|| ServerError::Setting("a cache is tried on a server of this machine".into()))?;
        session.adapter().cache_lines(cache)
    }

    /// Makes all ready for a cache for all visitors, whom it does not answer yet.
    ///
    /// # Errors
    /// If the server has no such cache or cannot be changed, or there are several servers.
    pub fn offer_cache(&mut self, cache: &PageCache) -> Result<CacheOffer, ServerError> {
        self.only_member()?.offer_cache(cache)
    }

    /// Leaves the server running with a cache for all visitors that was offered. `lastdrop restore` takes it away.
    ///
    /// # Errors
    /// If it cannot be brought into force, or there are several servers.
    pub fn keep_cache(&mut self, cache: &PageCache) -> Result<(), ServerError> {
        self.only_member()?.keep_cache(cache)
    }

    fn only_member(&mut self) -> Result<&mut dyn Member, ServerError> {
        match self.members.as_mut_slice() {
            [only] => Ok(only.part.as_mut()),
            _ => Err(ServerError::Setting("a cache is kept on one server alone".into())),
        }
    }

    /// The directives that name code which a server would run, or files that it would write.
    ///
    /// # Errors
    /// With the line that belongs to no server.
    pub fn code_in(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        let parts = self.changes(change)?;
        Ok(parts.iter().flat_map(|part| crate::code_directives::code_in(&part.directives)).collect())
    }

    /// Checks that the servers would accept this change unaltered.
    ///
    /// # Errors
    /// With the reason why not.
    pub fn check(&self, change: impl Into<Change>) -> Result<(), ServerError> {
        let parts = self.changes(&change.into())?;
        self.members.iter().zip(parts).try_for_each(|(m, part)| m.part.check(&part).map_err(self.about(m)))
    }

    /// Checks that all members can be changed from here; those in containers cannot.
    ///
    /// # Errors
    /// With the one that cannot, and what to do.
    pub fn check_changeable(&self) -> Result<(), ServerError> {
        self.members.iter().try_for_each(|m| m.part.check_changeable().map_err(self.about(m)))
    }

    /// Brings a change into force, from the first member to the last. Members without a part of it are restarted as they
    /// were.
    ///
    /// # Errors
    /// If one does not accept it or does not come back healthy. The stack can still be restored.
    pub fn apply(&mut self, change: impl Into<Change>) -> Result<(), ServerError> {
        let parts = self.changes(&change.into())?;
        let of_host = |(member, part): (&StackMember, &Change)| {
            Some(part.settings.get(SOMAXCONN)?.clone()).filter(|_| member.part.is_host() && member.part.is_here())
        };
        let queues = self.members.iter().zip(&parts).find_map(of_host);
        let anew = std::mem::replace(&mut self.queues, queues.clone()) != queues;
        for (i, part) in parts.into_iter().enumerate() {
            let about = self.about(&self.members[i]);
            let member = &mut self.members[i].part;
            if anew {
                member.start_anew_next();
            }
            member.apply(&part).map_err(about)?;
        }
        self.wait_healthy()
    }

    /// Restores all members as they were found: the host before the servers on it, the servers in reverse order, and
    /// each one even if others fail. Members that are already restored or kept are left alone.
    ///
    /// # Errors
    /// If one does not come back as it was; its journal stays, so that `lastdrop restore` can try again.
    pub fn restore(&mut self) -> Result<Vec<RestoreReport>, ServerError> {
        let halves = self.restore_files();
        self.verify_health(halves)
    }

    /// First half of `restore`: files and processes of all members.
    pub fn restore_files(&mut self) -> PendingRestore {
        PendingRestore::of(self.members.iter_mut().map(|member| &mut member.part))
    }

    /// Second half of `restore`: checks that each answers as before, and removes its journal.
    ///
    /// # Errors
    /// As [`Stack::restore`].
    pub fn verify_health(&mut self, halves: PendingRestore) -> Result<Vec<RestoreReport>, ServerError> {
        let (mut restored, mut errors) = (Vec::new(), Vec::new());
        let some = !halves.0.is_empty();
        for (i, half) in halves.0 {
            let about = self.about(&self.members[i]);
            match half.and_then(|half| self.members[i].part.verify_health(half)).map_err(about) {
                Ok(mut one) => {
                    let named = |d: String| self.full(&self.members[i], &d);
                    one.differences = std::mem::take(&mut one.differences).into_iter().map(named).collect();
                    restored.push(one);
                }
                Err(e) => errors.push(e),
            }
        }
        if some && errors.is_empty() {
            errors.extend(self.wait_healthy().err());
        }
        ServerError::all_of(errors).map(|()| restored)
    }

    /// Leaves the servers running with these settings; members without any are restored. All settings are in force
    /// before the first becomes permanent.
    ///
    /// # Errors
    /// If they cannot be brought into force. What is not kept by then can still be restored.
    pub fn keep(&mut self, settings: &Settings) -> Result<Vec<PersistedIn>, ServerError> {
        let staying = self.persist(settings)?;
        self.commit(staying)
    }

    /// First half of `keep`: all settings are in force where they can stay. [`Stack::restore`], or `lastdrop restore`
    /// after a kill, still undoes them.
    ///
    /// # Errors
    /// If they cannot be brought into force.
    pub fn persist(&mut self, settings: &Settings) -> Result<PendingPersist, ServerError> {
        let parts = self.parts(settings)?;
        let several = self.is_several();
        let mut kept = Vec::new();
        for (i, part) in parts.into_iter().enumerate().filter(|(_, part)| !(several && part.is_empty())) {
            let about = self.about(&self.members[i]);
            kept.push((i, self.members[i].part.persist(&part).map_err(about)?));
        }
        self.wait_healthy()?;
        Ok(PendingPersist(kept))
    }

    /// Second half of `keep`: from now on they are not undone. Members without any of these settings are restored.
    ///
    /// # Errors
    /// If that cannot be written; what is not committed by then can still be restored.
    pub fn commit(&mut self, staying: PendingPersist) -> Result<Vec<PersistedIn>, ServerError> {
        for (i, kept) in &staying.0 {
            let about = self.about(&self.members[*i]);
            self.members[*i].part.commit(kept).map_err(about)?;
        }
        self.restore()?;
        Ok(staying.0.into_iter().map(|(_, kept)| kept).collect())
    }

    /// Sends one request to check that the site answers as at the start.
    ///
    /// # Errors
    /// With the different answer.
    pub fn check_health(&self) -> Result<(), ServerError> {
        self.health().map_or(Ok(()), Health::check)
    }

    /// Adds all settings that follow from the given ones, as [`Adapter::complete`].
    ///
    /// # Errors
    /// With the setting that belongs to no member.
    pub fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        let mut all = Settings::new();
        for (member, part) in self.members.iter().zip(self.parts(settings)?) {
            let whole = member.part.complete(&part).map_err(self.about(member))?;
            all.extend(self.all_full(member, whole));
        }
        Ok(all)
    }
}

/// Refuses a server of another machine.
fn not_here(server: &ServerRef, _: Option<StackPlace>) -> Result<Box<dyn Member>, ServerError> {
    not_elsewhere(server)?;
    Err(ServerError::Setting(format!("'{server}' is on this machine")))
}

impl Drop for Stack {
    fn drop(&mut self) {
        // If an error ends the run, no server must stay changed. If this fails too, the journals remain.
        if let Err(e) = self.restore() {
            tell_on_the_way_out(&e);
        }
    }
}
