"""Tunes a set-up, and says what its answer is worth by the stored grid."""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from faults.ask import quiet
from faults.measure import alone, environment, lastdrop
from faults.place import LabError, Place
from faults.rows import programs

from . import grid as grids

TRIALS = 25
PATIENCE = 1800
NAME = "tune.jsonl"
"""Rows of the lab."""


def killed():
    """Processes that the kernel has ended for want of memory, and pages that it has swapped out, since it started."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counters.get("oom_kill", 0)) + int(counters.get("pswpout", 0))


def tune(setup, seed):
    """Runs a tune of a set-up that is started for it: (document, seconds)."""
    place = Place()
    try:
        case = setup.build(place)
        out = place.folder / "tune.json"
        numbers = {name: values for name, values in setup.grid.items() if all(isinstance(value, int) for value in values)}
        ranges = [word for name, values in numbers.items() for word in ("--range", f"{name}={min(values)}..{max(values)}")]
        command = [*place.enter, lastdrop(), "tune", *case.names(), "--url", case.url, "-c", str(setup.users), *setup.load, *setup.options,
                   "--only", ",".join(setup.grid), *ranges, "--trials", str(TRIALS), "--seed", str(seed), "-d", "2s", "--timeout", "10s",
                   "--json", str(out), "--quiet"]
        began = time.monotonic()
        done = subprocess.run(command, env=environment(place), capture_output=True, text=True, timeout=PATIENCE)
        if not out.exists():
            raise LabError(f"the tune ends with {done.returncode}: {done.stderr[-600:]}")
        return json.loads(out.read_text()), time.monotonic() - began
    finally:
        place.close()


def examine(setup, seed):
    """A row about one set-up."""
    row = {"name": setup.name, "strength": seed, "load": os.getloadavg()[0], "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        with alone():
            row["others"] = quiet()
            before = killed()
            document, seconds = tune(setup, seed)
            row["killed_or_swapped"] = killed() - before
    except (LabError, OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {**row, "state": "failed", "why": f"{type(error).__name__}: {error}"[:800]}
    winner = document.get("winner") or {}
    return {**row, "state": "ok", "verdict": document["verdict"], "settings": winner.get("settings") or {}, "ratio": winner.get("ratio"),
            "memory": winner.get("memory"), "trials": len(document["trials"]), "seconds": round(seconds, 1)}


def scored(setup, row):
    """A row with what the server was worth at the start and what a user of the tune ends with, as shares of the grid's best: without a
    proof that is the server as it was."""
    grid = grids.read(setup)
    best = grids.best(grid)
    share = lambda settings: (grids.nearest(grid, settings)["rps"] or 0) / best["rps"]
    return {**row, "start": share({}), "reached": share(row["settings"] if row["verdict"] == "improved" else {}), "best": best["settings"]}


def memory(rows, of):
    """How near what was predicted of the chosen pool came to what it used: where memory was limited, and everywhere."""
    lines = []
    for which, part in (("with a limit", [row for row in rows if "--memory" in of[row["name"]].options]), ("of all set-ups", rows)):
        off = [abs(row["memory"]["predicted_bytes"] / row["memory"]["used_bytes"] - 1) for row in part]
        if off:
            lines.append(f"Memory of the chosen pool, {which}: predicted within 5 % in {sum(x <= 0.05 for x in off)} of {len(off)}, off by "
                         f"{max(off):.1%} at most; killed for want of memory or swapped: {sum(row.get('killed_or_swapped', 0) for row in part)}.")
    return lines


def report(setups, rows):
    """Markdown: each set-up's tune, and what all of them came to."""
    lines = [f"{len(rows)} tunes of at most {TRIALS} trials of a search ({programs(rows)}).", "",
             "| set-up | at the start | reached | verdict | chosen | the grid's best | trials | seconds |", "|---|---|---|---|---|---|---|---|"]
    shown = lambda settings: ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it was"
    of = {setup.name: setup for setup in setups}
    rows = [scored(of[row["name"]], row) if row["state"] == "ok" else row for row in rows]
    for row in sorted(rows, key=lambda row: (row["name"], row["strength"])):
        if row["state"] != "ok":
            lines.append(f"| {row['name']} | | | {row['why'][:200]} | | | | |")
            continue
        lines.append(f"| {row['name']} | {row['start']:.2f} | {row['reached']:.3f} | {row['verdict']} | {shown(row['settings'])} | "
                     f"{shown(row['best'])} | {row['trials']} | {row['seconds']:.0f} |")
    good = [row["reached"] for row in rows if row["state"] == "ok" and not of[row["name"]].at_best]
    if good:
        lines += ["", f"Share of the grid's best: median {statistics.median(good):.3f} (wanted 0.97), worst {min(good):.3f} (wanted 0.92), "
                      f"{len(good)} tunes."]
        below = [row["name"] for row in rows if row["state"] == "ok" and row["reached"] < row["start"]]
        lines.append(f"Ended below the start: {', '.join(below) or 'none'}.")
    lines += memory([row for row in rows if row["state"] == "ok" and row.get("memory")], of)
    best = [row["verdict"] == "no_gain" for row in rows if row["state"] == "ok" and of[row["name"]].at_best]
    if best:
        lines.append(f"Servers at their best: no_gain in {sum(best)} of {len(best)}.")
    return "\n".join(lines) + "\n"
