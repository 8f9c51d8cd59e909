"""Wrong lists, made from right ones; and that the validator refuses them."""

from __future__ import annotations

import pytest

from mpizero.schedule import IllegalSchedule
from tests.schedule.toys import chain, check, step


def refused(words, change, stage, spec=None, **options):
    """`change` of a legal list on four ranks is illegal, for a reason that holds `words`."""
    actions, geometry = step(stage, spec or chain(), 4, **options)
    check(actions, geometry)
    changed = change(list(actions))
    assert changed != actions
    with pytest.raises(IllegalSchedule) as error:
        check(changed, geometry)
    assert words in str(error.value), error.value


def without(*unwanted):
    """Leave out the first of each."""
    def change(actions):
        for action in unwanted:
            actions.remove(action)
        return actions
    return change


def without_all(*unwanted):
    return lambda actions: [action for action in actions if action not in unwanted]


def twice(wanted):
    """Do it again at once."""
    return lambda actions: [again for action in actions for again in [action] * (1 + (action == wanted))]


def before(place, action):
    """`action`, one more, ahead of the first `place`."""
    def change(actions):
        actions.insert(actions.index(place), action)
        return actions
    return change


def moved(action, behind):
    """The first `action` goes right behind the first `behind`."""
    def change(actions):
        actions.remove(action)
        actions.insert(actions.index(behind) + 1, action)
        return actions
    return change


def exchanged(one, other):
    return lambda actions: [{one: other, other: one}.get(action, action) for action in actions]
