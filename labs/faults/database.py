"""MariaDB with a data folder of its own; root needs no password."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .place import NOTE, LabError, born, unix_ready

_template = None


def template():
    """An empty data folder, made once and copied for each database."""
    global _template
    if _template is None:
        folder = Path(tempfile.mkdtemp(prefix="lastdrop-lab-"))
        folder.chmod(0o777)
        (folder / NOTE).write_text(json.dumps({"lab": [os.getpid(), born(os.getpid())], "leaders": [], "holder": 0, "groups": []}))
        done = subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
             "--user=www-data", f"--datadir={folder}/data"], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise LabError(f"mariadb-install-db: {done.stderr[-500:]}")
        _template = folder
    return _template / "data"


def forget_template():
    global _template
    if _template is not None:
        shutil.rmtree(_template, ignore_errors=True)
        _template = None


def mariadb(place, *options, sql="", groups=()):
    """Starts one and runs `sql` in its database `lab`; the daemon has `socket`, `port` and `query(sql)`."""
    data = place.folder / "db"
    subprocess.run(["cp", "-a", template(), data], check=True, timeout=120)
    port, socket = place.port(), data / "mysqld.sock"
    daemon = place.start(
        ["/usr/sbin/mariadbd", "--no-defaults", "--user=www-data", f"--datadir={data}", f"--socket={socket}",
         "--bind-address=127.0.0.1", f"--port={port}", "--innodb-buffer-pool-size=64M", "--skip-log-bin",
         "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", f"--tmpdir={place.open_folder('db-tmp')}", *options],
        unix_ready(socket), what="mariadbd", groups=groups)
    daemon.port, daemon.socket = port, socket

    def query(text):
        done = place.call(["mariadb", "--no-defaults", "-u", "root", "-N", "-S", socket, "-e", text])
        if done.returncode:
            raise LabError(f"{text[:80]}: {done.stderr[-300:]}")
        return done.stdout.strip()
    daemon.query = query
    query("CREATE USER lab@'127.0.0.1'; GRANT ALL ON *.* TO lab@'127.0.0.1'; CREATE DATABASE lab;")
    if sql:
        query(f"USE lab; {sql}")
    return daemon


def connect(daemon, persistent=False, tcp=True):
    """PHP that connects to it as $db."""
    host = "127.0.0.1" if tcp else "localhost"
    keep = "p:" if persistent else ""
    if tcp:
        return f"$db = new mysqli('{keep}{host}', 'lab', '', 'lab', {daemon.port});"
    return f"$db = new mysqli('{keep}{host}', 'root', '', 'lab', 0, '{daemon.socket}');"
