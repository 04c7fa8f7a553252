"""What a fault is: how it is built, what the doctor has to say, and how it is taken away again."""

from dataclasses import dataclass, field
from typing import Callable

LIMIT, WASTE, RISK, HEALTHY, PAIR = "limit", "waste", "risk", "healthy", "pair"


@dataclass
class Case:
    """A set-up that runs: what the doctor and a run of load are told."""

    servers: list
    """How the doctor is told of the servers: daemons, or names."""
    url: str
    load: list = field(default_factory=lambda: ["-c", "20", "--keepalive", "off"])
    """Options of load, for `doctor` and `run` alike."""
    wrap: list = field(default_factory=list)
    """What the generator's own command line is put behind (limits, a control group)."""
    doctor: list = field(default_factory=list)
    """Options that only the doctor is given."""
    count: Callable | None = None
    """Something that only rises, as the servers or the kernel count it; read before and after a run."""

    def names(self):
        return [server if isinstance(server, str) else server.name for server in self.servers]


@dataclass
class Fault:
    """One fault. `build(place, **settings)` gives a `Case`; a strength, the cure and the look-alike's cure are settings
    of it, so that a cured set-up differs in nothing else."""

    id: str
    """The finding that is right."""
    build: Callable
    kind: str = LIMIT
    strengths: tuple = ({},)
    cure: dict | None = None
    near: str = ""
    """The look-alike that is nearest."""
    other: dict | None = None
    """The look-alike's cure: changes nothing here."""
    measure: str = "good_rps"
    """What shows the fault (see `measure`): good_rps, good_share, or per_request (what `Case.count` counts)."""
    gain: float = 1.3
    """The cure changes what is measured by this factor at least (below 1: it falls to that part)."""
    variant: str = ""
    accept: tuple = ()
    """Findings that are as right, where the page of findings has two names for what was planted."""
    also: tuple = ()
    """Other findings that have to be there as well."""
    then: tuple = ()
    """Of two faults at once: what the limit is once the change of the first is kept."""
    mounts: dict | None = None
    impossible: str = ""
    """Why this kernel or machine cannot make it."""

    @property
    def name(self):
        return f"{self.id}@{self.variant}" if self.variant else self.id

    @property
    def accepted(self):
        """Ids that are right."""
        return (self.id, *self.accept)

    def settings(self, strength, change=None):
        return {**self.strengths[strength - 1], **(change or {})}
