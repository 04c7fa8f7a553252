//! TLS with the user's certificate, or with a temporary one that the user checks by its fingerprint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lastdrop_files::input;
use lastdrop_wire::pem;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};

use crate::UiError;

const BEFORE: Duration = Duration::from_secs(24 * 3600);
const AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads certificates and key from the user's files, in PEM format.
pub fn of_files(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, UiError> {
    let read = |path: &Path| input::read(path).map_err(|e| wrong(path, e));
    let (chain, key_pem) = (read(certificate)?, read(key)?);
    let chain = pem::certificates(&chain).map_err(|e| wrong(certificate, e))?;
    let key_der = pem::private_key(&key_pem, &key.display().to_string()).map_err(|e| wrong(key, e))?;
    config(chain, key_der).map_err(|e| wrong(certificate, e))
}

fn wrong(path: &Path, what: impl ToString) -> UiError {
    UiError::File { path: PathBuf::from(path), what: what.to_string() }
}

/// Creates a self-signed certificate for these names, and returns its SHA-256 as browsers show it.
pub fn made(names: Vec<String>) -> Result<(Arc<ServerConfig>, String), UiError> {
    let failed = |e: rcgen::Error| UiError::Certificate(e.to_string());
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "lastdrop ui");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + AFTER).into();
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let fingerprint: Vec<String> = Sha256::digest(certificate.der()).iter().map(|b| format!("{b:02X}")).collect();
    let key_der = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = config(vec![certificate.der().clone()], key_der).map_err(|e| UiError::Certificate(e.to_string()))?;
    Ok((config, fingerprint.join(":")))
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}
