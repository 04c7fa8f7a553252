"""Limits where workers wait while the processors are idle: services, locks, sessions, the database."""

from . import apache as web
from .database import connect, mariadb
from .fault import Case, Fault
from .nginx import fpm, nginx, php_before, proxied
from .node import node
from .peers import RESOLVER, names, service
from .python import gunicorn

MANY = ["-c", "20", "--keepalive", "off"]


def php_site(place, code, children=12, front=True, pool_lines="", opcache=True, load=MANY, count=None):
    """nginx before a pool whose page does this."""
    place.write("docs/page.php", f"<?php\n{code}\necho 'ok';\n")
    pool = fpm(place, children=children, lines=pool_lines, opcache=opcache)
    before = php_before(place, pool)
    return Case([before, pool], before.url + "/page.php", list(load), count=count)


# Slow peers.

def serial_peer(place, workers=10, delay=0.02, how="serial"):
    peer = service(place, delay, how)
    ask = (f'my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:{peer.port}") or die; '
           'print $s "GET / HTTP/1.0\\r\\n\\r\\n"; 1 while <$s>;')
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, ask))
    return Case([server], server.url + "/page", MANY)


def serial_peer_php(place, children=8, delay=0.05, how="serial"):
    peer = service(place, delay, how)
    return php_site(place, f"file_get_contents('{peer.url}');", children)


def serial_peer_proxied(place, workers=50, delay=0.05, how="serial"):
    """Apache as a proxy, with threads."""
    peer = service(place, delay, how)
    server = web.apache(place, mpm="worker", workers=workers, modules=("proxy", "proxy_http"), log=web.buffered_log(place),
                        lines=f"ProxyPass /page {peer.url}\n")
    return Case([server], server.url + "/page", MANY)


def serial_peer_nginx(place, delay=0.05, how="serial", connections=1024):
    """nginx, whose workers wait for nobody: only its connections do."""
    peer = service(place, delay, how)
    front = nginx(place, proxied(f"127.0.0.1:{peer.port}", keep=32), connections=connections)
    return Case([front], front.url + "/", MANY)


def resolving(place, delay=0.2, workers=6, lookup=True):
    """A name is resolved for each request, by a name server that takes its time."""
    names(place, delay)
    peer = service(place, 0)
    host = "api.example" if lookup else "127.0.0.1"
    ask = (f'my $a = inet_aton("{host}") or die; socket(my $s, PF_INET, SOCK_STREAM, 0) or die; '
           f'connect($s, sockaddr_in({peer.port}, inet_aton("127.0.0.1"))) or die; '
           'syswrite $s, "GET / HTTP/1.0\\r\\n\\r\\n"; 1 while sysread $s, my $b, 4096;')
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, ask))
    return Case([server], server.url + "/page", MANY)


def reverse_lookups(place, delay=0.2, workers=6, lookups="On"):
    """Apache looks up who asks, for its log."""
    names(place, delay)
    log = f'LogFormat "%h %t \\"%r\\" %>s %b" plain\nCustomLog {place.folder}/access.log plain\nHostnameLookups {lookups}\n'
    server = web.apache(place, workers=workers, log=log, ready=None)
    return Case([server], server.url + "/index.html", [*MANY, "--source", "127.0.1.1,127.0.1.2"])


def required_host(place, delay=0.2, workers=6, host=True):
    """Apache looks up who asks, and the name that it is told, to let them in."""
    names(place, delay)
    require = "Require host nobody.example" if host else "Require ip 192.0.2.1"
    server = web.apache(place, workers=workers, modules=("authz_host",), log=web.buffered_log(place), ready=None,
                        lines=f'<Location "/index.html">\n<RequireAny>\n{require}\nRequire all granted\n</RequireAny>\n</Location>\n')
    return Case([server], server.url + "/index.html", [*MANY, "--source", "127.0.1.1,127.0.1.2"])


def resolving_nginx(place, delay=0.2, lookup=True):
    """nginx asks for the name of what is behind it for each request: a variable in proxy_pass."""
    names(place, delay)
    peer = service(place, 0)
    host = "$request_id.api.example" if lookup else "127.0.0.1"
    front = nginx(place, f""" resolver 127.0.0.1 ipv6=off; server {{ listen 127.0.0.1:PORT;
  location / {{ set $back {host}; proxy_pass http://$back:{peer.port}; }} }}""")
    return Case([front], front.url + "/", ["-c", "10", "--keepalive", "on"])


def side_by_side(place, children=40, delay=0.6):
    """A service that takes as long for one as for many, and children enough."""
    peer = service(place, delay)
    return php_site(place, f"file_get_contents('{peer.url}');", children)


def side_by_side_node(place, delay=0.4):
    """The same of an event loop, of which no thread waits."""
    peer = service(place, delay)
    server = node(place, f"""await new Promise((done) => http.get("{peer.url}", {{agent}}, (from) => {{ from.resume(); from.on("end", done); }}));""",
                  before="const agent = new http.Agent({keepAlive: true, maxSockets: 100});")
    return Case([server], server.url + "/", ["-c", "20", "--keepalive", "on"])


