//! The layer between a peer and its socket: none, or TLS.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{ServerConfig, ServerConnection};

/// The TLS configuration for the servers of one run. Each run has its own sessions to resume: it must not depend on the
/// previous one.
///
/// # Panics
/// Never: key and certificate are part of the program.
#[must_use]
pub fn server_config(protocols: &[&str]) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("peer-cert.pem")).expect("a certificate of ours");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("peer-key.pem")).expect("its key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder
        .expect("versions that the provider has")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("the key of the certificate");
    config.session_storage = ServerSessionMemoryCache::new(64);
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

#[derive(Debug)]
pub enum Layer {
    /// Not known before the first byte.
    Unknown,
    Plain,
    Tls(Box<ServerConnection>),
}

/// The output of a layer.
#[derive(Debug, Default)]
pub struct LayerOutput {
    pub plain: Vec<u8>,
    /// Bytes to send at once: handshake messages.
    pub raw: Vec<u8>,
    pub broken: bool,
}

impl Layer {
    pub fn is_tls(&self) -> bool {
        matches!(self, Layer::Tls(_))
    }

    pub fn receive(&mut self, mut bytes: &[u8], config: Option<&Arc<ServerConfig>>) -> LayerOutput {
        let mut through = LayerOutput::default();
        if let (Layer::Unknown, Some(first)) = (&*self, bytes.first()) {
            let tls = config.filter(|_| *first == 0x16).and_then(|c| ServerConnection::new(Arc::clone(c)).ok());
            *self = tls.map_or(Layer::Plain, |tls| Layer::Tls(Box::new(tls)));
        }
        match self {
            Layer::Unknown => {}
            Layer::Plain => through.plain = bytes.to_vec(),
            Layer::Tls(tls) => {
                while !bytes.is_empty() {
                    let taken = tls.read_tls(&mut bytes).unwrap_or(0);
                    through.broken |= tls.process_new_packets().is_err();
                    let _ = tls.reader().read_to_end(&mut through.plain);
                    if taken == 0 || through.broken {
                        break;
                    }
                }
                drain(tls, &mut through.raw);
            }
        }
        through
    }

    /// Encrypts bytes. Returns the bytes to send, and where in them the first byte becomes readable.
    pub fn wrap(&mut self, plain: &[u8]) -> (Vec<u8>, usize) {
        let Layer::Tls(tls) = self else { return (plain.to_vec(), 1) };
        let mut raw = Vec::new();
        // One record for the first bytes, others for the rest.
        let (first, rest) = plain.split_at(plain.len().min(1000));
        let _ = tls.writer().write_all(first);
        drain(tls, &mut raw);
        let readable = raw.len();
        for piece in rest.chunks(10_000) {
            let _ = tls.writer().write_all(piece);
            drain(tls, &mut raw);
        }
        (raw, readable)
    }

    /// Returns a close_notify, if the layer is TLS.
    pub fn goodbye(&mut self) -> Vec<u8> {
        let mut raw = Vec::new();
        if let Layer::Tls(tls) = self {
            tls.send_close_notify();
            drain(tls, &mut raw);
        }
        raw
    }
}

fn drain(tls: &mut ServerConnection, raw: &mut Vec<u8>) {
    while tls.wants_write() {
        if tls.write_tls(raw).is_err() {
            break;
        }
    }
}
