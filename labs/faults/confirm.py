"""Has the doctor try what it proposes: what it promised against what came of it, what the limit is then, and whether everything
is as it was before."""

import hashlib

from .ask import asked
from .rows import programs

CHANGES = ("workers-exhausted", "workers-exhausted@mod_php", "server-limit-clamp", "keepalive-hogging", "accept-queue-overflow",
           "fpm-children-exhausted", "upstream-backlog-overflow", "sync-workers-waiting", "perl-interpreters-exhausted",
           "nginx-connections-exhausted", "fd-limit", "proxy-maxconn", "proxy-maxconn@frontend", "uwsgi-queue-full", "process-churn",
           "single-worker-cpu")
"""Limits that settings mend which lastdrop changes."""
NEAR = 0.2
"""What was promised may be off by this share of what was measured."""
CONFIGURATION = (".conf", ".cfg", ".ini", ".py", ".pl", ".php")


def chosen(faults):
    """Of these: limits whose change is tried, and pairs whose second is the limit after it."""
    return [fault for fault in faults if fault.then or fault.name in CHANGES]


def configuration(place):
    """What the set-up's configuration says, file by file."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(place.folder.rglob("*")) if file.suffix in CONFIGURATION and file.is_file()}


def confirm(fault, strength, folder):
    """A row about one fault: promised, brought (times the throughput), its interval, the limit afterwards."""
    row, before = {"then": list(fault.then)}, {}

    def prepare(place, case):
        before.update(configuration(place))
        case.doctor = [*case.doctor, "--confirm", *(["--keep"] if fault.then else [])]

    def take(place, answer):
        row.update(told(fault, answer))
        row["as_before"] = configuration(place) == before
    return asked(fault, strength, folder, "-confirm", row, take, prepare)


def told(fault, answer):
    """What the document says of the change."""
    tried = answer.get("confirmed")
    if tried is None:
        return {"limit": answer["limit"], "why": "; ".join(answer.get("notes", []))}
    # Of one that is withdrawn there is no finding any more.
    finding = next((f for f in answer["findings"] if f["id"] == tried["id"]), {"fix": []})
    promised = (finding.get("expected") or {}).get("ratio")
    return {"limit": tried["id"], "right": tried["id"] in fault.accepted,
            "change": ", ".join(f"{fix['knob']} {fix['from']} → {fix['to']}" for fix in finding.get("fix", [])),
            "promised": promised, "brought": tried["ratio"], "interval": tried["interval"], "after": tried.get("limit_after"),
            "kept": tried["kept"]}


def near(row):
    """Whether what was promised is what came; None where nothing was, or another limit was planted behind."""
    if row["then"] or not row.get("promised") or not row.get("brought"):
        return None
    return abs(row["promised"] / row["brought"] - 1) <= NEAR


def in_order(row):
    """Without --keep all is as before; with it the second fault is the limit."""
    if row["state"] != "ok" or row.get("brought") is None:
        return False
    return row["kept"] and row["after"] in row["then"] if row["then"] else row["as_before"]


def report(rows):
    """Markdown: what was promised and what came, and the second limits."""
    rows = sorted(rows, key=lambda row: (row["name"], row["strength"]))
    lines = [f"{len(rows)} changes ({programs(rows)}).", ""] if len(rows) > 1 else []
    lines += ["| limit | strength | change | promised | brought | between | the limit then | configuration | others used |",
              "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        at = f"| {row['name']} | {row['strength']} |"
        if row.get("brought") is None:
            lines.append(f"{at} | | | | | | {row.get('limit') or ''}: {' '.join(row.get('why', '').split())[-200:]} |")
            continue
        promised = f"× {row['promised']:.2f}" if row["promised"] else "–"
        now = "kept" if row["kept"] else "as before" if row["as_before"] else "CHANGED"
        lines.append(f"{at} {row['change'] or row['limit'] + ' is withdrawn'} | {promised} | × {row['brought']:.2f} | {row['interval'][0]:.2f} to "
                     f"{row['interval'][1]:.2f} | {row['after'] or 'none'} | {now} | {100 * row['others']:.0f} % |")
    judged = [near(row) for row in rows if near(row) is not None]
    pairs = [row for row in rows if row["then"]]
    put_back = [row for row in rows if not row["then"] and row.get("brought") is not None]
    lines += ["", f"What was promised is within {100 * NEAR:.0f} % of what came in {sum(judged)} of {len(judged)}."]
    if pairs:
        lines.append(f"Of two faults the second is the limit after the change is kept in {sum(map(in_order, pairs))} of {len(pairs)}.")
    lines.append(f"Not kept, the configuration is byte for byte as before in {sum(row['as_before'] for row in put_back)} of {len(put_back)}.")
    return "\n".join(lines) + "\n"
