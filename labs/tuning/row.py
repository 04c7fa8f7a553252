"""A row of a lab: a question about one set-up, asked while nobody else measures, or why it has no answer."""

import json
import os
import subprocess
import time

from faults.ask import quiet
from faults.measure import alone
from faults.place import LabError, Place


def asked(setup, seed, question):
    """A row with what the question answers: a function of a place and of the set-up's case there, which returns more fields."""
    row = {"name": setup.name, "strength": seed, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()[0]}
    place = None
    try:
        with alone():
            row["others"] = quiet()
            place = Place()
            return {**row, "state": "ok", **question(place, setup.build(place))}
    except (LabError, OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {**row, "state": "failed", "why": f"{type(error).__name__}: {error}"[:800]}
    finally:
        if place:
            place.close()
