//! How an agent joins a fleet: with the agent-token it may only send a join request. Once admitted, it is a
//! broker user with its own subjects.

use std::time::Duration;

use async_nats::RequestErrorKind;

use crate::link::{Link, LinkError, Login, chain};
use crate::messages::{Join, JoinReply};
use crate::subjects::{JOIN, JOINER, inbox, user};
use crate::tokens::AgentToken;

/// An agent that wants to join.
#[derive(Debug, Clone)]
pub(crate) struct JoinAttempt {
    pub url: String,
    pub token: AgentToken,
    pub name: String,
    pub password: String,
}

/// The reason why an agent could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the fleet does not take an agent called {name}: {why}")]
    Refused { name: String, why: String },
}

impl JoinError {
    pub fn may_pass(&self) -> bool {
        matches!(self, JoinError::Link(e) if e.may_pass())
    }
}

impl JoinAttempt {
    /// Sends a join request.
    pub async fn ask(&self) -> Result<(), JoinError> {
        let login = Login {
            url: self.url.clone(),
            user: JOINER.into(),
            password: self.token.password(),
            certificate: *self.token.certificate(),
            inbox: inbox(JOINER),
        };
        let link = Link::open_patiently(&login).await?;
        let join = Join { name: self.name.clone(), password: self.password.clone() };
        let join = serde_json::to_vec(&join).expect("two texts are JSON");
        let answer = link.client.request(JOIN, join.into()).await;
        let _ = link.client.drain().await;
        match answer {
            Ok(message) => match serde_json::from_slice::<JoinReply>(&message.payload) {
                Ok(JoinReply { refused: Some(why) }) => Err(JoinError::Refused { name: self.name.clone(), why }),
                _ => Ok(()),
            },
            Err(e) if e.kind() == RequestErrorKind::NoResponders => {
                Err(self.not_yet("its broker does not answer join requests yet".into()))
            }
            Err(e) => Err(self.not_yet(chain(&e))),
        }
    }

    /// Sends a join request, then connects as the agent's own user.
    pub async fn enter(&self) -> Result<Link, JoinError> {
        match self.ask().await {
            // A broker run by the user admits nobody by itself: its users are fixed in its configuration.
            Err(JoinError::Link(LinkError::NotWelcome(_))) => return Ok(Link::open_patiently(&self.as_it_is()).await?),
            asked => asked?,
        }
        let login = Login {
            url: self.url.clone(),
            user: user(&self.name),
            password: self.password.clone(),
            certificate: *self.token.certificate(),
            inbox: inbox(&self.name),
        };
        // The broker takes a moment to reload its list of users.
        let mut tries = 0;
        loop {
            match Link::open(&login).await {
                Err(LinkError::NotWelcome(_)) if tries < 20 => tries += 1,
                Err(LinkError::NotWelcome(_)) => return Err(self.not_yet("it does not let the agent in yet".into())),
                entered => return Ok(entered?),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The login of a user that the broker already has.
    fn as_it_is(&self) -> Login {
        Login {
            url: self.url.clone(),
            user: user(&self.name),
            password: self.token.password_of(&self.name),
            certificate: *self.token.certificate(),
            inbox: inbox(&self.name),
        }
    }

    fn not_yet(&self, why: String) -> JoinError {
        JoinError::Link(LinkError::Unreachable { url: self.url.clone(), why })
    }
}
