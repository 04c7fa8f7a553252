//! Apache's knobs, one table per MPM. Defaults and ranges are from httpd 2.4 `mpm_default.h` and `mpm_common.h`.

use std::sync::OnceLock;

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Role};

use super::proxy;

const fn knob(
    name: &'static str,
    role: Role,
    (least, most): (i64, i64),
    default: &'static str,
    needs: ReloadClass,
    constraint: &'static str,
    effect: &'static str,
) -> Knob {
    Knob::new(name, KnobValues::Count(least, most), default, needs, constraint, effect).with_role(role)
}

const WORKERS: &str = "how many requests are served at once; more wait in the listen queue";
const CEILING: &str = "slots of the scoreboard: the hard limit of the pool";
const START: &str = "workers at the start; later ones come 1, 2, 4 … 32 a second";
const SPARE_MIN: &str = "idle workers that are kept for a burst";
const SPARE_MAX: &str = "idle workers beyond this are ended";

const KEEPALIVE: Knob = Knob::new(
    "KeepAlive",
    KnobValues::Switch { on: "On", off: "Off" },
    "On",
    ReloadClass::Reload,
    "a VirtualHost may set its own",
    "connections stay open between requests; with prefork each holds a worker meanwhile",
)
.with_role(Role::KeepAlive)
.worth_trying_for(&["keepalive-hogging", "keepalive-off"]);
const KEEPALIVE_TIMEOUT: Knob = knob(
    "KeepAliveTimeout",
    Role::KeepAliveTimeout,
    (1, 3600),
    "5",
    ReloadClass::Reload,
    "a VirtualHost may set its own",
    "seconds that an idle connection is kept (and its worker, with prefork)",
)
.worth_trying_for(&["keepalive-hogging"]);
const KEEPALIVE_REQUESTS: Knob = knob(
    "MaxKeepAliveRequests",
    Role::KeepAliveRequests,
    (0, 1_000_000),
    "100",
    ReloadClass::Reload,
    "0 is any number",
    "requests on one connection",
)
.worth_trying_for(&["keepalive-off"]);
const RECYCLE: Knob = knob(
    "MaxConnectionsPerChild",
    Role::Recycle,
    (0, 1_000_000_000),
    "0",
    ReloadClass::Reload,
    "counts connections, not requests; 0 is never",
    "a worker that has served so many leaves and another is forked: bounds what leaks, costs a start",
)
.worth_trying_for(&["process-churn", "memory-leak"])
.called("MRPC");
const BACKLOG: Knob = knob(
    "ListenBacklog",
    Role::Backlog,
    (1, 65_535),
    "511",
    ReloadClass::Restart,
    "at most net.core.somaxconn; listening sockets survive reloads",
    "connections that wait for a worker before the kernel turns them away",
)
.worth_trying_for(&["accept-queue-overflow"]);
const TIMEOUT: Knob = knob(
    "Timeout",
    Role::Timeout,
    (1, 3600),
    "60",
    ReloadClass::Reload,
    "seconds",
    "how long a silent client, script or backend is waited for",
)
.worth_trying_for(&["slow-clients"]);

static PREFORK: &[Knob] = &[
    knob("MaxRequestWorkers", Role::PoolSize, (1, 200_000), "256", ReloadClass::Reload, "at most ServerLimit", WORKERS)
        .worth_trying_for(&["workers-exhausted", "memory-overcommit", "server-limit-clamp"])
        .called("MC"),
    knob(
        "ServerLimit",
        Role::PoolCeiling,
        (1, 200_000),
        "256",
        ReloadClass::Restart,
        "cannot change over a reload",
        CEILING,
    )
    .worth_trying_for(&["server-limit-clamp"]),
    knob(
        "StartServers",
        Role::PoolStart,
        (1, 200_000),
        "5",
        ReloadClass::Reload,
        "matters when the server starts",
        START,
    )
    .worth_trying_for(&["spawn-ramp"]),
    knob("MinSpareServers", Role::SpareMin, (1, 200_000), "5", ReloadClass::Reload, "at least 1", SPARE_MIN)
        .worth_trying_for(&["spawn-ramp", "process-churn"]),
    knob(
        "MaxSpareServers",
        Role::SpareMax,
        (1, 200_000),
        "10",
        ReloadClass::Reload,
        "more than MinSpareServers",
        SPARE_MAX,
    )
    .worth_trying_for(&["process-churn"]),
    RECYCLE,
    KEEPALIVE,
    KEEPALIVE_TIMEOUT,
    KEEPALIVE_REQUESTS,
    BACKLOG,
    TIMEOUT,
];

