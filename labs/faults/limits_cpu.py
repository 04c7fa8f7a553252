"""Limits where something computes: processors, one thread, one lock, compression, TLS, compiling."""

from . import apache as web
from .fault import Case, Fault
from .haproxy import haproxy
from .limits_wait import php_site
from .nginx import certificate, nginx
from .node import node
from .peers import RESOLVER, names
from .python import gunicorn

MANY = ["-c", "20", "--keepalive", "off"]
KEPT = ["-c", "10", "--keepalive", "on"]


def text(size):
    """Text that is worth compressing, always the same."""
    line, out = 12345, []
    while sum(map(len, out)) < size:
        line = (line * 1103515245 + 12345) % (1 << 31)
        out.append(f"<p>{line:x} is a word of its own, number {line % 977}, and {line % 31} more</p>\n")
    return "".join(out)


def honest(place, workers=10, work=10000):
    server = web.apache(place, workers=workers, log=web.buffered_log(place),
                        lines=web.perl(place, f"my $s = 0; $s += log($_) for 1 .. {work};"))
    return Case([server], server.url + "/page", MANY)


def honest_php(place, children=6, work=60000):
    return php_site(place, f"$s = 0; for ($i = 1; $i < {work}; $i++) $s += sqrt($i);", children)


def one_nginx_worker(place, workers=1, connections=1024, places=2000):
    """One worker that tries many regular expressions on the path of each request."""
    place.write(f"docs/{'a' * 60}/page.html", "hello\n")
    tried = "\n".join(f"  location ~ a.*a.*b{n}$ {{ return 404; }}" for n in range(places))
    front = nginx(place, f""" server {{ listen 127.0.0.1:PORT; root {place.folder}/docs;
{tried} }}""", workers=workers, connections=connections)
    return Case([front], f"{front.url}/{'a' * 60}/page.html", KEPT)


def one_haproxy_thread(place, threads=1, maxconn=4000):
    """One thread that computes digests for each request."""
    chain = ",".join(["sha2(512),hex"] * 8)
    rules = "\n".join(f"  http-request set-header X-Rule-{n} %[path,{chain}]" for n in range(80))
    front = haproxy(place, "  http-request return status 200 content-type text/plain string ok", front=rules,
                    threads=threads, maxconn=maxconn)
    return Case([front], front.url + "/abcdef123/some/longer/path/of/a/page", KEPT)


def one_node(place, processes=1, work=300000, options=()):
    server = node(place, f"let s = 0; for (let i = 1; i < {work}; i++) s += Math.log(i); served += s > 0 ? 0 : 1;",
                  processes=processes, options=options)
    return Case([server], server.url + "/", KEPT)


def one_python(place, workers=1, work=20000, backlog=2048):
    server = gunicorn(place, f"s = 0\nfor i in range({work}): s += i * i", workers=workers, backlog=backlog)
    return Case([server], server.url + "/", MANY)


def threads_that_compute(place, workers=1, threads=8, work=10000):
    server = gunicorn(place, f"s = 0\nfor i in range({work}): s += i * i", workers=workers, threads=threads,
                      worker_class="gthread")
    return Case([server], server.url + "/", MANY)


def zipped(place, level=9, workers=2, size=300000):
    place.write("docs/page.html", text(size))
    front = nginx(place, f""" gzip {"on" if level else "off"}; gzip_comp_level {level or 1}; gzip_min_length 100;
 server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}""", workers=workers)
    return Case([front], front.url + "/page.html", [*KEPT, "-H", "Accept-Encoding: gzip"])


def zipped_by_apache(place, level=9, workers=12, size=200000):
    place.write("docs/page.html", text(size))
    deflate = f"DeflateCompressionLevel {level}\nAddOutputFilterByType DEFLATE text/html\n" if level else ""
    server = web.apache(place, workers=workers, keepalive="On", modules=("filter", "deflate"),
                        log=web.buffered_log(place), lines=deflate)
    return Case([server], server.url + "/page.html", [*KEPT, "-H", "Accept-Encoding: gzip"])


def handshakes(place, key="rsa:4096", workers=2, version="TLSv1.2 TLSv1.3"):
    crt, secret = certificate(str(place.folder), key)
    front = nginx(place, f""" server {{ listen 127.0.0.1:PORT ssl; ssl_certificate {crt}; ssl_certificate_key {secret};
  ssl_protocols {version}; ssl_session_cache off; ssl_session_tickets off; location / {{ return 200 ok; }} }}""",
                  workers=workers)
    return Case([front], front.url.replace("http", "https") + "/", [*MANY, "-k", "--no-resumption"])


def compiling(place, files=60, opcache=False, children=4):
    """An application of many files, compiled again for each request."""
    body = "\n".join(f"function f{{0}}_{n}($a) {{{{ if ($a > {n}) {{{{ return $a * {n} + strlen('{'x' * 40}'); }}}} return [$a, {n}, 'k{n}' => $a]; }}}}"
                     for n in range(60))
    for number in range(files):
        place.write(f"docs/part{number}.php", "<?php\n" + body.format(number))
    includes = "".join(f"include __DIR__ . '/part{number}.php';" for number in range(files))
    return php_site(place, includes, children, opcache=opcache)


def blocked_loop(place, block=60, every=10, wait=20, how="busy", processes=1):
    """A request in so many that holds the loop; the others wait without holding it."""
    hold = {"busy": f"const end = Date.now() + {block}; while (Date.now() < end);",
            "sleep": f"Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, {block});",
            "free": f"await sleep({block});"}[how]
    server = node(place, f"if (served % {every} == 0) {{ {hold} }} else await sleep({wait});", processes=processes)
    return Case([server], server.url + "/", ["-c", "20", "--keepalive", "on"])


