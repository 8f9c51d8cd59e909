"""A training step as a list of actions. Pure: no NumPy, no MPI."""

from mpizero.schedule.actions import Action, UnknownAction, show
from mpizero.schedule.compose import Schedule, Setup, StepSettings, schedule, set_up
from mpizero.schedule.effects import Effect, effect_of, flow, updates_on
from mpizero.schedule.strategies import STRATEGIES, Strategy
from mpizero.schedule.validate import IllegalSchedule, validate

__all__ = ["STRATEGIES", "Action", "Effect", "IllegalSchedule", "Schedule", "Setup", "StepSettings", "Strategy",
           "UnknownAction", "effect_of", "flow", "schedule", "set_up", "show",
           "updates_on", "validate"]
