//! The same server on several machines, as one member of a stack.

use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Knob, Settings};
use serde_json::Value;

use crate::ServerError;
use crate::adapter::EffectiveSettings;
use crate::change::Change;
use crate::member::Member;
use crate::operations::OperationCall;
use crate::persisted_in::PersistedIn;
use crate::restore::{RestoreReport, RestoredServer};
use crate::stack::PendingRestore;

/// The same server on several machines. A setting is changed on all of them; if one refuses, it is undone on the
/// others.
pub(crate) struct Group {
    name: String,
    original: EffectiveSettings,
    knobs: Vec<&'static Knob>,
    members: Vec<Box<dyn Member>>,
    /// The change in force on all members.
    current: Change,
    /// Members whose files and processes are restored.
    halves: Option<PendingRestore>,
}

impl Group {
    /// Combines members into one.
    ///
    /// # Errors
    /// If they have no setting in common: they are not the same server.
    pub fn of(members: Vec<Box<dyn Member>>) -> Result<Group, ServerError> {
        let name = members.iter().map(|member| member.name()).collect::<Vec<_>>().join(" + ");
        let Some((first, others)) = members.split_first() else { return Err(empty()) };
        // A knob that one member lacks cannot be set on all.
        let has = |other: &dyn Member, knob: &Knob| other.knobs().iter().any(|own| own.name == knob.name);
        let mut knobs = first.knobs();
        knobs.retain(|knob| others.iter().all(|other| has(other.as_ref(), knob)));
        if knobs.is_empty() && !first.knobs().is_empty() {
            return Err(ServerError::Setting(format!("{name} have no setting in common")));
        }
        let mut original = first.original().clone();
        for other in others {
            let EffectiveSettings { settings, notes, .. } = other.original();
            original.notes.extend(notes.iter().map(|note| format!("{}: {note}", other.name())));
            let own = &first.original().settings;
            for (setting, value) in own.iter().filter(|(name, value)| settings.get(*name) != Some(*value)) {
                let theirs = settings.get(setting).map_or_else(|| "unknown".into(), ToString::to_string);
                original.notes.push(format!(
                    "{setting} is {value} on {}, and {theirs} on {}",
                    first.name(),
                    other.name()
                ));
            }
        }
        Ok(Group { name, original, knobs, members, current: Change::default(), halves: None })
    }
}

fn empty() -> ServerError {
    ServerError::Setting("a group of no servers".into())
}

impl Member for Group {
    fn name(&self) -> &str {
        &self.name
    }

    fn original(&self) -> &EffectiveSettings {
        &self.original
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        self.knobs.clone()
    }

    fn cores(&self) -> u64 {
        self.members.iter().map(|member| member.cores()).min().unwrap_or(1)
    }

    fn is_host(&self) -> bool {
        self.members.iter().all(|member| member.is_host())
    }

    fn is_here(&self) -> bool {
        self.members.iter().all(|member| member.is_here())
    }

