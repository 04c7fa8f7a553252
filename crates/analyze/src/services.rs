//! Services that web applications use, recognised by program, port or socket path.

/// A known service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    pub name: &'static str,
    /// It answers queries, so many round trips to it are worth reporting.
    pub is_database: bool,
    /// Prefixes of its program names.
    programs: &'static [&'static str],
    port: u16,
    /// Parts of its unix socket paths.
    paths: &'static [&'static str],
}

const SERVICES: &[Service] = &[
    service("mysql", true, &["mysqld", "mariadbd"], 3306, &["mysqld.sock", "mysql.sock"]),
    service("postgresql", true, &["postgres"], 5432, &[".s.PGSQL."]),
    service("redis", true, &["redis-server", "valkey-server"], 6379, &["redis"]),
    service("memcached", true, &["memcached"], 11211, &["memcached"]),
    service("mongodb", true, &["mongod"], 27017, &["mongodb-"]),
    service("ldap", true, &["slapd"], 389, &["ldapi"]),
    service("php-fpm", false, &["php-fpm"], 0, &["php", "fpm.sock"]),
    service("dns", false, &["systemd-resolve", "dnsmasq", "unbound", "named"], 53, &[]),
    service("nscd", false, &["nscd"], 0, &["nscd"]),
    service("smtp", false, &["master", "exim4"], 25, &[]),
    service("amqp", false, &["beam.smp"], 5672, &[]),
    service("elasticsearch", false, &[], 9200, &[]),
    service("log", false, &["systemd-journal", "rsyslogd"], 0, &["/dev/log", "systemd/journal"]),
    service("https", false, &[], 443, &[]),
    service("http", false, &["nginx", "apache2", "httpd", "haproxy"], 80, &[]),
];

const fn service(
    name: &'static str,
    is_database: bool,
    programs: &'static [&'static str],
    port: u16,
    paths: &'static [&'static str],
) -> Service {
    Service { name, is_database, programs, port, paths }
}

/// Returns the service at an address (`127.0.0.1:3306`, `unix:/run/mysqld/mysqld.sock`). If the listening
/// program is known, it decides.
#[must_use]
pub fn service_at(address: &str, program: Option<&str>) -> Option<&'static Service> {
    let by_program = |s: &&Service| program.is_some_and(|p| s.programs.iter().any(|known| p.starts_with(known)));
    let path = address.strip_prefix("unix:");
    let port = address.rsplit(':').next().and_then(|p| p.parse::<u16>().ok()).filter(|p| *p > 0 && path.is_none());
    let by_address = |s: &&Service| match path {
        Some(path) => s.paths.iter().any(|known| path.contains(known)),
        None => port == Some(s.port),
    };
    SERVICES.iter().find(by_program).or_else(|| SERVICES.iter().find(by_address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_known_by_program_port_or_path() {
        let name = |address: &str, program: Option<&str>| service_at(address, program).map(|s| s.name);
        assert_eq!(name("127.0.0.1:3306", None), Some("mysql"));
        assert_eq!(name("10.0.0.7:13306", Some("mariadbd")), Some("mysql"));
        assert_eq!(name("unix:/run/mysqld/mysqld.sock", None), Some("mysql"));
        assert_eq!(name("unix:/run/postgresql/.s.PGSQL.5432", None), Some("postgresql"));
        assert_eq!(name("[::1]:6379", None), Some("redis"));
        assert_eq!(name("127.0.0.1:9000", Some("php-fpm8.2")), Some("php-fpm"));
        // Another program on a known port.
        assert_eq!(name("127.0.0.1:3306", Some("haproxy")), Some("http"));
        assert_eq!(name("127.0.0.1:12345", Some("my-daemon")), None);
    }
}
