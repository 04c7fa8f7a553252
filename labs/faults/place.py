"""Where a set-up lives: a folder, a network namespace, control groups, and the processes in them.

Ports, counters of the kernel and firewalls are those of the namespace, so that neither the machine's own servers nor
other labs can be in the way. Everything is ended by process id: what was started is the leader of a session, and what
it has started is found by that session or by its parents.
"""

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
GROUPS = Path("/sys/fs/cgroup")
NOTE = "lab.json"
"""What a set-up consists of, in its folder."""
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """A set-up that does not come up, or does not do what it was made for: what, and the last lines of its log."""


class Daemon:
    """A process in the foreground, with what it has started; `name` is how the doctor is told of it."""

    def __init__(self, process, name, log):
        self.process, self.name, self.log = process, name, log

    @property
    def pid(self):
        return self.process.pid


def stat(pid):
    """The fields of /proc/PID/stat from the state on; None where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2:].split()


def processes():
    """Every process: pid → (parent, session, state)."""
    found = {}
    for entry in os.listdir("/proc"):
        fields = stat(entry) if entry.isdigit() else None
        if fields:
            found[int(entry)] = (int(fields[1]), int(fields[3]), fields[0])
    return found


def family(leaders):
    """Living processes of the sessions that these lead, and all that descends from them."""
    table, found = processes(), set()
    for pid, (_, session, state) in table.items():
        if state != "Z" and (pid in leaders or session in leaders):
            found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, (parent, _, state) in table.items() if parent in found and state != "Z"} - found
        grown = bool(more)
        found |= more
    return found


class Place:
    """A folder, a network namespace and whatever runs in them. `mounts` are files that the servers see in place of the
    machine's: {path: text}; `disks` are folders on small disks of their own, which only they see: {name: size}."""

    def __init__(self, mounts=None, disks=None):
        self.folder = Path(tempfile.mkdtemp(prefix="lastdrop-lab-"))
        os.chmod(self.folder, 0o755)
        self.daemons, self.groups, self.leaders = [], [], set()
        self.next_port = 18000
        script = "ip link set lo up"
        for number, (path, text) in enumerate((mounts or {}).items()):
            script += f" && mount --bind {self.write(f'mounted-{number}', text)} {path}"
        for name, size in (disks or {}).items():
            (self.folder / name).mkdir()
            script += f" && mount -t tmpfs -o size={size},mode=755 lastdrop-lab {self.folder / name}"
        unshare = ["unshare", "-n"] + (["-m"] if mounts or disks else [])
        self.holder = subprocess.Popen(
            unshare + ["sh", "-c", f"{script} && echo up && exec sleep 86400"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.leaders.add(self.holder.pid)
        self._note()
        self.enter = ["nsenter", "-t", str(self.holder.pid), "-n"]
        self.enter_all = self.enter + (["-m"] if mounts or disks else [])
        if self.holder.stdout.readline() != "up\n":
            error = self.holder.stderr.read()
            self.close()
            raise LabError(f"no namespace could be made (this lab wants root): {error}")

    # Files and ports.

    def write(self, name, text, mode=0o644):
        """Writes a file of the set-up, and the folders before it; its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
        path.chmod(mode)
        return path

    def open_folder(self, name):
        """A folder that servers may write into that are not root."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def port(self):
        """A port that nobody else in the namespace has: below those that the kernel gives to clients."""
        self.next_port += 1
        return self.next_port

    # What is around the servers.

    def sysctl(self, name, value):
        """Sets one of the namespace."""
        path = "/proc/sys/" + name.replace(".", "/")
        done = self.call(["sh", "-c", f"echo '{value}' > {path}"])
        if done.returncode:
            raise LabError(f"{name} = {value}: {done.stderr}")

    def group(self, controller, **settings):
        """A control group (v1) with these settings; its folder. `cpu__cfs_quota_us=…` is cpu.cfs_quota_us."""
        path = GROUPS / controller / self.folder.name
        if path not in self.groups:
            path.mkdir()
            self.groups.append(path)
            self._note()
        for name, value in settings.items():
            (path / name.replace("__", ".")).write_text(str(value))
        return path

    # Processes.

    def start(self, command, ready=None, *, name=None, what=None, groups=(), limits=(), env=None, seconds=90):
        """Starts a program and waits until `ready(daemon)`; what it says goes to WHAT.log. `limits` are prlimit's."""
        what = what or Path(command[0]).name
        log = self.folder / f"{what}.log"
        whole = list(self.enter_all)
        if groups:
            tasks = " && ".join(f"echo 0 > {group}/cgroup.procs" for group in groups)
            whole += ["sh", "-c", f'{tasks} && exec "$@"', "sh"]
        if limits:
            whole += ["prlimit", *limits, "--"]
        with open(log, "ab") as out:
            process = subprocess.Popen(
                whole + [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.folder, env={**os.environ, **(env or {})}, start_new_session=True)
        daemon = Daemon(process, name or f"pid:{process.pid}", log)
        self.daemons.append(daemon)
        self.leaders.add(process.pid)
        self._note()
        if ready:
            self.wait(what, lambda: ready(daemon), seconds, daemon)
        return daemon

    def wait(self, what, holds, seconds=90, daemon=None):
        """Waits until something holds. What is asked for by starting a program takes its time: it is asked for less often."""
        end = time.monotonic() + seconds
        asked = time.monotonic()
        while not holds():
            if daemon and daemon.process.poll() is not None:
                raise LabError(f"{what} has ended: {self.last_lines()}")
            if time.monotonic() > end:
                raise LabError(f"{what} was not ready within {seconds} s: {self.last_lines()}")
            time.sleep(max(0.05, 2 * (time.monotonic() - asked)))
            asked = time.monotonic()

    def last_lines(self):
        """The end of every log in the folder."""
        found = []
        for log in sorted(self.folder.glob("*.log")):
            lines = [] if log.name == "access.log" else log.read_text(errors="replace").strip().splitlines()[-3:]
            found += [f"{log.name}: {line}" for line in lines]
        return " | ".join(found)[-1500:]

    def call(self, command, seconds=120, **more):
        """Runs a program in the namespace to its end."""
        return subprocess.run(self.enter_all + [str(part) for part in command], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=seconds, cwd=self.folder, **more)

    @contextmanager
    def inside(self):
        """This thread opens its sockets in the namespace."""
        own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        other = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY)
        try:
            if _libc.setns(other, CLONE_NEWNET):
                raise LabError(f"setns: {os.strerror(ctypes.get_errno())}")
            yield
        finally:
            _libc.setns(own, CLONE_NEWNET)
            os.close(own)
            os.close(other)

    def get(self, port, path="/", seconds=20):
        """One GET: status and body, or (0, '') where there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        try:
            with self.inside():
                connection.connect()
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def answers(self, port, path="/"):
        """A condition to wait for: something answers there, whatever it says."""
        return lambda _daemon=None: self.get(port, path)[0] > 0

    def listens(self, port):
        """A condition to wait for: connections are taken there, without one being made to it."""
        return lambda _daemon=None: f":{port} " in self.call(["ss", "-ltnH"]).stdout

    def _note(self):
        """Writes down what there is, for whoever comes after a lab that was killed."""
        note = {"lab": [os.getpid(), born(os.getpid())], "leaders": [[pid, born(pid)] for pid in self.leaders],
                "holder": self.holder.pid, "groups": [str(group) for group in self.groups]}
        self.write(NOTE, json.dumps(note), 0o600)

    # The end.

    def stop(self, daemon, number=signal.SIGTERM, seconds=15):
        """Asks a server to end, and waits; what remains of its family is killed."""
        members = family({daemon.pid})
        if daemon.process.poll() is None:
            daemon.process.send_signal(number)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            daemon.process.poll()
            members = {pid for pid in members if os.path.exists(f"/proc/{pid}/exe")} | family({daemon.pid})
            if not any(_alive(pid) for pid in members):
                break
            time.sleep(0.05)
        _kill(members)
        daemon.process.wait(30)

    def close(self):
        """Ends everything, and takes folder, namespace and control groups away. What remains, in words (mostly
        nothing)."""
        for daemon in reversed(self.daemons):
            # uWSGI takes SIGTERM for a reload.
            self.stop(daemon, signal.SIGINT if "uwsgi" in daemon.name else signal.SIGTERM)
        # Whoever was started by a server and has left its session still runs in the namespace.
        _kill(in_namespace(self.holder.pid))
        self.holder.kill()
        self.holder.wait(30)
        for stream in (self.holder.stdout, self.holder.stderr):
            stream.close()
        left = take_away(self.groups, self.folder)
        return left + [f"process {pid}" for pid in sorted(family(self.leaders)) if _alive(pid)]


def in_namespace(holder):
    """Processes in the network namespace of another, but that one; none where it is the machine's own, in which a holder is
    whose unshare has failed."""
    try:
        other = os.readlink(f"/proc/{holder}/ns/net")
        if other == os.readlink("/proc/self/ns/net"):
            return set()
    except OSError:
        return set()
    found = set()
    for pid in processes():
        try:
            if pid != holder and os.readlink(f"/proc/{pid}/ns/net") == other:
                found.add(pid)
        except OSError:
            continue
    return found


def take_away(groups, folder):
    """Control groups whose processes have ended, and a folder; what could not be, in words."""
    left = []
    for group in groups:
        for _ in range(100):
            try:
                os.rmdir(group)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
        else:
            left.append(f"control group {group}")
    shutil.rmtree(folder, ignore_errors=True)
    return left + ([f"folder {folder}"] if os.path.exists(folder) else [])


def born(pid):
    """When a process began, in ticks since the start of the machine; a number that is used again has another."""
    fields = stat(pid)
    return int(fields[19]) if fields else None


def clear_up():
    """Ends and takes away what labs that were killed have left."""
    for file in Path(tempfile.gettempdir()).glob(f"lastdrop-lab-*/{NOTE}"):
        try:
            note = json.loads(file.read_text())
        except (OSError, json.JSONDecodeError):
            continue
        lab, since = note["lab"]
        if born(lab) == since:
            continue
        ours = {pid for pid, since in note["leaders"] if born(pid) == since}
        if note["holder"] in ours:
            ours |= in_namespace(note["holder"])
        _kill(family(ours) | ours)
        take_away(note["groups"], file.parent)


def _alive(pid):
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def _kill(pids):
    """Ends these by id, and waits until they are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end = time.monotonic() + 10
    while time.monotonic() < end and any(_alive(pid) for pid in pids):
        time.sleep(0.05)


def unix_ready(path):
    """A condition to wait for: somebody listens at a unix socket."""
    def ready(_daemon=None):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(path))
                return True
            except OSError:
                return False
    return ready
