"""Limits where something computes: processors, one thread, one lock, compression, TLS, compiling."""

from . import apache as web
from .fault import Case, Fault
from .haproxy import haproxy
from .limits_wait import php_site
from .nginx import certificate, nginx
from .node import node
from .peers import service
from .python import gunicorn

MANY = ["-c", "20", "--keepalive", "off"]
FEW = ["-c", "10", "--keepalive", "on"]


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


def one_nginx_worker(place, workers=1, connections=1024, size=400000):
    """One worker that replaces words in what it serves."""
    place.write("docs/page.html", text(size))
    rules = "\n".join(f"sub_filter 'word of its own {n}' 'x';" for n in range(40))
    front = nginx(place, f""" server {{ listen 127.0.0.1:PORT; root {place.folder}/docs;
  sub_filter_once off; {rules} }}""", workers=workers, connections=connections)
    return Case([front], front.url + "/page.html", FEW)


def one_haproxy_thread(place, threads=1, maxconn=4000):
    """One thread that looks at each request with many expressions."""
    rules = "\n".join(f"  http-request set-header X-Rule-{n} %[path,regsub(^/([a-z]*)[0-9]*/(.*)$,\\2-\\1,g),sha2(512),hex,sha2(512),hex]"
                      for n in range(60))
    front = haproxy(place, "  http-request return status 200 content-type text/plain string ok", front=rules,
                    threads=threads, maxconn=maxconn)
    return Case([front], front.url + "/abcdef123/some/longer/path/of/a/page", FEW)


def one_node(place, processes=1, work=300000, options=()):
    server = node(place, f"let s = 0; for (let i = 1; i < {work}; i++) s += Math.log(i); served += s > 0 ? 0 : 1;",
                  processes=processes, options=options)
    return Case([server], server.url + "/", FEW)


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
    return Case([front], front.url + "/page.html", [*FEW, "-H", "Accept-Encoding: gzip"])


def zipped_by_apache(place, level=9, workers=12, size=200000):
    place.write("docs/page.html", text(size))
    deflate = f"DeflateCompressionLevel {level}\nAddOutputFilterByType DEFLATE text/html\n" if level else ""
    server = web.apache(place, workers=workers, keepalive="On", modules=("filter", "deflate"),
                        log=web.buffered_log(place), lines=deflate)
    return Case([server], server.url + "/page.html", [*FEW, "-H", "Accept-Encoding: gzip"])


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


def collecting(place, megabytes=300, garbage=2000, processes=1, kept=True):
    """A heap of many small objects that is looked through again and again."""
    fill = (f"const heap = []; for (let i = 0; i < {megabytes} * 8000; i++) heap.push({{ a: i, b: [i], c: 'k' + i }});"
            if kept else "const heap = [{}];")
    server = node(place, f"""const young = []; for (let i = 0; i < {garbage}; i++) young.push({{ n: i, of: heap[i % heap.length] }});
    old.push(young); if (old.length > 200) old.shift();""", before=fill + "const old = [];", processes=processes,
                  options=("--max-old-space-size=4000",))
    return Case([server], server.url + "/", ["-c", "10", "--keepalive", "on"])


def four_threads(place, delay=0.1, pool=4, processes=1):
    """Names are looked up by the threads of libuv's pool, four at a time."""
    from .peers import names
    names(place, delay)
    server = node(place, "await new Promise((done) => dns.lookup('n' + served + '.example', () => done()));",
                  processes=processes, env={"UV_THREADPOOL_SIZE": str(pool)})
    return Case([server], server.url + "/", ["-c", "20", "--keepalive", "on"])


def interpreters(place, most=2, workers=25, seconds=0.1):
    server = web.apache(place, mpm="worker", workers=workers, threads=25, log=web.buffered_log(place),
                        server_lines="",
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});")
                        + f"PerlInterpStart {most}\nPerlInterpMax {most}\nPerlInterpMaxSpare {most}\nPerlInterpMinSpare 1\n")
    return Case([server], server.url + "/page", MANY)


LIMITS = [
    Fault("cpu-saturated", honest, strengths=({}, {"work": 60000}), cure={"work": 1000}, near="workers-exhausted",
          other={"workers": 20}),
    Fault("cpu-saturated", honest_php, variant="fpm", cure={"work": 2000}, near="fpm-children-exhausted",
          other={"children": 12}),
    Fault("single-worker-cpu", one_nginx_worker, strengths=({}, {"size": 100000}), cure={"workers": 2},
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
    Fault("tls-bound", handshakes, strengths=({}, {"key": "rsa:3072"}), cure={"key": "ec"}, near="compression-bound",
          other={"workers": 4}),
    Fault("opcode-cache-off", compiling, strengths=({}, {"files": 200}), cure={"opcache": True}, near="cpu-saturated",
          other={"children": 8}),
    Fault("event-loop-blocked", blocked_loop, strengths=({}, {"how": "sleep", "block": 100, "every": 5}),
          cure={"how": "free"}, near="gc-pauses"),
    Fault("gc-pauses", collecting, strengths=({}, {"megabytes": 600}), cure={"kept": False},
          near="event-loop-blocked"),
    Fault("perl-interpreters-exhausted", interpreters, strengths=({}, {"most": 4, "seconds": 0.3}), cure={"most": 20},
          near="workers-exhausted", other={"workers": 50}),
]