    fn takes_directives(&self) -> bool {
        self.members.iter().all(|member| member.takes_directives())
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)?;
        self.members.iter().try_for_each(|member| member.check(change))
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

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        for i in 0..self.members.len() {
            let Err(e) = self.members[i].apply(change) else { continue };
            if !e.is_refusal() {
                return Err(e);
            }
            // The member that refused may have lost its server by that.
            let current = self.current.clone();
            let undone = self.members[..=i].iter_mut().rev().filter_map(|member| member.apply(&current).err());
            let undone: Vec<ServerError> = undone.collect();
            return ServerError::all_of([e].into_iter().chain(undone).collect());
        }
        self.current.clone_from(change);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.members.iter().any(|member| member.is_open())
    }

    /// Each member is restored even if others fail: [`Member::verify_health`] returns the errors.
    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        self.halves = Some(PendingRestore::of(self.members.iter_mut()));
        Ok(RestoredServer::whole(RestoreReport::untouched(&self.name)))
    }

    fn verify_health(&mut self, half: RestoredServer) -> Result<RestoreReport, ServerError> {
        let mut all = half.into_restored();
        let mut errors = Vec::new();
        let mut halves = self.halves.take().map_or_else(Vec::new, |halves| halves.0);
        halves.sort_by_key(|(i, _)| *i);
        for (i, half) in halves {
            let member = &mut self.members[i];
            match half.and_then(|half| member.verify_health(half)) {
                Ok(one) => {
                    all.was_changed |= one.was_changed;
                    all.started_by_others = all.started_by_others.take().or(one.started_by_others);
                    all.differences.extend(one.differences.iter().map(|d| format!("{}: {d}", member.name())));
                }
                Err(e) => errors.push(e),
            }
        }
        ServerError::all_of(errors).map(|()| all)
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let kept = self.members.iter_mut().map(|member| member.persist(settings));
        let kept = kept.map(|kept| kept.map(|k| k.to_string())).collect::<Result<Vec<String>, _>>()?;
        Ok(PersistedIn::Elsewhere(kept.join(", ")))
    }

    fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError> {
        self.members.iter_mut().try_for_each(|member| member.commit(kept))
    }

    fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
        let each = self.members.iter().map(|member| member.operate(call)).collect::<Result<Vec<_>, _>>()?;
        call.together(each)
    }

    /// The machine into which fewest workers fit decides: the pool has the same size on all.
    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        let each = self.members.iter().map(|member| member.size(memory)).collect::<Result<Vec<_>, _>>()?;
        each.into_iter().min_by_key(|size| size.fitting()).ok_or_else(empty)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use lastdrop_model::settings::KnobValues;
    use lastdrop_model::{ReloadClass, Setting};
    use serde_json::json;

    use super::*;
    use crate::operations::{CountWorkers, Drain, Operation, RealMemory, read};

    /// Refuses more than `most` workers, and cannot be restored if `stuck`.
    struct Node {
        name: &'static str,
        original: EffectiveSettings,
        most: i64,
        stuck: bool,
        open: bool,
        now: Rc<RefCell<Settings>>,
    }

    const WORKERS: &[Knob] =
        &[Knob::new("workers", KnobValues::Count(1, 100), "5", ReloadClass::Restart, "", "how many there are")];

    fn node(name: &'static str, most: i64, stuck: bool, now: &Rc<RefCell<Settings>>) -> Box<dyn Member> {
        let original = EffectiveSettings { settings: workers(most), ..EffectiveSettings::default() };
        Box::new(Node { name, original, most, stuck, open: true, now: Rc::clone(now) })
    }

    fn workers(n: i64) -> Settings {
        Settings::from([("workers".to_string(), Setting::Count(n))])
    }

    impl Member for Node {
        fn name(&self) -> &str {
            self.name
        }
        fn original(&self) -> &EffectiveSettings {
            &self.original
        }
        fn knobs(&self) -> Vec<&'static Knob> {
            WORKERS.iter().collect()
        }
        fn check(&self, _: &Change) -> Result<(), ServerError> {
            Ok(())
        }
        fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
            let settings = &change.settings;
            if settings.get("workers").and_then(Setting::count).is_some_and(|n| n > self.most) {
                return Err(ServerError::Setting(format!("{} takes {} at most", self.name, self.most)));
            }
            self.now.borrow_mut().clone_from(settings);
            Ok(())
        }
        fn is_open(&self) -> bool {
            self.open
        }
        fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
            self.open = false;
            if self.stuck {
                return Err(ServerError::Setting("it is stuck".into()));
            }
            self.apply(&Change::default())?;
            Ok(RestoredServer::whole(RestoreReport { was_changed: true, ..RestoreReport::untouched(self.name) }))
        }
        fn persist(&mut self, _: &Settings) -> Result<PersistedIn, ServerError> {
            Ok(PersistedIn::Elsewhere(self.name.into()))
        }
        fn commit(&mut self, _: &PersistedIn) -> Result<(), ServerError> {
            Ok(())
        }
        fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
            Ok(match call {
                OperationCall::CountWorkers => json!(3),
                OperationCall::RealMemory => json!(self.most),
                OperationCall::Drain => json!(!self.stuck),
            })
        }
    }

    fn ask<O: Operation>(group: &Group, operation: O) -> O::Answer {
        read(group.operate(operation.into()).expect("an answer")).expect("its type")
    }

    #[test]
    fn what_one_node_refuses_is_undone_on_the_others() {
        let (a, b) = (Rc::default(), Rc::default());
        let mut group = Group::of(vec![node("a", 50, false, &a), node("b", 20, false, &b)]).expect("a group");
        assert_eq!(group.name(), "a + b");
        assert_eq!(group.original().notes, ["workers is 50 on a, and 20 on b"]);
        group.apply(&workers(10).into()).expect("both take it");
        let refused = group.apply(&workers(30).into()).expect_err("b does not");
        assert!(refused.is_refusal() && refused.to_string() == "b takes 20 at most", "{refused}");
        assert_eq!((a.borrow().clone(), b.borrow().clone()), (workers(10), workers(10)));
        assert_eq!((ask(&group, CountWorkers), ask(&group, RealMemory), ask(&group, Drain)), (6, Some(50), true));
    }

    #[test]
    fn a_node_that_cannot_be_put_back_keeps_no_other_from_it() {
        let (a, b) = (Rc::default(), Rc::default());
        let mut group = Group::of(vec![node("a", 50, true, &a), node("b", 50, false, &b)]).expect("a group");
        group.apply(&workers(10).into()).expect("both take it");
        assert!(group.is_open());
        let half = group.restore_files().expect("each is tried");
        assert!(!group.is_open());
        let error = group.verify_health(half).expect_err("a is stuck");
        assert_eq!((error.to_string().as_str(), b.borrow().len()), ("it is stuck", 0));
    }
}
