//! Servers on other machines: the interface a stack needs, and the same server on several machines as one.

use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Knob, Settings};

use crate::adapter::EffectiveSettings;
use crate::adapters::not_elsewhere;
use crate::journal::StackPlace;
use crate::other_traffic::OtherTrafficPolicy;
use crate::persisted_in::PersistedIn;
use crate::restore::RestoreReport;
use crate::{ServerError, ServerRef};

/// What is known of a remote server since its session began.
#[derive(Debug, Clone)]
pub struct RemoteServer {
    /// The name with its agent: `web-1/apache:/etc/apache2/apache2.conf`.
    pub name: String,
    pub original: EffectiveSettings,
    pub knobs: &'static [Knob],
    /// Processors of its machine.
    pub cores: u64,
    /// True if it is the host, which has settings and no workers.
    pub is_host: bool,
}

/// A session on another machine, where its lock and journal are. The methods are those of [`crate::Session`].
pub trait RemoteSession {
    fn about(&self) -> &RemoteServer;

    /// Checks that the server would accept the settings.
    ///
    /// # Errors
    /// With the reason why the server would not accept them.
    fn check(&self, settings: &Settings) -> Result<(), ServerError>;

    /// Brings the settings into force.
    ///
    /// # Errors
    /// If the server does not accept them or does not come back healthy.
    fn apply(&mut self, settings: &Settings) -> Result<(), ServerError>;

    /// Adds the settings that follow from the given ones.
    ///
    /// # Errors
    /// If the machine cannot be asked.
    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError>;

    /// True if a change is neither undone nor kept.
    fn is_open(&self) -> bool;

    /// Restores files and processes; [`RemoteSession::verify_health`] must follow.
    ///
    /// # Errors
    /// If files or processes are not as they were.
    fn restore_files(&mut self) -> Result<(), ServerError>;

    /// Checks that the restored server answers.
    ///
    /// # Errors
    /// If it does not.
    fn verify_health(&mut self) -> Result<RestoreReport, ServerError>;

    /// Makes the settings permanent; they can still be undone until [`RemoteSession::commit`].
    ///
    /// # Errors
    /// If they cannot be brought into force.
    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError>;

    /// Removes the journal, so that the persisted settings stay.
    ///
    /// # Errors
    /// If that cannot be written.
    fn commit(&mut self) -> Result<(), ServerError>;

    /// Number of workers now; 0 if the machine cannot be asked.
    fn count_workers(&self) -> usize;

    /// Sum of the PSS of master and workers, in bytes.
    fn real_memory(&self) -> Option<u64>;

    /// How many of its workers fit into `memory` bytes of its machine, or into the memory that it has left.
    ///
    /// # Errors
    /// If its processes may not be read, or the machine cannot be asked.
    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError>;
}

/// Parameters of a remote session.
#[derive(Debug)]
pub struct SessionRequest<'a> {
    pub others: &'a OtherTrafficPolicy,
    /// Its position among the servers that are changed with it.
    pub place: Option<StackPlace>,
}

/// Opens sessions on other machines.
pub trait RemoteHosts {
    /// Opens a session for a server that is on one machine: `ServerRef::agents` has one entry.
    ///
    /// # Errors
    /// As [`crate::Stack::open`]; or there is no such agent, or it does not have that server.
    fn open(&self, server: &ServerRef, opening: &SessionRequest<'_>) -> Result<Box<dyn RemoteSession>, ServerError>;
}

/// The absence of other machines.
pub(crate) struct NoRemoteHosts;

impl RemoteHosts for NoRemoteHosts {
    fn open(&self, server: &ServerRef, _: &SessionRequest<'_>) -> Result<Box<dyn RemoteSession>, ServerError> {
        not_elsewhere(server)?;
        Err(ServerError::Setting(format!("'{server}' is on this machine")))
    }
}

/// The same server on several machines. A setting is changed on all of them; if one refuses, it is undone on the
/// others.
pub(crate) struct Group {
    about: RemoteServer,
    members: Vec<Box<dyn RemoteSession>>,
    /// Settings in force on all members.
    current: Settings,
    /// Members that could not be restored.
    failed: Vec<(usize, ServerError)>,
}

impl Group {
    /// Combines members into one.
    ///
    /// # Errors
    /// If they have no setting in common: they are not the same server.
    pub fn of(members: Vec<Box<dyn RemoteSession>>) -> Result<Group, ServerError> {
        let all = || members.iter().map(|member| member.about());
        let name = all().map(|about| about.name.as_str()).collect::<Vec<_>>().join(" + ");
        let Some(first) = members.first() else { return Err(ServerError::Setting("a group of no servers".into())) };
        let first = first.about();
        // A knob that one member lacks cannot be set on all.
        let common = |knob: &&Knob| all().all(|about| about.knobs.iter().any(|other| other.name == knob.name));
        let knobs: &'static [Knob] = first.knobs.iter().filter(common).copied().collect::<Vec<_>>().leak();
        if knobs.is_empty() && !first.knobs.is_empty() {
            return Err(ServerError::Setting(format!("{name} have no setting in common")));
        }
        let mut original = first.original.clone();
        for about in all().skip(1) {
            original.notes.extend(about.original.notes.iter().map(|note| format!("{}: {note}", about.name)));
            let other = |name: &String| about.original.settings.get(name);
            let differing = first.original.settings.iter().filter(|(name, value)| other(name) != Some(*value));
            for (setting, value) in differing {
                let theirs = other(setting).map_or_else(|| "unknown".into(), ToString::to_string);
                original.notes.push(format!("{setting} is {value} on {}, and {theirs} on {}", first.name, about.name));
            }
        }
        let cores = all().map(|about| about.cores).min().unwrap_or(1);
        let about = RemoteServer { name, original, knobs, cores, is_host: first.is_host };
        Ok(Group { about, members, current: Settings::new(), failed: Vec::new() })
    }
}

impl RemoteSession for Group {
    fn about(&self) -> &RemoteServer {
        &self.about
    }

