"""Whose a server is, and where it runs."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SERVICE = "www-data"
"""The user of a service: its configuration is root's."""
USER = "games"
"""The ordinary user: everything is this user's."""


@dataclass(frozen=True)
class Owner:
    """Whose a server is. `within` are the words by which it gets namespaces of its own."""

    name: str
    user: str
    files: str
    within: tuple = ()
    network: bool = False

    def words(self):
        """What goes before the server's own command line."""
        words = []
        if self.user != "root":
            words += ["setpriv", "--reuid", self.user, "--regid", self.user, "--init-groups"]
        return words + list(self.within)

    @property
    def becomes(self):
        """May the server change to another user?"""
        return self.user == "root"

    @property
    def is_rootless(self):
        """Is it root in there, and nobody else known?"""
        return any(word.startswith("-U") for word in self.within)


def unshare(*namespaces):
    return ("unshare", *namespaces, "--kill-child")


UP = ("sh", "-c", 'ip link set lo up; exec "$@"', "sh")

OWNERS = [
    Owner("root", "root", "root"),
    Owner("service", SERVICE, "root"),
    Owner("user", USER, USER),
    Owner("container", "root", "root", unshare("-mpf", "--mount-proc")),
    Owner("container-net", "root", "root", (*unshare("-mpnf", "--mount-proc"), *UP), True),
    Owner("rootless", USER, USER, (*unshare("-Urmpnf", "--mount-proc"), *UP), True),
    Owner("rootless-host-net", USER, USER, unshare("-Urmpf", "--mount-proc")),
]


def give(folder, owner):
    """Gives a folder with all that is in it to a user; a service writes to its own folder below."""
    if owner.files != "root":
        subprocess.run(["chown", "-R", f"{owner.files}:{owner.files}", folder], check=True)
    elif owner.user != "root":
        subprocess.run(["chown", "-R", f"{owner.user}:{owner.user}", folder / "run"], check=True)


class Running:
    """A server that runs, in a session of its own."""

    def __init__(self, server, owner, folder, port):
        self.folder, self.port = folder, port
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "run").mkdir(parents=True)
        (folder / "run").chmod(0o777 if owner.becomes else 0o755)
        self.argv, self.variables = server.prepare(folder, port, owner)
        give(folder, owner)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder / "run"), "LANG": "C.UTF-8", **self.variables}
        log = open(folder / "run/said", "wb")
        self.process = subprocess.Popen(
            owner.words() + self.argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True)
        self.network = owner.network

    def wait(self):
        """Until it listens, in its network."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            if self.listens():
                time.sleep(0.3)
                return True
            time.sleep(0.05)
        return False

    def listens(self):
        wanted = f":{self.port:04X} 00000000:0000 0A"
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                if wanted in Path(f"/proc/{pid}/net/tcp").read_text():
                    return True
            except OSError:
                pass
        return False

    def end(self):
        for pid in [*descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        # One that was started again is nobody's child.
        for pid in of_folder(self.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def of_folder(folder):
    """Processes that work in a folder or name it."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            line = process.joinpath("cmdline").read_bytes().decode(errors="replace")
            if os.readlink(process / "cwd").startswith(str(folder)) or f"{folder}/" in line:
                found.append(int(process.name))
        except OSError:
            pass
    return found
