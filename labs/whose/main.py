"""The command: which servers, whose, by which programs; what differs is printed."""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from .documents import differences
from .owners import OWNERS, USER, Running
from .servers import SERVERS

LIMIT_SECONDS = 60
WARM_REQUESTS = 60


def arguments():
    parser = argparse.ArgumentParser(
        prog="./x lab rights", description="Asks about genuine servers, whoever they belong to, and compares the documents.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="servers, owners, commands, or several joined by / [default: all]")
    parser.add_argument("--list", action="store_true", help="list servers, owners and commands, and end")
    parser.add_argument("--before", type=Path, metavar="FILE", help="compare with what this program of an earlier commit tells [default: with the same server of root's]")
    parser.add_argument("--after", type=Path, default=Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/lastdrop", metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep all documents and what was said there")
    return parser.parse_args()


def commands(server, owner, folder, port):
    """Each command with its words: whether numbers are settings, and the words."""
    named = server.reference(folder)
    yield "knobs", True, ["knobs", named]
    yield "size", False, ["size", named]
    yield "watch", False, ["watch", named, "--once", "--interval", "300ms"]
    if server.http and not owner.network:
        url = f"http://127.0.0.1:{port}/"
        gently = ["--url", url, "-d", "300ms", "-c", "2", "--gentle", "--no-store"]
        yield "doctor", False, ["doctor", named, *gently]
        yield "doctor-url", False, ["doctor", *gently]
        if server.sweep and not owner.within:
            yield "sweep", False, ["sweep", str(folder / "plan.toml"), "--no-store"]


def ask(program, words, asker, home):
    """The exit code, the document or None, and what was said."""
    user = [] if asker == "root" else ["setpriv", "--reuid", asker, "--regid", asker, "--init-groups"]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "LASTDROP_STATE": str(home / "state"), "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(user + [str(program), *words, "--json", "-"], env=environment, cwd="/", stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "hung", None, ""
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    return done.returncode, document, done.stderr.decode(errors="replace")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def warm(port):
    """Has each worker serve something: `size` leaves out workers that have served nothing."""
    for _ in range(WARM_REQUESTS):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read()
        except OSError:
            return


def is_chosen(names, *words):
    """Each name is words joined by /, all of which must be there."""
    return not names or any(all(part in words for part in name.split("/")) for name in names)


def main():
    args = arguments()
    if args.list:
        print("servers: ", *[s.name for s in SERVERS])
        print("owners:  ", *[o.name for o in OWNERS])
        print("commands: knobs size watch doctor doctor-url sweep")
        return
    work = Path(tempfile.mkdtemp(prefix="whose-", dir="/tmp"))
    work.chmod(0o755)
    for name, program in (("before", args.before), ("after", args.after)):
        if program:
            shutil.copy(program, work / name)
            (work / name).chmod(0o755)
    asked = differ = 0
    try:
        for server in SERVERS:
            if not server.is_here():
                print(f"{server.name}: {server.program} is not installed")
                continue
            of_root = {}
            for owner in OWNERS:
                asked, differ = compare(args, work, server, owner, asked, differ, of_root)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{asked} commands, of {differ} the documents differ")
    sys.exit(1 if differ else 0)


def compare(args, work, server, owner, asked, differ, of_root):
    for asker in ("root", USER):
        folder, port = work / "site", free_port()
        listed = [c for c in commands(server, owner, folder, port) if is_chosen(args.names, server.name, owner.name, asker, c[0])]
        # What belongs to another ordinary user, or to root, is not changed by this one; the doctor's answers are root's question.
        if asker != "root":
            listed = [c for c in listed if c[0] not in ("doctor", "doctor-url") and (owner.user == asker or c[0] != "sweep")]
        if not listed:
            continue
        running = Running(server, owner, folder, port)
        (folder / "plan.toml").write_text(
            f"server = '{server.reference(folder)}'\nurl = 'http://127.0.0.1:{port}/'\nduration = '300ms'\nusers = 1\n[settings]\n{server.sweep}\n")
        try:
            if not running.wait():
                print(f"{server.name} {owner.name}: it does not start: {(folder / 'run/said').read_text(errors='replace')[-300:]}")
                continue
            if server.http and not owner.network:
                warm(port)
            for name, exact, words in listed:
                answers = []
                for which in ("before", "after") if args.before else ("after",):
                    home = work / f"home-{asker}-{which}"
                    home.mkdir(exist_ok=True)
                    shutil.chown(home, asker, asker)
                    answers.append(ask(work / which, words, asker, home))
                asked += 1
                answers = [of_root.setdefault((asker, name), answers[0]), *answers] if not args.before else answers
                found = list(verdict(*answers, exact))
                title = f"{server.name}/{owner.name}/{asker}/{name}"
                if args.keep:
                    kept = args.keep / title.replace("/", "_")
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    for which, (code, document, said) in zip(("before", "after"), answers):
                        kept.with_suffix(f".{which}").write_text(f"{code}\n{said}\n{json.dumps(document, indent=1)}\n")
                if found:
                    differ += 1
                    print(f"{title}: {' '.join(words)}", *found, sep="\n    ", flush=True)
        finally:
            running.end()
    return asked, differ


def verdict(before, after, exact):
    (code, old, said_before), (new_code, new, said) = before, after
    if code != new_code:
        last = lambda text: text.strip().splitlines()[-1][:400] if text.strip() else ""
        yield f"exit code {new_code}, was {code}: {last(said)} / {last(said_before)}"
    if "not asked" in said or "not asked" in json.dumps(new):
        yield "not asked: " + next((line for line in said.splitlines() if "not asked" in line), "in the document")[:400]
    if old is not None and new is None:
        yield "no document any more"
    elif old is not None:
        yield from differences(old, new, exact)
