"""One blow from the first process to the last: a row."""

import random
import time

from faults.place import LabError

from . import check, journal
from .blows import LOST, Strike
from .scene import NAMES, Scene

LIMIT_S = 120
"""A run ends within this, whatever is struck."""


def struck(blow, number, seed, seconds):
    """What came of it: {"name", "number", "seed", "ok", "wrong": […], "seconds", …}."""
    name = f"{blow.name}-{number}"
    rng = random.Random(f"{seed}/{name}")
    began = time.monotonic()
    row = {"name": blow.name, "number": number, "seed": seed}
    wrong = check.Wrong()
    scene = None
    try:
        scene = Scene(blow.options(rng))
        row.update(_carried_out(blow, scene, rng, f"/{name}", seconds, wrong))
    except Exception as error:  # noqa: BLE001: a lane goes on; what it was is in the row
        wrong.append(f"{type(error).__name__}: {error}"[:1500])
    finally:
        if scene:
            if wrong:
                row["logs"] = scene.last_lines()
            left = scene.close()
            if left:
                wrong.append(f"left behind: {left}")
    row.update(ok=not wrong, wrong=list(wrong), seconds=round(time.monotonic() - began, 1))
    return row


def _carried_out(blow, scene, rng, path, seconds, wrong):
    plan = {"rate": rng.randint(*blow.rate), "seconds": seconds, "arrivals": rng.choice(("uniform", "poisson"))}
    run = scene.begin(path, "-r", plan["rate"], "-d", f"{seconds}s", "--arrivals", plan["arrivals"], "--drain", "1s",
                      "--seed", rng.randint(0, 2 ** 32), *blow.words)
    scene.wait("the first request", lambda: scene.lines(path)[0] or run.process.poll() is not None, 60)
    if run.process.poll() is not None:
        raise LabError(f"the run ended before it began: {run.said()[-600:]}")
    strike = Strike(scene, run, rng, victim=rng.choice(NAMES))
    moment = rng.uniform(0.1, seconds * (0.4 if blow.early else 0.9))
    time.sleep(moment)
    blow.strike(strike)
    journals = journal.of_agent(scene.disk(f"agent-{strike.victim}")) if blow.promise == LOST else []
    outcome = run.wait(LIMIT_S)
    for work in strike.beside:
        work.join(LIMIT_S)
    # A coordinator that was killed leaves agents that go on.
    if blow.promise != LOST:
        scene.wait("the end of all agents' parts", scene.is_idle, 60)
    lines, first = scene.lines(path)
    check.report(wrong, blow, outcome, plan, lines, strike.victim)
    for work in strike.undo:
        work()
    scene.wait("all agents in the fleet again", scene.is_idle, 60)
    code, kept, said = scene.ask("show", "last")
    if code or not kept:
        raise LabError(f"the run is not kept: {said[-400:]}")
    id = kept["id"]
    if blow.promise == LOST:
        check.acknowledged(wrong, scene, id, strike.victim, journals)
    if blow.name == "skewed":
        # One instant for all: clocks that are 10 s apart would be seen.
        wrong.unless(max(first.values()) - min(first.values()) < 2.5, f"first requests at {first}")
    next_one(scene, id, path, wrong)
    code, kept, said = scene.ask("show", id)
    if code or not kept:
        raise LabError(f"the run is not kept any more: {said[-400:]}")
    check.afterwards(wrong, blow, kept, plan, lines, strike.victim)
    if blow.promise == LOST:
        check.came_with_the_next_life(wrong, scene, id, strike.victim, journals)
    if outcome[1] and outcome[0] == 0:
        check.same(wrong, outcome[1], kept)
    requests = kept["phases"][0]["requests"]
    first_report = outcome[1]["validity"] if outcome[1] else {"verdict": "none", "reasons": []}
    return {"moment_s": round(moment, 3), "victim": strike.victim, **strike.facts, **plan, "due": requests["due"], "sent": requests["sent"],
            "unsent": requests["unsent"], "served": sum(lines.values()), "verdict": first_report["verdict"],
            "rules": sorted({reason["rule"] for reason in first_report["reasons"]})}


def next_one(scene, before, path, wrong):
    """The agents have stayed: the next run is as any other, and nothing is left of the one before that nobody has taken."""
    # An agent that has just come back tells first what it could not tell before.
    scene.wait("empty journals", lambda: check.journals_are_empty(scene), 30)
    path = f"{path}-next"
    outcome = scene.begin(path, "-n", 60, "-c", 6, "--drain", "1s").wait(LIMIT_S)
    code, document, said = outcome
    if not document:
        raise LabError(f"the next run: exit code {code}: {said[-600:]}")
    answered, seen = document["phases"][0]["requests"]["answered"], sum(scene.lines(path)[0].values())
    wrong.unless((code, answered, seen) == (0, 60, 60), f"the next run: exit code {code}, {answered} answered, {seen} served: {said[-300:]!r}")
    scene.wait("empty journals", lambda: check.journals_are_empty(scene), 30)
    code, document, said = scene.ask("fleet", "status")
    # Of the latest run a message may wait that was published twice: the next command takes it.
    waiting = [row for row in document["waiting"] if row["run"] == before] if document else said[-300:]
    wrong.unless(code == 0 and not waiting, f"something waits that nobody takes: {waiting}")
