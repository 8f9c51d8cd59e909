"""Errors meant for users: each message says what is wrong, why, and the cure.

An entry point turns a `MpizeroError` into one sentence on standard error and its exit status: 2 for mistakes, 1 for
training that went wrong. Any other exception is a bug of ours and ends the job with its traceback.
"""


class MpizeroError(Exception):
    """Base of every error a user can cause and cure. status: the exit status of an entry point."""

    status = 2


class ConfigError(MpizeroError, ValueError):
    """A flag, key or value that cannot be used."""


class DataError(MpizeroError, ValueError):
    """Training data that is missing, empty, too short or not finite."""


class CheckpointError(MpizeroError, ValueError):
    """A checkpoint that cannot be written, read or gone on from; the message names the file."""


class LaunchError(MpizeroError, RuntimeError):
    """MPI is missing, or the number of ranks does not suit."""


class CommunicationError(MpizeroError, RuntimeError):
    """A peer did not answer in time."""


class OutOfDeviceMemory(MpizeroError, MemoryError):
    """An allocation beyond the capacity of the rank's device (`--device-memory`)."""


class Fragmented(OutOfDeviceMemory):
    """An allocation for which bytes enough are free, in holes that are too small. Bytes, and the number of holes."""

    def __init__(self, message: str, asked: int, free: int, capacity: int, holes: int, largest: int):
        super().__init__(message)
        self.asked, self.free, self.capacity, self.holes, self.largest = asked, free, capacity, holes, largest


class LossScaleError(MpizeroError, ArithmeticError):
    """Gradients overflow even at the smallest loss scale."""

    status = 1


class DivergenceError(MpizeroError, ArithmeticError):
    """Gradients are not finite although nothing scales them."""

    status = 1


class ReplicaMismatch(MpizeroError, RuntimeError):
    """Buffers that must be equal between ranks are not."""

    status = 1


class StorageError(MpizeroError, RuntimeError):
    """Files in which states rest: they cannot be made, read or written, or hold something else than was written."""
