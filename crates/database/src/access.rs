//! The address of a database and the user to log in as: `postgres://user@host:5432/name`,
//! `mysql://user@localhost/?socket=/run/x.sock`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lastdrop_model::DatabaseService;

/// A password. `Debug` prints a mark instead of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Password {
        Password(text.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(lastdrop_model::secrets::MARK)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseAddress {
    Tcp(String, u16),
    /// A path; `@name` for an abstract socket.
    Unix(PathBuf),
}

/// Whether a connection over TCP is encrypted; a unix socket never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    Never,
    /// TLS if the server offers it. A certificate that cannot be verified counts as no encryption.
    #[default]
    Offered,
    /// Always, whether or not the certificate can be verified.
    Required,
    /// Always, and the certificate is verified against the host's name.
    Verified,
}

/// The TLS settings of a connection to a database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsChoice {
    pub mode: TlsMode,
    /// A PEM file with authorities, or with the server's own certificate, trusted in addition to the system's.
    pub ca: Option<PathBuf>,
}

/// The address of a database and the user to log in as. `Display` leaves out the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub service: DatabaseService,
    pub address: DatabaseAddress,
    pub user: String,
    pub password: Option<Password>,
    pub database: Option<String>,
    pub tls: TlsChoice,
    /// The user that the server at a unix socket has to run as (`requirepeer`).
    pub server_user: Option<String>,
    /// The process whose namespaces the address belongs to; None for ours.
    pub within: Option<i32>,
    /// The local user that the connection is opened as (peer authentication); None for our own.
    pub as_user: Option<u32>,
}

impl Access {
    /// Logs in as the user that runs this program.
    #[must_use]
    pub fn of_ourselves(service: DatabaseService, address: DatabaseAddress) -> Access {
        let own = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
        let user = own.map_or_else(|| "root".into(), |u| u.name);
        Access {
            service,
            address,
            user,
            password: None,
            database: None,
            tls: TlsChoice::default(),
            server_user: None,
            within: None,
            as_user: None,
        }
    }

    /// Adds a password unless the URL has one.
    #[must_use]
    pub fn or_password(self, password: Option<&Password>) -> Access {
        Access { password: self.password.or_else(|| password.cloned()), ..self }
    }

    /// Adds the authority that signed the server's certificate, unless the URL names one.
    #[must_use]
    pub fn or_ca(mut self, ca: Option<&Path>) -> Access {
        if let (None, Some(ca)) = (&self.tls.ca, ca) {
            self.tls.ca = Some(ca.to_path_buf());
            if self.tls.mode == TlsMode::Offered {
                self.tls.mode = TlsMode::Verified;
            }
        }
        self
    }

    /// Logs in as the user that a local database trusts. For MariaDB and MySQL that is our own user. For PostgreSQL, if
    /// we are root, it is the user that the server runs as, because that user is its administrator.
    #[must_use]
    pub fn local(service: DatabaseService, address: DatabaseAddress, server: i32) -> Access {
        let mut access = Access::of_ourselves(service, address);
        // /proc hides the namespaces of another user's process. Then the address is looked up in our own.
        let elsewhere = |name: &str| {
            let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
            of(&server.to_string()).is_some_and(|theirs| of("self") != Some(theirs))
        };
        access.within = ["ns/net", "ns/mnt", "root"].into_iter().any(elsewhere).then_some(server);
        let owner = std::fs::metadata(format!("/proc/{server}")).map(|m| std::os::unix::fs::MetadataExt::uid(&m)).ok();
        let is_root = nix::unistd::geteuid().is_root();
        if let (DatabaseService::Postgresql, Some(owner), true) = (service, owner, is_root)
            && let Ok(Some(user)) = nix::unistd::User::from_uid(owner.into())
        {
            access.user = user.name;
            access.as_user = Some(owner);
        }
        access
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Access, String> {
        let example = "write postgres://user@host/name or mysql://user@host/, for a local socket mysql://user@localhost/?socket=/path";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("this is no database's URL; {example}"))?;
        let service = match scheme {
            "postgres" | "postgresql" => DatabaseService::Postgresql,
            "mysql" | "mariadb" => DatabaseService::Mysql,
            other => return Err(format!("a database of the kind '{other}' cannot be looked at; {example}")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        let (host, port) = match host.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']')) {
            Some((host, port)) => (host, Some(port)),
            None => (host, None),
        };
        let port = match port {
            Some(port) => {
                port.parse::<u16>().ok().filter(|p| *p > 0).ok_or(format!("'{port}' is no port; {example}"))?
            }
            None => service.port(),
        };
        let mut address = DatabaseAddress::Tcp(decoded(host.trim_start_matches('[').trim_end_matches(']'))?, port);
        let (mut mode, mut ca, mut server_user) = (None, None, None);
        for parameter in query.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value)?;
            match name {
                "socket" => address = DatabaseAddress::Unix(value.into()),
                // libpq's form: the folder of the socket.
                "host" if service == DatabaseService::Postgresql && value.starts_with('/') => {
                    address = DatabaseAddress::Unix(Path::new(&value).join(format!(".s.PGSQL.{port}")));
                }
                "sslmode" | "ssl-mode" => mode = Some(tls_mode(&value)?),
                "sslrootcert" | "ssl-ca" => ca = Some(PathBuf::from(value)),
                "requirepeer" => server_user = Some(value),
                _ => {
                    return Err(
                        "after the '?' of a database's URL these are known: socket=/path, host=/folder (PostgreSQL), \
                                sslmode=, sslrootcert=FILE, requirepeer=USER"
                            .into(),
                    );
                }
            }
        }
        if matches!(&address, DatabaseAddress::Tcp(host, _) if host.is_empty()) {
            return Err(format!("a database's URL names its host; {example}"));
        }
        let mut access = Access::of_ourselves(service, address);
        if !user.is_empty() {
            access.user = decoded(user)?;
        }
        access.password = password.map(decoded).transpose()?.map(Password);
        access.database = Some(decoded(name)?).filter(|name| !name.is_empty());
        access.tls.mode = mode.unwrap_or_default();
        access.server_user = server_user;
        Ok(access.or_ca(ca.as_deref()))
    }
}

