"""Limits of the host and of the way to it, workers that die, and a generator that is the bottleneck."""

import os

from . import apache as web
from .fault import Case, Fault
from .limits_wait import php_site
from .nginx import nginx, proxied
from .peers import service
from .place import LabError
from .python import gunicorn, script

MANY = ["-c", "20", "--keepalive", "off"]
KEPT = ["-c", "20", "--keepalive", "on"]

# Entries of connections that are said to be established, put into the namespace's own table by netlink; the machine's
# limit stays as it is, and entries are counted for each namespace.
FILL = '''"""Fills the table of tracked connections, and makes room for so many new ones a second."""
import socket, struct, sys, time

limit = int(open("/proc/sys/net/netfilter/nf_conntrack_max").read())
room = int(sys.argv[1])


def attribute(kind, data, nested=False):
    return struct.pack("=HH", 4 + len(data), kind | (0x8000 if nested else 0)) + data + bytes(-len(data) % 4)


def ends(source, target, port, to):
    addresses = attribute(1, attribute(1, source) + attribute(2, target), True)
    return addresses + attribute(2, attribute(1, b"\\x11") + attribute(2, struct.pack(">H", port))
                                 + attribute(3, struct.pack(">H", to)), True)


def entry(n):
    source, target, port = bytes([10, 1, n >> 8 & 255, n & 255]), bytes([10, 2, n >> 16 & 255, 1]), 1024 + n % 60000
    return (struct.pack("=BBH", 2, 0, 0) + attribute(1, ends(source, target, port, 9), True),
            attribute(2, ends(target, source, 9, port), True))


def added(n):
    # Confirmed, seen in both directions, assured (so that nothing may take its place); for an hour.
    there, back = entry(n)
    body = there + back + attribute(3, struct.pack(">I", 14)) + attribute(7, struct.pack(">I", 3600))
    return struct.pack("=IHHII", 16 + len(body), 256, 0x601, 0, 0) + body


def removed(n):
    body = entry(n)[0]
    return struct.pack("=IHHII", 16 + len(body), 258, 1, 0, 0) + body


link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
for first in range(0, limit, 50):
    link.send(b"".join(added(n) for n in range(first, min(first + 50, limit))))
print("full", flush=True)
for first in range(0, limit - room, max(1, room // 10)):
    link.send(b"".join(removed(n) for n in range(first, first + max(1, room // 10))))
    time.sleep(0.1)
'''


def tracked(place, room=100, rules=True, workers=10):
    """A full table, into which so many new connections a second find their way."""
    server = web.apache(place, workers=workers, log=web.buffered_log(place))
    if rules:
        firewall(place, "ct state established accept")
        script(place, "fill.py", FILL, str(room), ready=lambda d: "full" in d.log.read_text())
    return Case([server], server.url + "/index.html", MANY)


def firewall(place, rule):
    for words in ("add table ip lab", "add chain ip lab in { type filter hook input priority 0 ; }", f"add rule ip lab in {rule}"):
        done = place.call(["nft", words])
        if done.returncode:
            raise OSError(f"nft {words}: {done.stderr}")


def lossy(place, percent=5, workers=10, size=60000):
    """The network loses packets that the server sends."""
    place.write("docs/page.bin", "x" * size)
    server = web.apache(place, workers=workers * 2, keepalive="On", log=web.buffered_log(place))
    if percent:
        firewall(place, f"tcp sport {server.port} numgen random mod 100 < {percent} drop")
    return Case([server], server.url + "/page.bin", KEPT)


def few_ports(place, ports=400, keep=0, workers=2):
    """A proxy that makes a connection for each request, and few ports to make them from."""
    peer = service(place, 0)
    place.sysctl("net.ipv4.ip_local_port_range", f"40000 {40000 + ports}")
    place.sysctl("net.ipv4.tcp_tw_reuse", 0)
    # It is the proxy that closes, so that the port is the one that waits.
    http = proxied(f"127.0.0.1:{peer.port}", keep=keep, location='proxy_http_version 1.1; proxy_set_header Connection "";'
                   if not keep else "")
    front = nginx(place, http, workers=workers)
    return Case([front], front.url + "/", KEPT)


def killed_for_memory(place, limit=70, megabytes=20, workers=10):
    groups = [place.group("memory", memory__limit_in_bytes=limit << 20)] if limit else []
    place.write("docs/page.php", f"<?php ini_set('memory_limit', '1G'); $s = str_repeat('x', {megabytes} << 20); usleep(100000); echo strlen($s);")
    server = web.apache(place, workers=workers, log=web.buffered_log(place), lines=web.php(place), groups=groups)
    return Case([server], server.url + "/page.php", ["-c", "10", "--keepalive", "off"])


def killed_gunicorn(place, limit=120, megabytes=30, workers=6):
    groups = [place.group("memory", memory__limit_in_bytes=limit << 20)] if limit else []
    server = gunicorn(place, f"kept = bytearray({megabytes} << 20)\nfor i in range(0, len(kept), 4096): kept[i] = 1\ntime.sleep(0.1)",
                      workers=workers, groups=groups)
    return Case([server], server.url + "/", ["-c", "10", "--keepalive", "off"])


def impatient_gunicorn(place, patience=1, every=3, seconds=2.5, workers=6):
    server = gunicorn(place, f"global served\nserved += 1\ntime.sleep({seconds} if served % {every} == 0 else 0.02)",
                      before="served = 0", workers=workers, lines=f"timeout = {patience}\ngraceful_timeout = 1")
    return Case([server], server.url + "/", ["-c", "10", "--keepalive", "off"])


