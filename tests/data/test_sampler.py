from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpizero.data.sampler import PAD, eval_batches, global_samples, until

sizes = st.integers(1, 6)


@given(st.integers(0, 50), sizes, sizes, sizes)
def test_a_step_covers_its_samples_once(step, world_size, batch_size, accumulation):
    total = world_size * batch_size * accumulation
    parts = [global_samples(step * total, mb, rank, world_size=world_size, batch_size=batch_size)
             for mb in range(accumulation) for rank in range(world_size)]
    assert all(part.dtype == np.int64 and part.shape == (batch_size,) for part in parts)
    assert np.concatenate(parts).tolist() == list(range(step * total, (step + 1) * total))


@given(st.integers(0, 50), st.integers(0, 5), sizes, sizes)
def test_data_of_a_microbatch_depends_on_the_global_batch_only(step, microbatch, world_size, batch_size):
    many = [global_samples(step, microbatch, rank, world_size=world_size, batch_size=batch_size)
            for rank in range(world_size)]
    one = global_samples(step, microbatch, 0, world_size=1, batch_size=world_size * batch_size)
    assert np.concatenate(many).tolist() == one.tolist()


@given(st.integers(1, 100), st.integers(1, 20), st.integers(1, 9))
def test_eval_batches_cover_the_held_out_samples_in_step(eval_size, batch_size, world_size):
    ranks = [eval_batches(eval_size, batch_size, rank, world_size) for rank in range(world_size)]
    assert len({tuple(batch.size for batch in batches) for batches in ranks}) == 1
    assert all(0 < batch.size <= batch_size for batches in ranks for batch in batches)
    together = np.concatenate([batch for batches in ranks for batch in batches])
    assert sorted(together[together != PAD]) == list(range(eval_size)) and (together == PAD).sum() < world_size


def test_5_held_out_samples_on_8_ranks():
    assert [eval_batches(5, 9, rank, 8)[0].tolist() for rank in range(8)] == [[0], [1], [2], [3], [4], *[[PAD]] * 3]


def test_what_lies_beyond_the_end_is_a_pad():
    assert until(np.arange(6, 12), 9).tolist() == [6, 7, 8, PAD, PAD, PAD]
    assert until(np.arange(6, 12), 12).tolist() == list(range(6, 12))
