"""Small programs for child jobs: `python tests/dist/jobs.py NAME`. Each goes wrong in its own way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

from mpizero import dist
from mpizero.errors import ConfigError, DataError


def fine():
    world = dist.start()
    dist.all_reduce(world, np.ones(5))
    if world.rank == 1:
        time.sleep(1)  # the others wait for it at the end
    return 0


def status_of_main():
    dist.start()
    return 5


def bug_on_one_rank():
    """The others wait in a collective."""
    world = dist.start()
    if world.rank == 1:
        raise ZeroDivisionError("a bug on rank 1")
    dist.all_reduce(world, np.ones(5))


def bug_before_mpi():
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        raise ZeroDivisionError("a bug on rank 1")
    dist.start().barrier()


def bug_in_thread():
    world = dist.start()
    if world.rank == 1:
        threading.Thread(target=lambda: 1 // 0).start()
    world.barrier()
    time.sleep(60)


def user_error_on_all():
    world = dist.start()
    raise ConfigError(f"--stage 7 is unknown: use 0 to 3 ({world.size} ranks)")


def user_error_on_all_but_late_on_one():
    world = dist.start()
    if world.rank == 0:
        time.sleep(1)
    raise ConfigError("--stage 7 is unknown: use 0 to 3")


def user_error_before_mpi():
    raise ConfigError("--stage 7 is unknown: use 0 to 3")


def user_error_before_mpi_on_one_rank():
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        raise DataError("no file on rank 1")
    dist.start().barrier()


def user_error_on_one_rank():
    world = dist.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    dist.all_reduce(world, np.ones(5))


def user_error_on_one_rank_during_large_messages():
    world = dist.start()
    flat = np.ones(5_000_000)
    dist.all_reduce(world, flat)
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    dist.all_reduce(world, flat)


def user_error_on_one_rank_while_another_is_busy():
    world = dist.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    if world.rank == 0:
        time.sleep(60)
    world.barrier()


def user_error_on_one_rank_while_others_end():
    world = dist.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")


def different_user_errors():
    world = dist.start()
    raise DataError("no data" if world.rank % 2 else "bad data")


def user_errors_of_two_classes():
    world = dist.start()
    if world.rank % 2:
        raise DataError("no data")
    raise ConfigError("wrong flag")


def exit_status():
    dist.start()
    sys.exit(7)


def exit_status_of_one_rank():
    world = dist.start()
    if world.rank == 1:
        sys.exit(7)
    world.barrier()


def exit_text():
    dist.start()
    sys.exit("enough")


def exit_in_peace():
    world = dist.start()
    if world.rank == 1:
        sys.exit()


def exit_256():
    dist.start()
    sys.exit(256)


def interrupted():
    world = dist.start()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    world.barrier()


def killed():
    world = dist.start()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(world, np.ones(5))


def different_collectives():
    """Rank 1 forgets one. Ranks that wait for each other time out, and say for what."""
    world = dist.start()
    if world.rank != 1:
        dist.all_gather(world, np.ones(8), unit="h.2")
    dist.all_reduce(world, np.ones(8), unit="h.1")


def waits_for_ever():
    world = dist.start()
    if world.rank == 0:
        time.sleep(60)
    dist.all_reduce(world, np.ones(5), unit="head")


if __name__ == "__main__":
    name = sys.argv[1]
    if name.startswith("plain:"):  # without run_main
        globals()[name.removeprefix("plain:")]()
    else:
        dist.run_main(globals()[name])
