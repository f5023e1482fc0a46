//! An authority of one's own, and whom a client trusts.
//!
//! A daemon that is not given a certificate makes an authority in its directory at its first start, and by it a certificate
//! for the names under which it is reached at each start. Clients are told the authority by an access file, agents' by
//! the document with which they join: no other authority counts for them.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroize as _;

/// A key file is no longer than this.
const KEY_LEN_MAX: u64 = 1 << 20;
/// The name of an authority that a daemon makes for itself.
const OWN_NAME: &str = "netraid authority";
/// How a certificate ends in PEM (RFC 7468).
const PEM_END: &str = "-----END CERTIFICATE-----";

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// A certificate or key is none.
    #[error("{what}: {why}")]
    Pem {
        /// Which.
        what: String,
        /// Why not.
        why: String,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A certificate cannot be used.
    #[error("cannot use the certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// What a server shows, and what its clients are to trust.
#[derive(Debug, Clone)]
pub struct Identity {
    /// For the server.
    pub server: Arc<ServerConfig>,
    /// For its clients, in PEM.
    pub authority: String,
}

impl Identity {
    /// By the authority of `directory`, made there if there is none, for these names and addresses.
    ///
    /// # Errors
    /// When files or certificates fail.
    pub fn own(directory: &Path, names: &[String]) -> Result<Self, TlsError> {
        let (key_path, cert_path) =
            (directory.join("authority.key"), directory.join("authority.pem"));
        let io = |path: &Path| {
            let path = path.display().to_string();
            move |source| TlsError::Io { path, source }
        };
        let key = match read_own(&key_path) {
            Ok(text) => KeyPair::from_pem(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = KeyPair::generate()?;
                let pem = key.serialize_pem();
                netraid_private::replace(&key_path, pem.as_bytes()).map_err(io(&key_path))?;
                key
            }
            Err(error) => return Err(io(&key_path)(error)),
        };
        let params = authority_params()?;
        let authority = match read_own(&cert_path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = params.self_signed(&key)?.pem();
                netraid_private::replace(&cert_path, text.as_bytes()).map_err(io(&cert_path))?;
                text
            }
            Err(error) => return Err(io(&cert_path)(error)),
        };
        let server_key = KeyPair::generate()?;
        let mut server = CertificateParams::new(names)?;
        server.distinguished_name.push(DnType::CommonName, "netraid");
        server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        server.not_after = date_time_ymd(2099, 1, 1);
        let cert = server.signed_by(&server_key, &Issuer::new(params, key))?;
        let key = PrivateKeyDer::try_from(server_key.serialize_der())
            .map_err(|why| TlsError::Pem { what: "new key".to_owned(), why: why.to_owned() })?;
        Ok(Self { server: server_config(vec![cert.der().clone()], key)?, authority })
    }

    /// By a certificate and key of the user's, in PEM; `authority` is whom clients are to trust for it.
    ///
    /// # Errors
    /// When files or certificates fail, or the key is somebody else's or can be read by others than its owner
    /// and its group.
    pub fn given(cert: &Path, key: &Path, authority: &Path) -> Result<Self, TlsError> {
        let pem = |path: &Path, error: rustls::pki_types::pem::Error| TlsError::Pem {
            what: path.display().to_string(),
            why: error.to_string(),
        };
        let chain = CertificateDer::pem_file_iter(cert).map_err(|error| pem(cert, error))?;
        let chain: Result<Vec<_>, _> = chain.collect();
        let chain = chain.map_err(|error| pem(cert, error))?;
        let mut text = read_key(key)
            .map_err(|source| TlsError::Io { path: key.display().to_string(), source })?;
        let parsed = PrivateKeyDer::from_pem_slice(&text);
        text.zeroize();
        let key = parsed.map_err(|error| pem(key, error))?;
        let authority = fs::read_to_string(authority)
            .map_err(|source| TlsError::Io { path: authority.display().to_string(), source })?;
        Ok(Self { server: server_config(chain, key)?, authority })
    }
}

