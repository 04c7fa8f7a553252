"""Servers to be tuned, with the settings that matter to each and values of them that make a grid."""

from dataclasses import dataclass, field
from typing import Callable

from faults import apache as web
from faults.database import connect, mariadb
from faults.fault import Case
from faults.haproxy import haproxy
from faults.limits_wait import rows
from faults.nginx import certificate, fpm, nginx, php_before, proxied
from faults.peers import service
from faults.measure import lastdrop
from faults.python import gunicorn

CLOSED = ["--keepalive", "off"]
KEPT = ["--keepalive", "on"]
BUSY = "my $s = 0; $s += log($_) for 1 .. %d;"
SLEEP = "select(undef, undef, undef, %g);"
MOST_POINTS = 48


@dataclass
class Setup:
    """A server as it is found, and the grid of what it could be. Settings have the names that `tune` has for them."""

    name: str
    build: Callable
    """Gives the `Case` in a place: servers and URL."""
    users: int
    grid: dict
    """Values of each setting: numbers that rise, or choices."""
    start: dict
    """Where the settings of the grid stand as the server is found; in the grid, so that nothing found is also scored."""
    load: list = field(default_factory=lambda: CLOSED)
    options: list = field(default_factory=list)
    """More that `tune` is told."""
    rounds: int = 3
    """Of its grid: one that is bound by the processors differs more from block to block."""
    at_best: bool = False
    """It is found at its best: `no_gain` is the right answer."""
    plain: bool = False
    """It is also tuned without being told which settings to search (`--plain`), and the grid is swept beside it."""

    def points(self):
        found = [{}]
        for name, values in self.grid.items():
            found = [{**point, name: value} for point in found for value in values]
        return found


def apache_perl(code, *, pool="MaxRequestWorkers 8\nServerLimit 64\n", keepalive="Off", lines=""):
    def build(place):
        server = web.apache(place, pool_lines=pool, keepalive=keepalive, log=web.buffered_log(place),
                            lines=web.perl(place, code) + lines)
        return Case([server], server.url + "/page")
    return build


def apache_database(place):
    """Half of each page waits for a statement, half of it computes."""
    db = mariadb(place, sql=rows(2000))
    server = web.apache(place, pool_lines="MaxRequestWorkers 4\nServerLimit 64\n", log=web.buffered_log(place), lines=web.php(place))
    place.write("docs/page.php", f"<?php {connect(db)} $db->query('SELECT SLEEP(0.02)'); "
                                 "$s = 0; for ($i = 1; $i < 60000; $i++) $s += sqrt($i); echo 'ok';\n")
    return Case([server], server.url + "/page.php")


def apache_threads(mpm, code):
    """Static files, or a service behind it, by threads."""
    def build(place):
        back = service(place, 0.02) if code == "proxy" else None
        lines = f'ProxyPass "/page" "{back.url}"\n' if back else ""
        modules = ("proxy", "proxy_http") if back else ()
        server = web.apache(place, mpm=mpm, keepalive="On", modules=modules, log=web.buffered_log(place), lines=lines,
                            pool_lines="ServerLimit 16\nThreadLimit 64\nThreadsPerChild 8\nMaxRequestWorkers 8\nStartServers 1\n")
        place.write("docs/file.bin", "x" * 20000)
        return Case([server], server.url + ("/page" if back else "/file.bin"))
    return build


def nginx_static(place):
    place.write("docs/file.txt", "some text that repeats itself\n" * 2000)
    front = nginx(place, f" sendfile off; gzip on; gzip_types text/plain; gzip_comp_level 6; gzip_min_length 100;"
                         f" server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}", workers=1)
    return Case([front], front.url + "/file.txt")


def nginx_text(level, workers):
    """A text whose words stand in an order that compresses badly: level 9 takes several times as long as level 1."""
    def build(place):
        place.write("docs/text.txt", "".join(f"{n * 2654435761 % 2**32 % 50021:x} " for n in range(12000)))
        front = nginx(place, f" gzip on; gzip_types text/plain; gzip_comp_level {level};"
                             f" server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}", workers=workers)
        return Case([front], front.url + "/text.txt")
    return build


def nginx_tls(place):
    crt, key = certificate(place.folder, "rsa:2048")
    place.write("docs/file.txt", "hello\n")
    front = nginx(place, f" server {{ listen 127.0.0.1:PORT ssl; ssl_certificate {crt}; ssl_certificate_key {key};"
                         f" keepalive_requests 2; root {place.folder}/docs; }}", workers=1)
    return Case([front], front.url.replace("http:", "https:") + "/file.txt")


