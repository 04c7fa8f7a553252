"""The command: which faults, which question, what is kept."""

import argparse
import os
import signal
import sys
from pathlib import Path

from . import ask, confirm, database, measure, rows
from .place import LabError, clear_up
from .table import FAULTS

PAGE = Path("docs/doctor-lab.md")
ALIKE = ("workers-exhausted", "slow-upstream", "db-locked", "session-lock", "interpreter-lock")
"""Busy workers and idle processors, each for another reason."""


def arguments():
    parser = argparse.ArgumentParser(
        prog="./x lab doctor", description="Asks the doctor about servers with one known fault each, and counts its answers.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="findings, or single set-ups as --list shows them [default: all]")
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    parser.add_argument("--verify", action="store_true", help="measure that each is a fault: planted, cured, with the look-alike's cure")
    parser.add_argument("--confirm", action="store_true",
                        help="have it try what it proposes: what it promised against what came, and the limit afterwards")
    parser.add_argument("--tries", type=int, metavar="N", help="ask about each so many times; without an ID about five look-alikes")
    parser.add_argument("--only-strength", type=int, metavar="N", help="only this strength of each")
    parser.add_argument("--again", action="store_true", help="also what has a row for this commit")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of --verify: turns of four seconds for each set-up [default: 3]")
    parser.add_argument("--publish", action="store_true", help=f"write the tables to {PAGE}")
    return parser.parse_args()


def chosen(ids):
    """The faults of these names; all without any."""
    if not ids:
        return FAULTS
    known = {word for fault in FAULTS for word in (fault.id, fault.name, fault.kind)}
    unknown = [word for word in ids if word not in known]
    if unknown:
        sys.exit(f"lab doctor: nobody plants {', '.join(unknown)}; see --list")
    return [fault for fault in FAULTS if {fault.id, fault.name, fault.kind} & set(ids)]


def tasks(faults, only):
    for fault in faults:
        if not fault.impossible:
            for strength in range(1, len(fault.strengths) + 1):
                if only in (None, strength):
                    yield fault, strength


def show(faults):
    for fault in faults:
        more = f"not here: {fault.impossible}" if fault.impossible else f"nearest: {fault.near}" if fault.near else ""
        print(f"{fault.kind:8} {fault.name:42} {len(fault.strengths)}  {more}")


def verify(faults, options, about):
    done = {} if options.again else rows.latest("doctor-verify.jsonl", about)
    for fault, strength in tasks(faults, options.only_strength):
        if (fault.name, strength) in done or fault.cure is None:
            continue
        try:
            row = measure.verify(fault, strength, rounds=options.rounds)
        except (LabError, OSError) as error:
            row = {"name": fault.name, "strength": strength, "trouble": f"{error}"[:600]}
        row["by"] = fault.measure if isinstance(fault.measure, str) else fault.measure.__name__
        rows.append("doctor-verify.jsonl", {**row, **about})
        print(rows.proofs([row]).splitlines()[-1], flush=True)
    known = {fault.name for fault in faults}
    return [row for row in rows.latest("doctor-verify.jsonl", about).values() if row["name"] in known]


def examine(faults, options, about):
    folder = rows.FOLDER / "doctor" / about["program"]
    folder.mkdir(parents=True, exist_ok=True)
    done = {} if options.again else rows.latest("doctor.jsonl", about)
    for fault, strength in tasks(faults, options.only_strength):
        before = done.get((fault.name, strength))
        if before and before["state"] != "not made":
            continue
        row = ask.examine(fault, strength, folder)
        rows.append("doctor.jsonl", {**row, **about})
        mark = "ok   " if row["right"] else "WRONG"
        print(f"{mark} {row['name']} ({strength}): {row['said']}, {row['seconds']} s {row.get('why', '')[:300]}"
              + (f" LEFT: {row['left']}" if "left" in row else ""), flush=True)
    known = {fault.name for fault in faults}
    return [row for row in rows.latest("doctor.jsonl", about).values() if row["name"] in known]


def tried(faults, options, about):
    """Rows of several tries of each, at the first strength unless another is asked for."""
    folder = rows.FOLDER / "doctor" / about["program"]
    folder.mkdir(parents=True, exist_ok=True)
    names = options.ids or ALIKE
    faults = [fault for fault in faults if fault.name in names]
    done = {} if options.again else rows.latest("doctor-tries.jsonl", about, "try")
    # One after the other, so that whatever the machine does meanwhile is done to all.
    for number in range(1, options.tries + 1):
        for fault, strength in tasks(faults, options.only_strength or 1):
            if done.get((fault.name, number), {}).get("state", "not made") == "not made":
                row = {**ask.examine(fault, strength, folder, number), "try": number}
                rows.append("doctor-tries.jsonl", {**row, **about})
                print(f"{'ok   ' if row['right'] else 'WRONG'} {row['name']} (try {number}): {row['said']} {row.get('why', '')[:300]}", flush=True)
    return list(rows.latest("doctor-tries.jsonl", about, "try").values())


def confirmed(faults, options, about):
    """Rows of changes that were tried; at the first strength of each unless another is asked for."""
    folder = rows.FOLDER / "doctor" / about["program"]
    folder.mkdir(parents=True, exist_ok=True)
    faults = confirm.chosen(faults)
    done = {} if options.again else rows.latest("doctor-confirm.jsonl", about)
    for fault, strength in tasks(faults, options.only_strength or 1):
        if done.get((fault.name, strength), {}).get("state", "not made") == "not made":
            row = {**confirm.confirm(fault, strength, folder), **about}
            rows.append("doctor-confirm.jsonl", row)
            print(confirm.report([row]).splitlines()[2] + (f" LEFT: {row['left']}" if "left" in row else ""), flush=True)
    known = {fault.name for fault in faults}
    return [row for row in rows.latest("doctor-confirm.jsonl", about).values() if row["name"] in known]


def main():
    options = arguments()
    # Ended from outside, nothing may remain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    faults = chosen(options.ids)
    if options.list:
        return show(faults)
    if os.geteuid():
        sys.exit("lab doctor: namespaces and control groups want root")
    clear_up()
    impossible = [fault for fault in faults if fault.impossible]
    try:
        about = rows.version()
        if options.verify:
            found = verify(faults, options, about)
            print(rows.proofs(found))
            if options.publish:
                publish()
            sys.exit(1 if any(row["trouble"] for row in found) else 0)
        if options.confirm:
            found = confirmed(faults, options, about)
            print(confirm.report(found))
            if options.publish:
                publish()
            sys.exit(0 if all(map(confirm.in_order, found)) else 1)
        if options.tries:
            found = tried(faults, options, about)
            print(rows.several(found))
            if options.publish:
                publish()
            sys.exit(0 if all(row["right"] for row in found) else 1)
        found = examine(faults, options, about)
    except LabError as error:
        sys.exit(f"lab doctor: {error}")
    finally:
        database.forget_template()
    print(rows.report(found, impossible))
    if options.publish:
        publish()
    sys.exit(0 if all(row["right"] for row in found) else 1)


def publish():
    """Writes the page: of each fault what was answered, tried and measured last, of whatever program."""
    last = lambda name, number="strength": list(rows.latest(name, {}, number).values())
    answers, alike = last("doctor.jsonl"), last("doctor-tries.jsonl", "try")
    changes, proved = last("doctor-confirm.jsonl"), last("doctor-verify.jsonl")
    parts = [HEAD]
    if answers:
        parts += ["## Answers\n", rows.report(answers, [fault for fault in FAULTS if fault.impossible], rows.first("doctor.jsonl"))]
    if alike:
        parts += ["## Look-alikes, several tries each\n", rows.several(alike)]
    if changes:
        parts += ["## What changes promise and bring\n", confirm.report(changes)]
    if proved:
        parts += ["## What was planted\n", rows.proofs(proved)]
    PAGE.write_text("\n".join(parts))


HEAD = """# The doctor's answers in the lab

`./x lab doctor` plants one fault after the other on real servers, asks `lastdrop doctor`, and counts. `--verify` measures that
each is one: answers a second (or what the fault shows in) as planted, with the cause removed, and with that of its nearest
look-alike removed instead. Load is that of the machine, which others may use as well: what differs by a second processor
(single-worker-cpu, single-process, interpreter-lock) shows only where one is free, or where the servers go before the others.
"""
