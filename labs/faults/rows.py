"""Rows of the lab: one for each fault, strength and commit; what they come to as a table."""

import hashlib
import json
import os
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from .fault import HEALTHY, LIMIT, PAIR, RISK, WASTE
from .measure import lastdrop

FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "lab"


def version():
    """What rows are about: the commit (with + where files differ from it), and the program's own digest."""
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True)
    commit = git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown"
    if git("diff", "--quiet", "HEAD").returncode:
        commit += "+"
    digest = hashlib.sha256(Path(lastdrop()).read_bytes()).hexdigest()[:12]
    return {"commit": commit, "program": digest}


def append(name, row):
    """Adds a row; a row that is written is on disk."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / name, "a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(name):
    """All rows; a line that was cut off is left out."""
    found = []
    try:
        lines = (FOLDER / name).read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def latest(name, about, number="strength"):
    """The last row of each fault and strength (or other number of it) about this program, whatever was committed since:
    {(name, strength): row}. Without a version: about any."""
    return {(row["name"], row[number]): row for row in read(name)
            if not about or row.get("program") == about["program"]}


def first(name):
    """The first row of each fault and strength, of whatever program."""
    return {(row["name"], row["strength"]): row for row in reversed(read(name)) if row["state"] != "not made"}


COST = 0.02
"""Share of the machine's processors that looking may take."""
WANTED = {LIMIT: 0.9, WASTE: 0.8, RISK: 0.8, HEALTHY: 1.0, PAIR: 1.0}
TITLES = {LIMIT: "limits", WASTE: "wastes", RISK: "risks", HEALTHY: "healthy servers", PAIR: "two faults at once"}


def programs(rows):
    """Which programs the rows are about, in words."""
    by = Counter(row["program"] for row in rows)
    commits = {row["program"]: row["commit"] for row in sorted(rows, key=lambda row: row["when"])}
    return "; ".join(f"program {program} of commit {commits[program]}" + (f": {count}" if len(by) > 1 else "") for program, count in by.items())


def report(rows, impossible, at_first=None):
    """Markdown: rates of each class, what was expected against what was said, and what cannot be made here. `at_first`: the first answers,
    before the rules were mended for them."""
    counted = [row for row in rows if row["state"] != "not made"]
    busy = sum(row.get("others", 0) > 0.25 for row in counted)
    lines = [f"{len(counted)} answers, {busy} of them on a machine of which others used more than a quarter. "
             + programs(counted).replace("; ", ". ").replace("program ", "Program ") + ".", "",
             "| class | right | of | share | wanted | right at first |", "|---|---|---|---|---|---|"]
    for kind, title in TITLES.items():
        of = [row for row in counted if row["kind"] == kind]
        if of:
            right = sum(row["right"] for row in of)
            begun = [at_first[key] for row in of if (key := (row["name"], row["strength"])) in at_first] if at_first else []
            first = f"{sum(row['right'] for row in begun)} of {len(begun)}" if begun else "–"
            lines.append(f"| {title} | {right} | {len(of)} | {100 * right / len(of):.0f} % | {100 * WANTED[kind]:.0f} % | {first} |")
    costs = sorted(row["cost"] for row in counted if "cost" in row)
    if costs:
        above = sum(cost > COST for cost in costs)
        lines += ["", f"Looking took {100 * median(costs):.1f} % of the machine's processors in the median, {100 * costs[-1]:.1f} % at most, more "
                  f"than {100 * COST:.0f} % in {above} of {len(costs)}."]
    table = defaultdict(Counter)
    for row in counted:
        said = row["said"] if not row["right"] else "right"
        table[row["name"]][said] += 1
    lines += ["", "| expected | right | said instead |", "|---|---|---|"]
    for name in sorted(table):
        wrong = ", ".join(f"{said} ({count})" if count > 1 else said
                          for said, count in table[name].most_common() if said != "right")
        lines.append(f"| {name} | {table[name]['right']}/{sum(table[name].values())} | {wrong or '–'} |")
    said = sorted({row["said"] for row in counted if not row["right"]})
    wrong = [(name, table[name]) for name in sorted(table) if any(word != "right" for word in table[name])]
    if wrong:
        lines += ["", "Expected × said, of what was wrong:", "", "| | " + " | ".join(said) + " |",
                  "|---|" + "---|" * len(said)]
        lines += [f"| {name} | " + " | ".join(str(counts[word] or "") for word in said) + " |"
                  for name, counts in wrong]
    broken = [row for row in rows if row["state"] == "not made"]
    if broken:
        lines += ["", "Set-ups that did not come up:", ""]
        lines += [f"- {row['name']} ({row['strength']}): {row.get('why', '')[:200]}" for row in broken]
    if impossible:
        lines += ["", "What this machine cannot make:", ""]
        lines += [f"- {fault.name}: {fault.impossible}" for fault in impossible]
    return "\n".join(lines) + "\n"


def several(rows):
    """Markdown: how often each of those was told from its look-alikes that were asked about several times."""
    table = defaultdict(Counter)
    for row in rows:
        if row["state"] != "not made":
            table[row["name"]]["right" if row["right"] else row["said"]] += 1
    lines = [f"{len(rows)} answers ({programs(rows)}).", "", "| fault | right | said instead |", "|---|---|---|"]
    for name, said in sorted(table.items()):
        wrong = ", ".join(f"{word} ({count})" for word, count in said.most_common() if word != "right")
        lines.append(f"| {name} | {said['right']}/{sum(said.values())} | {wrong or '–'} |")
    return "\n".join(lines) + "\n"


def proofs(rows):
    """Markdown: what verification measured."""
    lines = ["| fault | strength | measured by | planted | cured | look-alike's cure | load | |",
             "|---|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["name"], row["strength"])):
        planted, cured, other = row.get("planted"), row.get("cured"), row.get("other")
        if planted is None:
            lines.append(f"| {row['name']} | {row['strength']} | | | | | | {row['trouble']} |")
            continue
        times = lambda value: f"{value:.4g} (× {value / planted:.2f})" if planted else f"{value:.4g}"
        lines.append(f"| {row['name']} | {row['strength']} | {row['by']} | {planted:.4g} | {times(cured)} | "
                     f"{times(other) if other is not None else '–'} | {row['load']:.0f} | {row['trouble']} |")
    return "\n".join(lines) + "\n"
