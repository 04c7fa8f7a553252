//! What the servers of a stack are to a search: who has the pool, and which knobs there are.

use lastdrop_model::{Knob, Role, Setting, Settings};

use super::{Member, Stack};
use crate::health::Health;
use crate::session::Session;

impl Stack {
    /// The servers among the members: those first that have a pool of which the size can be set.
    fn servers(&self) -> Vec<(&Member, &Session)> {
        let mut all: Vec<_> = self.members.iter().filter_map(|m| Some((m, m.part.session()?))).collect();
        all.sort_by_key(|(_, session)| session.adapter().knob(Role::PoolSize).is_none());
        all
    }

    /// The server whose workers are counted, warmed and measured: the first that has a pool, else the first.
    #[must_use]
    pub fn pool(&self) -> Option<&Session> {
        self.servers().first().map(|(_, session)| *session)
    }

    /// Workers of all servers as they run now.
    #[must_use]
    pub fn count_workers(&self) -> usize {
        self.servers().iter().map(|(_, session)| session.workers().len()).sum()
    }

    /// What is asked whether all is well, where a URL was given.
    #[must_use]
    pub fn health(&self) -> Option<&Health> {
        self.servers().iter().find_map(|(_, session)| session.health())
    }

    /// The knobs that have a role, of all servers, with the session that each is of, and what its setting is called here:
    /// those of servers with a pool first.
    #[must_use]
    pub fn knobs(&self, role: Role) -> Vec<(String, &'static Knob, &Session)> {
        let mut all = Vec::new();
        for (member, session) in self.servers() {
            let own = session.adapter().knobs().iter().filter(|k| k.role == Some(role));
            all.extend(own.map(|knob| (self.full(member, knob.name), knob, session)));
        }
        all
    }

    /// All knobs of all members, those of the host too: what the setting is called here, and the session of a server that
    /// runs here.
    #[must_use]
    pub fn all_knobs(&self) -> Vec<(String, &'static Knob, Option<&Session>)> {
        let mut all = Vec::new();
        for member in &self.members {
            let named = |knob: &'static Knob| (self.full(member, knob.name), knob, member.part.session());
            all.extend(member.part.knobs().into_iter().map(named));
        }
        all
    }

    /// The first of those.
    #[must_use]
    pub fn knob(&self, role: Role) -> Option<(String, &'static Knob)> {
        self.knobs(role).into_iter().next().map(|(name, knob, _)| (name, knob))
    }

    /// The present value of that knob; its default where `settings` do not say.
    #[must_use]
    pub fn value(&self, role: Role, settings: &Settings) -> Option<Setting> {
        let (name, knob) = self.knob(role)?;
        settings.get(&name).cloned().or_else(|| Some(Setting::read(knob.default)))
    }
}
