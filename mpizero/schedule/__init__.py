"""A training step as a list of actions. Pure: no NumPy, no MPI."""

from mpizero.schedule.actions import Action, UnknownAction, show
from mpizero.schedule.compose import Course, Schedule, Setup, schedule, set_up
from mpizero.schedule.effect import Effect
from mpizero.schedule.effects import effect_of
from mpizero.schedule.flow import flow
from mpizero.schedule.places import updates_on
from mpizero.schedule.settings import StepSettings
from mpizero.schedule.strategies import STRATEGIES, Strategy
from mpizero.schedule.validate import IllegalSchedule, validate

__all__ = ["STRATEGIES", "Action", "Course", "Effect", "IllegalSchedule", "Schedule", "Setup", "StepSettings",
           "Strategy", "UnknownAction", "effect_of", "flow", "schedule", "set_up", "show", "updates_on", "validate"]