def impatient_fpm(place, patience=1, every=3, seconds=2.5, children=8):
    return php_site(place, f"usleep(rand(1, {every}) == 1 ? {int(seconds * 1e6)} : 20000);", children,
                    pool_lines=f"request_terminate_timeout = {patience}s")


def crashing(place, every=3, workers=10):
    crash = f"kill SEGV => $$ if rand({every}) < 1;" if every else ""
    server = web.apache(place, workers=workers, log=web.buffered_log(place), limits=("--core=0",),
                        lines=web.perl(place, f"select(undef, undef, undef, 0.01); {crash}"))
    return Case([server], server.url + "/page", MANY)


def crashing_fpm(place, every=4, children=8):
    crash = f"if (rand(1, {every}) == 1) posix_kill(getmypid(), 11);" if every else ""
    return php_site(place, f"usleep(10000); {crash}", children)


def held_back_generator(place, percent=8):
    """A server of which more could be had: it is we who are held back. A request costs us some 8 us of a processor."""
    front = nginx(place, ' server { listen 127.0.0.1:PORT; location / { return 200 "hello"; } }')
    wrap = []
    if percent:
        group = place.group("cpu", cpu__cfs_quota_us=percent * 1000)
        wrap = ["sh", "-c", f'echo 0 > {group}/cgroup.procs && exec "$@"', "sh"]
    return Case([front], front.url + "/", KEPT, wrap)


def short_of_memory(place, limit=140, megabytes=220, reads=40, workers=6):
    """Workers that read here and there in a file that fits into the machine's memory, and not into that of their control group."""
    data = place.write("data.bin", bytes(range(256)) * (megabytes << 12), 0o644)
    # Whoever reads it first is charged for it: that was to be the servers, and not this lab.
    with open(data, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    groups = [place.group("memory", memory__limit_in_bytes=limit << 20)] if limit else []
    server = gunicorn(place, f"for _ in range({reads}): os.pread(data, 65536, random.randrange(0, {megabytes} << 20, 65536))",
                      before=f"import random\ndata = os.open('{data}', os.O_RDONLY)\nos.posix_fadvise(data, 0, 0, os.POSIX_FADV_RANDOM)",
                      workers=workers, groups=groups)
    return Case([server], server.url + "/", ["-c", "10", "--keepalive", "off"])


def packets_on_one_core(place, processors=1, rules=1500, workers=2):
    """A filter that costs, and packets of which one processor takes care, as with a card of one queue. `processors` is a mask."""
    nowhere = "".join(f"add rule inet t c tcp dport {n + 1} drop\n" for n in range(rules))
    filters = place.write("filter.nft", f"add table inet t\nadd chain inet t c {{ type filter hook input priority 0; }}\n{nowhere}")
    steer = f"mount -t sysfs sysfs /sys && echo {processors} > /sys/class/net/lo/queues/rx-0/rps_cpus"
    for command in (["nft", "-f", filters], ["unshare", "-m", "sh", "-c", steer]):
        done = place.call(command)
        if done.returncode:
            raise LabError(f"{command[0]}: {done.stderr}")
    front = nginx(place, ' server { listen 127.0.0.1:PORT; location / { return 200 "hello"; } }', workers=workers)
    return Case([front], front.url + "/", KEPT)


LIMITS = [
    Fault("conntrack-full", tracked, strengths=({}, {"room": 30}), cure={"rules": False},
          near="accept-queue-overflow", other={"workers": 20}),
    Fault("retransmits", lossy, strengths=({}, {"percent": 10}), cure={"percent": 0}, near="delayed-ack",
          other={"workers": 20}),
    Fault("port-exhaustion", few_ports, strengths=({}, {"ports": 150}), cure={"keep": 32},
          near="upstream-refused", other={"workers": 1}, measure="good_share"),
    Fault("oom-kill", killed_for_memory, cure={"limit": 0}, near="worker-crash", measure="good_share",
          gain=1.15),
    Fault("oom-kill", killed_gunicorn, variant="gunicorn", cure={"limit": 0}, near="worker-crash", measure="good_share"),
    Fault("worker-timeout", impatient_gunicorn, strengths=({}, {"every": 6}), cure={"patience": 30}, near="worker-crash",
          measure="good_share", gain=1.1),
    Fault("worker-timeout", impatient_fpm, variant="fpm", cure={"patience": 30}, near="worker-crash",
          measure="good_share", gain=1.1),
    Fault("worker-crash", crashing, strengths=({}, {"every": 10}), cure={"every": 0}, near="worker-timeout",
          measure="good_share", gain=1.08),
    Fault("worker-crash", crashing_fpm, variant="fpm", cure={"every": 0}, near="worker-timeout", measure="good_share",
          gain=1.1),
    Fault("generator-saturated", held_back_generator, strengths=({}, {"percent": 4}), cure={"percent": 0},
          near="cpu-saturated"),
    Fault("memory-pressure", short_of_memory, strengths=({}, {"limit": 110}), cure={"limit": 0}, near="oom-kill",
          other={"workers": 8}),
    Fault("softirq-one-core", packets_on_one_core, strengths=({}, {"rules": 3000}), cure={"processors": 0},
          near="single-worker-cpu", other={"workers": 4}, gain=1.25),
    Fault("memory-pressure", None, variant="swap", impossible="there is no swap, and memory.events and memory.high are of cgroup v2, "
          "which has no memory controller here"),
]
