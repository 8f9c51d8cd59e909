"""Small programs for child jobs: `python tests/comm/jobs.py NAME`. Each goes wrong in its own way."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time

import numpy as np

from mpizero import comm
from mpizero.comm.mpi import failure, start
from mpizero.comm.mpi.meeting import NOTICE
from mpizero.errors import ConfigError, DataError


def fine():
    world = comm.start()
    comm.all_reduce(world, np.ones(5))
    if world.rank == 1:
        time.sleep(1)  # the others wait for it at the end
    return 0


def status_of_main():
    comm.start()
    return 5


def bug_on_one_rank():
    """The others wait in a collective."""
    world = comm.start()
    if world.rank == 1:
        raise ZeroDivisionError("a bug on rank 1")
    comm.all_reduce(world, np.ones(5))


def bug_before_mpi():
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        raise ZeroDivisionError("a bug on rank 1")
    comm.barrier(comm.start())


def bug_in_thread():
    world = comm.start()
    if world.rank == 1:
        threading.Thread(target=lambda: 1 // 0).start()
    comm.barrier(world)
    time.sleep(60)


def user_error_on_all():
    world = comm.start()
    raise ConfigError(f"stage 7 is unknown: use 0 to 3 ({world.size} ranks)")


def user_error_on_all_but_late_on_one():
    world = comm.start()
    if world.rank == 0:
        time.sleep(1)
    raise ConfigError("stage 7 is unknown: use 0 to 3")


def user_error_before_mpi():
    raise ConfigError("stage 7 is unknown: use 0 to 3")


def user_error_before_mpi_on_one_rank():
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        raise DataError("no file on rank 1")
    comm.barrier(comm.start())


def user_error_on_one_rank():
    world = comm.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    comm.all_reduce(world, np.ones(5))


def on_two_hosts(places):
    """`start` believes that the first half of the ranks is on host a, the others on b."""
    return ["ab"[2 * rank >= len(places)] for rank in range(len(places))]


def user_error_on_one_host():
    start.host_names = on_two_hosts
    world = comm.start()
    if world.rank >= 2:
        raise DataError("there is no such file")
    comm.barrier(world)


def bug_on_one_host():
    start.host_names = on_two_hosts
    world = comm.start()
    if world.rank == 2:
        raise ZeroDivisionError
    comm.barrier(world)


def user_error_on_all_hosts():
    """Not on all their ranks: some hear of the others before they come to it themselves."""
    start.host_names = on_two_hosts
    world = comm.start()
    if world.rank in (1, 2):
        raise ConfigError("stage 7 is unknown")
    comm.barrier(world)


def comes_late_to_the_start():
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        time.sleep(4)
    comm.start()
    time.sleep(1)
    print("started\n", end="", flush=True)


def stays_in_mpi():
    """An exit function of Python's stands for MPI_Finalize, which comes right after it."""
    failure.PEACE_SECONDS = 1
    comm.start()
    atexit.register(time.sleep, 60)


def user_error_on_one_rank_during_large_messages():
    world = comm.start()
    flat = np.ones(5_000_000)
    comm.all_reduce(world, flat)
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    comm.all_reduce(world, flat)


def user_error_on_one_rank_while_another_is_busy():
    world = comm.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")
    if world.rank == 0:
        time.sleep(60)
    comm.barrier(world)


def user_error_on_one_rank_while_others_end():
    world = comm.start()
    if world.rank == 2:
        raise DataError("the data of rank 2 hold NaN")


def different_user_errors():
    world = comm.start()
    raise DataError("no data" if world.rank % 2 else "bad data")


def user_errors_of_two_classes():
    world = comm.start()
    if world.rank % 2:
        raise DataError("no data")
    raise ConfigError("wrong flag")


def exit_status():
    comm.start()
    sys.exit(7)


def exit_status_of_one_rank():
    world = comm.start()
    if world.rank == 1:
        sys.exit(7)
    comm.barrier(world)


def exit_text():
    comm.start()
    sys.exit("enough")


def exit_in_peace():
    world = comm.start()
    if world.rank == 1:
        sys.exit()


def exit_256():
    comm.start()
    sys.exit(256)


def interrupted():
    world = comm.start()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    comm.barrier(world)


def killed():
    world = comm.start()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(world, np.ones(5))


def different_collectives():
    """Rank 1 forgets one. Ranks that wait for each other time out, and say for what."""
    world = comm.start()
    if world.rank != 1:
        comm.all_gather(world, np.ones(8), unit="h.2")
    comm.all_reduce(world, np.ones(8), unit="h.1")


def waits_for_ever():
    world = comm.start()
    if world.rank == 0:
        time.sleep(60)
    comm.all_reduce(world, np.ones(5), unit="head")


def waits_for_ever_to_make_a_group():
    world = comm.start()
    if world.rank == 0:
        time.sleep(60)
    world.subgroup([1, 0], "pair")


def loads_a_library_on_rank_1():
    """LIBRARY of the environment."""
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
        ctypes.CDLL(os.environ["LIBRARY"])
    comm.barrier(comm.start())


def tells_its_host():
    world = comm.start()
    print(f"{world.rank} is on {os.uname().nodename} of {''.join(world.hosts)}\n", end="")


def leaves_no_message_behind():
    """Every notice is received before MPI ends, also by ranks that leave by themselves at the same time."""
    world = comm.start()

    def leave(*_):
        notices = failure._meeting.notices
        print(f"open={failure._comm.Iprobe(tag=NOTICE)} done={all(request.Test() for request, _ in notices)} "
              f"of {len(notices)}\n", end="", flush=True)

    atexit.register(leave)
    if world.rank != 2:
        raise DataError(f"the data of rank {world.rank} hold NaN")
    comm.barrier(world)


if __name__ == "__main__":
    name = sys.argv[1]
    if name.startswith("plain:"):  # without run_main
        globals()[name.removeprefix("plain:")]()
    else:
        comm.run_main(globals()[name])
