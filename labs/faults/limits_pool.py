"""Limits of pools and queues: workers, backlogs, recycling, control groups, open files."""

from . import apache as web
from .fault import Case, Fault
from .haproxy import haproxy
from .nginx import fpm, nginx, php_before, proxied
from .peers import service
from .place import LabError
from .python import gunicorn, uwsgi

MANY = ["-c", "20", "--keepalive", "off"]


def sleeping_perl(place, workers=3, seconds=0.1, backlog=511, users=20, **more):
    server = web.apache(place, workers=workers, backlog=backlog, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});"), **more)
    return Case([server], server.url + "/page", ["-c", str(users), "--keepalive", "off"])


def sleeping_php(place, workers=8, seconds=0.2, backlog=511, users=40):
    place.write("docs/page.php", f"<?php usleep({int(seconds * 1e6)}); echo 'ok';")
    server = web.apache(place, workers=workers, backlog=backlog, log=web.buffered_log(place), lines=web.php(place))
    return Case([server], server.url + "/page.php", ["-c", str(users), "--keepalive", "off"])


def kept(place, workers=12, users=40, think="500ms", keepalive="On", seconds=0.005, backlog=511, timeout=5):
    """Browsers that read for a while on a connection that holds a worker."""
    server = web.apache(place, workers=workers, keepalive=keepalive, backlog=backlog, log=web.buffered_log(place),
                        lines=f"KeepAliveTimeout {timeout}\n"
                              + web.perl(place, f"select(undef, undef, undef, {seconds});"))
    return Case([server], server.url + "/page", ["-c", str(users), "--keepalive", "on", "--think", think])


def kept_by_threads(place, workers=16, users=40, keepalive="On"):
    """The same of the worker MPM: threads that wait for the next request, until the status page finds no one free."""
    server = web.apache(place, mpm="worker", workers=workers, threads=8, keepalive=keepalive, log=web.buffered_log(place),
                        lines="KeepAliveTimeout 5\n")
    return Case([server], server.url + "/index.html", ["-c", str(users), "--keepalive", "on", "--think", "500ms"])


def clamped(place, wanted=40, clamp=4, seconds=0.1, mpm="prefork"):
    if mpm == "prefork":
        pool = f"ServerLimit {clamp}\nMaxRequestWorkers {wanted}\nStartServers {clamp}\nMinSpareServers 4\nMaxSpareServers {wanted}\n"
    else:
        pool = (f"ServerLimit {clamp}\nThreadLimit 5\nThreadsPerChild 5\nMaxRequestWorkers {wanted}\n"
                f"StartServers {min(clamp, wanted // 5)}\nMinSpareThreads 5\nMaxSpareThreads {wanted + 5}\n")
    server = web.apache(place, mpm=mpm, pool_lines=pool, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});"))
    return Case([server], server.url + "/page", ["-c", "40", "--keepalive", "off"])


def short_backlog(place, backlog=5, workers=80, users=60, tick=0.1):
    """Answers that come together, at each tick of a clock, so that all users come back together. A steady stream would
    find room in any queue: it is bursts that a short one turns away."""
    wait = f"use Time::HiRes (); my $now = Time::HiRes::time(); select(undef, undef, undef, {tick} - ($now - int($now / {tick}) * {tick}));"
    server = web.apache(place, workers=workers, backlog=backlog, log=web.buffered_log(place), lines=web.perl(place, wait))
    return Case([server], server.url + "/page", ["-c", str(users), "--keepalive", "off"])


def churn(place, workers=10, requests=20, born=0.2, backlog=511):
    server = web.apache(place, workers=workers, backlog=backlog, log=web.buffered_log(place),
                        lines=f"MaxConnectionsPerChild {requests}\n"
                              + web.perl(place, "", child=f"select(undef, undef, undef, {born})" if born else ""))
    return Case([server], server.url + "/page", MANY)


def churning_fpm(place, children=6, requests=3, body=200):
    """Children that end after a few requests, and whose successors compile the application first."""
    place.write("docs/page.php", f"<?php $n = 0; for ($i = 0; $i < {body}; $i++) $n += $i; echo $n;")
    pool = fpm(place, children=children, lines=f"pm.max_requests = {requests}")
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", MANY)


