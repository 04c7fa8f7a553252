//! Receives the agents' join requests and answers them.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use async_nats::{RequestErrorKind, Subject};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::coordinator::Fleet;
use crate::messages::{Join, JoinReply};
use crate::subjects::{JOIN, is_agent_name, ping};

/// A join request of an agent.
#[derive(Debug)]
pub(super) struct JoinRequest {
    pub join: Join,
    reply: Subject,
}

#[derive(Debug)]
pub(super) struct Admission(Receiver<JoinRequest>);

/// Starts to receive join requests.
pub(super) fn open(fleet: &Fleet) -> Admission {
    let (give, requests) = channel();
    let client = fleet.link.client.clone();
    let listening = fleet.driver.wait(async {
        let asked = client.subscribe(JOIN).await;
        let _ = client.flush().await;
        asked
    });
    if let Ok(mut asked) = listening {
        fleet.driver.spawn(async move {
            while let Some(message) = asked.next().await {
                let Some(reply) = message.reply else { continue };
                // The password goes into a configuration file, so allow hexadecimal digits only.
                let sound = |join: &Join| {
                    is_agent_name(&join.name)
                        && join.password.len() == 64
                        && join.password.bytes().all(|b| b.is_ascii_hexdigit())
                };
                match serde_json::from_slice::<Join>(&message.payload) {
                    Ok(join) if sound(&join) => drop(give.send(JoinRequest { join, reply })),
                    _ => {}
                }
            }
        });
    }
    Admission(requests)
}

impl Admission {
    pub fn next(&self, timeout: Duration) -> Option<JoinRequest> {
        self.0.recv_timeout(timeout).ok()
    }
}

impl JoinRequest {
    pub fn answer(self, fleet: &Fleet, refused: Option<String>) {
        let answer = serde_json::to_vec(&JoinReply { refused }).unwrap_or_default();
        let client = &fleet.link.client;
        let sent = async { client.publish(self.reply, answer.into()).await.is_ok() && client.flush().await.is_ok() };
        // An agent without an answer repeats its request.
        let _ = fleet.driver.wait(async { tokio::time::timeout(Duration::from_secs(2), sent).await });
    }
}

/// Returns whether an agent of that name is connected.
pub(super) fn is_there(fleet: &Fleet, name: &str) -> bool {
    let asked = fleet.link.client.request(ping(name), Bytes::new());
    let answer = fleet.driver.wait(async { tokio::time::timeout(Duration::from_secs(3), asked).await });
    !matches!(answer, Ok(Err(e)) if e.kind() == RequestErrorKind::NoResponders)
}
