"""Numbers from counters: published splitmix64 values, and the distribution they should have."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.data import counter

N = 20_000


def test_mixer_is_splitmix64():
    """First outputs of splitmix64 from state 1234567, as published with the xoshiro generators and on Rosetta Code."""
    state = np.uint64(1234567)
    steps = np.arange(1, 6, dtype=np.uint64) * np.uint64(counter._GAMMA)
    assert counter._mix(state + steps).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423,
                                                    4593380528125082431, 16408922859458223821]


def test_sample_depends_on_seed_and_number_only():
    samples = np.arange(N)
    together = counter.normal(3, 1, samples, 7)
    apart = np.concatenate([counter.normal(3, 1, part, 7) for part in np.array_split(samples, 37)])
    assert together.tobytes() == apart.tobytes()
    shuffled = np.random.default_rng(0).permutation(N)
    assert together[shuffled].tobytes() == counter.normal(3, 1, shuffled, 7).tobytes()
    singly = np.concatenate([counter.normal(3, 1, samples[i : i + 1], 7) for i in range(2000)])
    assert together[:2000].astype(np.float32).tobytes() == singly.astype(np.float32).tobytes()


@pytest.mark.parametrize("change", [{"seed": 1}, {"stream": 2}, {"seed": -1}, {"seed": 2**63},
                                    {"samples": np.arange(N, 2 * N)}])
def test_other_seeds_streams_and_samples_share_nothing(change):
    base = {"seed": 0, "stream": 1, "samples": np.arange(N), "count": 4}
    one, two = counter.bits(**base), counter.bits(**(base | change))
    assert np.intersect1d(one, two).size == 0 and np.unique(one).size == one.size


def test_first_numbers_do_not_depend_on_the_count():
    assert counter.normal(0, 0, np.arange(9), 5).tolist() == counter.normal(0, 0, np.arange(9), 32)[:, :5].tolist()


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_normal_moments(seed):
    x = counter.normal(seed, 1, np.arange(N), 32)
    n = x.size
    # five standard deviations of each estimate, for normal numbers: the variances of x to x^4 are 1, 2, 15 and 96
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((x**power).mean() - mean) < 5 * np.sqrt(variance / n), power
    assert 4.5 < np.abs(x).max() < 6.77


def test_normal_quantiles():
    """Share of numbers below q, by the tables: Phi(-2), Phi(-1), Phi(0), Phi(1), Phi(2)."""
    x = counter.normal(5, 1, np.arange(N), 32)
    for q, share in {-2: 0.022750, -1: 0.158655, 0: 0.5, 1: 0.841345, 2: 0.977250}.items():
        assert abs((x < q).mean() - share) < 5 * np.sqrt(share * (1 - share) / x.size)


def test_neighbours_are_independent():
    """Correlations of numbers, and of their squares: between columns, samples, seeds and streams.

    The two columns of a pair are among them.
    """
    x = counter.normal(0, 1, np.arange(N), 32)
    pairs = [(x[:, a], x[:, b]) for a in range(8) for b in range(a)] + [(x[:-lag], x[lag:]) for lag in (1, 2, 16, 64)]
    pairs += [(x, counter.normal(1, 1, np.arange(N), 32)), (x, counter.normal(0, 2, np.arange(N), 32))]
    pairs += [(x[:, 1:], x[:, :-1])]
    for a, b in pairs:
        for f in (np.asarray, np.square):
            a0, b0 = f(a).ravel(), f(b).ravel()
            correlation = np.corrcoef(a0, b0)[0, 1]
            assert abs(correlation) < 5 / np.sqrt(a0.size)


def test_each_bit_is_a_fair_coin():
    words = counter.bits(0, 1, np.arange(N), 8).ravel()
    for bit in range(64):
        assert abs((words >> np.uint64(bit) & np.uint64(1)).mean() - 0.5) < 5 * 0.5 / np.sqrt(words.size)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000, 5000])
def test_an_epochs_order_is_a_permutation(count):
    orders = [counter.permuted(3, 5, np.full(count, epoch), np.arange(count), count).tolist() for epoch in range(40)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count > 100:
        assert len(set(map(tuple, orders))) == 40
    mixed = counter.permuted(3, 5, np.arange(40) % 40, np.full(40, count - 1), count)  # of many epochs at once
    assert mixed.tolist() == [order[-1] for order in orders]
    assert count < 100 or counter.permuted(4, 5, np.zeros(9, int), np.arange(9), count).tolist() != orders[0][:9]


def test_every_number_is_as_often_first_as_another():
    count, epochs = 11, 20_000
    first = counter.permuted(0, 5, np.arange(epochs), np.zeros(epochs, int), count)
    second = counter.permuted(0, 5, np.arange(epochs), np.ones(epochs, int), count)
    pairs = np.bincount(first * count + second, minlength=count * count).reshape(count, count)
    off_diagonal = pairs[~np.eye(count, dtype=bool)]
    expected = epochs / off_diagonal.size
    assert np.trace(pairs) == 0 and np.abs(off_diagonal - expected).max() < 5 * np.sqrt(expected)