/// Knobs of worker and event.
static THREADED: &[Knob] = &[
    knob(
        "MaxRequestWorkers",
        Role::PoolSize,
        (1, 20_000),
        "400",
        ReloadClass::Reload,
        "a multiple of ThreadsPerChild, at most ServerLimit × ThreadsPerChild",
        WORKERS,
    )
    .worth_trying_for(&["workers-exhausted", "memory-overcommit", "server-limit-clamp"])
    .called("MC"),
    knob(
        "ServerLimit",
        Role::PoolCeiling,
        (1, 20_000),
        "16",
        ReloadClass::Restart,
        "cannot change over a reload",
        CEILING,
    )
    .worth_trying_for(&["server-limit-clamp"]),
    knob(
        "StartServers",
        Role::PoolStart,
        (1, 20_000),
        "3",
        ReloadClass::Reload,
        "matters when the server starts",
        START,
    )
    .worth_trying_for(&["spawn-ramp"]),
    knob("MinSpareThreads", Role::SpareMin, (1, 20_000), "75", ReloadClass::Reload, "at least 1", SPARE_MIN)
        .worth_trying_for(&["spawn-ramp", "process-churn"]),
    knob(
        "MaxSpareThreads",
        Role::SpareMax,
        (1, 200_000),
        "250",
        ReloadClass::Reload,
        "at least MinSpareThreads + ThreadsPerChild",
        SPARE_MAX,
    )
    .worth_trying_for(&["process-churn"]),
    knob(
        "ThreadsPerChild",
        Role::ThreadsPerWorker,
        (1, 20_000),
        "25",
        ReloadClass::Reload,
        "at most ThreadLimit (64)",
        "threads of a process: fewer, larger processes share more memory and more fate",
    )
    .worth_trying_for(&["perl-interpreters-exhausted", "unshared-memory"]),
    RECYCLE,
    KEEPALIVE,
    KEEPALIVE_TIMEOUT,
    KEEPALIVE_REQUESTS,
    BACKLOG,
    TIMEOUT,
];

/// Additional knob of worker and event.
const THREAD_LIMIT: Knob = Knob::new(
    "ThreadLimit",
    KnobValues::Count(1, 20_000),
    "64",
    ReloadClass::Restart,
    "cannot change over a reload",
    "slots for threads in each process: the hard limit of ThreadsPerChild",
)
.worth_trying_for(&["server-limit-clamp"]);
/// Knob of event only.
const ASYNC_FACTOR: Knob = Knob::new(
    "AsyncRequestWorkerFactor",
    KnobValues::Count(1, 1000),
    "2",
    ReloadClass::Reload,
    "(it + 1) × MaxRequestWorkers connections at the most",
    "a process takes so many connections more for each of its idle threads: those that are kept alive hold none",
)
.worth_trying_for(&["accept-queue-overflow", "keepalive-hogging"]);

