"""A tune that is told no settings, and the same server swept by hand: what the tune came to as a share of the best by hand."""

import json
import subprocess
import time

from faults.measure import environment, lastdrop
from faults.place import LabError
from faults.rows import programs

from . import grid as grids
from .row import asked

NAME = "tune-plain.jsonl"
WANTED = 0.9
ROUNDS = 2
PATIENCE = 1800


def tune(place, setup, case, seed):
    out = place.folder / "tune.json"
    command = [*place.enter, lastdrop(), "tune", *case.names(), "--url", case.url, "-c", str(setup.users), *setup.load, *setup.options,
               "--seed", str(seed), "-d", "2s", "--timeout", "10s", "--json", str(out), "--quiet"]
    done = subprocess.run(command, env=environment(place), capture_output=True, text=True, timeout=PATIENCE)
    if not out.exists():
        raise LabError(f"the tune ends with {done.returncode}: {done.stderr[-600:]}")
    return json.loads(out.read_text())


def with_chosen(setup, chosen):
    """The grid, with the values that the tune chose among its own."""
    grid = {}
    for name, values in setup.grid.items():
        value = chosen.get(name, setup.start[name])
        grid[name] = values if any(grids.same(value, known) for known in values) else sorted([*values, value])
    return grid


def examine(setup, seed):
    """A row about one set-up."""
    def question(place, case):
        began = time.monotonic()
        document = tune(place, setup, case, seed)
        seconds = round(time.monotonic() - began, 1)
        winner = document.get("winner") or {}
        chosen = (winner.get("settings") or {}) if document["verdict"] == "improved" else {}
        points = grids.sweep(place, setup, case, ROUNDS, with_chosen(setup, chosen))
        grid = {"start": setup.start, "points": points}
        best, reached, start = grids.best(grid), grids.nearest(grid, chosen), grids.nearest(grid, {})
        return {"seconds": seconds, "verdict": document["verdict"], "because": document["because"], "settings": chosen,
                "ratio": winner.get("ratio"), "best": best["settings"], "share": (reached["rps"] or 0) / best["rps"],
                "start": (start["rps"] or 0) / best["rps"], "at_best": setup.at_best, "trials": len(document["trials"]),
                "advised": (document.get("workers_advice") or {}).get("number"), "points": points}
    return asked(setup, seed, question)


def is_good(row):
    """Nine tenths of the best by hand, and a verdict that says so: of a server at its best that nothing better was found."""
    if row["state"] != "ok":
        return False
    right = row["verdict"] in ("no_gain", "inconclusive") if row["at_best"] else row["verdict"] == "improved"
    return right and row["share"] >= WANTED


def report(rows):
    lines = [f"{len(rows)} tunes without --only, {WANTED:.0%} of the best by hand wanted ({programs(rows)}).", "",
             "| set-up | at the start | reached | verdict | chosen | best by hand | times (race) | trials | seconds |", "|---|---|---|---|---|---|---|---|---|"]
    shown = lambda settings: ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it was"
    for row in sorted(rows, key=lambda row: (row["name"], row["strength"])):
        if row["state"] != "ok":
            lines.append(f"| {row['name']} | | | {row['why'][:200]} | | | | | |")
            continue
        lines.append(f"| {row['name']} | {row['start']:.2f} | {row['share']:.2f} | {row['verdict']}{'' if is_good(row) else ' (!)'} | {shown(row['settings'])} | "
                     f"{shown(row['best'])} | {row['ratio'] or 0:.2f} | {row['trials']} | {row['seconds']:.0f} |")
    lines += ["", f"As wanted: {sum(map(is_good, rows))} of {len(rows)}."]
    return "\n".join(lines) + "\n"