WORK = "my $s = 0; $s += log($_) for 1 .. %d;"


def throttled(place, percent=30, workers=10, work=2000):
    groups = [place.group("cpu", cpu__cfs_quota_us=percent * 1000)] if percent else []
    server = web.apache(place, workers=workers, log=web.buffered_log(place), groups=groups,
                        lines=web.perl(place, WORK % work))
    return Case([server], server.url + "/page", MANY)


def throttled_stack(place, percent=40, children=6, work=20000):
    groups = [place.group("cpu", cpu__cfs_quota_us=percent * 1000)] if percent else []
    place.write("docs/page.php", f"<?php $s = 0; for ($i = 1; $i < {work}; $i++) $s += log($i); echo $s;")
    pool = fpm(place, children=children, groups=groups)
    front = php_before(place, pool, groups=groups)
    return Case([front, pool], front.url + "/page.php", MANY)


def few_tasks(place, tasks=7, workers=40, seconds=0.1):
    groups = [place.group("pids", pids__max=tasks)] if tasks else []
    pool = (f"ServerLimit {workers}\nMaxRequestWorkers {workers}\nStartServers 3\nMinSpareServers 5\n"
            f"MaxSpareServers {workers}\n")
    server = web.apache(place, pool_lines=pool, groups=groups, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});"))
    return Case([server], server.url + "/page", ["-c", "30", "--keepalive", "off"])


def few_files(place, files=40, connections=1024, users=60, delay=0.1):
    peer = service(place, delay)
    front = nginx(place, proxied(f"127.0.0.1:{peer.port}"), workers=1, connections=connections,
                  main=f"worker_rlimit_nofile {files};")
    return Case([front], front.url + "/", ["-c", str(users), "--keepalive", "off"])


def few_connections(place, connections=20, users=60, delay=0.1, files=4096):
    peer = service(place, delay)
    front = nginx(place, proxied(f"127.0.0.1:{peer.port}"), workers=1, connections=connections,
                  main=f"worker_rlimit_nofile {files};")
    return Case([front], front.url + "/", ["-c", str(users), "--keepalive", "off"])


def few_children(place, children=2, seconds=0.1, backlog=511, users=20):
    place.write("docs/page.php", f"<?php usleep({int(seconds * 1e6)}); echo 'ok';")
    pool = fpm(place, children=children, backlog=backlog)
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", str(users), "--keepalive", "off"])


def short_pool_backlog(place, backlog=2, children=4, users=40, seconds=0.05):
    place.write("docs/page.php", f"<?php usleep({int(seconds * 1e6)}); echo 'ok';")
    pool = fpm(place, children=children, backlog=backlog)
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", str(users), "--keepalive", "off"])


def short_gunicorn_backlog(place, backlog=1, workers=4, users=40, seconds=0.05):
    server = gunicorn(place, f"time.sleep({seconds})", workers=workers, backlog=backlog, socket_path=True)
    front = nginx(place, proxied(f"unix:{server.socket}"))
    return Case([front, server], front.url + "/", ["-c", str(users), "--keepalive", "off"])


def refused(place, gone=1, present=0, spare=False):
    """`gone` upstreams where nobody listens beside so many that do."""
    there = [f"127.0.0.1:{service(place, 0.01).port} max_fails=0" for _ in range(present)]
    away = [f"127.0.0.1:{service(place, 0.01).port if spare else place.port()} max_fails=0" for _ in range(gone)]
    front = nginx(place, proxied(there + away, location="proxy_next_upstream off;"))
    return Case([front], front.url + "/", MANY)


def refused_by_haproxy(place, there=False, threads=2):
    """Nobody listens there, as its health checks have found out."""
    port = service(place, 0.01).port if there else place.port()
    front = haproxy(place, f"  server one 127.0.0.1:{port} check inter 1s", threads=threads)
    return Case([front], front.url + "/", MANY)


