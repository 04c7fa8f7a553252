//! An agent's side of a doctor's questions: its machine, of which only the servers are looked at that were named at its start, and what
//! connects these to each other.

use std::sync::mpsc::{Receiver, channel};

use lastdrop_doctor::{Goal, LocalSite, ModuleTrials, Site};
use lastdrop_fleet::EngineError;
use lastdrop_lab::LabError;
use lastdrop_looks::databases::DatabaseOptions;
use lastdrop_model::{Sample, Url};
use lastdrop_probe::listeners::is_local;
use lastdrop_server::ServerRef;

use super::questions::{Answer, Examine, Examined, Named};
use super::respond::Servers;

/// The machine in one conversation. Dropped, it is looked at no longer.
#[derive(Debug, Default)]
pub struct ExaminedHere(Option<Found>);

#[derive(Debug)]
struct Found {
    site: LocalSite,
    told: Receiver<Sample>,
    url: Url,
}

impl ExaminedHere {
    /// The answer to a question about a server, which is one of these.
    ///
    /// # Errors
    /// When it is refused: another server is none of them.
    pub fn answer(&mut self, servers: &Servers, server: &ServerRef, what: Examine) -> Result<Answer, EngineError> {
        let answer = match what {
            Examine::Find { beside, goal } => self.find(servers, server, &beside, *goal)?,
            what => self.carry_out(what),
        };
        Ok(answer.unwrap_or_else(|e| Answer::Failed { what: e.to_string(), refusal: false }))
    }

    fn find(
        &mut self,
        servers: &Servers,
        first: &ServerRef,
        beside: &[Named],
        goal: Goal,
    ) -> Result<Result<Answer, LabError>, EngineError> {
        let mut wanted = vec![first];
        for named in beside {
            wanted.push(servers.meant(named)?);
        }
        let called = wanted.iter().map(|server| server.called().to_string()).collect();
        let goal = Goal { servers: wanted.iter().map(ToString::to_string).collect(), ..goal };
        let (tell, told) = channel();
        // What is asked about databases is the agent's own affair: no password comes from elsewhere.
        let site = LocalSite::only(&servers.named, DatabaseOptions::default(), tell);
        let found = self.0.insert(Found { site, told, url: goal.url.clone() }).site.find(&goal);
        Ok(found.map(|machine| examined(Examined::Found { machine, called })))
    }

    fn carry_out(&mut self, what: Examine) -> Result<Answer, LabError> {
        let none = || LabError::Other("no servers have been looked for yet".into());
        let Found { site, told, url } = self.0.as_mut().ok_or_else(none)?;
        Ok(match what {
            // Told already.
            Examine::Find { .. } => Answer::Done,
            Examine::Visitors => examined(Examined::Visitors(site.visitors()?)),
            Examine::Follow => done(site.follow()?),
            Examine::Servers => examined(Examined::Servers(site.servers()?)),
            Examine::Begin => {
                // Those from before are of no load.
                told.try_iter().for_each(drop);
                done(site.begin()?)
            }
            Examine::Looks => examined(Examined::Looks(told.try_iter().collect())),
            Examine::End => examined(Examined::Step(Box::new(site.end()?))),
            Examine::Inside { profile } => examined(Examined::Inside(site.inside(profile)?)),
            Examine::Memory { requests } => done(site.memory(requests)?),
            Examine::Settle => done(site.settle()?),
            // The server is asked for the URL, and nobody else is.
            Examine::Modules if lastdrop_load::resolve(url).is_ok_and(|address| is_local(&address)) => {
                examined(Examined::Modules(site.modules()?))
            }
            Examine::Modules => {
                let why = "which modules it could do without: the URL leads to another machine";
                examined(Examined::Modules(ModuleTrials { unseen: vec![why.into()], ..ModuleTrials::default() }))
            }
            Examine::Rest => examined(Examined::Rest(site.finish()?)),
        })
    }
}

fn examined(what: Examined) -> Answer {
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
        let servers = Servers { agent: "a".into(), named, act: false };
        let goal = Box::new(Goal {
            servers: vec!["target".into()],
            url: "http://127.0.0.1:1/".parse().expect("a URL"),
            address: None,
            unix_socket: None,
            load_from: Vec::new(),
            ignore: Vec::new(),
        });
        let mut here = ExaminedHere::default();
        for what in [Examine::Begin, Examine::End, Examine::Inside { profile: true }, Examine::Modules] {
            let answer = here.answer(&servers, &servers.named[0], what).expect("an answer");
            assert!(matches!(&answer, Answer::Failed { what, .. } if what.contains("looked for")), "{answer:?}");
        }
        let beside = vec![Named { kind: "nginx".into(), config: None }];
        let refused = here.answer(&servers, &servers.named[0], Examine::Find { beside, goal: goal.clone() });
        assert!(refused.expect_err("not its own").0.contains("not at 'nginx'"));
        // The servers of the question are those of its start, whatever a goal says.
        let answer = here.answer(&servers, &servers.named[0], Examine::Find { beside: Vec::new(), goal });
        let answer = answer.expect("an answer");
        assert!(matches!(&answer, Answer::Failed { what, .. } if what.contains("/a.conf")), "{answer:?}");
    }
}
