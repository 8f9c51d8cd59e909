"""Time-outs of tests grow with what else the machine does."""

from __future__ import annotations

import os

import pytest

from tests.support.load import MOST, scaled


@pytest.mark.parametrize(("load", "factor"), [(0.0, 1), (3.9, 1), (8.0, 2), (1000.0, MOST)])
def test_scaled(monkeypatch, load, factor):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert scaled(30) == 30 * factor
