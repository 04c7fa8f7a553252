"""The blows: what strikes which part, and what is promised of the run then.

An agent's engine is a thread of the agent's process and cannot be killed alone: what a hung engine is to the others, an agent is that is
stopped (SIGSTOP) for a time. One that panics fails its job only, which is tested in crates/fleet.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from random import Random
from typing import Callable

from .scene import NAMES, Background, Run, Scene

WHOLE = "whole"
"""Everything is in the report, at once."""
LOST = "lost"
"""Invalid, `agent-lost` by name; what the agent had written down comes with its next life."""
LATER = "whole with the next command"
"""There may be no report; the next command with --fleet makes the run whole."""
EITHER = "whole, or lost and whole with the next command"
"""The agent may be silent for longer than --drain + 10 s."""

SILENT_S = 10
"""A link is cut for so long."""
HUNG_S = 14
"""Longer than --drain + 10 s."""


@dataclass
class Strike:
    """One blow under way."""

    scene: Scene
    run: Run
    rng: Random
    victim: str
    facts: dict = field(default_factory=dict)
    beside: list = field(default_factory=list)
    """What goes on beside the run, and is joined after it."""
    undo: list = field(default_factory=list)
    """What is done once the run is over."""


@dataclass(frozen=True)
class Blow:
    name: str
    what: str
    promise: str
    strike: Callable[[Strike], None] = lambda _: None
    options: Callable[[Random], dict] = lambda _: {}
    """More words for the agents: {name: words}."""
    words: tuple = ()
    """More words for the coordinator."""
    said: str = ""
    """What somebody has to be told, as a regular expression; {victim} is the agent's name."""
    rate: tuple = (200, 400)
    """Requests a second, from and to."""
    early: bool = False
    """Struck in the first half: what it does has to be seen."""


def agent_dies(strike):
    strike.scene.kill(strike.scene.agents[strike.victim])
    strike.undo.append(lambda: strike.scene.start_agent(strike.victim))


def agent_dies_and_comes_back(strike):
    strike.scene.kill(strike.scene.agents[strike.victim])
    pause = strike.rng.uniform(0, 2)
    strike.facts["away_s"] = round(pause, 3)
    strike.facts["back"] = True

    def back():
        time.sleep(pause)
        strike.scene.start_agent(strike.victim)
    strike.beside.append(Background(back))


def hangs_for(seconds):
    def hang(strike):
        pause = seconds or strike.rng.uniform(0.5, 4)
        strike.facts["hung_s"] = round(pause, 3)
        agent = strike.scene.agents[strike.victim]
        strike.scene.kill(agent, signal.SIGSTOP)

        def go_on():
            time.sleep(pause)
            strike.scene.kill(agent, signal.SIGCONT)
        strike.beside.append(Background(go_on))
    return hang


def broker_dies(strike):
    pid = strike.scene.nats()
    strike.facts["found"] = pid is not None
    if pid:
        os.kill(pid, signal.SIGKILL)


def fleet_dies(strike):
    scene = strike.scene
    scene.kill(scene.broker)
    pause = strike.rng.uniform(0, 2)
    strike.facts["away_s"] = round(pause, 3)

    def back():
        scene.wait("the end of nats-server", lambda: scene.nats() is None, 20)
        time.sleep(pause)
        scene.start_broker()
    strike.beside.append(Background(back))


def coordinator_dies(strike):
    strike.run.process.kill()


def link_is_cut(strike):
    """At the agent's end, at the broker's end, or by a firewall on the way that says nothing."""
    scene, name = strike.scene, strike.victim
    how = strike.rng.choice(("near", "far", "silent"))
    strike.facts["cut"] = how
    table = "table ip lab { chain cut { type filter hook input priority 0; ip saddr 10.77.0.0/24 drop; }; }"
    cut, mend = {
        "near": (lambda: scene.on(name, ["ip", "link", "set", "n77", "down"]), lambda: scene.on(name, ["ip", "link", "set", "n77", "up"])),
        "far": (lambda: scene.call(["ip", "link", "set", f"l77-{name}", "down"]), lambda: scene.call(["ip", "link", "set", f"l77-{name}", "up"])),
        "silent": (lambda: scene.on(name, ["nft", table]), lambda: scene.on(name, ["nft", "delete table ip lab"])),
    }[how]
    cut()

    def back():
        time.sleep(SILENT_S)
        mend()
    strike.beside.append(Background(back))


def disk_is_full(part, seconds=None):
    """Until the run is over, or for some seconds."""
    def fill(strike):
        name = f"agent-{strike.victim}" if part == "agent" else part
        strike.scene.fill(name)
        if seconds is None:
            strike.undo.append(lambda: strike.scene.free(name))
            return
        pause = strike.rng.uniform(*seconds)
        strike.facts["full_s"] = round(pause, 3)

        def free():
            time.sleep(pause)
            strike.scene.free(name)
        strike.beside.append(Background(free))
    return fill


def skewed(rng):
    """Clocks of which one is 5 s ahead, one 5 s behind, one somewhere between."""
    skews = [5_000_000, -5_000_000, rng.randint(-5_000_000, 5_000_000)]
    rng.shuffle(skews)
    return {name: [f"--skew={skew}"] for name, skew in zip(NAMES, skews)}


def twice(_):
    return {name: ["--twice"] for name in NAMES}


BLOWS = (
    Blow("agent-killed", "an agent is killed (SIGKILL) and stays dead", LOST, agent_dies),
    Blow("agent-killed-back", "an agent is killed and started again up to 2 s later", LOST, agent_dies_and_comes_back),
    Blow("engine-hangs", "an agent with its engine stands still (SIGSTOP) for up to 4 s", WHOLE, hangs_for(None)),
    Blow("engine-hangs-long", f"the same for {HUNG_S} s", EITHER, hangs_for(HUNG_S)),
    Blow("broker-killed", "nats-server is killed; `fleet up` starts it again", WHOLE, broker_dies),
    Blow("fleet-killed", "`fleet up` is killed and started in its folder up to 2 s later", WHOLE, fleet_dies),
    Blow("coordinator-killed", "the coordinator is killed", LATER, coordinator_dies),
    Blow("link-cut", f"an agent's link to the broker is cut for {SILENT_S} s", EITHER, link_is_cut),
    Blow("published-twice", "every record is published twice", WHOLE, options=twice),
    Blow("delivered-again", "every message is sent back at its first delivery, and delivered again", WHOLE,
         words=("--deliveries", "again")),
    Blow("unacknowledged", "every second acknowledgement of the coordinator never reaches the broker", WHOLE,
         words=("--deliveries", "unacknowledged")),
    Blow("skewed", "clocks of agents are off by up to 5 s either way", WHOLE, options=skewed),
    Blow("disk-agent", "an agent's disk is full until the run is over", WHOLE, disk_is_full("agent"),
         # A second of that many does not fit into what is left of a page.
         said="agent {victim}: the journal cannot be written", early=True, rate=(3000, 4000)),
    Blow("disk-broker", "the broker's disk is full for 2 to 5 s", WHOLE, disk_is_full("broker", (2, 5)),
         said="does not take records|out of space|no connection to the fleet's broker", early=True),
    Blow("disk-coordinator", "the coordinator's disk is full until the run is over", LATER, disk_is_full("coordinator"),
         said="could not be kept|cannot be written|disk is full", early=True),
)
