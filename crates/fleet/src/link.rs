//! A connection to the broker, and the one thread that runs the NATS client.
//!
//! No authority signs the broker's certificate. It is accepted because its SHA-256 is in the token.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use lastdrop_wire::verify;
use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

use crate::tokens::{Digest, sha256};

/// A JetStream request without an answer is repeated after this time.
const ANSWER: Duration = Duration::from_secs(5);

/// Ping interval. After three pings without an answer the connection is closed and made again; TCP alone
/// would wait for as long again as the link was cut.
const PING: Duration = Duration::from_secs(2);
/// Time limit for a connection with its handshake; then it is tried again.
const CONNECTING: Duration = Duration::from_secs(5);

/// The client's thread. Callers block in their own threads (`wait`) while it sends and receives.
#[derive(Debug)]
pub(crate) struct Driver {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub fn start() -> std::io::Result<Arc<Driver>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("fleet".into()).spawn(move || {
            let _ = runtime.block_on(ended);
            // Names are resolved on the runtime's own threads; one that hangs must not delay shutdown.
            runtime.shutdown_background();
        })?;
        Ok(Arc::new(Driver { handle, end: Some(end), thread: Some(thread) }))
    }

    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{0:?} is no address of a broker: it looks like tls://host:4222, as `lastdrop fleet up` prints it")]
    Url(String),
    #[error("the broker at {0} does not let us in: the token is of another fleet, or of one that was set up anew")]
    NotWelcome(String),
    #[error(
        "the broker at {0} shows another certificate than the one the token is for: a token of another fleet, or somebody in between"
    )]
    OtherCertificate(String),
    #[error("no broker at {url}: {why}")]
    Unreachable { url: String, why: String },
    #[error("no thread for the connection: {0}")]
    System(#[from] std::io::Error),
}

impl LinkError {
    /// Returns whether another try may succeed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, LinkError::Unreachable { .. })
    }
}

/// Address, user and password for a connection.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub url: String,
    pub user: String,
    pub password: String,
    pub certificate: Digest,
    pub inbox: String,
}

/// A connection that is made again whenever it breaks, without limit.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub client: Client,
    pub jetstream: Context,
    /// Whether the connection is up now.
    pub up: watch::Receiver<bool>,
}

impl Link {
    pub async fn open(login: &Login) -> Result<Link, LinkError> {
        let url = &login.url;
        if !url.starts_with("tls://") || url.contains(char::is_whitespace) {
            return Err(LinkError::Url(url.clone()));
        }
        let pin = Arc::new(PinnedVerifier {
            certificate: login.certificate,
            provider: verify::provider(),
            another: AtomicBool::new(false),
        });
        let tls = verify::client(Arc::clone(&pin) as Arc<dyn ServerCertVerifier>)
            .map_err(|e| LinkError::Unreachable { url: url.clone(), why: e.to_string() })?;
        let (tell, up) = watch::channel(false);
        let tell = Arc::new(tell);
        let options = ConnectOptions::with_user_and_password(login.user.clone(), login.password.clone())
            .require_tls(true)
            .tls_client_config(tls)
            .custom_inbox_prefix(&login.inbox)
            .ignore_discovered_servers()
            .connection_timeout(CONNECTING)
            .ping_interval(PING)
            .max_reconnects(None)
            .reconnect_delay_callback(|attempts| Duration::from_millis((50 << attempts.min(6)).min(2_000)))
            .event_callback(move |event| {
                match event {
                    Event::Connected => drop(tell.send(true)),
                    Event::Disconnected | Event::Closed => drop(tell.send(false)),
                    _ => {}
                }
                async {}
            });
        let client = options.connect(url.as_str()).await.map_err(|e| match e.kind() {
            ConnectErrorKind::ServerParse => LinkError::Url(url.clone()),
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                LinkError::NotWelcome(url.clone())
            }
            _ if pin.another.load(Ordering::Relaxed) => LinkError::OtherCertificate(url.clone()),
            _ => LinkError::Unreachable { url: url.clone(), why: chain(&e) },
        })?;
        let jetstream = ContextBuilder::new().timeout(ANSWER).ack_timeout(ANSWER).build(client.clone());
        Ok(Link { client, jetstream, up })
    }

    /// Like `open`, but repeats a refused login. nats-server refuses everyone for some milliseconds while it
    /// reloads its users, so a single refusal does not prove that the user is unknown.
    pub async fn open_patiently(login: &Login) -> Result<Link, LinkError> {
        for _ in 0..5 {
            match Link::open(login).await {
                Err(LinkError::NotWelcome(_)) => tokio::time::sleep(Duration::from_millis(200)).await,
                other => return other,
            }
        }
        Link::open(login).await
    }

    pub fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Waits until the connection is up.
    pub async fn wait_up(&self) {
        // The sender lives as long as the client, so it outlives this call.
        let _ = self.up.clone().wait_for(|up| *up).await;
    }

    /// Waits until the connection is down.
    pub async fn wait_down(&self) {
        let _ = self.up.clone().wait_for(|up| !*up).await;
    }
}

/// Repeats a JetStream request for up to 5 s. JetStream is away for a moment while nats-server starts, or
/// reloads its users because an agent has joined.
pub(crate) async fn patiently<T, E, F: Future<Output = Result<T, E>>>(mut ask: impl FnMut() -> F) -> Result<T, E> {
    for _ in 0..25 {
        if let Ok(answer) = ask().await {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ask().await
}

/// Formats an error with its causes, without repetitions.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text
}

/// Accepts one certificate, identified by its digest.
#[derive(Debug)]
struct PinnedVerifier {
    certificate: Digest,
    provider: Arc<CryptoProvider>,
    /// Whether the server showed a different certificate.
    another: AtomicBool,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if sha256(end_entity) == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        self.another.store(true, Ordering::Relaxed);
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