/// mod_perl's interpreter pool, for threaded MPMs only: `modperl_config.c` of 2.0.
const PERL: [Knob; 5] = [
    perl(
        "PerlInterpMax",
        "5",
        "at most ThreadsPerChild of them can be busy",
        "requests that a process runs in Perl at once; its other threads wait",
    )
    .worth_trying_for(&["perl-interpreters-exhausted"]),
    perl("PerlInterpStart", "3", "at most PerlInterpMax", "interpreters of a process at its start"),
    perl(
        "PerlInterpMinSpare",
        "3",
        "at most PerlInterpMaxSpare",
        "idle interpreters that are kept; each is a copy of all code",
    ),
    perl(
        "PerlInterpMaxSpare",
        "3",
        "less than PerlInterpMax clones and destroys them again and again",
        "idle interpreters beyond this are destroyed",
    )
    .worth_trying_for(&["perl-interpreters-exhausted", "process-churn"]),
    perl("PerlInterpMaxRequests", "2000", "", "an interpreter that has served so many is replaced: bounds what leaks")
        .worth_trying_for(&["memory-leak"]),
];

const fn perl(name: &'static str, default: &'static str, constraint: &'static str, effect: &'static str) -> Knob {
    Knob::by_reload(name, KnobValues::Count(1, 1_000_000), default, constraint, effect)
}

/// Knobs of a running server, by its MPM, whether it has mod_perl and whether it proxies.
pub fn of(mpm: &str, has_perl: bool, proxies: bool) -> &'static [Knob] {
    static TABLES: OnceLock<[[[Vec<Knob>; 2]; 2]; 3]> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        let of = |own: &[&[Knob]], perl: &[Knob], proxy: &[Knob]| {
            let own = own.concat();
            [&[], proxy].map(|proxy: &[Knob]| [&[], perl].map(|perl: &[Knob]| [&own, perl, proxy].concat()))
        };
        let proxy = [proxy::OF_THREADS.as_slice(), &proxy::KNOBS].concat();
        [
            of(&[PREFORK], &[], &proxy::KNOBS),
            of(&[THREADED, &[THREAD_LIMIT, ASYNC_FACTOR]], &PERL, &proxy),
            of(&[THREADED, &[THREAD_LIMIT]], &PERL, &proxy),
        ]
    });
    let of_mpm = match mpm {
        "prefork" => &tables[0],
        "event" => &tables[1],
        _ => &tables[2],
    };
    &of_mpm[usize::from(proxies)][usize::from(has_perl)]
}

/// Names used before 2.4 that are still found in configurations.
pub const OLD_NAMES: &[(&str, &str)] =
    &[("maxclients", "MaxRequestWorkers"), ("maxrequestsperchild", "MaxConnectionsPerChild")];

/// Warnings with which httpd changes or ignores a setting although its test passes (`*_check_config` of the MPMs):
/// ServerLimit, ThreadLimit, ThreadsPerChild, MaxRequestWorkers, spares, StartServers.
pub const CLAMPS: &[&str] = &[
    "AH00175", "AH00176", "AH00177", "AH00178", "AH00179", "AH00180", "AH00181", "AH00182", "AH00183", "AH00184",
    "AH00185", "AH00186", "AH00187", "AH00188", "AH00318", "AH00319", "AH00320", "AH00321", "AH00322", "AH00323",
    "AH00324", "AH00325", "AH00326", "AH00327", "AH00328", "AH00329", "AH00330", "AH00331", "AH00332", "AH00333",
    "AH00334", "AH00335", "AH00336", "AH00337", "AH00497", "AH00498", "AH00499", "AH00500", "AH00501", "AH00502",
    "AH00503", "AH00504", "AH00505", "AH00506", "AH00507", "AH00508", "AH00509", "AH00510", "AH00511", "AH00512",
    "AH00513", "AH00514", "AH00515", "AH00516", "AH00517", "AH00518", "AH00519", "AH00520",
];

