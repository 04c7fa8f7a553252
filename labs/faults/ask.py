"""Asks the doctor about a set-up that runs, and judges what it says."""

import json
import os
import subprocess
import time
from pathlib import Path

from .fault import HEALTHY, LIMIT, PAIR
from .measure import alone, environment, lastdrop
from .place import LabError, Place, family, _kill

QUIET, WAIT = 0.25, 15
"""A machine of which others use more than this share is waited for, for so many seconds."""
PATIENCE = 300
"""Seconds that a doctor may take."""


def used():
    """Share of the processors that is used, over a second."""
    def read():
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    whole, idle = read()
    time.sleep(1)
    now, later = read()
    return 1 - (later - idle) / max(1, now - whole)


def quiet():
    """Waits for a machine that others leave alone; the share that they use."""
    end = time.monotonic() + WAIT
    share = used()
    while share > QUIET and time.monotonic() < end:
        time.sleep(1)
        share = used()
    return round(share, 2)


def ask(place, case, document):
    """Runs the doctor; (what went wrong or '', seconds, what it said to people)."""
    command = [*place.enter, *case.wrap, lastdrop(), "doctor", *case.names(), "--url", case.url, *case.load, *case.doctor,
               "--no-store", "--json", str(document)]
    began = time.monotonic()
    with open(place.folder / "doctor.out", "w+b") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(place),
                                   start_new_session=True)
        try:
            code = process.wait(PATIENCE)
            wrong = "" if code == 0 else f"ends with {code}"
        except subprocess.TimeoutExpired:
            wrong = f"takes more than {PATIENCE} s"
        finally:
            _kill(family({process.pid}))
            process.wait(30)
        out.seek(0)
        text = out.read().decode(errors="replace")
    return wrong, time.monotonic() - began, text


def judge(fault, document):
    """(said, right): what it named, and whether that is so."""
    found = [finding["id"] for finding in document["findings"]]
    limit = document["limit"]
    missing = [extra for extra in fault.also if extra not in found]
    if fault.kind == HEALTHY:
        wrong = sorted({*found, *filter(None, [limit])} - set(fault.accepted))
        return " ".join(wrong) or "nothing", not wrong and not missing
    if fault.kind in (LIMIT, PAIR):
        return limit or "no limit", limit in fault.accepted and not missing
    named = next((id for id in fault.accepted if id in found), None)
    return named or (f"not found ({limit})" if limit else "not found"), named is not None and not missing


def examine(fault, strength, folder, number=None):
    """A row about one fault at one strength. `number`: of several tries."""
    row = {"id": fault.id, "kind": fault.kind, "expected": fault.id, "said": "failed", "right": False, "seconds": 0,
           "load": os.getloadavg()[0]}

    def judged(_place, answer):
        row["said"], row["right"] = judge(fault, answer)
        row["findings"], row["limit"] = [finding["id"] for finding in answer["findings"]], answer["limit"]
        seen = answer["examination"]
        row["cost"] = seen.get("cost_cores", 0) / seen["processors"]
    return asked(fault, strength, folder, f"-try{number}" if number else "", row, judged)


def asked(fault, strength, folder, suffix, row, take, prepare=lambda _place, _case: None):
    """Sets a fault up, asks the doctor, and has `take(place, answer)` make the row of what it says; `prepare(place, case)` comes before
    the question. The doctor's document and words are kept in `folder`."""
    stem = f"{fault.name.replace('@', '.')}-{strength}{suffix}"
    document = folder / f"{stem}.json"
    document.unlink(missing_ok=True)
    row |= {"name": fault.name, "strength": strength, "state": "failed", "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    place = None
    try:
        with alone():
            row["others"] = quiet()
            place = Place(fault.mounts)
            case = fault.build(place, **fault.settings(strength))
            prepare(place, case)
            wrong, seconds, text = ask(place, case, document)
        row["seconds"] = round(seconds, 1)
        (folder / f"{stem}.txt").write_text(text)
        if wrong or not document.exists():
            row["why"] = f"the doctor {wrong or 'wrote no document'}: {text.strip()[-400:]}"
        else:
            take(place, json.loads(document.read_text()))
            row["state"] = "ok"
    except (LabError, OSError, subprocess.SubprocessError, json.JSONDecodeError, KeyError) as error:
        row["why"] = f"{type(error).__name__}: {error}"
        # A set-up that does not come up says nothing of the doctor.
        row["state"] = "failed" if place and document.exists() else "not made"
    finally:
        if place:
            left = place.close()
            if left:
                row["left"] = left
    return row
