"""Exact plans from the list of actions that the executor runs. Pure: no arrays, no MPI."""

from mpizero.layout import Geometry
from mpizero.planner.footprint import MemoryPlan, fullest_and_emptiest, plan_memory
from mpizero.planner.formulas import formula_after_backward, formula_sent, formula_sizes, gathered_more
from mpizero.planner.links import sent_between
from mpizero.planner.tiers import moved_by_link
from mpizero.planner.traffic import plan_traffic, plan_traffic_by_shard_rank, sent_by_op, sent_bytes

__all__ = ["Geometry", "MemoryPlan", "formula_after_backward", "formula_sent", "formula_sizes", "fullest_and_emptiest",
           "gathered_more", "moved_by_link", "plan_memory", "plan_traffic", "plan_traffic_by_shard_rank",
           "sent_between", "sent_by_op", "sent_bytes"]