    fn check(&self, settings: &Settings) -> Result<(), ServerError> {
        self.members.iter().try_for_each(|member| member.check(settings))
    }

    fn apply(&mut self, settings: &Settings) -> Result<(), ServerError> {
        for i in 0..self.members.len() {
            let Err(e) = self.members[i].apply(settings) else { continue };
            if !e.is_refusal() {
                return Err(e);
            }
            // The member that refused may have lost its server by that.
            let current = self.current.clone();
            let undone = self.members[..=i].iter_mut().rev().filter_map(|member| member.apply(&current).err());
            let mut errors: Vec<ServerError> = undone.collect();
            if errors.is_empty() {
                return Err(e);
            }
            errors.insert(0, e);
            return Err(ServerError::Several(errors));
        }
        self.current.clone_from(settings);
        Ok(())
    }

    /// The settings that follow on any member: on another where they hold anyway, they do no harm.
    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        let mut all = Settings::new();
        for member in &self.members {
            for (name, value) in member.complete(settings)? {
                all.entry(name).or_insert(value);
            }
        }
        Ok(all)
    }

    fn is_open(&self) -> bool {
        self.members.iter().any(|member| member.is_open())
    }

    fn restore_files(&mut self) -> Result<(), ServerError> {
        for (i, member) in self.members.iter_mut().enumerate().rev().filter(|(_, member)| member.is_open()) {
            if let Err(e) = member.restore_files() {
                self.failed.push((i, e));
            }
        }
        Ok(())
    }

    fn verify_health(&mut self) -> Result<RestoreReport, ServerError> {
        let mut all = RestoreReport::untouched(&self.about.name);
        let failed = std::mem::take(&mut self.failed);
        let is_put_back = |i: usize| failed.iter().all(|(of, _)| *of != i);
        let mut errors = Vec::new();
        for (_, member) in self.members.iter_mut().enumerate().filter(|(i, _)| is_put_back(*i)) {
            match member.verify_health() {
                Ok(one) => {
                    all.was_changed |= one.was_changed;
                    all.started_by_others = all.started_by_others.take().or(one.started_by_others);
                    all.differences.extend(one.differences.iter().map(|d| format!("{}: {d}", member.about().name)));
                }
                Err(e) => errors.push(e),
            }
        }
        errors.extend(failed.into_iter().map(|(_, e)| e));
        match errors.len() {
            0 => Ok(all),
            1 => Err(errors.swap_remove(0)),
            _ => Err(ServerError::Several(errors)),
        }
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let kept = self.members.iter_mut().map(|member| member.persist(settings));
        let kept = kept.map(|kept| kept.map(|k| k.to_string())).collect::<Result<Vec<String>, _>>()?;
        Ok(PersistedIn::Elsewhere(kept.join(", ")))
    }

    fn commit(&mut self) -> Result<(), ServerError> {
        self.members.iter_mut().try_for_each(|member| member.commit())
    }

    fn count_workers(&self) -> usize {
        self.members.iter().map(|member| member.count_workers()).sum()
    }

