"""How an array becomes messages. Without MPI."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.comm import channel


@pytest.mark.parametrize("name", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("limit", [1, 3, 16, 17, 31, 100])
def test_messages_hold_whole_elements(monkeypatch, name, limit):
    """As many as the limit lets through, at least one, also where it is no multiple of them; the last is short."""
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", limit)
    itemsize = np.dtype(name).itemsize
    full = max(1, limit // itemsize) * itemsize
    for numel in range(50):
        array = np.arange(numel).astype(name)
        parts = channel.messages(array)
        assert b"".join(part.tobytes() for part in parts) == array.tobytes()
        assert all(part.nbytes == full for part in parts[:-1])
        assert parts[-1].nbytes % itemsize == 0 and parts[-1].nbytes <= full
        assert (parts[-1].nbytes > 0) == (numel > 0)  # an empty array is one empty message


def test_an_exchange_begins_with_the_send(monkeypatch):
    """See [Note: send first] in `ring`."""
    begun = []
    for name in ("send", "receive"):
        monkeypatch.setattr(channel.Requests, name, lambda self, array, rank, name=name: begun.append(name) or self)
    channel.Channel.exchange(None, None, 1, None, 2)
    assert begun == ["send", "receive"]


def test_messages_are_no_copies():
    array = np.zeros(4, np.float32)
    for part in channel.messages(array):
        part[...] = 1
    assert array.view(np.uint8).all()


def test_limit_is_what_a_c_int_counts():
    assert channel.MAX_MESSAGE_BYTES == np.iinfo(np.intc).max
