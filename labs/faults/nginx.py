"""nginx and PHP-FPM, each on a configuration of its own."""

import subprocess
from functools import lru_cache
from pathlib import Path

from .place import LabError, processes, unix_ready


def nginx(place, http, *, workers=2, connections=1024, main="", log="access_log off;", groups=(), limits=(),
          ready=True):
    """nginx with these lines in its http block, where `PORT` is its port; the daemon has `port` and `config`."""
    port = place.port()
    config = place.write("nginx.conf", f"""user www-data;
worker_processes {workers};
daemon off;
pid {place.folder}/nginx.pid;
error_log {place.folder}/nginx-error.log;
{main}
events {{ worker_connections {connections}; }}
http {{
 {log}
 client_body_temp_path {place.folder}/nginx-body;
 proxy_temp_path {place.folder}/nginx-proxy;
 fastcgi_temp_path {place.folder}/nginx-fastcgi;
 uwsgi_temp_path {place.folder}/nginx-uwsgi;
 scgi_temp_path {place.folder}/nginx-scgi;
{http.replace("PORT", str(port))}
}}
""")
    daemon = place.start(["/usr/sbin/nginx", "-c", config, "-p", place.folder, "-e", place.folder / "nginx-error.log"],
                         place.listens(port) if ready else None, what="nginx", name=f"nginx:{config}",
                         groups=groups, limits=limits)
    daemon.port, daemon.config, daemon.url = port, config, f"http://127.0.0.1:{port}"
    return daemon


def proxied(upstream, *, more="", location="", keep=0):
    """A server that hands everything to `upstream` (host:port, unix:PATH or several), with so many kept connections."""
    servers = upstream if isinstance(upstream, str) else "; server ".join(upstream)
    kept = f"keepalive {keep};" if keep else ""
    http = 'proxy_http_version 1.1; proxy_set_header Connection "";' if keep else ""
    return f""" upstream back {{ server {servers}; {kept} }}
 server {{ listen 127.0.0.1:PORT; {more}
  location / {{ proxy_pass http://back; {http} {location} }} }}"""


def ini_folder(place, extensions):
    """A folder with the distribution's ini files of some extensions alone."""
    folder = place.open_folder("ini")
    for file in sorted(Path("/etc/php").glob("*/fpm/conf.d/*.ini")):
        if file.stem.split("-", 1)[-1] in extensions:
            (folder / file.name).write_text(file.read_text())
    return folder


def fpm(place, *, children=4, pm="static", lines="", backlog=511, opcache=True, groups=(), limits=(), extensions=None):
    """A pool of PHP-FPM at a unix socket; the daemon has `socket` and `config`. `extensions`: these alone are loaded; None: those of the
    distribution."""
    programs = sorted(Path("/usr/sbin").glob("php-fpm*"))
    if not programs:
        raise LabError("php-fpm is not installed")
    socket = place.folder / "fpm.sock"
    switch = "1" if opcache else "0"
    config = place.write("fpm.conf", f"""[global]
pid = {place.folder}/fpm.pid
error_log = {place.folder}/fpm.log
daemonize = no
[www]
user = www-data
group = www-data
listen = {socket}
listen.owner = www-data
listen.group = www-data
listen.backlog = {backlog}
pm = {pm}
pm.max_children = {children}
pm.status_path = /fpm-status
catch_workers_output = yes
php_admin_value[opcache.enable] = {switch}
php_admin_value[session.save_path] = {place.open_folder("sessions")}
{lines}
include = {place.open_folder("pool.d")}/*.conf
""")
    # An include that finds nothing is an error of PHP-FPM. What others can write is not executed.
    place.write("pool.d/none.conf", "")
    (place.folder / "pool.d").chmod(0o755)
    want = children if pm == "static" else 0

    def ready(daemon):
        of_it = [1 for parent, _, _ in processes().values() if parent == daemon.pid]
        return socket.exists() and len(of_it) >= want and unix_ready(socket)()
    env = None if extensions is None else {"PHP_INI_SCAN_DIR": str(ini_folder(place, extensions))}
    daemon = place.start([programs[-1], "-F", "-y", config], ready, what="php-fpm", name=f"php-fpm:{config}",
                         groups=groups, limits=limits, env=env)
    daemon.socket, daemon.config = socket, config
    return daemon


def php_before(place, pool, *, workers=2, more="", connections=1024, log="access_log off;", groups=()):
    """nginx before a pool: it serves the files of docs/, .php by the pool."""
    docs = place.open_folder("docs")
    return nginx(place, f""" server {{ listen 127.0.0.1:PORT; root {docs}; {more}
  location ~ \\.php {{ include /etc/nginx/fastcgi_params;
   fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
   fastcgi_pass unix:{pool.socket}; }} }}""", workers=workers, connections=connections, log=log, groups=groups)


@lru_cache(maxsize=None)
def certificate(folder, kind):
    """A certificate and its key (`rsa:4096`, `ec`): two paths."""
    key, crt = Path(folder) / f"{kind.replace(':', '-')}.key", Path(folder) / f"{kind.replace(':', '-')}.crt"
    if not crt.exists():
        new = ["-newkey", kind] if kind != "ec" else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        done = subprocess.run(["openssl", "req", "-x509", "-nodes", *new, "-keyout", key, "-out", crt, "-days", "30",
                               "-subj", "/CN=127.0.0.1"], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise LabError(f"openssl: {done.stderr}")
    return crt, key
