"""Ten servers with nothing wrong, under load of several shapes: no limit is right, and no finding.

They are set up as they ought to be (kept connections, buffered logs, no .htaccess, no module too many), so that there is
nothing to be found; what is unusual about each is what a rule that compares one number with a threshold would take for
a fault.
"""

import re
import socket
import time

from . import apache as web
from .database import connect, mariadb
from .fault import HEALTHY, Case, Fault
from .haproxy import haproxy
from .limits_wait import rows
from .measure import environment, good, lastdrop, run
from .nginx import fpm, nginx, php_before
from .node import node
from .peers import service
from .python import gunicorn, script

BUFFERED = "buffer=64k flush=5s"


def rate(number, *more, keep="on"):
    return ["-r", str(number), "--arrivals", "poisson", "--keepalive", keep, *more]


def traffic(place, url, *options):
    """Other people's load, from twenty addresses, for as long as the set-up stands."""
    addresses = ",".join(f"127.0.3.{n}" for n in range(1, 21))
    return place.start([lastdrop(), "run", url, *options, "--source", addresses, "-d", "30m", "--no-store", "--quiet"], what="traffic",
                       env=environment(place))


def observed(place, servers, url, *options):
    """A case in which the doctor only looks at the traffic that is there."""
    traffic(place, url, *options)
    return Case(servers, url, ["-c", "1"], doctor=["--observe"])


def gentle(servers, url, load):
    return Case(servers, url, load, doctor=["--gentle"])


def apache_static(place, workers=40, **more):
    return web.apache(place, workers=workers, keepalive="On", log=web.buffered_log(place), **more)


def static_files(place):
    server = apache_static(place)
    return gentle([server], server.url + "/index.html", rate(100))


IDLE = '''"""Opens connections from many addresses, asks on each now and then, and keeps them."""
import socket, sys, time

port, count = int(sys.argv[1]), int(sys.argv[2])


def ask(peer):
    peer.sendall(b"GET /index.html HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    return bool(peer.recv(65536))


kept = [None] * count
while True:
    for n, peer in enumerate(kept):
        try:
            if peer is None or not ask(peer):
                raise OSError
        except OSError:
            if peer:
                peer.close()
            kept[n] = socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.2.{n % 200 + 1}", 0))
            ask(kept[n])
        time.sleep(0.01)
    print("all", flush=True)
'''


def idle_keepalives(place, count=300):
    """Event holds kept connections without a worker each."""
    server = apache_static(place, mpm="event", workers=200, lines="KeepAliveTimeout 30\n")
    script(place, "idle.py", IDLE, str(server.port), str(count), ready=lambda d: "all" in d.log.read_text())
    return gentle([server], server.url + "/index.html", rate(100))


def php(place):
    place.write("docs/page.php", "<?php usleep(5000); echo 'ok';")
    pool = fpm(place, children=12)
    front = php_before(place, pool, log=f"access_log {place.folder}/access.log combined {BUFFERED};")
    return observed(place, [front, pool], front.url + "/page.php", *rate(50))


def time_wait(place):
    """Thousands of connections that wait on the server's side, as they shall."""
    server = apache_static(place)
    case = Case([server], server.url + "/index.html", ["-c", "10", "-n", "4000", "--keepalive", "off"])
    run(place, case, 60)
    return gentle([server], case.url, rate(100))


def old_counters(place):
    """Counters of the namespace that tell of a queue which was full before this server was there."""
    port = place.port()
    stuck = script(place, "stuck.py", "import socket, sys, time\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])), "
                   "backlog=1)\ntime.sleep(86400)\n", str(port), ready=place.listens(port))
    with place.inside():
        turned_away = [socket.socket() for _ in range(50)]
        for peer in turned_away:
            peer.setblocking(False)
            peer.connect_ex(("127.0.0.1", port))
    time.sleep(2)
    for peer in turned_away:
        peer.close()
    place.stop(stuck)
    server = apache_static(place)
    return gentle([server], server.url + "/index.html", rate(100))


def limited(place, code=429):
    """A limit of requests that is meant: half of them are turned away at once."""
    place.write("docs/page.html", "hello\n")
    front = nginx(place, f""" limit_req_zone $server_name zone=one:1m rate=50r/s; limit_req_status {code};
 server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; location / {{ limit_req zone=one burst=5 nodelay; }} }}""",
                  log=f"access_log {place.folder}/access.log combined {BUFFERED};")
    return observed(place, [front], front.url + "/page.html", *rate(100))


def busy(place, share=0.75):
    """Processors in use for most of the time, without a queue."""
    server = web.apache(place, workers=12, keepalive="On", log=web.buffered_log(place),
                        lines=web.perl(place, "my $s = 0; $s += log($_) for 1 .. 40000;"))
    url = server.url + "/page"
    most, _ = good(run(place, Case([server], url, ["-c", "4"]), 4))
    # A worker holds a kept connection: more of them than workers would be a fault.
    return observed(place, [server], url, "-r", str(max(1, int(most * share))), "--keepalive", "on", "--connections", "10")


def threads(place):
    server = gunicorn(place, "time.sleep(0.02)", workers=2, threads=8, worker_class="gthread")
    return gentle([server], server.url + "/", rate(50))


def proxied_node(place):
    back = node(place, "await sleep(5);")
    front = haproxy(place, f"  http-reuse always\n  server one 127.0.0.1:{back.port} maxconn 500")
    return gentle([front, back], front.url + "/", rate(100))


def database(place):
    db = mariadb(place, sql=rows(5000))
    place.write("docs/page.php", "<?php " + connect(db, persistent=True)
                + "$db->query('SELECT n FROM item WHERE id = ' . rand(1, 5000))->fetch_row(); echo 'ok';")
    pool = fpm(place, children=8)
    front = php_before(place, pool, log=f"access_log {place.folder}/access.log combined {BUFFERED};")
    return observed(place, [front, pool], front.url + "/page.php", *rate(50))


HEALTHY_SERVERS = [
    Fault("healthy", build, HEALTHY, variant=re.sub("_", "-", build.__name__))
    for build in (static_files, idle_keepalives, php, time_wait, old_counters, busy, threads, proxied_node, database)
] + [Fault("healthy", limited, HEALTHY, variant="limited", accept=("rate-limited",))]
