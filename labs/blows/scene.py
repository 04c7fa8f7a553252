"""A fleet in namespaces: one with the broker, the coordinator and an nginx that writes down each request, and one for each agent.

Each agent has two links: one to the broker (10.77.0.0/24) and one to the server (10.78.0.0/24), so that the first can be cut while the
load goes on. State of each part is on a small disk of its own (tmpfs), which can be filled.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from faults.measure import lastdrop
from faults.place import LabError, Place

NAMES = ("a", "b", "c")
DISK = "8m"
"""Of each part. JetStream wants some of it for itself."""
BROKER, SERVER = "10.77.0.1", "10.78.0.1"
BROKER_PORT, SERVER_PORT = 4222, 8080

NGINX = """user www-data; worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{
  log_format counted '$remote_addr $uri $status $msec';
  access_log {folder}/access.log counted; keepalive_requests 1000000;
  server {{ listen {address}:{port}; location / {{ return 200 ok; }} }}
}}
"""


class Run:
    """`lastdrop run --fleet` under way, or over."""

    def __init__(self, process, path, folder):
        self.process, self.path, self.folder = process, path, folder

    def wait(self, seconds):
        """Its exit code, document and what it said."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise LabError(f"the run did not end within {seconds} s") from None
        text = (self.folder / "document").read_text()
        try:
            document = json.loads(text) if text.strip() else None
        except json.JSONDecodeError as error:
            raise LabError(f"stdout of the run is no document: {error}: {text[:200]}") from None
        return code, document, self.said()

    def said(self):
        return (self.folder / "said").read_text(errors="replace")


