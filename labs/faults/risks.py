"""Risks: what will bite."""

import os
import subprocess
from pathlib import Path

from . import apache as web
from .fault import RISK, Case, Fault
from .measure import environment, lastdrop
from .node import node
from .place import family, processes
from .python import script

FEW = ["-c", "4", "--keepalive", "off"]


def small_table(place, buckets=40):
    """The server closes, so that its side waits; there is room for few that do."""
    place.sysctl("net.ipv4.tcp_max_tw_buckets", buckets)
    server = web.apache(place, log=web.buffered_log(place))

    def overflown():
        head, values = [line.split() for line in place.call(["cat", "/proc/self/net/netstat"]).stdout.splitlines()
                        if line.startswith("TcpExt:")]
        return int(values[head.index("TCPTimeWaitOverflow")])
    return Case([server], server.url + "/index.html", ["-c", "10", "--keepalive", "off"], count=overflown)


def too_many(place, workers=2000, megabytes=40):
    """A pool that would need several times the machine's memory, if it were ever full."""
    pool = f"ServerLimit {workers}\nMaxRequestWorkers {workers}\nStartServers 5\nMinSpareServers 2\nMaxSpareServers 5\n"
    server = web.apache(place, pool_lines=pool, log=web.buffered_log(place),
                        lines=web.perl(place, "", before="our $own;", child=f"our $own = 'x' x ({megabytes} << 20)"))
    return Case([server], server.url + "/page", FEW)


def needed(place, case):
    """Memory of the pool at its limit, in machines."""
    server = case.servers[0]
    limit = int(next(line.split()[1] for line in server.config.read_text().splitlines() if line.startswith("MaxRequestWorkers")))
    sizes = [int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Private_Dirty:")[1].split()[0])
             for pid in family({server.pid}) - {server.pid}]
    return max(sizes) * limit / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024)


def taken(server):
    """Kilobytes that its processes have written to."""
    return sum(int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Private_Dirty:")[1].split()[0])
               for pid in family({server.pid}))


def leaking(place, kilobytes=20, workers=6):
    keep = f"our @kept; push @kept, 'x' x ({kilobytes} << 10);" if kilobytes else ""
    server = web.apache(place, workers=workers, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, 0.01); {keep}"))
    return Case([server], server.url + "/page", FEW, count=lambda: taken(server))


def leaking_node(place, kilobytes=20):
    keep = f"kept.push(Buffer.alloc({kilobytes} << 10, 1));" if kilobytes else ""
    server = node(place, f"await sleep(5); {keep}", before="const kept = [];")
    return Case([server], server.url + "/", FEW, count=lambda: taken(server))


def forking(place, every=40):
    """Now and then the application starts a program and never asks what became of it."""
    start = f"if (rand({every}) < 1) {{ my $pid = fork; if (defined $pid && !$pid) {{ exec '/bin/true' }} }}" if every else ""
    server = web.apache(place, workers=6, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, 0.02); {start}"))

    def dead():
        ours = family({server.pid})
        return sum(1 for parent, _, state in processes().values() if state == "Z" and parent in ours)
    return Case([server], server.url + "/page", FEW, count=dead)


def obsolete(place):
    pool = "ServerLimit 20\nMaxClients 20\nMaxRequestsPerChild 0\nStartServers 20\nMinSpareServers 20\nMaxSpareServers 21\n"
    server = web.apache(place, pool_lines=pool, keepalive="On", log=web.buffered_log(place))
    return Case([server], server.url + "/index.html", ["-c", "4", "--keepalive", "on"])


def greedy(place, users=14, workers=20):
    """One address has most of the workers; the others ask now and then."""
    server = web.apache(place, workers=workers, log=web.buffered_log(place),
                        lines=web.perl(place, "select(undef, undef, undef, 0.1);"))
    if users:
        place.start([lastdrop(), "run", server.url + "/page", "-c", str(users), "--keepalive", "off", "-d", "20m", "--no-store",
                     "--quiet", "--source", "127.0.0.66"], what="greedy", env=environment(place))
    others = ",".join(f"127.0.1.{n}" for n in range(1, 21))
    return Case([server], server.url + "/page", ["-c", "4", "--keepalive", "off", "--source", others])


def share_of_one(place, case):
    """The largest share of an address among the connections of the server's workers."""
    port = case.servers[0].port
    load = subprocess.Popen([*place.enter, lastdrop(), "run", case.url, *case.load, "-d", "4s", "--no-store", "--quiet"],
                            env=environment(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    counts = {}
    for _ in range(20):
        for line in place.call(["ss", "-tnH", "state", "established", "sport", "=", f":{port}"]).stdout.splitlines():
            peer = line.split()[-1].rsplit(":", 1)[0]
            counts[peer] = counts.get(peer, 0) + 1
    load.wait(60)
    return max(counts.values()) / sum(counts.values())


HOLD = '''"""Takes a copy of a listening socket out of another process, and keeps it."""
import ctypes, os, socket, sys, time

pid, port = int(sys.argv[1]), int(sys.argv[2])
other = os.pidfd_open(pid)
call = ctypes.CDLL(None, use_errno=True).syscall
for name in os.listdir(f"/proc/{pid}/fd"):
    if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
        copy = call(438, other, int(name), 0)
        if copy < 0:
            sys.exit(os.strerror(ctypes.get_errno()))
        held = socket.socket(fileno=copy)
        if held.family == socket.AF_INET and held.getsockname()[1] == port:
            print("held", flush=True)
            time.sleep(86400)
        held.detach()
        os.close(copy)
sys.exit("nobody listens there")
'''


def held(place, by_another=True):
    server = web.apache(place, keepalive="On", log=web.buffered_log(place))
    if by_another:
        script(place, "hold.py", HOLD, str(server.pid), str(server.port), ready=lambda d: "held" in d.log.read_text())
    return Case([server], server.url + "/index.html", ["-c", "4", "--keepalive", "on"])


def holders(place, case):
    """Processes beside the server's that have its listening socket."""
    port, ours = case.servers[0].port, family({case.servers[0].pid})
    text = place.call(["ss", "-ltnpH", "sport", "=", f":{port}"]).stdout
    return len({int(part.split(",")[0]) for part in text.split("pid=")[1:]} - ours)


RISKS = [
    Fault("time-wait-overflow", small_table, RISK, cure={"buckets": 131072}, measure="per_request", gain=0.1,
          near="port-exhaustion"),
    Fault("memory-overcommit", too_many, RISK, cure={"workers": 20}, measure=needed, gain=0.5),
    Fault("memory-leak", leaking, RISK, cure={"kilobytes": 0}, measure="per_request", gain=0.3, near="unshared-memory"),
    Fault("memory-leak", leaking_node, RISK, variant="node", cure={"kilobytes": 0}, measure="per_request", gain=0.5, near="unshared-memory"),
    Fault("zombie-children", forking, RISK, cure={"every": 0}, measure="per_request", gain=0.3),
    Fault("obsolete-setting", obsolete, RISK),
    Fault("greedy-client", greedy, RISK, cure={"users": 0}, measure=share_of_one, gain=0.5),
    Fault("held-listener", held, RISK, cure={"by_another": False}, measure=holders, gain=0.5, near="zombie-children"),
]
