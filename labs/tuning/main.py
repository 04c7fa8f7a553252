"""The command: which set-ups, which question, what is kept."""

import argparse
import os
import signal
import sys
from pathlib import Path

from faults import database, rows
from faults.measure import alone
from faults.place import LabError, clear_up

from . import grid as grids
from . import advised, meets, plain, score
from .setups import MOST_POINTS, SETUPS

PAGE = Path("docs/tune-lab.md")
HEAD = """# What tunes reach in the lab

`./x lab tune` tunes real servers whose best settings are known. All combinations of a few settings of each were measured once
(`--grid`, in labs/tuning/grids). What a tune chooses is worth what the nearest of them gave.
"""


WITHIN = """
## Within objectives

The highest rate within objectives is searched (`--meets`), and what was chosen is tried at that rate once more: all started afresh, by another run,
with another seed.

"""
PLAIN = """
## Without naming settings

`tune SERVER --url URL` alone (`--plain`): it looks first and searches what it saw points to. Beside it the grid of the set-up, with what the tune chose,
is swept by hand on the same server.

"""
SIMULATED = """
## In simulation

`cargo test -p lastdrop-tune --test strategies` searches these grids, and planted surfaces with conditional settings, many times over with noise
(`SEEDS=100`: 1,600 and 1,000 searches at each noise). With 5 % of noise 98 % of searches come to 95 % of the best or more on the grids and 97 % on the planted
surfaces, with 10 % of noise 93 and 91 %.

On the planted surfaces, with up to eight settings, random search comes to that in 78 and 70 %. TPE comes to it in 87 and 75 %, one factor at a
time in 64 and 55 %, one coordinate after the other in 49 and 38 %.

A grid of a real server has at most 48 points, of which 25 trials cover half, whichever they are. There random search, TPE and coordinates come as
far (98 and 95 %). The first two use all of their trials, while this search ends when nothing promises more. One factor at a time reaches 82 and 79 %.
"""


def plain_published():
    found = list(rows.latest(plain.NAME, {}).values())
    return PLAIN + plain.report(found) if found else ""


def within_published():
    found = list(rows.latest(meets.NAME, {}).values())
    return WITHIN + meets.report(found) if found else ""


def arguments():
    parser = argparse.ArgumentParser(prog="./x lab tune", description="Tunes servers whose best settings are known, and scores the answers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="set-ups, as --list shows them [default: all]")
    parser.add_argument("--list", action="store_true", help="list the set-ups and end")
    parser.add_argument("--grid", action="store_true", help="measure grids that are not there, instead of tuning")
    parser.add_argument("--again", action="store_true", help="also what has a row for this commit, or a grid")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="tunes of each set-up [default: 1]")
    parser.add_argument("--meets", action="store_true", help="tune for the highest rate within objectives, and try that rate once more afresh")
    parser.add_argument("--plain", action="store_true", help="tune without naming settings, and sweep the grid by hand beside it")
    parser.add_argument("--advised", action="store_true", help="load the workers that size advises, and other numbers of them beside")
    parser.add_argument("--publish", action="store_true", help=f"write the table to {PAGE}")
    return parser.parse_args()


def chosen(names):
    unknown = set(names) - {setup.name for setup in SETUPS}
    if unknown:
        sys.exit(f"lab tune: there is no set-up {', '.join(sorted(unknown))}; see --list")
    return [setup for setup in SETUPS if not names or setup.name in names]


def measure(setups, again):
    failed = False
    for setup in setups:
        if grids.is_whole(setup) and not again:
            continue
        try:
            with alone():
                grid = grids.measure(setup)
        except (LabError, OSError, ValueError) as error:
            failed = True
            print(f"{setup.name}: {error}", flush=True)
            continue
        grids.write(setup, grid)
        best, start = grids.best(grid), grids.nearest(grid, {})
        print(f"{setup.name}: {len(grid['points'])} points, best {best['settings']} {best['rps']}/s, start {start['rps']}/s", flush=True)
    return failed


def asked(question, setups, options, about):
    """Asks a question of each set-up, as often as there are seeds, unless a row of this program has the answer: all rows."""
    done = {} if options.again else rows.latest(question.NAME, about)
    for seed in range(1, options.seeds + 1):
        for setup in setups:
            if done.get((setup.name, seed), {}).get("state") != "ok":
                row = {**question.examine(setup, seed), **about}
                rows.append(question.NAME, row)
                print(question.report([row]).splitlines()[4], flush=True)
    found = [row for row in rows.latest(question.NAME, about).values() if row["name"] in {setup.name for setup in setups}]
    print(question.report(found))
    return found


def within(setups, options, about):
    """Tunes within objectives: 0 where each run met them once more."""
    found = asked(meets, [setup for setup in setups if setup.name in meets.NAMES], options, about)
    return 0 if all(row.get("met", True) for row in found) else 1


def good(question, setups, options, about):
    """0 where each answer is as wanted."""
    found = asked(question, setups, options, about)
    return 0 if found and all(question.is_good(row) for row in found) else 1


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    setups = chosen(options.names)
    if options.list:
        for setup in setups:
            points, stored = len(setup.points()), "measured" if grids.is_whole(setup) else "in fewer rounds" if grids.read(setup) else "swept beside each tune (--plain)" if setup.plain else "no grid yet"
            assert points <= MOST_POINTS, setup.name
            print(f"{setup.name:26} {points:3} points, {stored}: {', '.join(setup.grid)}")
        return
    if os.geteuid():
        sys.exit("lab tune: namespaces want root")
    clear_up()
    try:
        if options.grid:
            sys.exit(1 if measure(setups, options.again) else 0)
        about = rows.version()
        if options.meets:
            sys.exit(within(setups, options, about))
        if options.plain:
            sys.exit(good(plain, [setup for setup in setups if setup.plain], options, about))
        if options.advised:
            sys.exit(good(advised, [setup for setup in setups if setup.name in advised.POOLS], options, about))
        done = {} if options.again else rows.latest(score.NAME, about)
        for setup in setups:
            if not grids.read(setup):
                if not setup.plain:
                    print(f"{setup.name}: its grid was not measured (--grid)", flush=True)
                continue
            for seed in range(1, options.seeds + 1):
                if done.get((setup.name, seed), {}).get("state") == "ok":
                    continue
                row = {**score.examine(setup, seed), **about}
                rows.append(score.NAME, row)
                print(score.report(SETUPS, [row]).splitlines()[4], flush=True)
        known = {setup.name for setup in setups}
        found = [row for row in rows.latest(score.NAME, about).values() if row["name"] in known]
    except LabError as error:
        sys.exit(f"lab tune: {error}")
    finally:
        database.forget_template()
    print(score.report(SETUPS, found))
    if options.publish:
        # Of each what was tuned last, by whatever program.
        table = score.report(SETUPS, list(rows.latest(score.NAME, {}).values()))
        PAGE.write_text(f"{HEAD}\n{table}{plain_published()}{within_published()}{SIMULATED}")
    sys.exit(0 if found and all(row["state"] == "ok" for row in found) else 1)
