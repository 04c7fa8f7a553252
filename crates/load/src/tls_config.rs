//! The TLS configuration: certificates, authorities, keys, and the sessions that a thread remembers.

use std::path::Path;
use std::sync::Arc;

use lastdrop_model::plan::{HttpOptions, TlsOptions};
use lastdrop_wire::{AcceptAnyCertificate, Verifier, pem, verify};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::error::LoadError;
use crate::files::Files;
use crate::protocol::offered;

/// Sessions that a thread remembers for resumption, one per server.
const SESSIONS: usize = 64;

/// Creates one configuration per thread. Each has its own sessions to resume, so that threads share no lock.
///
/// # Errors
/// A file cannot be read or does not hold what it should.
pub fn configs(
    options: &TlsOptions,
    http: &HttpOptions,
    threads: usize,
    files: &Files,
) -> Result<Vec<Arc<ClientConfig>>, LoadError> {
    let mut config = config(options, files)?;
    config.alpn_protocols = offered(http);
    let own = |mut config: ClientConfig| {
        if options.resumption {
            config.resumption = Resumption::in_memory_sessions(SESSIONS);
        }
        Arc::new(config)
    };
    Ok((0..threads).map(|_| own(config.clone())).collect())
}

fn config(options: &TlsOptions, files: &Files) -> Result<ClientConfig, LoadError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let wrong = |what: String| LoadError::Tls(what);
    let versions: &[&rustls::SupportedProtocolVersion] = match options.version.as_deref() {
        None => rustls::ALL_VERSIONS,
        Some("1.2") => &[&rustls::version::TLS12],
        Some("1.3") => &[&rustls::version::TLS13],
        Some(other) => return Err(wrong(format!("TLS version '{other}' is not known; 1.2 and 1.3 are"))),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|e| wrong(e.to_string()))?;
    let builder = if options.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate::new(provider)))
    } else {
        let given = options.ca.as_deref().map(|path| certificates(path, files)).transpose()?.unwrap_or_default();
        let mut roots = RootCertStore::empty();
        // A machine without certificates is no error if --ca names one.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let of = options.ca.as_deref().map_or(String::new(), |path| format!("{}: ", path.display()));
        let verifier = Verifier::new(roots, given, provider).map_err(|e| {
            wrong(format!("{of}{e}; name your own authority with --ca FILE, or look away with --insecure"))
        })?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let mut config = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let file = key.display().to_string();
            let no_key = |e: &dyn std::fmt::Display| wrong(format!("no private key can be read from {file}: {e}"));
            let text = files.read(key).map_err(|e| no_key(&e))?;
            let key_der = pem::private_key(&text, &file).map_err(|e| no_key(&e))?;
            builder
                .with_client_auth_cert(certificates(certificate, files)?, key_der)
                .map_err(|e| wrong(format!("the client certificate {}: {e}", certificate.display())))?
        }
        _ => builder.with_no_client_auth(),
    };
    if !options.resumption {
        config.resumption = Resumption::disabled();
    }
    config.enable_sni = !options.no_sni;
    Ok(config)
}

fn certificates(path: &Path, files: &Files) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let wrong = |what: String| LoadError::Tls(format!("no certificates can be read from {}: {what}", path.display()));
    pem::certificates(&files.read(path).map_err(|e| wrong(e.to_string()))?).map_err(wrong)
}

/// Describes a TLS error, with the option that helps.
#[must_use]
pub fn failure(e: &rustls::Error) -> String {
    let help = match e {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForNameContext { .. } | CertificateError::NotValidForName,
        ) => "; use a name of its own in the URL, verify another with --server-name NAME, or take any with --insecure",
        e if verify::can_be_given(e) => "; name it, or its authority, with --ca FILE, or take any with --insecure",
        rustls::Error::InvalidCertificate(_) => "; --insecure takes any certificate",
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "; it does not speak the version of HTTP that was offered, and --http 2 or --http 1.1 offers another"
        }
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => "; --server-name NAME asks for another",
        e if verify::is_about_client_certificate(e) => "; --cert FILE --key FILE give one",
        _ => "",
    };
    format!("TLS: {}{help}", verify::why(e))
}

/// The name to request and to verify.
///
/// # Errors
/// It is neither a host name nor an address.
pub fn server_name(host: &str, options: &TlsOptions) -> Result<ServerName<'static>, LoadError> {
    let name = options.server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_string()).map_err(|_| {
        LoadError::Tls(format!("'{name}' cannot be the name of a TLS server; --server-name gives another"))
    })
}
