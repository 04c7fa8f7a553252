"""The servers: each writes its files, and says how it is started, named and swept."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable


@dataclass
class Server:
    name: str
    program: str
    config: str
    prepare: Callable
    """Of folder, port and owner: the command line and variables."""
    named: str = ""
    sweep: str = ""
    """A setting with its values."""
    becomes: bool = True
    """Changes to another user where root starts it."""
    http: bool = True
    besides: list = field(default_factory=list)

    def is_here(self):
        return bool(self.found())

    def found(self):
        return next((path for path in sorted(Path("/usr/sbin").glob(self.program)) + sorted(Path("/usr/bin").glob(self.program))
                     if path.is_file()), None)

    def reference(self, folder):
        return f"{self.named or self.name}:{folder / self.config}"


SERVERS = []


def server(name, program, config, **more):
    """Adds a server; the function below writes its files."""
    def add(prepare):
        SERVERS.append(Server(name, program, config, prepare, **more))
        return prepare
    return add


def user_line(owner, text, within=""):
    """A line that names the user of the workers; where root alone is known, `within`."""
    return text if owner.becomes else within if owner.is_rootless else ""


ORDINARY_WITHIN = ["unshare", "-U", "--map-user=33", "--map-group=33", "--"]
"""For servers that will not be root: a user namespace more."""


@server("nginx", "nginx", "nginx.conf", sweep="worker_processes = [2, 3]")
def nginx(folder, port, owner):
    run = folder / "run"
    paths = "".join(f" {kind}_temp_path {run}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"{user_line(owner, 'user www-data;', 'user root;')}\nworker_processes 2;\ndaemon off;\npid {run}/pid;\nerror_log {run}/error.log;\nevents {{}}\n"
        f"http {{ access_log off;{paths}\n include {folder}/site.conf; }}\n")
    (folder / "site.conf").write_text(f"gzip on;\nserver {{ listen 127.0.0.1:{port}; return 200 ok; }}\n")
    return ["/usr/sbin/nginx", "-c", str(folder / "nginx.conf")], {}


def apache(mpm):
    def prepare(folder, port, owner):
        run, modules = folder / "run", "/usr/lib/apache2/modules"
        user = user_line(owner, "User ${RUN_USER}\nGroup www-data")
        names = [f"mpm_{mpm}", "authz_core", "status", "dir", "env", "alias"]
        loads = "".join(f"LoadModule {name}_module {modules}/mod_{name}.so\n" for name in names)
        (folder / "conf.d").mkdir()
        (folder / "conf.d/pool.conf").write_text("MaxRequestWorkers 20\nKeepAlive On\n")
        (folder / "docs").mkdir()
        (folder / "docs/index.html").write_text("ok\n")
        (folder / "apache2.conf").write_text(
            f"{loads}ServerRoot {folder}\nServerName 127.0.0.1\nDefaultRuntimeDir {run}\nPidFile {run}/pid\nMutex file:{run} default\nListen 127.0.0.1:{port}\n"
            f"ErrorLog {run}/error.log\nDocumentRoot {folder}/docs\nDirectoryIndex index.html\nPassEnv LAB\n"
            f"{user}\n"
            f"<Location /server-status>\nSetHandler server-status\n</Location>\nIncludeOptional {folder}/conf.d/*.conf\n")
        first = ORDINARY_WITHIN if owner.is_rootless else []
        words = ["/usr/sbin/apache2", "-f", str(folder / "apache2.conf"), "-DFOREGROUND"]
        return first + words, {"LAB": "x", "RUN_USER": "www-data"}
    return prepare


SERVERS.append(Server("apache-prefork", "apache2", "apache2.conf", apache("prefork"), "apache", 'KeepAlive = ["On", "Off"]'))
SERVERS.append(Server("apache-event", "apache2", "apache2.conf", apache("event"), "apache", 'KeepAlive = ["On", "Off"]'))


@server("php-fpm", "php-fpm*", "fpm.conf", sweep='"pm.max_children" = [2, 3]', http=False)
def fpm(folder, port, owner):
    program = next(Path("/usr/sbin").glob("php-fpm*"))
    (folder / "pool.d").mkdir()
    (folder / "fpm.conf").write_text(
        f"[global]\npid = {folder}/run/pid\nerror_log = {folder}/run/fpm.log\ninclude = {folder}/pool.d/*.conf\n")
    (folder / "pool.d/www.conf").write_text(
        f"[www]\n{user_line(owner, 'user = www-data')}\n{user_line(owner, 'group = www-data')}\nlisten = 127.0.0.1:{port}\n"
        "pm = static\npm.max_children = 3\nclear_env = no\n")
    first = ORDINARY_WITHIN if owner.is_rootless else []
    return [*first, str(program), "-F", "-y", str(folder / "fpm.conf")], {}


def haproxy(master):
    def prepare(folder, port, owner):
        (folder / "haproxy.cfg").write_text(
            f"global\n maxconn 100\n nbthread 2\n stats socket {folder}/run/stats.sock level operator\n"
            f"{user_line(owner, ' user www-data')}\n{user_line(owner, ' group www-data')}\n"
            f" log \"${{LAB}}\" local0\n"
            "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n"
            f"frontend f\n bind 127.0.0.1:{port}\n http-request return status 200 content-type text/plain string ok\n")
        return ["/usr/sbin/haproxy", "-W" if master else "-db", "-f", str(folder / "haproxy.cfg")], {"LAB": "127.0.0.1"}
    return prepare


SERVERS.append(Server("haproxy", "haproxy", "haproxy.cfg", haproxy(False), sweep="maxconn = [100, 90]"))
SERVERS.append(Server("haproxy-master", "haproxy", "haproxy.cfg", haproxy(True), "haproxy", "maxconn = [100, 90]"))


@server("lighttpd", "lighttpd", "lighttpd.conf", sweep='"server.max-keep-alive-requests" = [100, 90]')
def lighttpd(folder, port, owner):
    (folder / "docs").mkdir()
    (folder / "docs/index.html").write_text("ok\n")
    names = '\nserver.username = "www-data"\nserver.groupname = "www-data"' if owner.becomes else ""
    (folder / "lighttpd.conf").write_text(
        f'server.document-root = "{folder}/docs"\nserver.port = {port}\nserver.bind = "127.0.0.1"\nserver.max-worker = 3\n'
        f'server.errorlog = "{folder}/run/error.log"\nindex-file.names = ("index.html"){names}\n'
        'server.modules += ("mod_setenv")\nsetenv.add-response-header = ("Lab" => env.LAB)\n')
    first = ORDINARY_WITHIN if owner.is_rootless else []
    return [*first, "/usr/sbin/lighttpd", "-D", "-f", str(folder / "lighttpd.conf")], {"LAB": "x"}


APPLICATION = """import os
def application(env, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"ok\\n"]
"""


def gunicorn(title, path):
    def prepare(folder, port, owner):
        (folder / "app.py").write_text(APPLICATION)
        first = ""
        if path:
            (folder / "lib").mkdir()
            (folder / "lib/our_settings.py").write_text("WORKERS = 3\n")
            first = "from our_settings import WORKERS\n"
        names = 'user = "www-data"\ngroup = "www-data"\n' if owner.becomes else ""
        (folder / "gunicorn.conf.py").write_text(
            f'{first}workers = {"WORKERS" if path else 3}\nbind = "127.0.0.1:{port}"\nbacklog = 70\nproc_name = "app"\n{names}')
        variables = {"PYTHONDONTWRITEBYTECODE": "1"}
        if not title:
            (folder / "setproctitle.py").write_text("raise ImportError\n")
            variables["PYTHONPATH"] = str(folder)
        if path:
            variables["PYTHONPATH"] = f"{folder / 'lib'}:{folder}"
        words = ["/usr/bin/gunicorn", "-c", str(folder / "gunicorn.conf.py"), "app:application"]
        return words, variables
    return prepare


SERVERS.append(Server("gunicorn", "gunicorn", "gunicorn.conf.py", gunicorn(True, False), sweep="workers = [3, 2]"))
SERVERS.append(Server("gunicorn-options", "gunicorn", "gunicorn.conf.py", gunicorn(False, False), "gunicorn", "workers = [3, 2]"))
SERVERS.append(Server("gunicorn-path", "gunicorn", "gunicorn.conf.py", gunicorn(False, True), "gunicorn", "workers = [3, 2]"))


@server("uwsgi", "uwsgi", "uwsgi.ini", sweep="processes = [3, 2]")
def uwsgi(folder, port, owner):
    (folder / "app.py").write_text(APPLICATION)
    names = "uid = www-data\ngid = www-data\n" if owner.becomes else ""
    (folder / "uwsgi.ini").write_text(
        f"[uwsgi]\nplugins = python3\nhttp-socket = 127.0.0.1:{port}\nmaster = true\nprocesses = 3\nwsgi-file = {folder}/app.py\n{names}")
    return ["/usr/bin/uwsgi", "--ini", str(folder / "uwsgi.ini")], {}


@server("puma", "puma", "puma.rb", sweep="workers = [2, 3]")
def puma(folder, port, owner):
    (folder / "config.ru").write_text('run ->(env) { [200, { "content-type" => "text/plain" }, ["ok\\n"]] }\n')
    (folder / "puma.rb").write_text(f'workers 2\nthreads 1, 2\nbind "tcp://127.0.0.1:{port}"\nrackup "{folder}/config.ru"\n')
    return ["/usr/bin/puma", "-C", str(folder / "puma.rb")], {}


@server("caddy", "caddy", "Caddyfile", sweep="GOGC = [100, 200]")
def caddy(folder, port, owner):
    (folder / "Caddyfile").write_text(f'{{\n\tadmin off\n}}\nhttp://:{port} {{\n\tbind 127.0.0.1\n\trespond "ok"\n}}\n')
    return ["/usr/bin/caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], {}


@server("node", "node", "cluster.js", sweep="UV_THREADPOOL_SIZE = [4, 6]")
def node(folder, port, owner):
    (folder / "cluster.js").write_text(f"""const cluster = require("cluster");
if (cluster.isPrimary) for (let i = 0; i < (process.env.WEB_CONCURRENCY || 2); i++) cluster.fork();
else require("http").createServer((q, r) => r.end("ok\\n")).listen({port}, "127.0.0.1");
""")
    return [shutil.which("node", path="/usr/bin:/usr/local/bin"), str(folder / "cluster.js")], {}