/// Accepts PostgreSQL's values (`sslmode=`) and MySQL's (`ssl-mode=`). A verified certificate is always checked against
/// the host's name.
fn tls_mode(value: &str) -> Result<TlsMode, String> {
    Ok(match value.to_ascii_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => TlsMode::Never,
        "allow" | "prefer" | "preferred" => TlsMode::Offered,
        "require" | "required" => TlsMode::Required,
        "verify-ca" | "verify-full" | "verify-identity" => TlsMode::Verified,
        _ => return Err("a database's sslmode is one of disable, prefer, require and verify-full".into()),
    })
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.database.as_deref().unwrap_or("");
        write!(f, "{}://{}@", self.service, self.user)?;
        match &self.address {
            DatabaseAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}/{name}"),
            DatabaseAddress::Tcp(host, port) => write!(f, "{host}:{port}/{name}"),
            DatabaseAddress::Unix(path) => write!(f, "localhost/{name}?socket={}", path.display()),
        }
    }
}

/// Decodes `%40` and the like. Errors never quote the text, since it may be a password.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let [first, rest @ ..] = left {
        let hex = |c: &u8| (*c as char).to_digit(16);
        match (first, rest) {
            (b'%', [high, low, after @ ..]) => {
                let (Some(high), Some(low)) = (hex(high), hex(low)) else {
                    return Err("after a '%' in a database's URL two hexadecimal digits follow".into());
                };
                bytes.push((high * 16 + low) as u8);
                left = after;
            }
            _ => {
                bytes.push(*first);
                left = rest;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err("a database's URL is text, in UTF-8".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_named_by_a_url() {
        let a: Access = "postgres://me:s%40ecret@db.example:6000/shop".parse().expect("valid");
        assert_eq!(
            (a.service, &a.address),
            (DatabaseService::Postgresql, &DatabaseAddress::Tcp("db.example".into(), 6000))
        );
        assert_eq!(
            (a.user.as_str(), a.database.as_deref(), a.password.as_ref()),
            ("me", Some("shop"), Some(&Password::new("s@ecret")))
        );
        assert_eq!(a.to_string(), "postgresql://me@db.example:6000/shop");
        assert!(!format!("{a:?}").contains("ecret"), "{a:?}");
        let a: Access = "mysql://root@localhost/?socket=/run/mysqld/mysqld.sock".parse().expect("valid");
        assert_eq!(a.address, DatabaseAddress::Unix("/run/mysqld/mysqld.sock".into()));
        assert_eq!(a.to_string().parse::<Access>(), Ok(a));
        let a: Access = "postgresql:///shop?host=/run/postgresql".parse().expect("valid");
        assert_eq!(a.address, DatabaseAddress::Unix("/run/postgresql/.s.PGSQL.5432".into()));
        let a: Access = "postgres://u@h/?sslmode=require".parse().expect("valid");
        assert_eq!(a.tls, TlsChoice { mode: TlsMode::Required, ca: None });
        let a: Access = "mysql://u@h/?ssl-ca=/etc/ca.pem&requirepeer=db".parse().expect("valid");
        assert_eq!(a.tls, TlsChoice { mode: TlsMode::Verified, ca: Some("/etc/ca.pem".into()) });
        assert_eq!(a.server_user.as_deref(), Some("db"));
        let a: Access = "mysql://u@[::1]".parse().expect("valid");
        assert_eq!(
            (&a.address, a.to_string().as_str()),
            (&DatabaseAddress::Tcp("::1".into(), 3306), "mysql://u@[::1]:3306/")
        );
    }

    #[test]
    fn a_wrong_url_is_told_without_its_password() {
        for bad in [
            "",
            "db",
            "oracle://u:secret@h/",
            "mysql://u:secret@/",
            "mysql://u:secret@h:0/",
            "mysql://u:%se@h/",
            "mysql://h/?ssl=1&secret",
            "mysql://h/?ssl-mode=secret",
        ] {
            let error = bad.parse::<Access>().expect_err(bad);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
