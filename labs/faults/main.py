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
ANSWERS, TRIES, CHANGES = "doctor.jsonl", "doctor-tries.jsonl", "doctor-confirm.jsonl"
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
    parser.add_argument("--again", action="store_true", help="also what has a row for this program")
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


def go_on(name, numbered, options, about, ask_one, show_one, number="strength"):
    """Asks about each (fault, strength, number) that has no row about this program yet, or none that was made."""
    folder = rows.FOLDER / "doctor" / about["program"]
    folder.mkdir(parents=True, exist_ok=True)
    done = {} if options.again else rows.latest(name, about, number)
    for fault, strength, count in numbered:
        if done.get((fault.name, count), {}).get("state", "not made") == "not made":
            row = {**ask_one(fault, strength, folder, count), **about}
            rows.append(name, row)
            print(show_one(row) + (f" LEFT: {row['left']}" if "left" in row else ""), flush=True)
    known = {fault.name for fault, _, _ in numbered}
    return [row for row in rows.latest(name, about, number).values() if row["name"] in known]


def shown(row):
    which = f"try {row['try']}" if "try" in row else row["strength"]
    return f"{'ok   ' if row['right'] else 'WRONG'} {row['name']} ({which}): {row['said']}, {row['seconds']} s {row.get('why', '')[:300]}"


def examine(faults, options, about):
    numbered = [(fault, strength, strength) for fault, strength in tasks(faults, options.only_strength)]
    return go_on(ANSWERS, numbered, options, about, lambda fault, strength, folder, _: ask.examine(fault, strength, folder), shown)


def tried(faults, options, about):
    """Rows of several tries of each, at the first strength unless another is asked for."""
    names = options.ids or ALIKE
    faults = [fault for fault in faults if fault.name in names]
    # One after the other, so that whatever the machine does meanwhile is done to all.
    numbered = [(*task, number) for number in range(1, options.tries + 1) for task in tasks(faults, options.only_strength or 1)]
    one = lambda fault, strength, folder, number: {**ask.examine(fault, strength, folder, number), "try": number}
    return go_on(TRIES, numbered, options, about, one, shown, "try")


def confirmed(faults, options, about):
    """Rows of changes that were tried; at the first strength of each unless another is asked for."""
    numbered = [(fault, strength, strength) for fault, strength in tasks(confirm.chosen(faults), options.only_strength or 1)]
    one = lambda fault, strength, folder, _: confirm.confirm(fault, strength, folder)
    return go_on(CHANGES, numbered, options, about, one, lambda row: confirm.report([row]).splitlines()[2])


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
    is_right = lambda row: row["right"]
    if options.verify:
        work, table, is_fine = verify, rows.proofs, lambda row: not row["trouble"]
    elif options.confirm:
        work, table, is_fine = confirmed, confirm.report, confirm.in_order
    elif options.tries:
        work, table, is_fine = tried, rows.several, is_right
    else:
        impossible = [fault for fault in faults if fault.impossible]
        work, table, is_fine = examine, lambda found: rows.report(found, impossible), is_right
    try:
        found = work(faults, options, rows.version())
    except LabError as error:
        sys.exit(f"lab doctor: {error}")
    finally:
        database.forget_template()
    print(table(found))
    if options.publish:
        publish()
    sys.exit(0 if all(map(is_fine, found)) else 1)


def sections(text):
    """The parts of a page by their headings."""
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip("\n") + "\n" for part in parts}


KEEPS = {"Look-alikes, several tries each": 1, "What was planted": 2}
"""Tables that keep the rows of earlier programs where there are none of now, and how many cells name a row."""


def with_rows_of(before, text, cells):
    """A section with those rows of an earlier one that it has not got, in order of their names."""
    name = lambda line: tuple(line.split("|")[1:cells + 1])
    rows = lambda section: [line for line in section.splitlines() if line.startswith("| ")][1:]
    new = rows(text)
    old = [line for line in rows(before) if name(line) not in {name(line) for line in new}]
    lines = text.splitlines()
    if not new or not old:
        return text
    first, last = lines.index(new[0]), lines.index(new[-1])
    # What somebody has written about them, where the table of now says nothing of its own.
    prose = [line for line in before.split("\n|")[0].splitlines() if line and not line.startswith("|")]
    said = [*prose, ""] if prose and lines[0].startswith("|") else []
    return "\n".join([*said, *lines[:first], *sorted(new + old, key=name), *lines[last + 1:], "", f"{len(old)} rows are of earlier programs."]) + "\n"


def publish():
    """Writes the page: of each fault what was answered, tried and measured last, of whatever program. Of what there are no rows here the page
    keeps what it has."""
    impossible = [fault for fault in FAULTS if fault.impossible]
    before = sections(PAGE.read_text()) if PAGE.exists() else {}
    page = HEAD
    for heading, name, number, table in (
            ("Answers", ANSWERS, "strength", lambda found: rows.report(found, impossible, rows.first(ANSWERS))),
            ("Look-alikes, several tries each", TRIES, "try", rows.several),
            ("What changes promise and bring", CHANGES, "strength", confirm.report),
            ("What was planted", "doctor-verify.jsonl", "strength", rows.proofs)):
        found = list(rows.latest(name, {}, number).values())
        text = table(found) if found else before.get(heading)
        if found and heading in KEEPS:
            text = with_rows_of(before.get(heading, ""), text, KEEPS[heading])
        if text:
            page += f"\n## {heading}\n\n{text}"
    PAGE.write_text(page)


HEAD = """# The doctor's answers in the lab

`./x lab doctor` plants one fault after the other on real servers, asks `lastdrop doctor`, and counts. `--verify` measures that
each is one: answers a second (or what the fault shows in) as planted, with the cause removed, and with that of its nearest
look-alike removed instead. Load is that of the machine, which others may use as well: what differs by a second processor
(single-worker-cpu, single-process, interpreter-lock) shows only where one is free, or where the servers go before the others.
"""
