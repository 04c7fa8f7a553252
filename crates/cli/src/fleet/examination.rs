//! The agent's side of a doctor's questions about its machine. It only examines the servers named at its start, and what
//! connects them.

use std::sync::mpsc::{Receiver, channel};

use lastdrop_experiment::doctor::{Goal, LocalSite, ModuleTrials, Site};
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_fleet::EngineError;
use lastdrop_model::{Sample, Url};
use lastdrop_probe::listeners::is_local;
use lastdrop_server::ServerRef;

use super::questions::{Answer, ExamineAnswer, ExamineQuestion, ServerName};
use super::respond::AgentServers;

/// The examination of this machine in one conversation; ends on drop.
#[derive(Debug, Default)]
pub struct LocalExamination(Option<ExaminedSite>);

#[derive(Debug)]
struct ExaminedSite {
    site: LocalSite,
    told: Receiver<Sample>,
    url: Url,
}

impl LocalExamination {
    /// Returns the answer to a question about `server`, one of the agent's.
    ///
    /// # Errors
    /// When it is refused, because a further server is not one of the agent's.
    pub fn answer(
        &mut self,
        servers: &AgentServers,
        server: &ServerRef,
        what: ExamineQuestion,
    ) -> Result<Answer, EngineError> {
        let answer = match what {
            ExamineQuestion::Find { beside, goal } => self.find(servers, server, &beside, *goal)?,
            what => self.carry_out(what),
        };
        Ok(answer.unwrap_or_else(|e| Answer::Failed { what: e.to_string(), refusal: false }))
    }

    fn find(
        &mut self,
        servers: &AgentServers,
        first: &ServerRef,
        beside: &[ServerName],
        goal: Goal,
    ) -> Result<Result<Answer, LabError>, EngineError> {
        let mut wanted = vec![first];
        for named in beside {
            wanted.push(servers.meant(named)?);
        }
        let called = wanted.iter().map(|server| server.called().to_string()).collect();
        let goal = Goal { servers: wanted.iter().map(ToString::to_string).collect(), ..goal };
        let (tell, told) = channel();
        // The agent uses no database options of the coordinator: no password comes over the network.
        let site = LocalSite::only(&servers.named, DatabaseOptions::default(), tell);
        let found = self.0.insert(ExaminedSite { site, told, url: goal.url.clone() }).site.find(&goal);
        Ok(found.map(|machine| examined(ExamineAnswer::Found { machine, called })))
    }

    fn carry_out(&mut self, what: ExamineQuestion) -> Result<Answer, LabError> {
        let none = || LabError::Other("no servers have been looked for yet".into());
        let ExaminedSite { site, told, url } = self.0.as_mut().ok_or_else(none)?;
        Ok(match what {
            // Answered already.
            ExamineQuestion::Find { .. } => Answer::Done,
            ExamineQuestion::Visitors => examined(ExamineAnswer::Visitors(site.visitors()?)),
            ExamineQuestion::Follow => done(site.follow()?),
            ExamineQuestion::Servers => examined(ExamineAnswer::Servers(site.servers()?)),
            ExamineQuestion::Begin => {
                // Discard samples from before the load.
                told.try_iter().for_each(drop);
                done(site.begin()?)
            }
            ExamineQuestion::Looks => examined(ExamineAnswer::Looks(told.try_iter().collect())),
            ExamineQuestion::End => examined(ExamineAnswer::Step(Box::new(site.end()?))),
            ExamineQuestion::Inside { profile } => examined(ExamineAnswer::Inside(site.inside(profile)?)),
            ExamineQuestion::Memory { requests } => done(site.memory(requests)?),
            ExamineQuestion::Settle => done(site.settle()?),
            // The trial sends requests to the URL; they must not go to another machine.
            ExamineQuestion::Modules if lastdrop_load::resolve(url).is_ok_and(|address| is_local(&address)) => {
                examined(ExamineAnswer::Modules(site.modules()?))
            }
            ExamineQuestion::Modules => {
                let why = "which modules it could do without: the URL leads to another machine";
                examined(ExamineAnswer::Modules(ModuleTrials { unseen: vec![why.into()], ..ModuleTrials::default() }))
            }
            ExamineQuestion::Rest => examined(ExamineAnswer::Rest(site.finish()?)),
        })
    }
}

fn examined(what: ExamineAnswer) -> Answer {
    Answer::Examined(Box::new(what))
}

fn done((): ()) -> Answer {
    Answer::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_of_the_agents_start_are_examined_and_nothing_before_they_were_found() {
        let named: Vec<ServerRef> = vec!["apache:/a.conf".parse().expect("a server")];
        let servers = AgentServers { agent: "a".into(), named, act: false };
        let goal = Box::new(Goal {
            servers: vec!["target".into()],
            url: "http://127.0.0.1:1/".parse().expect("a URL"),
            address: None,
            unix_socket: None,
            load_from: Vec::new(),
            ignore: Vec::new(),
        });
        let mut here = LocalExamination::default();
        for what in [
            ExamineQuestion::Begin,
            ExamineQuestion::End,
            ExamineQuestion::Inside { profile: true },
            ExamineQuestion::Modules,
        ] {
            let answer = here.answer(&servers, &servers.named[0], what).expect("an answer");
            assert!(matches!(&answer, Answer::Failed { what, .. } if what.contains("looked for")), "{answer:?}");
        }
        let beside = vec![ServerName { kind: "nginx".into(), config: None }];
        let refused = here.answer(&servers, &servers.named[0], ExamineQuestion::Find { beside, goal: goal.clone() });
        assert!(refused.expect_err("not its own").0.contains("not at 'nginx'"));
        // The agent replaces the servers of a goal by those of the question.
        let answer = here.answer(&servers, &servers.named[0], ExamineQuestion::Find { beside: Vec::new(), goal });
        let answer = answer.expect("an answer");
        assert!(matches!(&answer, Answer::Failed { what, .. } if what.contains("/a.conf")), "{answer:?}");
    }
}