/// Directives that need a stop and a start. A graceful restart keeps listening sockets without calling listen() on them
/// again (`listen.c`), and keeps limits, the MPM and the parent's user.
const RESTART_DIRECTIVES: &[&str] = &[
    "AcceptFilter",
    "Group",
    "ListenBacklog",
    "ListenCoresBucketsRatio",
    "LoadFile",
    "LoadModule",
    "PidFile",
    "ReceiveBufferSize",
    "ScoreBoardFile",
    "SendBufferSize",
    "ServerLimit",
    "ThreadLimit",
    "User",
];

/// Directives and sections that a graceful restart reads again and of which it keeps no old state.
const RELOAD_DIRECTIVES: &[&str] = &[
    "AcceptPathInfo",
    "AddDefaultCharset",
    "AddEncoding",
    "AddHandler",
    "AddOutputFilter",
    "AddOutputFilterByType",
    "AddType",
    "Alias",
    "AliasMatch",
    "Allow",
    "AllowOverride",
    "AllowOverrideList",
    "AsyncRequestWorkerFactor",
    "AuthName",
    "AuthType",
    "AuthUserFile",
    "BufferedLogs",
    "CustomLog",
    "DeflateCompressionLevel",
    "Deny",
    "Directory",
    "DirectoryIndex",
    "DirectoryMatch",
    "DirectorySlash",
    "DocumentRoot",
    "EnableMMAP",
    "EnableSendfile",
    "ErrorDocument",
    "ErrorLog",
    "ExpiresActive",
    "ExpiresByType",
    "ExtendedStatus",
    "FallbackResource",
    "FileETag",
    "Files",
    "FilesMatch",
    "Header",
    "HostnameLookups",
    "If",
    "IfDefine",
    "IfModule",
    "IfVersion",
    "Limit",
    "LimitExcept",
    "LimitRequestBody",
    "LimitRequestFields",
    "LimitRequestFieldSize",
    "LimitRequestLine",
    "Location",
    "LocationMatch",
    "LogFormat",
    "LogLevel",
    "MaxMemFree",
    "Options",
    "Order",
    "PassEnv",
    "PerlModule",
    "PerlOptions",
    "PerlRequire",
    "PerlResponseHandler",
    "PerlSetVar",
    "php_admin_flag",
    "php_admin_value",
    "php_flag",
    "php_value",
    "ProxyPass",
    "ProxyPassReverse",
    "ProxyTimeout",
    "Redirect",
    "RequestHeader",
    "RequestReadTimeout",
    "Require",
    "RewriteBase",
    "RewriteCond",
    "RewriteEngine",
    "RewriteRule",
    "ScriptAlias",
    "ServerName",
    "ServerSignature",
    "ServerTokens",
    "SetEnv",
    "SetEnvIf",
    "SetHandler",
    "SetOutputFilter",
    "ThreadStackSize",
    "TimeOut",
    "UseCanonicalName",
    "VirtualHost",
];

/// What a directive needs to take effect, whether or not it is a knob; `None` if unknown.
pub fn directive_needs(knobs: &[Knob], name: &str) -> Option<ReloadClass> {
    let is = |known: &&str| known.eq_ignore_ascii_case(name);
    let name = OLD_NAMES.iter().find(|(old, _)| is(old)).map_or(name, |(_, new)| new);
    if RESTART_DIRECTIVES.iter().any(is) {
        return Some(ReloadClass::Restart);
    }
    let knob = knobs.iter().find(|k| k.name.eq_ignore_ascii_case(name)).map(|k| k.needs);
    knob.or_else(|| RELOAD_DIRECTIVES.iter().any(is).then_some(ReloadClass::Reload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directive_needs_is_known_by_any_of_its_names() {
        let needs = |name| directive_needs(PREFORK, name);
        assert_eq!(
            (needs("listenbacklog"), needs("ServerLimit")),
            (Some(ReloadClass::Restart), Some(ReloadClass::Restart))
        );
        assert_eq!((needs("MaxClients"), needs("Directory")), (Some(ReloadClass::Reload), Some(ReloadClass::Reload)));
        assert_eq!(needs("SomebodysDirective"), None);
    }
}
