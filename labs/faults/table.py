"""All faults, in the order in which they are asked about."""

from . import healthy, limits_cpu, limits_host, limits_pool, limits_wait, pairs, risks, wastes

FAULTS = (limits_pool.LIMITS + limits_wait.LIMITS + limits_cpu.LIMITS + limits_host.LIMITS + wastes.WASTES + risks.RISKS
          + healthy.HEALTHY_SERVERS + pairs.PAIRS)