def own_site(place, children=6):
    """A page that asks its own site for a part of itself: children wait for children."""
    place.write("docs/part.php", "<?php usleep(20000); echo 'part';")
    pool = fpm(place, children=children)
    front = php_before(place, pool)
    place.write("docs/page.php", f"<?php file_get_contents('{front.url}/part.php'); echo 'ok';")
    return Case([front, pool], front.url + "/page.php", MANY)


# Locks.

def one_at_a_time_node(place, seconds=0.02, shared=True):
    """A queue of one inside an event loop: no thread waits, nothing is locked."""
    wait = f"await (last = last.then(() => sleep({seconds * 1000})));" if shared else f"await sleep({seconds * 1000});"
    server = node(place, wait, before="let last = Promise.resolve();")
    return Case([server], server.url + "/", ["-c", "20", "--keepalive", "on"])


def one_lock(place, workers=20, seconds=0.02, shared=True):
    file = "one" if shared else '$$'
    lock = (f'open(my $f, ">>", "{place.open_folder("locks")}/{file}") or die; flock($f, LOCK_EX); '
            f"select(undef, undef, undef, {seconds}); close $f;")
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, lock))
    return Case([server], server.url + "/page", MANY)


def one_lock_python(place, workers=8, seconds=0.05, shared=True):
    name = '"one"' if shared else "str(os.getpid())"
    code = f"""with open("{place.open_folder("locks")}/" + {name}, "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep({seconds})"""
    server = gunicorn(place, code, workers=workers)
    return Case([server], server.url + "/", MANY)


def session(place, children=12, seconds=0.05, close=False):
    early = "session_write_close();" if close else ""
    case = php_site(place, f"session_start(); $_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1; {early} usleep({int(seconds * 1e6)});",
                    children)
    case.load += ["-H", "Cookie: PHPSESSID=0123456789abcdef0123456789"]
    return case


def session_mod_php(place, workers=15, seconds=0.1, close=False):
    early = "session_write_close();" if close else ""
    place.write("docs/page.php", f"<?php session_save_path('{place.open_folder('sessions')}'); session_start(); "
                f"$_SESSION['n'] = 1; {early} usleep({int(seconds * 1e6)}); echo 'ok';")
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.php(place))
    return Case([server], server.url + "/page.php", [*MANY, "-H", "Cookie: PHPSESSID=0123456789abcdef0123456789"])


# The database.

def rows(count):
    """SQL that makes a table of so many rows without an index but the key."""
    return ("CREATE TABLE item (id INT PRIMARY KEY, word VARCHAR(40), n INT) ENGINE=InnoDB;"
            f"INSERT INTO item SELECT seq, MD5(seq), seq % 1000 FROM seq_1_to_{count};")


def row_lock(place, children=12, seconds=0.02, same=True):
    db = mariadb(place, sql=rows(1000))
    row = "1" if same else "' . (getmypid() % 1000 + 1) . '"
    return php_site(place, connect(db, persistent=True) + f"""
$db->begin_transaction();
$db->query('SELECT n FROM item WHERE id = {row} FOR UPDATE');
usleep({int(seconds * 1e6)});
$db->query('UPDATE item SET n = n + 1 WHERE id = {row}');
$db->commit();""", children)


def full_scan(place, children=6, count=60000, index=False):
    """One statement at a time, so that it is not the processors that are full."""
    db = mariadb(place, "--innodb-thread-concurrency=1", sql=rows(count) + ("CREATE INDEX word ON item (word);" if index else ""))
    return php_site(place, connect(db, persistent=True) + """
$db->query("SELECT COUNT(*) FROM item WHERE word = '" . md5(rand(1, 1000)) . "'")->fetch_row();""", children)


def slow_statement(place, children=4, seconds=0.2, index=False):
    """A statement that takes its time without any work, as one does that waits for its disk."""
    db = mariadb(place, sql=rows(10))
    return php_site(place, connect(db, persistent=True) + f"$db->query('SELECT SLEEP({0.001 if index else seconds})')->fetch_row();",
                    children)


def few_connections_to_database(place, connections=6, children=20, persistent=False):
    """More children than the database takes connections: the rest get errors, fast."""
    db = mariadb(place, f"--max-connections={connections}", sql=rows(10))
    case = php_site(place, "mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);" + connect(db, persistent)
                    + "$db->query('SELECT SLEEP(0.02)');", children)
    return case


def own_pool(place, connections=1, seconds=0.05, threads=16):
    """The application's own pool of connections, held while it does something else."""
    db = mariadb(place, sql=rows(10))
    before = f"""import pymysql
pool = queue.Queue()
for _ in range({connections}):
    pool.put(pymysql.connect(host="127.0.0.1", port={db.port}, user="lab", database="lab", autocommit=True))
"""
    code = f"""db = pool.get()
try:
    with db.cursor() as cursor:
        cursor.execute("SELECT n FROM item WHERE id = 1")
    time.sleep({seconds})
finally:
    pool.put(db)"""
    server = gunicorn(place, code, before=before, workers=1, threads=threads, worker_class="gthread")
    return Case([server], server.url + "/", MANY)


