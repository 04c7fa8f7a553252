"""Runs that become pages: what people send each other, from the shortest to those of an hour and of a hundred machines."""

import json
import re
import subprocess
from dataclasses import dataclass
from typing import Callable

from faults import apache as web
from faults.measure import environment, lastdrop
from faults.nginx import nginx
from faults.place import LabError

from . import made

PATIENCE = 400
PAGE = "my $s = 0; $s += log($_) for 1 .. 4000; select(undef, undef, undef, 0.008 + 0.004 * rand);"
"""A millisecond of a processor, and some more of waiting."""


@dataclass
class Page:
    """`make(place)` gives what `lastdrop report` is told: ids, or names of files."""

    name: str
    make: Callable
    holds: tuple = ()
    """Words that the page has to have."""


def call(place, *words, codes=(0, 3, 4)):
    """Runs lastdrop in the place; what it said."""
    command = [*place.enter, lastdrop(), *(str(word) for word in words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=place.folder, env=environment(place), timeout=PATIENCE)
    if done.returncode not in codes:
        raise LabError(f"lastdrop {' '.join(map(str, words[:2]))} ends with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done


def run(place, *words, codes=(0, 3, 4)):
    """The id of a run."""
    file = place.folder / "document.json"
    call(place, "run", *words, "--quiet", "--json", file, codes=codes)
    return json.loads(file.read_text())["id"]


def kept(done):
    """The id of what came of several runs."""
    found = re.search(r"^kept as (\w+)", done.stdout, re.M)
    if not found:
        raise LabError(f"nothing was kept: {done.stdout[-400:]}")
    return found[1]


def perl(place, workers=6):
    """Apache with a page that computes and waits."""
    return web.apache(place, workers=workers, lines=web.perl(place, PAGE), log=web.buffered_log(place))


def target(place, *words):
    """The web server of known behaviour; its URL."""
    port = place.port()
    place.start([lastdrop(), "target", "--listen", f"127.0.0.1:{port}", *words], place.listens(port), what="target")
    return f"http://127.0.0.1:{port}/"


def files(place):
    """nginx with a page for every path."""
    return nginx(place, 'server { listen 127.0.0.1:PORT; location / { return 200 "hello\\n"; } '
                 'location /status { stub_status; } }', main="worker_rlimit_nofile 4096;")


def watched(place, seconds):
    """A run with its server beside it."""
    server = perl(place)
    return run(place, server.url + "/page", "-c", 12, "-d", f"{seconds}s", "--server", server.name)


def errors(place):
    """Answers with 500, closed and reset connections, requests that hang, and a port at which nobody listens."""
    url = target(place, "--workers", "4", "--service", "2ms", "--error-every", "7", "--close-every", "31", "--reset-every", "41", "--hang-every", "97")
    plan = place.write("plan.toml", f"""timeout = '500ms'
[[phase]]
users = 6
duration = '8s'
[[request]]
url = '{url}'
name = 'page'
weight = 5
[[request]]
url = 'http://127.0.0.1:{place.port()}/'
name = 'nobody there'
""")
    return run(place, plan)


def urls(place):
    """As many classes as a large site has pages: words, since numbers of one path are one class."""
    server = files(place)
    letters = "abcdefghij"
    word = lambda n: "".join(letters[int(digit)] for digit in f"{n:03}")
    areas = ("shop/offer", "news/article", "help/answer", "user/profile", "media/photo")
    list_of = place.write("urls.txt", "".join(f"{server.url}/{area}-{word(n)}.html\n" for n in range(1000) for area in areas))
    plan = place.write("plan.toml", f"urls = '{list_of}'\nrate = 1500\nduration = '12s'\n")
    return run(place, plan, "--server", server.name)


def hour(place):
    return made.stretch(place, watched(place, 12), 3600)


def million(place):
    server = files(place)
    id = run(place, server.url + "/", "-r", 2000, "-d", "12s", "--server", server.name)
    return made.stretch(place, id, 300, factor=500)


def pair(place):
    """The same server with fewer workers, and with more."""
    few, many = perl(place, 3), None
    first = run(place, few.url + "/page", "-c", 8, "-d", "10s", "--server", few.name)
    place.stop(few)
    many = perl(place, 8)
    return [first, run(place, many.url + "/page", "-c", 8, "-d", "10s", "--server", many.name)]


def capacity(place):
    server = perl(place)
    return kept(call(place, "capacity", server.url + "/page", "--objective", "p99<150ms", "-d", "2s", "--max-time", "60s", "-c", 16))


def compare(place):
    server = perl(place)
    plain = place.write("docs/plain.html", "hello\n" * 20)
    return kept(call(place, "compare", "--live", server.url + "/page", f"{server.url}/{plain.name}", "--blocks", 5, "-d", "1s", "-c", 4))


def tune(place):
    server = web.apache(place, pool_lines="ServerLimit 64\nMaxRequestWorkers 3\nStartServers 3\nMinSpareServers 1\nMaxSpareServers 3\n",
                        lines=web.perl(place, PAGE))
    return kept(call(place, "tune", server.name, "--url", server.url + "/page", "-c", 24, "-d", "1s", "--blocks", 5, "--trials", 8, "--keepalive", "off",
                     codes=(0, 1, 3, 4)))


def sweep(place):
    server = perl(place, 4)
    plan = place.write("sweep.toml", f"server = '{server.name}'\nurl = '{server.url}/page'\nusers = [2, 8, 16]\nduration = '1s'\nkeepalive = 'off'\n"
                                     "[settings]\nMaxRequestWorkers = [2, 4, 8]\n")
    return kept(call(place, "sweep", plan))


def doctor(place):
    server = perl(place, 4)
    return kept(call(place, "doctor", server.name, "--url", server.url + "/page", "-c", 16, "--keepalive", "off"))


def log(place):
    """An access log of 80 seconds."""
    paths = ("/", "/item/{}", "/search?q={}", "/cart", "/img/{}.png")
    line = '10.0.0.{} - - [10/Oct/2025:12:{:02}:{:02} +0000] "GET {} HTTP/1.1" 200 512 "-" "Mozilla/5.0"\n'
    return place.write("access.log", "".join(line.format(i % 23, i // 30 // 60, i // 30 % 60, paths[i % 5].format(i % 400)) for i in range(2400)))


def replay(place):
    url = target(place, "--workers", "4", "--service", "exp 4ms")
    file = place.folder / "document.json"
    call(place, "replay", log(place), "--to", url, "--speed", 6, "--quiet", "--json", file)
    return json.loads(file.read_text())["id"]


def fit(place):
    server = web.apache(place, workers=8, lines=web.perl(place, PAGE + " our @kept; push @kept, 'x' x 3000;"))
    file = place.folder / "size.json"
    call(place, "size", server.name, "--fit", "--url", server.url + "/page", "--memory", "1500M", "--requests-per-worker", 40, "--quiet", "--json", file)
    return str(file)


PAGES = [
    Page("short", lambda place: run(place, target(place) , "-n", 1, "-c", 1), ("heat-cell",)),
    Page("run", lambda place: watched(place, 20), ("workers",)),
    Page("hour", hour, ("answers a second for 1 h",)),
    Page("errors", errors, ("timed out",)),
    Page("one-user", lambda place: run(place, target(place, "--service", "exp 5ms"), "-c", 1, "-d", "6s")),
    Page("urls", urls, ("GET /shop/", "more")),
    Page("million", million, ("1,000,",)),
    Page("pair", pair, ("B against A",)),
    Page("capacity", capacity),
    Page("compare", compare),
    Page("tune", tune),
    Page("sweep", sweep),
    Page("doctor", doctor),
    Page("replay", replay, ("replay of ",)),
    Page("fit", fit, ("shared",)),
]


def page(place, subject, path):
    """Makes the page of a subject."""
    words = subject.make(place)
    call(place, "report", *([words] if isinstance(words, str) else words), "-o", path, codes=(0,))
    text = path.read_text()
    missing = [word for word in subject.holds if word not in text]
    if 'class="verdict' not in text:
        missing.append("a verdict")
    return [f"the page does not say {word!r}" for word in missing]