class Scene(Place):
    """What is struck. `options` are more words for the agents' command lines: {name: words}."""

    def __init__(self, options=None):
        super().__init__(disks={name: DISK for name in ("broker", "coordinator", *(f"agent-{name}" for name in NAMES))})
        try:
            self._build(options or {})
        except BaseException:
            self.close()
            raise

    def _build(self, options):
        self.options = options
        self.runs = 0
        self.agents, self.hosts = {}, {}
        for bridge, address in (("br77", BROKER), ("br78", SERVER)):
            self._ip(f"link add {bridge} type bridge", f"address add {address}/24 dev {bridge}", f"link set {bridge} up")
        for number, name in enumerate(NAMES):
            host = self.start(["unshare", "-n", "sleep", "86400"], what=f"host-{name}")
            self.hosts[name] = host
            # Until then it is nsenter, and then unshare.
            self.wait("a namespace", lambda host=host: Path(f"/proc/{host.pid}/comm").read_text() == "sleep\n", 20, host)
            for net in (77, 78):
                self._ip(f"link add l{net}-{name} type veth peer name n{net} netns {host.pid}",
                         f"link set l{net}-{name} master br{net} up")
                self.on(name, ["ip", "address", "add", f"10.{net}.0.{11 + number}/24", "dev", f"n{net}"])
                self.on(name, ["ip", "link", "set", f"n{net}", "up"])
            self.on(name, ["ip", "link", "set", "lo", "up"])
        self.addresses = {f"10.78.0.{11 + number}": name for number, name in enumerate(NAMES)}
        config = self.write("nginx.conf", NGINX.format(folder=self.folder, address=SERVER, port=SERVER_PORT))
        self.server = self.start(["nginx", "-c", config, "-p", self.folder],
                                 lambda _: f"{SERVER}:{SERVER_PORT} " in self.call(["ss", "-ltnH"]).stdout)
        self.start_broker()
        for name in NAMES:
            self.start_agent(name)
        self.wait("all agents in the fleet", lambda: self.members() == list(NAMES), 60)

    def _ip(self, *lines):
        for line in lines:
            done = self.call(["ip", *line.split()])
            if done.returncode:
                raise LabError(f"ip {line}: {done.stderr.strip()}")

    def on(self, name, command, check=True):
        """Runs a program in an agent's namespace to its end."""
        done = self.call(["nsenter", "-t", self.hosts[name].pid, "-n", *command])
        if check and done.returncode:
            raise LabError(f"{' '.join(map(str, command))} on {name}: {done.stderr.strip()}")
        return done

    def disk(self, name):
        """A part's disk, as this process sees it."""
        return Path(f"/proc/{self.holder.pid}/root{self.folder}/{name}")

    # The parts.

    def start_broker(self):
        """`fleet up`: the process, with nats-server as its child. Started again it is the same fleet."""
        log = self.folder / "broker.out"
        log.write_text("")
        self.broker = self.start(
            ["sh", "-c", f'exec "$@" > {log}', "sh", lastdrop(), "fleet", "up", "--listen", f"{BROKER}:{BROKER_PORT}",
             "--dir", self.folder / "broker"],
            lambda _: "agent-token " in log.read_text(), what="broker", seconds=60)
        words = dict(line.split(" ", 1) for line in log.read_text().splitlines())
        self.url, self.token, self.agent_token = words["url"], words["token"], words["agent-token"]

    def start_agent(self, name):
        """An agent in its namespace, on its own disk."""
        words = self.options.get(name, [])
        self.agents[name] = self.start(
            ["nsenter", "-t", self.hosts[name].pid, "-n", lastdrop(), "agent", self.url, "--name", name, "--allow", SERVER, *words],
            what=f"agent-{name}-says",
            env={"LASTDROP_STATE": str(self.folder / f"agent-{name}"), "LASTDROP_TOKEN": self.agent_token})

    def kill(self, daemon, number=signal.SIGKILL):
        """A signal to one process; where it ends by it, its end is waited for."""
        daemon.process.send_signal(number)
        if number == signal.SIGKILL:
            daemon.process.wait(20)
            self.daemons.remove(daemon)

    def nats(self):
        """nats-server's process, or None."""
        try:
            pid = int((self.disk("broker") / "nats.pid").read_text())
            return pid if Path(f"/proc/{pid}/comm").read_text().strip() == "nats-server" else None
        except (OSError, ValueError):
            return None

    # The commands of a coordinator.

    def environment(self):
        disk = self.folder / "coordinator"
        return {**os.environ, "LASTDROP_STORE": str(disk / "runs.sqlite"), "LASTDROP_STATE": str(disk / "state"),
                "LASTDROP_NATS": self.url, "LASTDROP_TOKEN": self.token}

    def ask(self, *words, seconds=90):
        """Runs a command to its end: exit code, document, what it said."""
        try:
            done = self.call([lastdrop(), *words, "--json", "-"], seconds, env=self.environment())
        except subprocess.TimeoutExpired:
            raise LabError(f"lastdrop {' '.join(map(str, words))} did not end within {seconds} s") from None
        document = json.loads(done.stdout) if done.stdout.strip() else None
        return done.returncode, document, done.stderr

    def status(self):
        """{name: row} of the agents that are there; None where nobody answers."""
        code, document, _ = self.ask("fleet", "status")
        return {row["name"]: row for row in document["agents"]} if code == 0 and document else None

    def members(self):
        return sorted(self.status() or {})

    def is_idle(self):
        """Are all there, and none at a run?"""
        status = self.status() or {}
        return len(status) == len(NAMES) and all(row["run"] is None for row in status.values())

    def begin(self, path, *words):
        """Starts `run --fleet` on a path of the server."""
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        folder.mkdir()
        with open(folder / "document", "wb") as out, open(folder / "said", "wb") as said:
            process = subprocess.Popen(
                [*self.enter_all, lastdrop(), "run", f"http://{SERVER}:{SERVER_PORT}{path}", "--fleet", ",".join(NAMES), *map(str, words),
                 "--json", "-"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=said, cwd=self.folder, env=self.environment(), start_new_session=True)
        self.leaders.add(process.pid)
        self._note()
        return Run(process, path, folder)

    # What the server has seen.

    def lines(self, path):
        """Requests of a path by agent, and when the first of each came."""
        counts, first = Counter(), {}
        for line in (self.folder / "access.log").read_text().splitlines():
            address, uri, _, at = line.split()
            if uri == path:
                name = self.addresses.get(address, address)
                counts[name] += 1
                first.setdefault(name, float(at))
        return counts, first

    # What strikes a disk.

    def fill(self, name):
        """Leaves no byte of a part's disk."""
        with open(self.disk(name) / "ballast", "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self, name):
        (self.disk(name) / "ballast").unlink()


class Background:
    """A blow that takes its time, beside the run. Its mistakes are raised when it is joined."""

    def __init__(self, work):
        self.error = None

        def whole():
            try:
                work()
            except Exception as error:  # noqa: BLE001: it is raised again where somebody waits for it
                self.error = error
        self.thread = threading.Thread(target=whole, daemon=True)
        self.thread.start()

    def join(self, seconds=60):
        self.thread.join(seconds)
        if self.thread.is_alive():
            raise LabError(f"a blow did not come to its end within {seconds} s")
        if self.error:
            raise self.error


def sleep_until(moment):
    time.sleep(max(0.0, moment - time.monotonic()))
