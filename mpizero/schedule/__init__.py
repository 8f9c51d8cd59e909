"""A training step as a list of actions. Pure: no NumPy, no MPI."""

from mpizero.schedule.actions import Action, Axis, show
from mpizero.schedule.lists import Lists, training_lists
from mpizero.schedule.passes import without_lone_collectives, without_saving
from mpizero.schedule.step import accumulate, evaluate, update, zero_grad
from mpizero.schedule.strategies import STRATEGIES, Strategy
from mpizero.schedule.validate import IllegalSchedule, validate

__all__ = ["STRATEGIES", "Action", "Axis", "IllegalSchedule", "Lists", "Strategy", "accumulate", "evaluate", "show", "training_lists",
           "update", "validate", "without_lone_collectives", "without_saving", "zero_grad"]
