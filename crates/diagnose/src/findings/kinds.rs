//! All kinds of findings: a line each for `--list`, with the background for `--explain`.

use lastdrop_model::documents::Severity;
use lastdrop_model::documents::Severity::{Limit, Risk, Waste};

/// A kind of finding, independent of any server.
#[derive(Debug, Clone, Copy)]
pub struct FindingKind {
    pub id: &'static str,
    pub severity: Severity,
    /// What is wrong, in a line.
    pub what: &'static str,
    /// The evidence that decides for this finding.
    pub criterion: &'static str,
    /// Causes that look alike, and how they differ.
    pub look_alikes: &'static str,
}

/// Returns all kinds of findings.
#[must_use]
pub fn finding_kinds() -> &'static [FindingKind] {
    ALL
}

/// Returns the kind with this id.
#[must_use]
pub fn finding_kind(id: &str) -> Option<&'static FindingKind> {
    ALL.iter().find(|a| a.id == id)
}

const fn a(
    id: &'static str,
    severity: Severity,
    what: &'static str,
    criterion: &'static str,
    look_alikes: &'static str,
) -> FindingKind {
    FindingKind { id, severity, what, criterion, look_alikes }
}

#[rustfmt::skip]
const ALL: &[FindingKind] = &[
    a("generator-saturated", Limit, "the load generator is at its own limit", "its thread fills a core, or it has no descriptors, while the server has time left", "a server that is slow leaves the generator idle"),
    a("port-exhaustion", Limit, "no local port is left for a new connection", "EADDRNOTAVAIL, closed connections (TIME_WAIT) to one address near the range of ports; said on which side", "thousands in TIME_WAIT with a wide margin are normal"),
    a("conntrack-full", Limit, "the kernel's connection table is full", "entries at the limit and drops meanwhile", "many entries without drops"),
    a("nginx-connections-exhausted", Limit, "nginx has no worker_connections left", "its log says so while the load is on", "fd-limit: errno 24 instead"),
    a("fd-limit", Limit, "a process has no descriptors left", "errno 24 in its log, or as many open files as its soft limit", "worker_connections, which is a limit of nginx's own"),
    a("tasks-limit", Limit, "no more processes or threads may be made", "pids.events has moved, or fork fails in the log", "a pool that is at its configured size"),
    a("accept-queue-overflow", Limit, "the listen queue is too short", "ListenOverflows moves while workers have time: connections come in bursts that it cannot hold; connects take 1, 3, 7 s", "workers-exhausted: a pool that is full fills a queue of any length"),
    a("oom-kill", Limit, "the kernel kills workers for lack of memory", "oom_kill has moved", "worker-timeout: the master's own signal; worker-crash: another signal"),
    a("worker-timeout", Limit, "the master ends workers that take too long", "its log says so (WORKER TIMEOUT, execution timed out, HARAKIRI)", "oom-kill: the kernel's counter has moved"),
    a("worker-crash", Limit, "workers die by a signal", "exit signals in the log or the kernel's while workers are born; or others take the places of workers whose requests were cut off, and nothing recycles them", "oom-kill, worker-timeout"),
    a("memory-pressure", Limit, "memory is short: swapping or reclaim", "pages swapped in and out meanwhile, tasks that wait for memory; or a control group at its limit that reads again what it gave up", "swap that is used and not moved is no fault"),
    a("cpu-throttled", Limit, "a quota takes the processor away", "periods in which the group or one above it was throttled", "cpu-saturated: the host has time left here"),
    a("uwsgi-queue-full", Limit, "uWSGI's listen queue is full", "its log, or as many waiting as the limit (100 unless said)", "workers-exhausted with room in the queue"),
    a("proxy-maxconn", Limit, "HAProxy's maxconn keeps requests waiting", "requests in its queue (qcur) while those behind it have idle workers", "slow-upstream: the servers themselves take long"),
    a("process-churn", Limit, "workers are recycled or born all the time", "workers born a request, with a recycling limit that explains them", "worker-crash: they die by signals; spawn-ramp: the pool only grows"),
    a("opcode-cache-off", Limit, "PHP compiles its files for each request", "the compiler in the profile, dozens of files opened a request", "cpu-saturated by the page itself"),
    a("compression-bound", Limit, "compression takes the processor", "a third of the profile or more in zlib or brotli; or more, and larger, answers when nobody asks for compressed ones", "tls-bound: libcrypto"),
    a("tls-bound", Limit, "TLS handshakes take the processor", "nearly a full handshake a request, libcrypto in the profile", "resumed sessions, kept connections"),
    a("interpreter-lock", Limit, "threads share one interpreter lock", "a process of many threads uses one core, the others wait in futex", "serialized: a lock of the application uses no core"),
    a("gc-pauses", Limit, "the collector of garbage takes the time", "a quarter of the profile or more in the collector", "event-loop-blocked: the program's own code"),
    a("libuv-pool", Limit, "Node's four pool threads are busy", "the loop waits for events while about four threads are at work", "slow-upstream: nobody is at work"),
    a("cpu-saturated", Limit, "the processors are full: honest capacity", "all processors busy that the server may use, and answers slower than for one user", "busy processors with answers as fast as ever: capacity in use"),
    a("event-loop-blocked", Limit, "one request holds a whole event loop", "the loop computes for as long as an answer takes, or sleeps where it must not", "gc-pauses; single-process: many short requests"),
    a("single-worker-cpu", Limit, "one worker computes, other processors idle", "one thread at a whole core, the rest of the server at nothing, a setting for more workers", "single-process: nothing to scale it"),
    a("single-process", Limit, "one process on many processors", "the only process at a whole core while others idle", "single-worker-cpu of a pool"),
    a("upstream-backlog-overflow", Limit, "the listen queue of what is behind is full", "EAGAIN on connect (errno 11), 502; by TCP: its queue at its limit while ListenOverflows moves", "upstream-refused: ECONNREFUSED"),
    a("proxy-connect-retries", Limit, "a backend refuses, and the proxy tries again", "connects of HAProxy's that fail, or that nobody answers (SYN-SENT), and answers in steps of a second", "slow-upstream: connects succeed"),
    a("upstream-refused", Limit, "what is behind refuses, or is down", "ECONNREFUSED in the log and 502 or 503", "upstream-backlog-overflow: somebody is there"),
    a("db-pool-exhausted", Limit, "no database connection is to be had", "the database says so, also in what a traced worker reads; or fewer sessions than requests that wait, and a database with time (the application's own pool, a pooler such as PgBouncer)", "db-slow: connections are there and busy"),
    a("session-lock", Limit, "requests of one session wait for each other", "busy workers wait for a lock on one session's file; or more are answered when each user has cookies of its own", "serialized: a lock that is nobody's session"),
    a("serialized", Limit, "a lock lets one request through at a time", "busy workers wait for one file, semaphore or mutex while processors idle. Of event loops: only as many answers as one user alone gets, and they wait for no peer and no processor", "slow-upstream: they wait for a peer"),
    a("perl-interpreters-exhausted", Limit, "PerlInterpMax caps what runs at once", "more requests at work than interpreters, threads in futex", "prefork has one each"),
    a("dns-lookup", Limit, "a reverse lookup for each request", "waits for port 53, and what is asked is the name of an address (in-addr.arpa); D in the scoreboard; HostnameLookups", "resolver-slow: names of peers, not of clients"),
    a("resolver-slow", Limit, "each request waits for the name server", "busy workers wait for port 53", "slow-upstream: the peer itself"),
    a("db-locked", Limit, "statements wait for a row or table lock", "the database's own view names waiters and the blocker", "db-slow: statements compute"),
    a("db-slow", Limit, "statements take the time", "busy workers wait for the database, whose own view has no lock waits", "db-locked"),
    a("slow-log", Limit, "logging blocks", "busy workers wait to write to a log or pipe; L in the scoreboard", "access-log-unbuffered costs and does not block"),
    a("slow-upstream", Limit, "the server waits for another service", "busy workers sleep on a connection to one peer while processors idle", "serialized: they wait for a lock; workers-exhausted: for nobody"),
    a("keepalive-hogging", Limit, "workers are held by idle connections of clients", "K in most places, or workers that wait on connections of which the last request was answered (TCP_INFO); a queue, idle processors", "event MPM holds none for it"),
    a("slow-clients", Limit, "workers wait for slow clients", "busy workers read from or write to clients", "keepalive-hogging: between requests"),
    a("server-limit-clamp", Limit, "configured workers cannot exist", "fewer places than MaxRequestWorkers asks for", "workers-exhausted: as many as configured"),
    a("fpm-children-exhausted", Limit, "every child of the PHP-FPM pool is at work", "all children at work, a queue, idle processors, and no peer or lock that most wait for", "slow-upstream, db-slow, session-lock; cpu-saturated"),
    a("sync-workers-waiting", Limit, "synchronous workers all wait", "all at work and asleep while processors idle (gunicorn, Puma, uWSGI)", "interpreter-lock: one core is used"),
    a("workers-exhausted", Limit, "every worker is at work, connections wait", "no idle place, a queue, idle processors, and no common peer or lock", "cpu-saturated: more workers would not help"),
    a("softirq-one-core", Limit, "one processor does all the packets", "one core in softirq, the others free", "single-worker-cpu"),
    a("retransmits", Limit, "packets are lost on the way", "segments sent again that had not arrived (without those that D-SACK tells of), steps of 200 ms", "delayed-ack: 40 ms and nothing sent again"),
    a("htaccess-lookups", Waste, ".htaccess is looked for on each request", "such calls in the trace", "AllowOverride None: none"),
    a("db-connect-per-request", Waste, "a new database connection for each request", "connects a request in the trace", "kept connections"),
    a("upstream-connect-per-request", Waste, "a new connection behind for each request", "connects a request in the trace of the proxy", "keepalive-off towards clients"),
    a("keepalive-off", Waste, "a new connection of the client for each request", "as many connections as requests though the client would keep them", "clients that close"),
    a("fpm-spawn-lag", Waste, "PHP-FPM makes children too slowly", "children still rising, 'seems busy' in the log", "fpm-children-exhausted: at pm.max_children"),
    a("spawn-ramp", Waste, "the pool still grows while it is measured", "more workers at the end than at the beginning", "process-churn: they are replaced"),
    a("buffering-to-disk", Waste, "answers or bodies go through temporary files", "'buffered to a temporary file' in the log, calls in the trace", "slow-log"),
    a("access-log-unbuffered", Waste, "a write to the access log for each request", "such writes in the trace where they matter", "slow-log: the write blocks"),
    a("delayed-ack", Waste, "small writes wait for an acknowledgement", "a plateau at 40 ms for one user alone, nothing sent again", "retransmits: 200 ms"),
    a("unshared-memory", Waste, "pages that could be shared are not", "private memory grows and the process does not; or each worker has loaded for itself what its master has not", "memory-leak: the process grows"),
    a("unused-modules", Waste, "modules of Apache, or extensions of PHP-FPM, that nothing refers to", "what is loaded against the effective configuration, of PHP against the site's files, too; a second instance answers the URL without them as with them", "modules that others need, and what acts without being named"),
    a("uncompressed-text", Waste, "text is sent uncompressed though browsers accept gzip", "answers of a text type without Content-Encoding that gzip makes smaller by a third and by 4 kB or more, measured on the bodies themselves", "images and archives, small answers, Cache-Control: no-transform; compression-bound: compressing costs more than it saves"),
    a("process-per-request", Waste, "a program is started for each request", "execve in the trace of a request; or as many new processes as requests while children of another program run below the workers, with the processor time of those that ended", "process-churn: workers are replaced, which execute nothing; pipes of logs, which stay"),
    a("cacheable-responses", Waste, "a page is computed again and again, and is the same for all users", "the same bytes without cookies, with others, for another browser and later; the page takes 5 ms, or 1 ms of processor time, and a cache brings a tenth", "pages that differ by user, field, type or time, set a cookie, or say private, no-store or Vary: *; requests with a cookie; files; what comes from a cache already"),
    a("hostname-lookups", Waste, "Apache looks up the name of each client's address", "HostnameLookups On or Double in its configuration", "dns-lookup: requests wait for the name server now"),
    a("debug-mode", Waste, "the application runs in debug mode", "pages that only a debug mode makes (Django, Rails, Flask, Laravel, Symfony, PHP's display_errors), asked for once; xdebug.mode", "error pages that name neither files nor settings"),
    a("static-on-heavy-workers", Waste, "workers with an interpreter in them serve files", "files of a page that come from workers of 20 MB and more, and take a tenth of their time for it", "a front that serves them; light workers"),
    a("class-starves-others", Waste, "one class of requests holds the workers that others wait for", "of a full pool it holds 60 % and more, with 40 % of the requests or fewer; the others take three times as long as for one user alone", "workers-exhausted where all classes take as long; db-locked, serialized: the others' own requests hold workers, too"),
    a("held-listener", Risk, "a foreign process holds the listening socket", "its descriptor", "the server's own children"),
    a("zombie-children", Risk, "children that nobody waits for", "state Z at look after look", "one that has just ended"),
    a("time-wait-overflow", Risk, "the table of closed connections is full", "TCPTimeWaitOverflow", "many in TIME_WAIT"),
    a("memory-overcommit", Risk, "the pool at its limit would not fit", "memory a worker × the configured limit", "lastdrop size: sharing"),
    a("memory-leak", Risk, "workers grow with each request", "private and resident memory rise in every step, as they do where nothing is collected", "unshared-memory; caches that fill once"),
    a("greedy-client", Risk, "one address holds most connections", "its share of those that are not ours", "a proxy in front of many clients"),
    a("rate-limited", Risk, "a limit that somebody has set turns clients away: said, and no fault", "429, or its lines in the error log with fast 503 or 403", "upstream-refused, workers-exhausted: nobody has asked for these errors"),
    a("obsolete-setting", Risk, "advice that is no longer true", "the setting, and since when", "the kernel's own value"),
];
