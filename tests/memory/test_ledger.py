"""The ledger counts what lives, not what was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.errors import OutOfDeviceMemory
from mpizero.memory.kinds import ACTIVATION, GRAD, KEPT_INPUT, PARAM, UNSHARDED_GRAD, WORKSPACE
from mpizero.memory.ledger import Ledger


def test_a_buffer_lives_as_long_as_any_view_of_it():
    ledger = Ledger()
    array = ledger.empty((4, 5), np.float32, PARAM)
    view = array[1:].reshape(-1)[3:]
    del array
    assert ledger.live[PARAM] == ledger.live_bytes == 80  # the view keeps the memory: a forgotten reference shows
    del view
    assert ledger.live[PARAM] == ledger.live_bytes == 0
    assert ledger.peak[PARAM] == 80


def test_peaks_of_model_states_and_of_all_fall_at_their_own_actions():
    ledger = Ledger()
    ledger.at("first")
    params = ledger.zeros(10, np.float16, PARAM)
    ledger.at("second")
    work = ledger.empty(100, np.float64, WORKSPACE)
    del work
    ledger.at("third")
    grad = ledger.empty(3, np.float16, GRAD)
    assert (ledger.peak_bytes, ledger.peak_action) == (820, "second")
    assert sum(ledger.peak_live.values()) == 820 and ledger.peak_live != ledger.live
    assert (ledger.peak_model_state_bytes, ledger.peak_model_state_action) == (26, "third")
    assert ledger.model_state_bytes == 26
    del grad
    ledger.reset_peaks()
    assert ledger.peak_bytes == ledger.peak_model_state_bytes == params.nbytes == 20


def test_rekind_moves_bytes():
    ledger = Ledger()
    flat = ledger.zeros(8, np.float16, UNSHARDED_GRAD)
    assert ledger.rekind(flat, GRAD) is flat
    assert (ledger.live[UNSHARDED_GRAD], ledger.live[GRAD], ledger.peak_bytes) == (0, 16, 16)
    del flat
    assert ledger.live[GRAD] == 0


def test_adopt_counts_the_owner_once():
    ledger = Ledger()
    batch = np.arange(12, dtype=np.int64).reshape(3, 4)
    ledger.adopt(batch, ACTIVATION)
    ledger.adopt(batch[1], ACTIVATION)
    assert ledger.live[ACTIVATION] == 96
    del batch
    assert ledger.live[ACTIVATION] == 0


def test_capacity_is_exact_and_the_error_tells_what_is_live():
    ledger = Ledger(capacity=100)
    ledger.at("Backward(3, mb=0)", "h.3")
    held = ledger.empty(50, np.float16, PARAM)
    with pytest.raises(OutOfDeviceMemory) as error:
        ledger.empty(1, np.float16, GRAD)
    assert all(words in str(error.value) for words in ("Backward(3, mb=0)", "2 bytes of grad", "100 of 100 bytes",
                                                       "param", "h.3", "`stage`"))
    assert ledger.live_bytes == 100
    del held
    assert ledger.empty(50, np.float16, GRAD).nbytes == 100


def test_debug_mode_poisons_new_and_discarded_storage():
    ledger = Ledger(debug=True)
    array = ledger.empty(4, np.float16, PARAM)
    assert np.isnan(array).all()
    array[:] = 1
    ledger.discard(array)
    assert np.isnan(array).all()
    assert not np.isnan(ledger.zeros(4, np.float32, PARAM)).any()
    quiet = Ledger().zeros(3, np.float32, PARAM)
    Ledger().discard(quiet)
    assert not np.isnan(quiet).any()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_debug_mode_poisons_every_floating_point_type(name):
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16) if name == "bfloat16" else np.dtype(name)
    ledger = Ledger(debug=True)
    array = ledger.empty(4, dtype, PARAM)
    assert np.isnan(array.astype(np.float64)).all()
    array[:] = 1
    ledger.discard(array)
    assert np.isnan(array.astype(np.float64)).all()


def test_a_view_is_the_array_that_owns_its_memory():
    """That lives as long as the view does, and is counted so long."""
    ledger = Ledger()
    batch = np.arange(12, dtype=np.int64).reshape(3, 4)
    row = ledger.adopt(batch[1], ACTIVATION)
    assert ledger.rekind(row, KEPT_INPUT) is row and ledger.live[KEPT_INPUT] == ledger.peak[KEPT_INPUT] == 96
    assert ledger.rekind(batch, ACTIVATION) is batch and ledger.live[KEPT_INPUT] == 0
    stranger = np.zeros(3)
    assert ledger.rekind(stranger, KEPT_INPUT) is stranger and ledger.live_bytes == 96
    assert ledger.adopt(batch, ACTIVATION) is batch and ledger.live[ACTIVATION] == 96
    del batch
    assert ledger.live[ACTIVATION] == 96
    del row
    assert ledger.live[ACTIVATION] == 0
