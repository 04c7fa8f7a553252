//! Certificates and keys out of PEM files, with errors that say what a file has instead.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificates in a text of PEM.
///
/// # Errors
/// When there are none, with what there is.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("it holds no certificate in PEM form{}", instead(pem))),
        other => other.map_err(|e| e.to_string()),
    }
}

/// The first private key in a text of PEM; `file` is what it is called.
///
/// # Errors
/// When there is none, and when it is encrypted: nobody is there to ask for its passphrase.
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

/// What a file has that does not have what is wanted.
fn instead(pem: &[u8]) -> String {
    let text = String::from_utf8_lossy(pem);
    let label = text.lines().find_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    match (label, pem) {
        (Some(label), _) => format!(", but: {label}"),
        // The first element of any DER here.
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