def nginx_proxy(place):
    """Each request behind it is a new connection to a service that is a program of one thread."""
    back = service(place, 0)
    front = nginx(place, proxied(f"127.0.0.1:{back.port}"), workers=1)
    return Case([front], front.url + "/")


def fpm_pages(place):
    pool = fpm(place, children=2)
    place.write("docs/page.php", "<?php $s = 0; for ($i = 1; $i < 40000; $i++) $s += sqrt($i); usleep(15000); echo 'ok';\n")
    front = php_before(place, pool, workers=1)
    return Case([front, pool], front.url + "/page.php")


def fpm_dynamic(place):
    """A pool that grows to two children, and pages that wait most of their time."""
    pool = fpm(place, children=2, pm="dynamic", lines="pm.start_servers = 1\npm.min_spare_servers = 1\npm.max_spare_servers = 2")
    place.write("docs/page.php", "<?php $s = 0; for ($i = 1; $i < 40000; $i++) $s += sqrt($i); usleep(25000); echo 'ok';\n")
    front = php_before(place, pool, workers=1)
    return Case([front, pool], front.url + "/page.php")


def gunicorn_sync(place):
    server = gunicorn(place, "s = 0\nfor i in range(20000): s += i * i\ntime.sleep(0.015)", workers=1)
    return Case([server], server.url + "/")


def gunicorn_before(place):
    server = gunicorn(place, "s = 0\nfor i in range(5000): s += i * i\ntime.sleep(0.01)", workers=1, threads=1, worker_class="gthread")
    front = haproxy(place, f"  server app 127.0.0.1:{server.port} maxconn 64", threads=1)
    return Case([front, server], front.url + "/")


def target(text):
    """The target, whose best settings were planted."""
    def build(place):
        port = place.port()
        config = place.write("target.toml", f'listen = "127.0.0.1:{port}"\n{text}\n')
        server = place.start([lastdrop(), "target", "--config", config], place.listens(port), what="target", name=f"target:{config}")
        return Case([server], f"http://127.0.0.1:{port}/")
    return build


