"""Passes: list of actions -> list of actions. A pass never names a strategy; where it finds nothing to change it
changes nothing."""

from mpizero.schedule.passes.arena import kept_apart
from mpizero.schedule.passes.bucket import bucketed, parse_bucket
from mpizero.schedule.passes.delay import delayed
from mpizero.schedule.passes.drop import without_lone_collectives, without_saving
from mpizero.schedule.passes.gathers import (
    backward_prefetch, forward_prefetch, gather_once, keep_last_unit, limit_all_gathers,
)
from mpizero.schedule.passes.offload import fetched_ahead, offloaded
from mpizero.schedule.passes.overlap import overlapped
from mpizero.schedule.passes.recompute import recompute
from mpizero.schedule.passes.tensor import partitioned, summed

__all__ = ["backward_prefetch", "bucketed", "delayed", "fetched_ahead", "forward_prefetch", "gather_once",
           "keep_last_unit", "kept_apart", "limit_all_gathers", "offloaded", "overlapped", "parse_bucket",
           "partitioned", "recompute", "summed", "without_lone_collectives", "without_saving"]
