"""Settings of a run: defaults filled in once, and what Python code may get wrong in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.config import OptimSettings, TrainConfig
from mpizero.engine.resolve import resolve
from mpizero.errors import ConfigError


def test_settings_are_resolved_once():
    settings = resolve(TrainConfig(model="gpt", steps=40, device_memory="1KiB"))
    optim = OptimSettings("adamw", weight_decay=0.01, lr=2e-3, warmup=4, clip=None, decay="matrices",
                          betas="0.9,0.999", momentum=None, no_master_weights=False)
    assert settings.optim == optim
    assert (settings.sizes.layers, settings.steps, settings.device_memory) == (4, 40, 1024)
    settings = resolve(TrainConfig())
    assert settings.optim == replace(optim, optimizer="adam", weight_decay=0.0, lr=1e-2, warmup=0)
    assert (settings.sizes.hidden, settings.steps, settings.device_memory) == (96, 50, None)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"model": "cnn"}, "`model` 'cnn' is none of mlp, gpt"), ({"stage": 2}, "`stage` 2 is a int: give a str"),
    ({"lr": "1e-2"}, "`lr` '1e-2' is a str: give a float"), ({"batch_size": 1.5}, "`batch_size` 1.5 is a float: give"),
    ({"batch_size": None}, "`batch_size` None"), ({"steps": True}, "`steps` True is a bool"),
    ({"no_sync": 1}, "`no_sync` 1 is a int: give a bool"), ({"dtype": "float64"}, "`dtype` 'float64' is none of"),
    ({"accumulation": 5000}, "`accumulation` 5000 is too many"),
])
def test_a_configuration_made_by_hand(wrong, message):
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(**wrong))


def test_numbers_that_are_whole():
    assert resolve(TrainConfig(lr=1, clip=2, weight_decay=0)).optim.lr == 1