def refused_by_apache(place, there=False, workers=50, retry=0):
    """`retry`: seconds for which Apache does not ask again whoever has refused (its default is 60)."""
    port = service(place, 0.01).port if there else place.port()
    server = web.apache(place, mpm="event", workers=workers, modules=("proxy", "proxy_http"), log=web.buffered_log(place),
                        lines=f"ProxyPass /page http://127.0.0.1:{port}/ retry={retry}\n")
    return Case([server], server.url + "/page", MANY)


def one_sync(place, workers=1, seconds=0.1, backlog=2048):
    """Sync workers that wait: each request reads from a service that answers all at once."""
    peer = service(place, seconds)
    code = f"""with socket.create_connection(("127.0.0.1", {peer.port})) as peer:
    peer.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    while peer.recv(4096):
        pass"""
    server = gunicorn(place, code, workers=workers, backlog=backlog)
    return Case([server], server.url + "/", MANY)


def short_uwsgi_queue(place, listen=3, workers=40, users=30, tick=0.1):
    """As `short_backlog`: what comes together finds a short queue full."""
    server = uwsgi(place, f"time.sleep({tick} - time.time() % {tick})", workers=workers, listen=listen)
    return Case([server], server.url + "/", ["-c", str(users), "--keepalive", "off"])


def few_slots(place, maxconn=4, delay=0.05, threads=2):
    peer = service(place, delay)
    slots = f"maxconn {maxconn}" if maxconn else ""
    front = haproxy(place, f"  server one 127.0.0.1:{peer.port} {slots}", threads=threads)
    return Case([front], front.url + "/", MANY)


def few_front_slots(place, maxconn=6, delay=0.1, threads=2):
    peer = service(place, delay)
    # Unless it is said, the listen queue is as short as maxconn, which would be a fault of its own.
    front = haproxy(place, f"  server one 127.0.0.1:{peer.port}", front=f"  maxconn {maxconn}\n  backlog 511", threads=threads)
    return Case([front], front.url + "/", MANY)


def refusing_backend(place, gone=1, present=1, retries=3, threads=2):
    """Some of the backend's servers refuse: each attempt at the same one is followed by a second of waiting."""
    lines = [f"  server up{n} 127.0.0.1:{service(place, 0.01).port}" for n in range(present)]
    lines += [f"  server down{n} 127.0.0.1:{place.port()}" for n in range(gone)]
    front = haproxy(place, f"  retries {retries}\n" + "\n".join(lines), threads=threads)
    return Case([front], front.url + "/", MANY)


def silent_backend(place, drops=True):
    """One of two servers whose machine does not answer at all: packets to it are dropped, and a second later HAProxy tries the other."""
    there, away = service(place, 0.01), service(place, 0.01)
    if drops:
        rule = f"add table ip lab; add chain ip lab in {{ type filter hook input priority 0; }}; add rule ip lab in tcp dport {away.port} tcp flags syn drop"
        done = place.call(["nft", rule])
        if done.returncode:
            raise LabError(f"nft: {done.stderr}")
    lines = f"  balance roundrobin\n  retries 3\n  option redispatch 1\n  server one 127.0.0.1:{there.port}\n  server two 127.0.0.1:{away.port}"
    front = haproxy(place, lines, defaults="  timeout connect 1s\n  option http-server-close")
    return Case([front], front.url + "/", MANY)


