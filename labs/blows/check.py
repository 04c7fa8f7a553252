"""What must be true of a run after a blow. Each function adds what is wrong to a list, in words."""

import json
import math
import re
import sys

from faults.place import LabError

from . import journal
from .blows import EITHER, LATER, LOST, WHOLE
from .scene import NAMES


class Wrong(list):
    """What is wrong."""

    def unless(self, holds, what):
        if not holds:
            self.append(what)


def ended(requests):
    """Everything that may become of a request that was sent."""
    return requests["answered"] + sum(requests["failed"].values()) + requests["timed_out"] + requests["censored"]


def by_agent(document):
    return {agent["name"]: agent for agent in document["agents"]}


def accounting(wrong, document, plan):
    """The sums, of the whole and of each agent; the agents' are the whole's; the schedule is all of it."""
    requests = document["phases"][0]["requests"]
    agents = by_agent(document)
    for name, r in [("the run", requests)] + [(name, agent["requests"]) for name, agent in agents.items()]:
        wrong.unless(r["due"] == r["sent"] + r["unsent"], f"{name}: due {r['due']}, sent {r['sent']} + unsent {r['unsent']}")
        wrong.unless(r["sent"] == ended(r), f"{name}: sent {r['sent']}, ended {ended(r)}")
    wrong.unless(sorted(agents) == sorted(NAMES), f"the run has agents {sorted(agents)}")
    for what in ("due", "unsent", "sent", "answered", "timed_out", "censored"):
        total = sum(agent["requests"][what] for agent in agents.values())
        wrong.unless(total == requests[what], f"{what}: {requests[what]}, of agents {total}")
    expected = plan["rate"] * plan["seconds"]
    if plan["arrivals"] == "uniform":
        wrong.unless(requests["due"] == math.ceil(expected), f"due {requests['due']} of {expected}")
    else:
        wrong.unless(abs(requests["due"] - expected) <= 4 * math.sqrt(expected), f"due {requests['due']} of about {expected}")


def served(wrong, name, requests, lines, whole):
    """What an agent says that it sent, and what the server has written down."""
    sent = requests["sent"] - requests["failed"]["connect"]
    if whole:
        # What was given up may have waited for its connection only, so that the server knows nothing of it; mostly nothing is given up.
        written = sent - requests["timed_out"] - requests["censored"]
        wrong.unless(written <= lines <= sent, f"agent {name}: sent {sent}, {sent - written} given up, the server has {lines}")
    else:
        wrong.unless(sent <= lines, f"agent {name} is lost: sent {sent}, the server has only {lines}")


def is_lost(document):
    """Agents that are named as lost."""
    reasons = [reason for reason in document["validity"]["reasons"] if reason["rule"] == "agent-lost"]
    return {name for name in NAMES for reason in reasons if f"agent {name} " in reason["what"]}


def whole(wrong, document, lines):
    """Every agent has told all."""
    wrong.unless(not is_lost(document), f"lost: {is_lost(document)}: {document['validity']['reasons']}")
    for name, agent in by_agent(document).items():
        wrong.unless(agent["complete"], f"agent {name} is not complete")
        served(wrong, name, agent["requests"], lines[name], True)


def lost(wrong, document, lines, victim):
    """One agent is lost, by its name; the others are whole."""
    wrong.unless(document["validity"]["verdict"] == "invalid", f"the verdict is {document['validity']['verdict']}")
    wrong.unless(is_lost(document) == {victim}, f"lost: {is_lost(document)}, and {victim} is")
    for name, agent in by_agent(document).items():
        wrong.unless(agent["complete"] == (name != victim), f"agent {name}: complete {agent['complete']}")
        served(wrong, name, agent["requests"], lines[name], name != victim)


def report(wrong, blow, outcome, plan, lines, victim):
    """The report as it was printed."""
    code, document, said = outcome
    if blow.said and not re.search(blow.said.format(victim=victim), said):
        wrong.append(f"nobody was told ({blow.said.format(victim=victim)}): {said[-300:]!r}")
    if document is None:
        wrong.unless(blow.promise == LATER, f"there is no report, exit code {code}: {said[-300:]!r}")
        return
    accounting(wrong, document, plan)
    kept = 1 if blow.promise == LATER else 0
    if blow.promise == LOST or blow.promise == EITHER and is_lost(document):
        wrong.unless(code == 4, f"exit code {code}")
        lost(wrong, document, lines, victim)
    else:
        # A machine with too much to do may make a measurement doubtful or invalid; that is no loss.
        allowed = {kept, 4} if document["validity"]["verdict"] == "invalid" else {kept}
        wrong.unless(code in allowed, f"exit code {code}: {said[-300:]!r}")
        whole(wrong, document, lines)


def afterwards(wrong, blow, document, plan, lines, victim):
    """The kept run, once the next command has added what came late."""
    accounting(wrong, document, plan)
    if blow.promise == LOST:
        lost(wrong, document, lines, victim)
    else:
        whole(wrong, document, lines)


def same(wrong, before, after):
    """A run that was whole is not changed by what comes again."""
    pick = lambda document: (document["phases"][0]["requests"], document["phases"][0]["latency_us"]["response"],
                             [second["answered"] for second in document["phases"][0]["seconds"]])
    wrong.unless(pick(before) == pick(after), f"the kept run is another than its report: {pick(after)}, {pick(before)}")


def words(scene, run, name):
    """Sequences of an agent's records that the coordinator's store has: {epoch: sequences}."""
    # SQLite looks for its files by whole paths, and the disk is seen in the namespace only.
    done = scene.call([sys.executable, "-c", WORDS, scene.folder / "coordinator" / "runs.sqlite", run, name])
    if done.returncode:
        raise LabError(f"the store cannot be read: {done.stderr[-300:]}")
    found = {}
    for epoch, seq in json.loads(done.stdout):
        found.setdefault(epoch, set()).add(seq)
    return found


WORDS = """
import json, sqlite3, sys
store = sqlite3.connect(sys.argv[1])
print(json.dumps(store.execute("SELECT epoch, seq FROM agent_records WHERE run = ? AND agent = ?", sys.argv[2:]).fetchall()))
"""


def acknowledged(wrong, scene, run, victim, journals):
    """What the broker has taken of an agent that died is with the coordinator."""
    kept = words(scene, run, victim)
    for of, epoch, _, taken in journals:
        missing = taken - kept.get(epoch, set()) if of == run else set()
        wrong.unless(not missing, f"acknowledged and not kept: records {sorted(missing)} of agent {victim}")


def came_with_the_next_life(wrong, scene, run, victim, journals):
    """What a dead agent had on its disk is with the coordinator."""
    kept = words(scene, run, victim)
    for of, epoch, records, _ in journals:
        missing = records - kept.get(epoch, set()) if of == run else set()
        wrong.unless(not missing, f"on the disk of agent {victim} and never told: records {sorted(missing)}")


def journals_are_empty(scene):
    """Has every agent got rid of all that it had?"""
    return not any(journal.of_agent(scene.disk(f"agent-{name}")) for name in NAMES)


PROMISES = (WHOLE, LOST, LATER, EITHER)
