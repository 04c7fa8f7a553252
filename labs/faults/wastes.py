"""Wastes: what costs without being the limit."""

import subprocess
import time
from pathlib import Path

from . import apache as web
from .database import connect, mariadb
from .fault import WASTE, Case, Fault
from .haproxy import haproxy
from .limits_wait import php_site, rows
from .measure import environment, lastdrop, run
from .nginx import fpm, nginx, php_before, proxied
from .peers import service
from .place import family
from .python import script

MANY = ["-c", "20", "--keepalive", "off"]
KEPT = ["-c", "10", "--keepalive", "on"]


def writes(daemon):
    """System calls of a server's family that write, so far; those that have ended are not in it."""
    total = 0
    for pid in family({daemon.pid}):
        try:
            total += int(Path(f"/proc/{pid}/io").read_text().split("syscw: ")[1].split()[0])
        except OSError:
            continue
    return total


def grown(place, case):
    """Share of the pool that is there after a second of load, of that after ten."""
    pid = next(server for server in case.servers if not server.name.startswith("nginx")).pid
    load = subprocess.Popen([*place.enter, lastdrop(), "run", case.url, *case.load, "-d", "10s", "--drain", "1s",
                             "--no-store", "--quiet"], env=environment(place), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    time.sleep(1)
    early = len(family({pid}))
    load.wait(60)
    late = len(family({pid}))
    # Between two runs a pool with few spares shrinks; the next one is to begin small again.
    time.sleep(3)
    return early / late


def ramp(place, start=1, workers=80, seconds=1.0):
    pool = (f"ServerLimit {workers}\nMaxRequestWorkers {workers}\nStartServers {start}\nMinSpareServers 1\nMaxSpareServers 2\n"
            if start == 1 else web.pool("prefork", workers))
    server = web.apache(place, pool_lines=pool, log=web.buffered_log(place),
                        lines=web.perl(place, f"select(undef, undef, undef, {seconds});"))
    return Case([server], server.url + "/page", ["-c", "60", "--keepalive", "off"])


def spawn_lag(place, pm="dynamic", children=80, seconds=1.0):
    place.write("docs/page.php", f"<?php usleep({int(seconds * 1e6)}); echo 'ok';")
    spares = "pm.start_servers = 1\npm.min_spare_servers = 1\npm.max_spare_servers = 2" if pm == "dynamic" else ""
    pool = fpm(place, children=children, pm=pm, lines=spares)
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", "60", "--keepalive", "off"])


def without_keepalive(place, keepalive="Off"):
    server = web.apache(place, keepalive=keepalive, workers=12, log=web.buffered_log(place))
    return Case([server], server.url + "/index.html", KEPT)


def connecting(place, persistent=False):
    db = mariadb(place, sql=rows(1000))
    code = connect(db, persistent) + "$db->query('SELECT n FROM item WHERE id = ' . rand(1, 1000))->fetch_row(); usleep(5000);"
    case = php_site(place, code, 8, load=["-c", "4", "--keepalive", "off"])
    case.count = lambda: int(db.query("SHOW GLOBAL STATUS LIKE 'Connections'").split()[-1])
    return case


def htaccess(place, overrides="All", depth=6):
    folder = "/".join(f"level{n}" for n in range(depth))
    place.write(f"docs/{folder}/page.html", "hello\n")
    for n in range(1, depth + 1, 2):
        place.write("docs/" + "/".join(folder.split("/")[:n]) + "/.htaccess", "Options -Indexes\n")
    server = web.apache(place, overrides=overrides, keepalive="On", workers=12, log=web.buffered_log(place))
    return Case([server], f"{server.url}/{folder}/page.html", KEPT)


def file_calls(place, case):
    """System calls a request that ask for .htaccess."""
    import json
    file = place.folder / "trace.json"
    subprocess.run([*place.enter, lastdrop(), "trace", case.names()[0], "--url", case.url, "--json", str(file)],
                   env=environment(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
    calls = json.loads(file.read_text())["calls"]
    return sum(call["per_request"] for call in calls if ".htaccess" in (call.get("path") or "")) + 0.01


def logging(place, buffered=False):
    place.write("docs/page.html", "hello\n")
    how = " buffer=64k flush=5s" if buffered else ""
    front = nginx(place, f" server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}",
                  log=f"access_log {place.folder}/access.log combined{how};")
    return Case([front], front.url + "/page.html", KEPT, count=lambda: writes(front))


def modules(place, many=True):
    unused = ("rewrite", "proxy", "proxy_http", "proxy_fcgi", "dav", "dav_fs", "session", "session_cookie", "lua", "xml2enc",
              "proxy_html", "cache", "cache_disk", "substitute", "speling", "userdir", "vhost_alias", "info", "autoindex",
              "negotiation", "auth_basic", "authn_core", "authn_file", "authz_user", "usertrack", "data", "ldap")
    server = web.apache(place, keepalive="On", workers=12, modules=unused if many else (), log=web.buffered_log(place))
    return Case([server], server.url + "/index.html", KEPT)


def mapped(place, case):
    """Modules in the server's memory."""
    maps = Path(f"/proc/{case.servers[0].pid}/maps").read_text()
    return len({line.split()[-1] for line in maps.splitlines() if "/mod_" in line})


def extensions(place, many=True):
    """The page needs ctype; the distribution's PHP loads some twenty beside it."""
    place.write("docs/page.php", "<?php\necho ctype_digit('7') ? 'ok' : 'no';\n")
    pool = fpm(place, children=12, extensions=None if many else ("opcache", "ctype"))
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", "4", "--keepalive", "off"])


def mapped_extensions(place, case):
    """Extensions in the pool's memory."""
    maps = Path(f"/proc/{case.servers[1].pid}/maps").read_text()
    return len({line.split()[-1] for line in maps.splitlines() if "/usr/lib/php/" in line and line.endswith(".so")})


def unshared(place, touched=True, count=400000):
    """What was loaded before the fork is changed bit by bit: text that is used as a number becomes one."""
    touch = f"for (1 .. 300) {{ my $n = $data[int rand {count}] + 1 }}" if touched else ""
    server = web.apache(place, workers=8, log=web.buffered_log(place),
                        lines=web.perl(place, touch, before=f'our @data = map {{ "$_" }} 1 .. {count};'))
    return Case([server], server.url + "/page", ["-c", "4", "--keepalive", "off"])


def private(place, case):
    """Megabytes that the workers have for themselves, after a few thousand requests."""
    subprocess.run([*place.enter, lastdrop(), "run", case.url, *case.load, "-n", "4000", "-d", "20s", "--no-store", "--quiet"],
                   env=environment(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=90, check=False)
    total = 0
    for pid in family({case.servers[0].pid}) - {case.servers[0].pid}:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(text.split("Private_Dirty:")[1].split()[0])
    return total / 1024


def upstream_connects(place, keep=0):
    peer = service(place, 0.005)
    front = nginx(place, proxied(f"127.0.0.1:{peer.port}", keep=keep))

    def opened():
        head, values = [line.split() for line in place.call(["cat", "/proc/self/net/snmp"]).stdout.splitlines()
                        if line.startswith("Tcp:")]
        return int(values[head.index("ActiveOpens")])
    return Case([front], front.url + "/", KEPT, count=opened)


def spooled(place, buffer="1k", size=200000):
    """Bodies of requests go to a file before the upstream gets them."""
    peer = service(place, 0.002)
    body = place.write("body.bin", "x" * size)
    front = nginx(place, proxied(f"127.0.0.1:{peer.port}", keep=16, location=f"client_body_buffer_size {buffer}; client_max_body_size 10m;"),
                  main=f"error_log {place.folder}/warn.log warn;")
    log = place.folder / "warn.log"
    return Case([front], front.url + "/", [*KEPT, "-X", "POST", "--body", f"@{body}"],
                count=lambda: log.read_text().count("buffered to a temporary file") if log.exists() else 0)


SMALL_WRITES = '''"""Answers in two small writes; without TCP_NODELAY the second waits for the ACK of the first."""
import socket, sys, threading

port, nodelay = int(sys.argv[1]), sys.argv[2] == "nodelay"
listener = socket.create_server(("127.0.0.1", port), backlog=512)


def serve(peer):
    if nodelay:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seen = b""
    with peer:
        while True:
            more = peer.recv(65536)
            if not more:
                return
            seen += more
            while b"\\r\\n\\r\\n" in seen:
                seen = seen.split(b"\\r\\n\\r\\n", 1)[1]
                peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nContent-Length: 3\\r\\n\\r\\n")
                peer.sendall(b"ok\\n")


while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
'''


def small_writes(place, how="nagle"):
    port = place.port()
    server = script(place, "server.py", SMALL_WRITES, str(port), how, ready=place.listens(port))
    return Case([server], f"http://127.0.0.1:{port}/", ["-c", "4", "--keepalive", "on"])


WORDS = "the time that a visitor waits for a page is made of many small parts, and some of them are bytes\n"


def page_with_files(place):
    """A page of some 60 kB with a style sheet, a script and a picture."""
    lines = [f"<p class='part{n}'>{n}: {WORDS}</p>" for n in range(400)]
    place.write("docs/page.html", "<html><link rel=stylesheet href=/style.css><script src=/code.js></script><img src=/a.png>\n"
                + "".join(lines))
    place.write("docs/style.css", "".join(f".part{n} {{ margin: {n}px auto; color: #333 }}\n" for n in range(1500)))
    place.write("docs/code.js", "".join(f"function part{n}(a) {{ return a + {n}; }}\n" for n in range(1500)))
    place.write("docs/a.png", "x" * 50000)


TEXT = "text/css application/javascript text/javascript"


def uncompressed_nginx(place, types=""):
    """As Debian's nginx.conf has it: gzip is on, and compresses text/html alone."""
    page_with_files(place)
    front = nginx(place, f""" include /etc/nginx/mime.types; gzip on; {f"gzip_types {types};" if types else ""}
 server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}""")
    return Case([front], front.url + "/page.html", KEPT)


def uncompressed_apache(place, lines=""):
    page_with_files(place)
    server = web.apache(place, keepalive="On", workers=12, modules=("deflate", "filter"), lines=lines, log=web.buffered_log(place))
    return Case([server], server.url + "/page.html", KEPT)


def uncompressed_haproxy(place, lines=""):
    page_with_files(place)
    back = nginx(place, f""" include /etc/nginx/mime.types; gzip off;
 server {{ listen 127.0.0.1:PORT; root {place.folder}/docs; }}""")
    front = haproxy(place, f"  server one 127.0.0.1:{back.port}", front=lines)
    return Case([front, back], front.url + "/page.html", KEPT)


def received(place, case):
    """Bytes that a browser receives for the page and its files."""
    total = 0
    for path in ("page.html", "style.css", "code.js", "a.png"):
        url = case.url.rsplit("/", 1)[0] + "/" + path
        done = subprocess.run([*place.enter, "curl", "-s", "-H", "Accept-Encoding: gzip", "-o", "/dev/null", "-w", "%{size_download}",
                               url], env=environment(place), capture_output=True, text=True, timeout=30, check=False)
        total += int(float(done.stdout))
    return total


def cgi(place, mpm="prefork", stays=False):
    """A script of a shell for each request. Cured: the same words from a file."""
    script_file = place.write("docs/page.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'; expr 3 + 4\n")
    script_file.chmod(0o755)
    place.write("docs/page.txt", "7\n")
    module, more = ("cgi", "") if mpm == "prefork" else ("cgid", f"ScriptSock {place.folder}/cgid.sock\n")
    server = web.apache(place, mpm=mpm, keepalive="On", workers=12 if mpm == "prefork" else 50, modules=(module,), log=web.buffered_log(place),
                        lines=f'{more}AddHandler cgi-script .cgi\n<Directory "{place.folder}/docs">\nOptions +ExecCGI\n</Directory>\n')
    return Case([server], server.url + ("/page.txt" if stays else "/page.cgi"), ["-c", "8", "--keepalive", "on"],
                count=lambda: int(place.call(["sh", "-c", "grep processes /proc/stat"]).stdout.split()[1]))


def shelled(place, stays=False):
    """PHP that asks a program by a shell what it could compute itself."""
    place.write("docs/page.php", "<?php echo 3 + 4;" if stays else "<?php echo shell_exec('expr 3 + 4');")
    pool = fpm(place, children=8)
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", "8", "--keepalive", "on"],
                count=lambda: int(place.call(["sh", "-c", "grep processes /proc/stat"]).stdout.split()[1]))


def same_for_all(place, cached=False):
    """A page that takes 20 ms and is the same for all users. Cured: nginx keeps it for ten seconds."""
    place.write("docs/page.php", "<?php usleep(20000); echo 'the same for all users';")
    pool = fpm(place, children=8)
    zone = f"fastcgi_cache_path {place.folder}/cache keys_zone=pages:1m; add_header X-Cache-Status $upstream_cache_status;" if cached else ""
    lines = ("fastcgi_cache pages; fastcgi_cache_key $scheme$request_method$host$request_uri; fastcgi_cache_valid 200 10s; "
             "fastcgi_cache_lock on; fastcgi_cache_use_stale updating; fastcgi_cache_bypass $http_cookie; fastcgi_no_cache $http_cookie;")
    docs = place.open_folder("docs")
    front = nginx(place, f""" {zone}
 server {{ listen 127.0.0.1:PORT; root {docs};
  location ~ \\.php {{ include /etc/nginx/fastcgi_params; {lines if cached else ""}
   fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass unix:{pool.socket}; }} }}""")
    return Case([front, pool], front.url + "/page.php", ["-c", "8", "--keepalive", "on"])


def lookups(place, how="On"):
    """Apache asks for the name of each client; that of loopback is in /etc/hosts."""
    server = web.apache(place, keepalive="On", workers=12, lines=f"HostnameLookups {how}\n", log=web.buffered_log(place))
    return Case([server], server.url + "/index.html", KEPT)


def displayed(place, shown="On"):
    """PHP writes its warnings into the page."""
    place.write("docs/page.php", "<?php echo $missing, 'ok';")
    pool = fpm(place, children=8, lines=f"php_admin_value[display_errors] = {shown}\nphp_admin_value[html_errors] = On")
    front = php_before(place, pool)
    return Case([front, pool], front.url + "/page.php", ["-c", "4", "--keepalive", "on"])


def heavy_files(place, megabytes=30):
    """Workers with a Perl application in them serve the pictures of its page."""
    files = "".join(f"<img src=/a{n}.png>" for n in range(8))
    for n in range(8):
        place.write(f"docs/a{n}.png", "x" * 150000)
    code = f'$r->content_type("text/html"); $r->print("<html>{files}</html>"); return 0;'
    server = web.apache(place, keepalive="On", workers=6, log=web.buffered_log(place),
                        lines=web.perl(place, code, child=f'our $own = "x" x ({megabytes} << 20)'))
    return Case([server], server.url + "/page", ["-c", "4", "--keepalive", "on"])


def starved(place, own=False):
    """A tenth of the requests takes 400 ms, the others 2 ms. Cured: it has a pool of its own."""
    place.write("docs/fast.php", "<?php usleep(2000); echo 'ok';")
    place.write("docs/slow.php", "<?php usleep(400000); echo 'ok';")
    second = f"""[slow]
user = www-data
group = www-data
listen = {place.folder}/slow.sock
listen.owner = www-data
listen.group = www-data
pm = static
pm.max_children = 4"""
    pool = fpm(place, children=8, lines=second if own else "")
    slow = "location = /slow.php { include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; " \
           f"fastcgi_pass unix:{place.folder}/slow.sock; }}"
    front = php_before(place, pool, more=slow if own else "")
    plan = place.write("plan.toml", f"url = '{front.url}/'\n[[request]]\nurl = '{front.url}/fast.php'\nweight = 9\n"
                       f"[[request]]\nurl = '{front.url}/slow.php'\nweight = 1\n")
    return Case([front, pool], str(plan), ["-c", "30", "--keepalive", "on"])


def fast_ms(place, case):
    """Milliseconds of the short requests."""
    classes = run(place, case, 4)["phases"][0]["classes"]
    return next(c for c in classes if "fast" in c["name"])["latency_us"]["response"]["mean"] / 1e3


def shown(place, case):
    """1, and 1 more where the page has a warning in it."""
    done = subprocess.run([*place.enter, "curl", "-s", case.url], env=environment(place), capture_output=True, text=True, timeout=30,
                          check=False)
    return 1 + ("<b>Warning</b>" in done.stdout)


def directive(_place, case):
    """1, and 1 more where the configuration has it on."""
    return 1 + ("HostnameLookups On" in Path(case.servers[0].config).read_text())


WASTES = [
    Fault("spawn-ramp", ramp, WASTE, cure={"start": 80}, measure=grown, near="workers-exhausted"),
    Fault("fpm-spawn-lag", spawn_lag, WASTE, cure={"pm": "static"}, measure=grown, near="fpm-children-exhausted",
          accept=("spawn-ramp",)),
    Fault("keepalive-off", without_keepalive, WASTE, cure={"keepalive": "On"}, measure="connects", gain=0.3,
          near="upstream-connect-per-request"),
    Fault("db-connect-per-request", connecting, WASTE, cure={"persistent": True}, measure="per_request", gain=0.3,
          near="upstream-connect-per-request"),
    Fault("htaccess-lookups", htaccess, WASTE, cure={"overrides": "None"}, measure=file_calls, gain=0.3),
    Fault("access-log-unbuffered", logging, WASTE, cure={"buffered": True}, measure="per_request", gain=0.8,
          near="slow-log"),
    Fault("unused-modules", modules, WASTE, cure={"many": False}, measure=mapped, gain=0.5),
    Fault("unused-modules", extensions, WASTE, cure={"many": False}, measure=mapped_extensions, gain=0.5, variant="fpm"),
    Fault("unshared-memory", unshared, WASTE, cure={"touched": False}, measure=private, gain=0.7, near="memory-leak"),
    Fault("upstream-connect-per-request", upstream_connects, WASTE, cure={"keep": 32}, measure="per_request", gain=0.3,
          near="keepalive-off"),
    Fault("buffering-to-disk", spooled, WASTE, cure={"buffer": "1m"}, measure="per_request", gain=0.3, near="slow-log"),
    Fault("delayed-ack", small_writes, WASTE, cure={"how": "nodelay"}, near="retransmits"),
    Fault("uncompressed-text", uncompressed_nginx, WASTE, cure={"types": TEXT}, measure=received, gain=0.6, variant="nginx",
          near="compression-bound"),
    Fault("uncompressed-text", uncompressed_apache, WASTE, cure={"lines": f"AddOutputFilterByType DEFLATE text/html {TEXT}"},
          measure=received, gain=0.6, variant="apache"),
    Fault("uncompressed-text", uncompressed_haproxy, WASTE,
          cure={"lines": f"  compression algo gzip\n  compression type text/html {TEXT}"}, measure=received, gain=0.6,
          variant="haproxy"),
    Fault("process-per-request", cgi, WASTE, cure={"stays": True}, measure="per_request", gain=0.3, variant="cgi", near="process-churn"),
    Fault("process-per-request", cgi, WASTE, strengths=({"mpm": "event"},), cure={"mpm": "event", "stays": True}, measure="per_request",
          gain=0.3, variant="cgid"),
    Fault("process-per-request", shelled, WASTE, cure={"stays": True}, measure="per_request", gain=0.3, variant="php"),
    Fault("cacheable-responses", same_for_all, WASTE, cure={"cached": True}, gain=5.0, near="fpm-children-exhausted"),
    Fault("class-starves-others", starved, WASTE, cure={"own": True}, measure=fast_ms, gain=0.5, near="fpm-children-exhausted"),
    Fault("hostname-lookups", lookups, WASTE, cure={"how": "Off"}, measure=directive, gain=0.6, near="dns-lookup"),
    Fault("debug-mode", displayed, WASTE, cure={"shown": "Off"}, measure=shown, gain=0.6, variant="php"),
    Fault("static-on-heavy-workers", heavy_files, WASTE, cure={"megabytes": 1}, measure=private, gain=0.5),
]