LIMITS = [
    Fault("workers-exhausted", sleeping_perl, strengths=({}, {"workers": 6, "seconds": 0.3, "users": 30}),
          cure={"workers": 40}, near="accept-queue-overflow", other={"backlog": 4000}),
    Fault("workers-exhausted", sleeping_php, variant="mod_php", strengths=({}, {"workers": 4}),
          cure={"workers": 60}, near="accept-queue-overflow", other={"backlog": 4000}),
    Fault("keepalive-hogging", kept, strengths=({}, {"workers": 6, "think": "1s"}), cure={"keepalive": "Off"},
          near="workers-exhausted", other={"backlog": 4000}),
    Fault("server-limit-clamp", clamped, strengths=({}, {"clamp": 2, "mpm": "worker"}),
          cure={"clamp": 40}, near="workers-exhausted", other={"wanted": 80}),
    Fault("accept-queue-overflow", short_backlog, strengths=({"backlog": 2}, {"backlog": 1, "tick": 0.2}),
          cure={"backlog": 511}, near="workers-exhausted", other={"workers": 100}),
    Fault("process-churn", churn, strengths=({}, {"requests": 3, "born": 0.0}), cure={"requests": 0},
          near="workers-exhausted", other={"backlog": 4000}),
    Fault("process-churn", churning_fpm, variant="fpm", cure={"requests": 0}, near="fpm-children-exhausted"),
    Fault("cpu-throttled", throttled, strengths=({}, {"percent": 10}), cure={"percent": 0}, near="cpu-saturated",
          other={"workers": 20}),
    Fault("cpu-throttled", throttled_stack, variant="fpm", strengths=({},), cure={"percent": 0},
          near="cpu-saturated", other={"children": 12}),
    Fault("tasks-limit", few_tasks, strengths=({}, {"tasks": 12, "seconds": 0.3}), cure={"tasks": 0},
          near="workers-exhausted", other={"workers": 80}),
    Fault("fd-limit", few_files, strengths=({}, {"files": 24}), cure={"files": 4096},
          near="nginx-connections-exhausted", other={"connections": 4096}),
    Fault("nginx-connections-exhausted", few_connections, strengths=({}, {"connections": 40}),
          cure={"connections": 1024}, near="fd-limit", other={"files": 8192}),
    Fault("fpm-children-exhausted", few_children, strengths=({}, {"children": 5, "seconds": 0.3, "users": 40}),
          cure={"children": 60}, near="upstream-backlog-overflow", other={"backlog": 2048}),
    Fault("upstream-backlog-overflow", short_pool_backlog, strengths=({}, {"backlog": 8, "users": 80}),
          cure={"backlog": 511}, near="upstream-refused", other={"seconds": 0.049}, measure="good_share"),
    Fault("upstream-backlog-overflow", short_gunicorn_backlog, variant="gunicorn", cure={"backlog": 511},
          near="upstream-refused", other={"seconds": 0.049}, measure="good_share"),
    Fault("upstream-refused", refused, strengths=({}, {"present": 1}), cure={"spare": True},
          near="upstream-backlog-overflow", measure="good_share"),
    Fault("upstream-refused", refused_by_apache, variant="mod_proxy", strengths=({}, {"retry": 60}), cure={"there": True},
          near="upstream-backlog-overflow", other={"workers": 100}, measure="good_share"),
    Fault("upstream-refused", refused_by_haproxy, variant="haproxy", cure={"there": True},
          near="proxy-maxconn", other={"threads": 1}, measure="good_share"),
    Fault("sync-workers-waiting", one_sync, strengths=({}, {"workers": 3, "seconds": 0.3}), cure={"workers": 12},
          near="interpreter-lock", other={"backlog": 4000}, accept=("slow-upstream",)),
    Fault("uwsgi-queue-full", short_uwsgi_queue, strengths=({}, {"listen": 2, "tick": 0.2}), cure={"listen": 1000},
          near="accept-queue-overflow", other={"workers": 45}),
    Fault("proxy-maxconn", few_slots, strengths=({}, {"maxconn": 2, "delay": 0.1}), cure={"maxconn": 0},
          near="slow-upstream", other={"threads": 1}),
    Fault("proxy-maxconn", few_front_slots, variant="frontend", cure={"maxconn": 1000}, near="slow-upstream",
          other={"threads": 1}),
    Fault("proxy-connect-retries", refusing_backend, strengths=({}, {"gone": 2, "retries": 2}), cure={"gone": 0},
          near="slow-upstream", other={"threads": 1}),
    Fault("proxy-connect-retries", silent_backend, variant="dropped", cure={"drops": False}, near="slow-upstream"),
    Fault("keepalive-hogging", kept_by_threads, variant="worker", cure={"keepalive": "Off"}, near="slow-clients"),
]