/// A key that the user named.
fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    netraid_private::open_key(path)?.take(KEY_LEN_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// A file that an earlier start of the daemon wrote: nobody else's counts.
fn read_own(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    netraid_private::open(path, netraid_private::Mode::Read)?.read_to_string(&mut text)?;
    Ok(text)
}

fn authority_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, OWN_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_after = date_time_ymd(2099, 1, 1);
    Ok(params)
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The keys of authorities, as digests of their public keys (SHA-256 of the SubjectPublicKeyInfo), and
/// whether all of these are such as a daemon makes for itself ([`Identity::own`]).
///
/// # Errors
/// When they are none.
pub fn authority_keys(authority: Option<&str>) -> Result<(BTreeSet<[u8; 32]>, bool), TlsError> {
    let roots = roots(authority)?.roots;
    let is_own = |anchor: &TrustAnchor<'_>| {
        anchor.subject.windows(OWN_NAME.len()).any(|part| part == OWN_NAME.as_bytes())
    };
    let key = |anchor: &TrustAnchor<'_>| Sha256::digest(&anchor.subject_public_key_info).into();
    let all_own = !roots.is_empty() && roots.iter().all(is_own);
    Ok((roots.iter().map(key).collect(), all_own))
}

/// Those of these authorities whose keys, as [`authority_keys`] has them, are among `keys`; none when none
/// are.
#[must_use]
pub fn authorities_of(authority: &str, keys: &BTreeSet<[u8; 32]>) -> Option<String> {
    let is_one = |pem: &&str| {
        let found = authority_keys(Some(*pem)).map(|(found, _)| found).unwrap_or_default();
        !found.is_empty() && found.is_subset(keys)
    };
    let known: String = authority.split_inclusive(PEM_END).filter(is_one).collect();
    (!known.is_empty()).then_some(known)
}

fn roots(authority: Option<&str>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(authority.unwrap_or_default().as_bytes()) {
        let what = || "authority".to_owned();
        let cert = cert.map_err(|error| TlsError::Pem { what: what(), why: error.to_string() })?;
        roots.add(cert)?;
    }
    Ok(roots)
}

/// What a client uses that trusts these authorities alone; nobody when none.
///
/// # Errors
/// When they are none.
pub fn client_config(authority: Option<&str>) -> Result<ClientConfig, TlsError> {
    let roots = roots(authority)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(["localhost".to_owned()]).unwrap();
        fs::write(path("cert.pem"), cert.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(path("key1.pem"), key.serialize_pem()).unwrap();
        symlink("key1.pem", path("key.pem")).unwrap();
        let given = |mode: u32| {
            fs::set_permissions(path("key1.pem"), fs::Permissions::from_mode(mode)).unwrap();
            Identity::given(&path("cert.pem"), &path("key.pem"), &path("cert.pem"))
        };
        for mode in [0o600, 0o640] {
            assert!(given(mode).is_ok(), "{mode:o}");
        }
        for mode in [0o644, 0o666] {
            let error = given(mode).unwrap_err().to_string();
            assert!(error.contains("key.pem") && error.contains("chmod 600"), "{mode:o}: {error}");
        }
    }

    #[test]
    fn an_authority_is_known_by_its_key_and_not_by_its_name() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let of = |directory: &tempfile::TempDir| {
            let names = ["localhost".to_owned()];
            Identity::own(directory.path(), &names).unwrap().authority
        };
        let keys = |pem: &str| authority_keys(Some(pem)).unwrap();
        let (mine, theirs) = (of(&one), of(&other));
        assert_eq!(keys(&mine), keys(&of(&one)));
        assert!(keys(&mine).0.is_disjoint(&keys(&theirs).0));
        assert!(keys(&mine).1 && keys(&mine).0.len() == 1);
        // A new certificate of the same key is the same authority.
        fs::remove_file(one.path().join("authority.pem")).unwrap();
        assert_eq!(keys(&mine), keys(&of(&one)));
        let both = format!("{mine}{theirs}");
        assert!(keys(&both).0.is_superset(&keys(&mine).0) && keys(&both).0.len() == 2);
        // Somebody else's authority vouches for whomever it likes.
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "company");
        let company = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        assert!(!keys(&company).1 && !keys(&format!("{mine}{company}")).1);
        assert_eq!(authorities_of(&both, &keys(&theirs).0).unwrap().trim(), theirs.trim());
        assert_eq!(authorities_of(&both, &keys(&both).0).unwrap(), both.trim_end());
        assert_eq!(authorities_of(&mine, &keys(&theirs).0), None);
        assert_eq!(authority_keys(None).unwrap(), (BTreeSet::new(), false));
        assert!(
            authority_keys(Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"))
                .is_err()
        );
    }
}
