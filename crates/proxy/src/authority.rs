//! The certificate authority of one recording. It signs only for the names that the user gave, and is valid for a week
//! at most.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};

use crate::folder::PrivateFolder;

const BEFORE: Duration = Duration::from_secs(24 * 3600);
const AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why no authority could be created.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("no folder for the certificate authority can be made: {0}")]
    Folder(#[from] io::Error),
    #[error("no certificate can be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("a certificate that was made is of no use: {0}")]
    Tls(#[from] rustls::Error),
}

/// The TLS configuration for servers of these names.
pub(crate) type Certificates = Arc<HashMap<String, Arc<ServerConfig>>>;

/// A certificate authority whose key is only in memory, so that it never outlives the recording.
#[derive(Debug)]
pub struct Authority {
    _folder: PrivateFolder,
    /// The certificate that a client has to trust, in PEM form.
    pub certificate: PathBuf,
    /// Base64 of the SHA-256 of its public key, for Chromium's `--ignore-certificate-errors-spki-list`.
    pub fingerprint: String,
    pub(crate) certificates: Certificates,
}

impl Authority {
    /// Creates an authority for these names, with a certificate for each.
    ///
    /// # Errors
    /// A name is not a valid server name, or a file cannot be written.
    pub fn new(names: &[String]) -> Result<Authority, AuthorityError> {
        let servers = names
            .iter()
            .map(|name| Ok(named(CertificateParams::new(vec![name.clone()])?, "lastdrop record: a server")));
        let servers = servers.collect::<Result<Vec<_>, rcgen::Error>>()?;
        let folder = PrivateFolder::new()?;
        let key = KeyPair::generate()?;
        let mut own = named(CertificateParams::new(Vec::<String>::new())?, "lastdrop record");
        own.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        own.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        own.name_constraints = Some(constraints(names));
        let certificate = own.self_signed(&key)?;
        let path = folder.write("ca.pem", &certificate.pem())?;
        let fingerprint = BASE64.encode(Sha256::digest(key.subject_public_key_info()));
        let issuer = Issuer::new(own, key);
        let server_key = KeyPair::generate()?;
        let mut certificates = HashMap::new();
        for (name, mut server) in names.iter().zip(servers) {
            server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            server.use_authority_key_identifier_extension = true;
            let signed = server.signed_by(&server_key, &issuer)?;
            // The authority's own certificate is sent too: Chromium looks for its key in the chain.
            let chain = vec![signed.der().clone(), certificate.der().clone()];
            certificates.insert(name.to_ascii_lowercase(), Arc::new(config(chain, &server_key)?));
        }
        Ok(Authority { _folder: folder, certificate: path, fingerprint, certificates: Arc::new(certificates) })
    }
}

/// Names a certificate. The authority's name must differ from those that it signs, or they look self-signed.
fn named(mut params: CertificateParams, name: &str) -> CertificateParams {
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + AFTER).into();
    params
}

/// Limits the damage of a stolen key: it can only impersonate these servers.
fn constraints(names: &[String]) -> NameConstraints {
    let subtree = |name: &String| match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => GeneralSubtree::IpAddress(CidrSubnet::V4(address.octets(), [255; 4])),
        Ok(IpAddr::V6(address)) => GeneralSubtree::IpAddress(CidrSubnet::V6(address.octets(), [255; 16])),
        Err(_) => GeneralSubtree::DnsName(name.clone()),
    };
    NameConstraints { permitted_subtrees: names.iter().map(subtree).collect(), excluded_subtrees: Vec::new() }
}

fn config(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Result<ServerConfig, rustls::Error> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_signs_for_names_and_addresses_and_knows_no_others() {
        let names = ["shop.test".to_string(), "127.0.0.1".to_string()];
        let authority = Authority::new(&names).expect("an authority");
        let mut known: Vec<&String> = authority.certificates.keys().collect();
        known.sort();
        assert_eq!(known, ["127.0.0.1", "shop.test"]);
        assert_eq!(authority.fingerprint.len(), 44);
        let path = authority.certificate.clone();
        let files = std::fs::read_dir(path.parent().expect("a folder")).expect("readable");
        let names: Vec<_> = files.map(|f| f.expect("an entry").file_name()).collect();
        assert_eq!(names, ["ca.pem"], "its key is in no file");
        drop(authority);
        assert!(!path.exists());
        assert!(Authority::new(&["bücher".to_string()]).is_err());
    }
}
