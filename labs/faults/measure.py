"""Proves that a fault is real: the same load on the set-up as planted, with its cause removed, and with the cause of its
look-alike removed, in turns, so that a machine that becomes busier does so for all three."""

import fcntl
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from .place import LabError, Place

NOISE = math.log(1.45)
"""What the look-alike's cure may change: the noise of a shared machine of two processors, or a third of what the cure does,
both as logarithms."""


def lastdrop():
    """The program: LASTDROP, or what was built."""
    found = Path(os.environ.get("LASTDROP") or Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/lastdrop")
    if not found.exists():
        raise LabError(f"there is no {found} (LASTDROP names another)")
    return str(found.resolve())


@contextmanager
def alone():
    """Labs on one machine take turns."""
    with open(Path(tempfile.gettempdir()) / "lastdrop-lab.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(place):
    """Its store and its journal are the set-up's own."""
    return {**os.environ, "LASTDROP_STORE": str(place.folder / "runs.sqlite"),
            "LASTDROP_STATE": str(place.folder / "state")}


def run(place, case, seconds):
    """`lastdrop run` on the case; its document."""
    file = place.folder / "run.json"
    file.unlink(missing_ok=True)
    command = [*place.enter, *case.wrap, lastdrop(), "run", case.url, *case.load, "-d", f"{seconds}s", "--drain", "2s",
               "--no-store", "--quiet", "--json", str(file)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(place),
                              timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        raise LabError(f"lastdrop run did not end within {seconds + 60} s") from None
    if not file.exists():
        raise LabError(f"lastdrop run: {done.stderr.strip()[-400:]}")
    return json.loads(file.read_text())


def good(document):
    """Answers a second with a status of 2xx or 3xx, and their share of all that was sent."""
    phase = document["phases"][0]
    fine = sum(count for status, count in phase.get("status", {}).items() if status[0] in "23")
    answered = sum(phase.get("status", {}).values())
    rate = phase["rate"]["answered_rps"] * (fine / answered if answered else 0)
    return rate, fine / max(1, phase["requests"]["sent"])


def measured(fault, place, case, seconds):
    """One number: what the fault is seen by."""
    if callable(fault.measure):
        return fault.measure(place, case)
    before = case.count() if case.count else 0
    document = run(place, case, seconds)
    rate, share = good(document)
    if fault.measure == "per_request":
        return (case.count() - before) / max(1, document["phases"][0]["requests"]["answered"])
    if fault.measure == "connects":
        phase = document["phases"][0]
        return phase["connections"]["opened"] / max(1, phase["requests"]["answered"])
    return share if fault.measure == "good_share" else rate


def trouble(fault, planted, cured, other):
    """What is wrong with a fault whose numbers are these; '' where nothing is."""
    ratio = cured / planted if planted else float("inf")
    if (ratio < fault.gain) if fault.gain > 1 else (ratio > fault.gain):
        return f"the cure changes it by {ratio:.2f}, not by {fault.gain}"
    allowed = max(NOISE, abs(math.log(ratio)) / 3 if 0 < ratio < float("inf") else 0)
    if other and planted and abs(math.log(other / planted)) > allowed:
        return f"the look-alike's cure changes it by {other / planted:.2f}"
    return ""


def verify(fault, strength, seconds=4, rounds=3):
    """Numbers of the three set-ups and what is wrong with them: {planted, cured, other, trouble, rounds, load}."""
    changes = {"planted": {}, "cured": fault.cure}
    if fault.other is not None:
        changes["other"] = fault.other
    places, cases, numbers = {}, {}, {name: [] for name in changes}
    left = []
    try:
        for name, change in changes.items():
            places[name] = Place(fault.mounts)
            cases[name] = fault.build(places[name], **fault.settings(strength, change))
        with alone():
            for turn in range(rounds + 1):
                for name in changes:
                    number = measured(fault, places[name], cases[name], seconds if turn else 1)
                    # The first turn warms.
                    if turn:
                        numbers[name].append(number)
    finally:
        for place in places.values():
            left += place.close()
    middle = {name: statistics.median(values) for name, values in numbers.items()}
    wrong = trouble(fault, middle["planted"], middle["cured"], middle.get("other"))
    return {"name": fault.name, "strength": strength, **{name: round(value, 3) for name, value in middle.items()},
            "trouble": "; ".join(filter(None, [wrong, *left])), "rounds": numbers,
            "load": os.getloadavg()[0], "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