WAIT_AND_COMPUTE = BUSY % 20000 + SLEEP % 0.02
SETUPS = [
    Setup("apache-prefork-cpu", apache_perl(BUSY % 20000, pool="MaxRequestWorkers 40\nServerLimit 64\n", lines="MaxConnectionsPerChild 20\n"), 40,
          {"MaxRequestWorkers": [2, 4, 8, 16, 40], "MaxConnectionsPerChild": [0, 20, 1000]},
          {"MaxRequestWorkers": 40, "MaxConnectionsPerChild": 20}, rounds=6),
    Setup("apache-prefork-sleep", apache_perl(SLEEP % 0.03), 32, {"MaxRequestWorkers": [4, 8, 16, 32, 64]}, {"MaxRequestWorkers": 8}),
    Setup("apache-prefork-kept", apache_perl(SLEEP % 0.01, keepalive="On"), 24,
          {"MaxRequestWorkers": [4, 8, 16, 32], "KeepAlive": ["On", "Off"]}, {"MaxRequestWorkers": 8, "KeepAlive": "On"}, load=KEPT),
    Setup("apache-prefork-database", apache_database, 32, {"MaxRequestWorkers": [2, 4, 8, 16, 32]}, {"MaxRequestWorkers": 4}),
    Setup("apache-prefork-memory", apache_perl("our $own ||= 'x' x (20 << 20); " + SLEEP % 0.02), 32,
          {"MaxRequestWorkers": [2, 4, 8, 12]}, {"MaxRequestWorkers": 8}, options=["--memory", "400M"]),
    Setup("apache-worker-static", apache_threads("worker", "static"), 64,
          {"MaxRequestWorkers": [8, 16, 32, 64, 128], "ThreadsPerChild": [8, 16, 32]}, {"MaxRequestWorkers": 8, "ThreadsPerChild": 8}, load=KEPT, rounds=9),
    Setup("apache-event-proxy", apache_threads("event", "proxy"), 64,
          {"MaxRequestWorkers": [8, 16, 32, 64, 128], "ThreadsPerChild": [8, 16, 32]}, {"MaxRequestWorkers": 8, "ThreadsPerChild": 8}, load=KEPT),
    Setup("nginx-static", nginx_static, 16,
          {"worker_processes": [1, 2, 4], "sendfile": ["off", "on"], "gzip": ["on", "off"]},
          {"worker_processes": 1, "sendfile": "off", "gzip": "on"}, load=[*KEPT, "-H", "Accept-Encoding: gzip"], rounds=9),
    Setup("nginx-tls", nginx_tls, 16, {"worker_processes": [1, 2, 4], "keepalive_requests": [2, 20, 1000]},
          {"worker_processes": 1, "keepalive_requests": 2}, load=[*KEPT, "--insecure"], rounds=9),
    Setup("nginx-proxy", nginx_proxy, 16, {"worker_processes": [1, 2, 4], "keepalive": [0, 2, 8, 32]},
          {"worker_processes": 1, "keepalive": 0}, load=KEPT, rounds=9),
    Setup("fpm-behind-nginx", fpm_pages, 32, {"php-fpm.pm.max_children": [2, 4, 8, 16, 32], "nginx.worker_processes": [1, 2]},
          {"php-fpm.pm.max_children": 2, "nginx.worker_processes": 1}),
    Setup("gunicorn-behind-haproxy", gunicorn_before, 32,
          {"gunicorn.workers": [1, 2, 4, 8], "gunicorn.threads": [1, 2, 4, 8], "haproxy.nbthread": [1, 2]},
          {"gunicorn.workers": 1, "gunicorn.threads": 1, "haproxy.nbthread": 1}, rounds=5),
    Setup("target-one-peak", target("workers = 3\nservice = '20ms'\ncoherency = 0.0069"), 48, {"workers": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]},
          {"workers": 3}),
    Setup("target-two-peaks", target("workers = 4\nservice = '20ms'\nslowdown = '4:1, 12:5, 28:2.6, 48:9'"), 64,
          {"workers": [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64]}, {"workers": 4}),
    Setup("target-interacting", target("workers = 6\nservice = '10ms'\nstartup = '50ms'\nmax_requests_per_worker = 20\nkeepalive = true\n"
                                       "coherency = 0.003"), 32,
          {"workers": [2, 4, 6, 8, 16, 32], "max_requests_per_worker": [0, 20, 1000], "keepalive": ["On", "Off"]},
          {"workers": 6, "max_requests_per_worker": 20, "keepalive": "On"}, load=KEPT),
    Setup("nginx-gzip", nginx_text(9, 1), 10, {"worker_processes": [1, 2], "gzip_comp_level": [1, 4, 9]},
          {"worker_processes": 1, "gzip_comp_level": 9}, load=[*KEPT, "-H", "Accept-Encoding: gzip"], plain=True),
    Setup("fpm-dynamic", fpm_dynamic, 16, {"php-fpm.pm.max_children": [2, 4, 6, 8, 12, 16]}, {"php-fpm.pm.max_children": 2}, plain=True),
    Setup("gunicorn-sync", gunicorn_sync, 16, {"workers": [1, 2, 4, 6, 8, 12, 16]}, {"workers": 1}, plain=True),
    Setup("prefork-small", apache_perl(WAIT_AND_COMPUTE, pool="MaxRequestWorkers 2\nServerLimit 64\n"), 24,
          {"MaxRequestWorkers": [2, 4, 6, 8, 12, 16, 24]}, {"MaxRequestWorkers": 2}, plain=True),
    Setup("prefork-kept-long", apache_perl(WAIT_AND_COMPUTE, pool="MaxRequestWorkers 4\nServerLimit 64\n", keepalive="On", lines="KeepAliveTimeout 15\n"), 24,
          {"MaxRequestWorkers": [4, 8, 16, 24], "KeepAlive": ["On", "Off"]}, {"MaxRequestWorkers": 4, "KeepAlive": "On"}, load=KEPT, plain=True),
    Setup("nginx-healthy", nginx_text(1, 2), 10, {"worker_processes": [1, 2, 4], "gzip_comp_level": [1, 4]},
          {"worker_processes": 2, "gzip_comp_level": 1}, load=[*KEPT, "-H", "Accept-Encoding: gzip"], at_best=True, plain=True),
    Setup("prefork-healthy", apache_perl(WAIT_AND_COMPUTE, pool="MaxRequestWorkers 16\nServerLimit 64\n"), 12,
          {"MaxRequestWorkers": [4, 8, 12, 16, 24]}, {"MaxRequestWorkers": 16}, at_best=True, plain=True),
    Setup("target-at-its-best", target("workers = 12\nservice = '20ms'\ncoherency = 0.0069"), 48, {"workers": [4, 8, 12, 16, 32]},
          {"workers": 12}, at_best=True),
]
