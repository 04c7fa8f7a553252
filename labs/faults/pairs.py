"""Two faults at once: the one that binds is the limit. The cure of the other changes nothing as long as it is there."""

from . import apache as web
from .fault import PAIR, Case, Fault
from .haproxy import haproxy
from .limits_wait import MANY, php_site, row_lock
from .nginx import fpm, nginx, php_before, proxied
from .peers import service
from .python import gunicorn


def peer_and_pool(place, children=4, delay=0.05, how="serial"):
    """A service that serves one at a time (20/s) behind a pool that would do 80/s."""
    peer = service(place, delay, how)
    return php_site(place, f"file_get_contents('{peer.url}');", children)


def lock_and_pool(place, children=5, seconds=0.05, same=True):
    """A row that all of a small pool want."""
    return row_lock(place, children, seconds, same)


def session_and_compiling(place, seconds=0.1, close=False, opcache=False):
    """One session for all, and an application that is compiled each time: with the lock the processors are idle."""
    place.write("docs/part.php", "<?php\n" + "\n".join(f"function f{n}($a) {{ return [$a, {n}]; }}" for n in range(300)))
    early = "session_write_close();" if close else ""
    case = php_site(place, f"include __DIR__ . '/part.php'; session_start(); {early} usleep({int(seconds * 1e6)});", 10,
                    opcache=opcache)
    case.load += ["-H", "Cookie: PHPSESSID=0123456789abcdef0123456789"]
    return case


def workers_and_front(place, workers=2, connections=60, seconds=0.1):
    """Few sync workers behind a front with few connections: the workers are met first."""
    server = gunicorn(place, f"time.sleep({seconds})", workers=workers)
    front = nginx(place, proxied(f"127.0.0.1:{server.port}"), workers=1, connections=connections)
    return Case([front, server], front.url + "/", MANY)


def lock_and_workers(place, workers=6, seconds=0.05, shared=True):
    """A lock for all, and workers that would be too few without it."""
    file = "one" if shared else "$$"
    lock = (f'open(my $f, ">>", "{place.open_folder("locks")}/{file}") or die; flock($f, LOCK_EX); '
            f"select(undef, undef, undef, {seconds}); close $f;")
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, lock))
    return Case([server], server.url + "/page", MANY)


def children_and_peer(place, children=2, how="serial"):
    """A pool that does 9/s, before a service that does 50."""
    peer = service(place, 0.02, how)
    return php_site(place, f"usleep(200000); file_get_contents('{peer.url}');", children)


def workers_and_lock(place, workers=2, shared=True):
    """Workers that do 9/s, of a page whose lock for all allows 33."""
    file = "one" if shared else "$$"
    code = (f'select(undef, undef, undef, 0.2); open(my $f, ">>", "{place.open_folder("locks")}/{file}") or die; '
            "flock($f, LOCK_EX); select(undef, undef, undef, 0.03); close $f;")
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, code))
    return Case([server], server.url + "/page", MANY)


def front_and_children(place, connections=12, children=8):
    """Few connections of an nginx, before a pool that is larger than they can use and smaller than the users are many."""
    place.write("docs/page.php", "<?php usleep(100000); echo 'ok';")
    pool = fpm(place, children=children)
    front = php_before(place, pool, workers=1, connections=connections)
    return Case([front, pool], front.url + "/page.php", ["-c", "40", "--keepalive", "off"])


def slots_and_workers(place, maxconn=2, workers=6):
    """A balancer that lets through fewer than the server behind it has workers."""
    back = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.perl(place, "select(undef, undef, undef, 0.1);"))
    slots = f"maxconn {maxconn}" if maxconn else ""
    front = haproxy(place, f"  server one 127.0.0.1:{back.port} {slots}")
    return Case([front, back], front.url + "/page", MANY)


PAIRS = [
    Fault("slow-upstream", peer_and_pool, PAIR, variant="few-children", cure={"how": "parallel"}, other={"children": 8},
          near="fpm-children-exhausted"),
    Fault("db-locked", lock_and_pool, PAIR, variant="few-children", cure={"same": False}, other={"children": 10},
          near="fpm-children-exhausted"),
    Fault("session-lock", session_and_compiling, PAIR, variant="opcode-cache-off", cure={"close": True},
          other={"opcache": True}, near="opcode-cache-off"),
    Fault("sync-workers-waiting", workers_and_front, PAIR, variant="few-connections", cure={"workers": 6},
          other={"connections": 400}, near="nginx-connections-exhausted", accept=("workers-exhausted",)),
    Fault("serialized", lock_and_workers, PAIR, variant="few-workers", cure={"shared": False}, other={"workers": 12},
          near="workers-exhausted"),
    Fault("fpm-children-exhausted", children_and_peer, PAIR, variant="slow-upstream", cure={"children": 30}, other={"how": "parallel"},
          near="slow-upstream", then=("slow-upstream",)),
    Fault("workers-exhausted", workers_and_lock, PAIR, variant="serialized", cure={"workers": 30}, other={"shared": False},
          near="serialized", then=("serialized",)),
    Fault("nginx-connections-exhausted", front_and_children, PAIR, variant="few-children", cure={"connections": 400},
          other={"children": 40}, near="fpm-children-exhausted", then=("fpm-children-exhausted",)),
    Fault("proxy-maxconn", slots_and_workers, PAIR, variant="few-workers", cure={"maxconn": 0}, other={"workers": 30},
          near="workers-exhausted", then=("workers-exhausted",)),
]
