"""gunicorn and uWSGI with an application of a few lines."""

from pathlib import Path

from .place import processes

# What /usr/bin/python3 of the distribution sees: gunicorn's own.
HEAD = """import fcntl, hashlib, os, queue, socket, sys, threading, time
{before}
def application(environ, start_response):
    {code}
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\\n"]
"""


def app(place, code, before=""):
    """Writes app.py: `before` at the start of a process, `code` for each request (lines indented by four)."""
    return place.write("app.py", HEAD.format(before=before, code=code.replace("\n", "\n    ")))


def children(daemon, count, title=b""):
    """Whether so many children of a server have come so far that they call themselves what they are."""
    def called(pid):
        try:
            return title in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
    return len([pid for pid, (parent, _, _) in processes().items() if parent == daemon.pid and called(pid)]) >= count


def gunicorn(place, code, *, before="", workers=1, threads=1, worker_class="sync", lines="", backlog=2048,
             socket_path=False, groups=(), limits=()):
    """gunicorn with so many workers; the daemon has `port` (or `socket`) and `config`."""
    app(place, code, before)
    port, path = place.port(), place.folder / "gunicorn.sock"
    bind = f"unix:{path}" if socket_path else f"127.0.0.1:{port}"
    config = place.write("gunicorn.conf.py", f"""bind = "{bind}"
workers = {workers}
threads = {threads}
worker_class = "{worker_class}"
backlog = {backlog}
chdir = "{place.folder}"
{lines}
""")
    daemon = place.start(["/usr/bin/gunicorn", "-c", config, "app:application"],
                         lambda d: children(d, workers, b"gunicorn: worker") and (path.exists() if socket_path else place.listens(port)()),
                         what="gunicorn", name=f"gunicorn:{config}", groups=groups, limits=limits)
    daemon.port, daemon.socket, daemon.config = port, path, config
    daemon.url = f"http://127.0.0.1:{port}"
    return daemon


def uwsgi(place, code, *, before="", workers=2, listen=100, lines=""):
    """uWSGI that speaks HTTP itself."""
    app(place, code, before)
    port = place.port()
    config = place.write("uwsgi.ini", f"""[uwsgi]
plugins = python3
http-socket = 127.0.0.1:{port}
master = true
processes = {workers}
listen = {listen}
wsgi-file = {place.folder}/app.py
disable-logging = true
{lines}
""")
    daemon = place.start(["/usr/bin/uwsgi", "--ini", config],
                         lambda d: children(d, workers) and place.listens(port)(), what="uwsgi",
                         name=f"uwsgi:{config}")
    daemon.port, daemon.config, daemon.url = port, config, f"http://127.0.0.1:{port}"
    return daemon


def script(place, name, text, *arguments, ready=None, groups=()):
    """A Python program of the set-up's own."""
    file = place.write(name, text)
    return place.start(["/usr/bin/python3", file, *arguments], ready, what=Path(name).stem, groups=groups)
