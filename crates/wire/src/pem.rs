//! Reads certificates and keys from PEM files, with errors that say what the file has instead.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads the certificates in a PEM text.
///
/// # Errors
/// There is none; the error says what the text has instead.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("it holds no certificate in PEM form{}", instead(pem))),
        other => other.map_err(|e| e.to_string()),
    }
}

/// Reads the first private key in a PEM text; `file` is its name for errors.
///
/// # Errors
/// There is none, or it is encrypted: nobody can be asked for its passphrase.
pub fn private_key(pem: &[u8], file: &str) -> Result<PrivateKeyDer<'static>, String> {
    let has = |words: &str| pem.windows(words.len()).any(|w| w == words.as_bytes());
    // PKCS #8, and OpenSSL's older form.
    if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") {
        return Err(format!(
            "it is encrypted: openssl pkey -in {file} -out PLAIN.pem writes it without its passphrase"
        ));
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|e| match e {
        rustls::pki_types::pem::Error::NoItemsFound => format!("it holds no private key in PEM form{}", instead(pem)),
        other => other.to_string(),
    })
}

/// Describes what a file has instead of what was expected.
fn instead(pem: &[u8]) -> String {
    let text = String::from_utf8_lossy(pem);
    let label = text.lines().find_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    match (label, pem) {
        (Some(label), _) => format!(", but: {label}"),
        // Any DER of interest here begins with this element.
        (None, [0x30, 0x80..=0xff, ..]) => {
            ", and seems to be DER: openssl x509 or pkey with -inform DER writes PEM".into()
        }
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_used_says_why() {
        let of = |text: &str| private_key(text.as_bytes(), "k.pem").map(|_| ()).expect_err(text);
        let encrypted = of("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n");
        assert!(encrypted.contains("is encrypted: openssl pkey -in k.pem -out"), "{encrypted}");
        let old = of(
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: x\n\nMIIB\n-----END RSA PRIVATE KEY-----\n",
        );
        assert!(old.contains("is encrypted"), "{old}");
        let public = of("-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n");
        assert_eq!(public, "it holds no private key in PEM form, but: PUBLIC KEY");
        assert_eq!(of("hello"), "it holds no private key in PEM form");
        let der = certificates(include_bytes!("../tests/p256.der")).expect_err("no PEM");
        assert!(der.contains("seems to be DER"), "{der}");
    }
}
