"""What two documents about the same server have in common: names, words and settings, not what varies from second to second."""

import json
import re

VARIES = {
    "executed", "id", "seed", "at", "time", "started", "until", "store", "version", "program", "note", "notes", "commit",
    "cost", "window", "elapsed", "uptime", "run", "runs", "top_client", "kernel",
}
"""Fields that differ from one look to the next, with all below them."""


def fields(document, exact):
    """Each path with what is compared of it. Numbers count where a document tells settings."""
    found = {}

    def walk(value, path):
        if isinstance(value, dict):
            name = value.get("name") or value.get("knob") or value.get("id") if exact else None
            for key, inner in value.items():
                if key in VARIES and not (exact and key == "id"):
                    continue
                walk(inner, f"{path}.{f'{name}/' if isinstance(name, str) else ''}{key}")
            return
        if isinstance(value, list):
            for inner in value:
                walk(inner, f"{path}[]")
            return
        if isinstance(value, str):
            shown = re.sub(r"\d+(\.\d+)?", "N", re.sub(r"/proc/\d+/root|whose-\w+", "", value))
        elif isinstance(value, bool) or value is None or exact:
            shown = json.dumps(value)
        else:
            shown = "number"
        found.setdefault(path, set()).add(shown)

    walk(document, "")
    return found


def differences(before, after, exact):
    """What the second document has less, and what it says otherwise; what it has more is not counted."""
    old, new = fields(before, exact), fields(after, exact)
    for path, values in sorted(old.items()):
        if path not in new:
            yield f"lost   {path} = {', '.join(sorted(values))[:200]}"
        elif not values <= new[path] and (exact or "number" not in values):
            yield f"other  {path} = {', '.join(sorted(new[path]))[:300]}, was {', '.join(sorted(values))[:300]}"