    /// The maximum over the machines: each has its own budget.
    fn real_memory(&self) -> Option<u64> {
        let each = self.members.iter().map(|member| member.real_memory());
        each.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// The machine into which fewest workers fit decides: the pool has the same size on all.
    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        let each = self.members.iter().map(|member| member.size(memory)).collect::<Result<Vec<_>, _>>()?;
        let least = each.into_iter().min_by_key(|size| size.fitting());
        least.ok_or_else(|| ServerError::Setting("a group of no servers".into()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use lastdrop_model::settings::KnobValues;
    use lastdrop_model::{ReloadClass, Setting};

    use super::*;

    /// Refuses more than `most` workers, and cannot be restored if `stuck`.
    struct Node {
        about: RemoteServer,
        most: i64,
        stuck: bool,
        open: bool,
        now: Rc<RefCell<Settings>>,
    }

    const WORKERS: &[Knob] =
        &[Knob::new("workers", KnobValues::Count(1, 100), "5", ReloadClass::Restart, "", "how many there are")];

    fn node(name: &str, most: i64, stuck: bool, now: &Rc<RefCell<Settings>>) -> Box<dyn RemoteSession> {
        let original = EffectiveSettings { settings: workers(most), ..EffectiveSettings::default() };
        let about = RemoteServer { name: name.into(), original, knobs: WORKERS, cores: 2, is_host: false };
        Box::new(Node { about, most, stuck, open: true, now: Rc::clone(now) })
    }

    fn workers(n: i64) -> Settings {
        Settings::from([("workers".to_string(), Setting::Count(n))])
    }

    impl RemoteSession for Node {
        fn about(&self) -> &RemoteServer {
            &self.about
        }
        fn check(&self, _: &Settings) -> Result<(), ServerError> {
            Ok(())
        }
        fn apply(&mut self, settings: &Settings) -> Result<(), ServerError> {
            if settings.get("workers").and_then(Setting::count).is_some_and(|n| n > self.most) {
                return Err(ServerError::Setting(format!("{} takes {} at most", self.about.name, self.most)));
            }
            self.now.borrow_mut().clone_from(settings);
            Ok(())
        }
        fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
            Ok(settings.clone())
        }
        fn is_open(&self) -> bool {
            self.open
        }
        fn restore_files(&mut self) -> Result<(), ServerError> {
            self.open = false;
            if self.stuck { Err(ServerError::Setting("it is stuck".into())) } else { self.apply(&Settings::new()) }
        }
        fn verify_health(&mut self) -> Result<RestoreReport, ServerError> {
            Ok(RestoreReport { was_changed: true, ..RestoreReport::untouched(&self.about.name) })
        }
        fn persist(&mut self, _: &Settings) -> Result<PersistedIn, ServerError> {
            Ok(PersistedIn::Elsewhere(self.about.name.clone()))
        }
        fn commit(&mut self) -> Result<(), ServerError> {
            Ok(())
        }
        fn count_workers(&self) -> usize {
            3
        }
        fn real_memory(&self) -> Option<u64> {
            Some(self.most as u64)
        }
        fn size(&self, _: Option<u64>) -> Result<SizeDocument, ServerError> {
            Err(ServerError::Setting("unknown".into()))
        }
    }

    #[test]
    fn what_one_node_refuses_is_undone_on_the_others() {
        let (a, b) = (Rc::default(), Rc::default());
        let mut group = Group::of(vec![node("a", 50, false, &a), node("b", 20, false, &b)]).expect("a group");
        assert_eq!(group.about().name, "a + b");
        assert_eq!(group.about().original.notes, ["workers is 50 on a, and 20 on b"]);
        group.apply(&workers(10)).expect("both take it");
        let refused = group.apply(&workers(30)).expect_err("b does not");
        assert!(refused.is_refusal() && refused.to_string() == "b takes 20 at most", "{refused}");
        assert_eq!((a.borrow().clone(), b.borrow().clone()), (workers(10), workers(10)));
        assert_eq!((group.count_workers(), group.real_memory()), (6, Some(50)));
    }

    #[test]
    fn a_node_that_cannot_be_put_back_keeps_no_other_from_it() {
        let (a, b) = (Rc::default(), Rc::default());
        let mut group = Group::of(vec![node("a", 50, true, &a), node("b", 50, false, &b)]).expect("a group");
        group.apply(&workers(10)).expect("both take it");
        assert!(group.is_open() && group.restore_files().is_ok() && !group.is_open());
        let error = group.verify_health().expect_err("a is stuck");
        assert_eq!((error.to_string().as_str(), b.borrow().len()), ("it is stuck", 0));
    }
}