# Writing and reading slowly.

SLOW_READER = """import sys, time
pause = float(sys.argv[1])
while sys.stdin.buffer.readline():
    time.sleep(pause)
"""


def slow_log(place, pause=0.01, workers=10, pipe=True):
    """A piped log whose program is slow. The lines are long, so that the pipe is full at once."""
    reader = place.write("reader.py", SLOW_READER)
    to = f'"|/usr/bin/python3 {reader} {pause}"' if pipe else f"{place.folder}/access.log"
    server = web.apache(place, workers=workers, log=f'LogFormat "%h %t \\"%r\\" %>s {"x" * 3000}" long\nCustomLog {to} long\n')
    return Case([server], server.url + "/index.html", MANY)


def slow_clients(place, workers=10, size=200000, bandwidth="200k", backlog=511, users=30):
    place.write("docs/big.bin", "x" * size)
    server = web.apache(place, workers=workers, backlog=backlog, log=web.buffered_log(place),
                        lines="SendBufferSize 8192\nEnableSendfile Off\nEnableMMAP Off\n")
    slow = ["--bandwidth", bandwidth, "--receive-buffer", "8k"] if bandwidth else []
    return Case([server], server.url + "/big.bin", ["-c", str(users), "--keepalive", "off", *slow])


LIMITS = [
    Fault("slow-upstream", serial_peer, strengths=({}, {"delay": 0.1}), cure={"how": "parallel"},
          near="workers-exhausted", other={"workers": 25}),
    Fault("slow-upstream", serial_peer_php, variant="fpm", strengths=({}, {"delay": 0.2}), cure={"how": "parallel"},
          near="fpm-children-exhausted", other={"children": 16}),
    Fault("slow-upstream", serial_peer_proxied, variant="mod_proxy", cure={"how": "parallel"}, near="workers-exhausted",
          other={"workers": 75}),
    Fault("slow-upstream", serial_peer_nginx, variant="nginx", cure={"how": "parallel"},
          near="nginx-connections-exhausted", other={"connections": 4096}),
    Fault("resolver-slow", resolving, strengths=({}, {"delay": 1.0}), cure={"lookup": False}, mounts=RESOLVER,
          near="slow-upstream"),
    Fault("dns-lookup", reverse_lookups, strengths=({}, {"delay": 1.0}), cure={"lookups": "Off"}, mounts=RESOLVER,
          near="resolver-slow"),
    Fault("dns-lookup", required_host, variant="require-host", cure={"host": False}, mounts=RESOLVER, near="resolver-slow"),
    Fault("resolver-slow", resolving_nginx, variant="nginx", cure={"lookup": False}, mounts=RESOLVER, near="slow-upstream"),
    Fault("slow-upstream", side_by_side, variant="side-by-side", cure={"delay": 0.01}, near="workers-exhausted", other={"children": 60}),
    Fault("slow-upstream", side_by_side_node, variant="node", cure={"delay": 0.01}, near="event-loop-blocked"),
    Fault("fpm-children-exhausted", own_site, variant="own-site", cure={"children": 60}, near="slow-upstream"),
    Fault("serialized", one_at_a_time_node, variant="node", cure={"shared": False}, near="event-loop-blocked"),
    Fault("serialized", one_lock, strengths=({}, {"seconds": 0.1}), cure={"shared": False},
          near="workers-exhausted", other={"workers": 25}),
    Fault("serialized", one_lock_python, variant="gunicorn", cure={"shared": False}, near="sync-workers-waiting",
          other={"workers": 12}),
    Fault("session-lock", session, strengths=({}, {"seconds": 0.2}), cure={"close": True}, near="serialized",
          other={"children": 20}),
    Fault("session-lock", session_mod_php, variant="mod_php", cure={"close": True}, near="serialized",
          other={"workers": 20}),
    Fault("db-locked", row_lock, strengths=({}, {"seconds": 0.1}), cure={"same": False}, near="db-slow",
          other={"children": 20}),
    Fault("db-slow", full_scan, strengths=({}, {"count": 200000}), cure={"index": True}, near="db-locked",
          other={"children": 12}),
    Fault("db-slow", slow_statement, variant="sleep", cure={"index": True}, near="db-locked"),
    Fault("db-pool-exhausted", few_connections_to_database, variant="max_connections", cure={"connections": 200},
          near="db-locked", other={"persistent": False}, measure="good_share"),
    Fault("db-pool-exhausted", own_pool, strengths=({}, {"connections": 2, "seconds": 0.2}),
          cure={"connections": 16}, near="db-locked", other={"threads": 24}),
    Fault("slow-log", slow_log, strengths=({}, {"pause": 0.04}), cure={"pipe": False}, near="workers-exhausted",
          other={"workers": 15}),
    Fault("slow-clients", slow_clients, strengths=({}, {"bandwidth": "100k"}), cure={"bandwidth": ""},
          near="workers-exhausted", other={"backlog": 4000}),
]
