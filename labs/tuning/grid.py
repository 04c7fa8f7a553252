"""Grids: every combination of a set-up's settings, measured in interleaved rounds by `lastdrop sweep`, and kept in the repository."""

import json
import math
import subprocess
from pathlib import Path

from faults.measure import environment, lastdrop
from faults.place import LabError, Place

FOLDER = Path(__file__).resolve().parent / "grids"
SECONDS = 2
PATIENCE = 1200
WARM_UP = "4s"
"""Load before workers that are recycled too fast to be warmed each."""
MOST_FAILED = 0.1


def plan(setup, case, grid=None):
    """The sweep's plan."""
    grid = grid or setup.grid
    load = {name: value for name, value in zip(setup.load, setup.load[1:]) if name in ("--keepalive", "-H")}
    lines = [f"server = {json.dumps(case.names())}", f"url = {json.dumps(case.url)}", f"users = {setup.users}", f'duration = "{SECONDS}s"',
             f'keepalive = "{load["--keepalive"]}"', 'timeout = "10s"', "whole_pools = true", f'warm_up = "{WARM_UP}"']
    if "--insecure" in setup.load:
        lines.append("insecure = true")
    lines += ["[settings]"] + [f"{json.dumps(name)} = [{', '.join(map(json.dumps, values))}]" for name, values in grid.items()]
    if "-H" in load:
        lines += ["[[variant]]", 'name = "all"', f'header = {json.dumps(load["-H"])}']
    return "\n".join(lines) + "\n"


def sweep(place, setup, case, rounds, grid=None):
    """Sweeps a grid of a set-up that is there: its points."""
    file = place.write("sweep.toml", plan(setup, case, grid))
    out = place.folder / "sweep.json"
    done = subprocess.run([*place.enter, lastdrop(), "sweep", str(file), "--rounds", str(rounds), "--json", str(out), "--quiet"],
                          env=environment(place), capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode not in (0, 4):
        raise LabError(f"the sweep ends with {done.returncode}: {done.stderr[-600:]}")
    points = []
    for row in json.loads(out.read_text())["rows"]:
        settings = {name: value for name, value in row["settings"].items() if name in setup.grid}
        # An event MPM whose threads are all busy lets kept connections go: a few requests find that out.
        counts = row["answered"] > 0 and row["failed"] <= MOST_FAILED * (row["answered"] + row["failed"])
        interval = row.get("rps_interval")
        points.append({"settings": settings, "rps": round(row["rps"], 2) if counts else None, "p99_us": round(row["p99_us"]),
                       "spread": round(math.log(interval[1] / interval[0]) / 2, 4) if counts and interval else None,
                       **({"note": row["note"]} if row["note"] else {})})
    return points


def measure(setup):
    """Measures the grid of a set-up: a document with a row for each point."""
    place = Place()
    try:
        points = sweep(place, setup, setup.build(place), setup.rounds)
    finally:
        place.close()
    return {"name": setup.name, "users": setup.users, "rounds": setup.rounds, "seconds": SECONDS, "start": setup.start, "points": points}


def path(setup):
    return FOLDER / f"{setup.name}.json"


def read(setup):
    """The stored grid; None where it was not measured."""
    try:
        return json.loads(path(setup).read_text())
    except OSError:
        return None


def is_whole(setup):
    """Was it measured in as many rounds as it needs?"""
    grid = read(setup)
    return bool(grid) and grid["rounds"] >= setup.rounds


def write(setup, grid):
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(point) for point in grid["points"])
    head = {name: value for name, value in grid.items() if name != "points"}
    path(setup).write_text(json.dumps(head)[:-1] + f', "points": [\n  {lines}]}}\n')


def same(a, b):
    """Values as a configuration, a plan and a document write them."""
    return str(a).lower() == str(b).lower()


def distance(value, other):
    """How far apart two values of a setting are: factors of two, or that they differ."""
    try:
        a, b = float(value), float(other)
    except (TypeError, ValueError):
        return 0 if same(value, other) else 8
    return abs(math.log2((a + 1) / (b + 1)))


def nearest(grid, settings):
    """The point of a grid that is nearest to these settings; what they do not say is as at the start."""
    whole = {**grid["start"], **{name: value for name, value in settings.items() if name in grid["start"]}}
    return min(grid["points"], key=lambda point: sum(distance(point["settings"][name], value) for name, value in whole.items()))


def best(grid):
    return max((point for point in grid["points"] if point["rps"]), key=lambda point: point["rps"])
