"""The number of workers that `size --url` advises, swept beside others on the same server: its rate as a share of the best."""

import dataclasses
import json
import subprocess

from faults.measure import environment, lastdrop
from faults.place import LabError
from faults.rows import programs

from . import grid as grids
from .row import asked

NAME = "tune-advised.jsonl"
WANTED = 0.95
ROUNDS = 5
PATIENCE = 600
AT_LEAST_USERS = 3
"""So many times the advised workers' number of users load the server in the sweep, or those of the set-up."""
POOLS = {"fpm-dynamic": "php-fpm.pm.max_children", "gunicorn-sync": "workers", "prefork-small": "MaxRequestWorkers"}
"""The setting of each set-up that says how many workers there are."""
SHARES = (0.25, 0.5, 0.75, 1, 1.5)


def advised(place, case):
    """The document's advice: need, ceilings, number."""
    out = place.folder / "size.json"
    pool = case.names()[-1].split("=", 1)[-1]
    done = subprocess.run([*place.enter, lastdrop(), "size", pool, "--url", case.url, "--json", str(out)],
                          env=environment(place), capture_output=True, text=True, timeout=PATIENCE)
    if not out.exists():
        raise LabError(f"size ends with {done.returncode}: {done.stderr[-600:]}")
    advice = json.loads(out.read_text()).get("workers_advice")
    if not advice:
        raise LabError("size advises no number of workers")
    return advice


def examine(setup, seed):
    """A row about one set-up."""
    def question(place, case):
        advice = advised(place, case)
        number, pool = advice["number"], POOLS[setup.name]
        values = sorted({max(1, round(number * share)) for share in SHARES})
        wide = dataclasses.replace(setup, users=max(setup.users, AT_LEAST_USERS * number))
        points = grids.sweep(place, wide, case, ROUNDS, {pool: values})
        grid = {"start": {pool: number}, "points": points}
        best, ours = grids.best(grid), grids.nearest(grid, {})
        return {"users": wide.users, "advice": advice, "number": number, "rps": ours["rps"], "best": best["settings"][pool],
                "best_rps": best["rps"], "share": (ours["rps"] or 0) / best["rps"], "points": points}
    return asked(setup, seed, question)


def is_good(row):
    return row["state"] == "ok" and row["share"] >= WANTED


def together(rows):
    """The share of each set-up over all its rows: the best of five points that chance moves by some percent is partly the luckiest one,
    so the rates of a point (a multiple of the advised number) are added up first."""
    sums = {}
    for row in rows:
        if row["state"] == "ok" and len(row["points"]) == len(SHARES):
            of = sums.setdefault((row["name"], row.get("program")), [0.0] * len(SHARES))
            for i, point in enumerate(row["points"]):
                of[i] += point["rps"] or 0
    return {name: of[SHARES.index(1)] / max(of) for name, of in sums.items() if max(of) > 0}


def report(rows):
    lines = [f"{len(rows)} times advised, {WANTED:.0%} of the best of the sweep wanted ({programs(rows)}).", "",
             "| set-up | advised | users | its rate | best of the sweep | at | share |", "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["name"], row["strength"])):
        if row["state"] != "ok":
            lines.append(f"| {row['name']} | {row['why'][:200]} | | | | | |")
            continue
        lines.append(f"| {row['name']} | {row['number']} | {row['users']} | {row['rps']:.0f} | {row['best_rps']:.0f} | {row['best']} | "
                     f"{row['share']:.3f}{'' if is_good(row) else ' (!)'} |")
    lines += ["", f"As wanted: {sum(map(is_good, rows))} of {len(rows)}.", "", "| set-up, all rows together | share |", "|---|---|"]
    lines += [f"| {name} | {share:.3f}{'' if share >= WANTED else ' (!)'} |" for (name, _), share in sorted(together(rows).items())]
    return "\n".join(lines) + "\n"
