"""Tunes for the highest rate within objectives, and whether the settings that were chosen meet them at that rate once more: afresh, by
another run, with another seed."""

import json
import os
import subprocess
import time

from faults.ask import quiet
from faults.measure import alone, environment, lastdrop
from faults.place import LabError, Place
from faults.rows import programs

OBJECTIVES = "p99<300ms,errors<0.1%"
NAMES = ["target-one-peak", "apache-prefork-sleep", "fpm-behind-nginx"]
TRIALS, BLOCK, PROOF = 8, "1s", "10s"
PATIENCE = 1200
NAME = "tune-meets.jsonl"
"""Rows of the lab."""


def both(setup, seed):
    """The tune's document, and that of a run with what it left in force: None where it left nothing."""
    place = Place()
    try:
        case = setup.build(place)

        def ask(command, *words):
            out = place.folder / f"{command}.json"
            whole = [*place.enter, lastdrop(), command, *words, *setup.load, "--json", str(out), "--quiet"]
            done = subprocess.run(whole, env=environment(place), capture_output=True, text=True, timeout=PATIENCE)
            if not out.exists():
                raise LabError(f"{command} ends with {done.returncode}: {done.stderr[-600:]}")
            return json.loads(out.read_text())

        tuned = ask("tune", *case.names(), "--url", case.url, "-c", str(setup.users), "--objective", OBJECTIVES, "--only", ",".join(setup.grid),
                    "--trials", str(TRIALS), "--blocks", "4", "-d", BLOCK, "--seed", str(seed), "--keep")
        rate = ((tuned.get("winner") or {}).get("meets") or {}).get("rate")
        if not tuned["kept"] or not rate:
            return tuned, None
        return tuned, ask("run", case.url, "--rate", f"{rate:.1f}", "--connections", str(setup.users), "-d", PROOF, "--seed", str(seed + 4711),
                          "--objective", OBJECTIVES)
    finally:
        place.close()


def examine(setup, seed):
    row = {"name": setup.name, "strength": seed, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()[0]}
    began = time.monotonic()
    try:
        with alone():
            row["others"] = quiet()
            tuned, proof = both(setup, seed)
    except (LabError, OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {**row, "state": "failed", "why": f"{type(error).__name__}: {error}"[:800]}
    row |= {"state": "ok", "verdict": tuned["verdict"], "because": tuned["because"], "seconds": round(time.monotonic() - began, 1)}
    if not proof:
        return row
    winner = tuned["winner"]
    return {**row, "settings": winner["settings"], "ratio": winner["ratio"], "rate": winner["meets"]["rate"],
            "met": all(objective["met"] for objective in proof["objectives"]),
            "seen": ", ".join(objective["seen"] for objective in proof["objectives"])}


def report(rows):
    lines = [f"{OBJECTIVES}, at most {TRIALS} trials of a search; once more afresh for {PROOF} with another seed ({programs(rows)}).", "",
             "| set-up | seed | verdict | chosen | rate | times | once more | met | seconds |", "|---|---|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row["name"], row["strength"])):
        if "met" not in row:
            lines.append(f"| {row['name']} | {row['strength']} | {row.get('verdict', 'failed')}: {row.get('because') or row.get('why')} | | | | | | |")
            continue
        settings = ", ".join(f"{name} {value}" for name, value in row["settings"].items())
        lines.append(f"| {row['name']} | {row['strength']} | {row['verdict']} | {settings} | {row['rate']:.0f} | {row['ratio'] or 0:.2f} | "
                     f"{row['seen']} | {'yes' if row['met'] else 'no'} | {row['seconds']:.0f} |")
    asked = [row["met"] for row in rows if "met" in row]
    lines += ["", f"Met once more: {sum(asked)} of {len(asked)} (wanted 9 of 10)."]
    return "\n".join(lines) + "\n"
