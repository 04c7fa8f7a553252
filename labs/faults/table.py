"""All faults, in the order in which they are asked about."""

from . import limits_cpu, limits_pool, limits_wait

FAULTS = limits_pool.LIMITS + limits_wait.LIMITS + limits_cpu.LIMITS