def collecting(place, objects=1500000, limit=300, replaced=300):
    """A heap of many small objects, of which each request replaces some, and hardly more room than they need: the whole of
    it is looked through again and again."""
    fill = f"""const make = (i) => ({{ a: i, b: [i], c: 'k' + i }});
  const heap = []; for (let i = 0; i < {objects}; i++) heap.push(make(i));"""
    server = node(place, f"for (let i = 0; i < {replaced}; i++) heap[Math.floor(Math.random() * {objects})] = make(i);",
                  before=fill, options=(f"--max-old-space-size={limit}",))
    return Case([server], server.url + "/", KEPT)


def four_threads(place, delay=0.1, pool=4, processes=1):
    """Names are looked up by the threads of libuv's pool, four at a time."""
    names(place, delay)
    server = node(place, "await new Promise((done) => dns.lookup('n' + served + '.example', () => done()));",
                  processes=processes, env={"UV_THREADPOOL_SIZE": str(pool)})
    return Case([server], server.url + "/", ["-c", "20", "--keepalive", "on"])


def interpreters(place, most=2, workers=25, seconds=0.1):
    server = web.apache(place, mpm="worker", workers=workers, threads=workers, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});")
                        + f"PerlInterpStart {most}\nPerlInterpMax {most}\nPerlInterpMaxSpare {most}\nPerlInterpMinSpare 1\n")
    return Case([server], server.url + "/page", MANY)


def zipped_by_caddy(place, zipped=True, size=200000):
    """A program without names for its functions: what takes its time only an experiment tells."""
    place.write("docs/page.html", text(size))
    port = place.port()
    encode = "encode {\n\t\tgzip 9\n\t}\n" if zipped else ""
    config = place.write("Caddyfile", f"{{\n\tadmin off\n\tauto_https off\n}}\nhttp://127.0.0.1:{port} {{\n\troot * {place.folder}/docs\n\t{encode}\tfile_server\n}}\n")
    server = place.start(["/usr/bin/caddy", "run", "--config", config, "--adapter", "caddyfile"], place.listens(port), what="caddy",
                         name=f"caddy@http://127.0.0.1:{port}/", env={"HOME": str(place.folder)})
    return Case([server], f"http://127.0.0.1:{port}/page.html", [*KEPT, "--compressed"])


LIMITS = [
    Fault("cpu-saturated", honest, strengths=({}, {"work": 60000}), cure={"work": 1000}, near="workers-exhausted",
          other={"workers": 20}),
    Fault("cpu-saturated", honest_php, variant="fpm", cure={"work": 2000}, near="fpm-children-exhausted",
          other={"children": 12}),
    Fault("single-worker-cpu", one_nginx_worker, strengths=({}, {"places": 6000}), cure={"workers": 2},
          near="single-process", other={"connections": 4096}, gain=1.25, accept=("single-process",)),
    Fault("single-worker-cpu", one_haproxy_thread, variant="haproxy", cure={"threads": 2}, near="single-process",
          other={"maxconn": 8000}, gain=1.25, accept=("single-process",)),
    Fault("single-process", one_node, strengths=({}, {"work": 2000000}), cure={"processes": 2},
          near="single-worker-cpu", other={"options": ("--max-old-space-size=4000",)}, gain=1.25,
          accept=("event-loop-blocked",)),
    Fault("single-process", one_python, variant="gunicorn", cure={"workers": 2}, near="single-worker-cpu",
          other={"backlog": 4000}, gain=1.25, accept=("single-worker-cpu",)),
    Fault("interpreter-lock", threads_that_compute, strengths=({}, {"work": 60000, "threads": 4}),
          cure={"workers": 2}, near="serialized", other={"threads": 16}, gain=1.25),
    Fault("compression-bound", zipped, strengths=({}, {"size": 60000}), cure={"level": 1}, near="tls-bound",
          other={"workers": 4}),
    Fault("compression-bound", zipped_by_apache, variant="apache", cure={"level": 0}, near="cpu-saturated",
          other={"workers": 20}),
    Fault("compression-bound", zipped_by_caddy, variant="caddy", cure={"zipped": False}, near="cpu-saturated"),
    Fault("tls-bound", handshakes, strengths=({}, {"key": "rsa:3072"}), cure={"key": "ec"}, near="compression-bound",
          other={"workers": 4}),
    Fault("opcode-cache-off", compiling, strengths=({}, {"files": 200}), cure={"opcache": True}, near="cpu-saturated",
          other={"children": 8}),
    Fault("event-loop-blocked", blocked_loop, strengths=({}, {"how": "sleep", "block": 100, "every": 5}),
          cure={"how": "free"}, near="gc-pauses"),
    Fault("gc-pauses", collecting, strengths=({}, {"objects": 3000000, "limit": 600}), cure={"limit": 4000},
          near="event-loop-blocked"),
    Fault("libuv-pool", four_threads, strengths=({}, {"pool": 2, "delay": 0.2}), cure={"pool": 64}, mounts=RESOLVER,
          near="slow-upstream"),
    Fault("perl-interpreters-exhausted", interpreters, strengths=({}, {"most": 4, "seconds": 0.3}), cure={"most": 20},
          near="workers-exhausted", other={"workers": 50}),
]
