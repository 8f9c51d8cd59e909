"""What tensor parallel ranks do together to activations, in place and at once: the next computation needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from mpizero.comm import Group, begin_all_gather, begin_all_reduce
from mpizero.errors import ConfigError
from mpizero.layout import SegmentUse
from mpizero.memory.kinds import KEPT_INPUT
from mpizero.memory.ledger import Ledger
from mpizero.schedule import values as v
from mpizero.schedule.actions import AllGatherLoss, AllReduceActivation, AllReduceInputGrad, GatherKept, PartitionKept
from mpizero.schedule.effects import share
from mpizero.schedule.values import Name, Value

Values = dict[Value, Any]
SHARED = " | "  # in records, between the segment and the kind of work


@final
class Sharing:
    """tensor: the ranks that compute each batch together, this one among them."""

    def __init__(self, segments: Sequence[SegmentUse], tensor: Group, ledger: Ledger):
        self.segments, self.tensor, self.ledger = segments, tensor, ledger
        self._shapes: dict[Value, tuple[int, ...]] = {}  # of kept inputs of which a part is there

    def share(self, values: Values, action: AllReduceActivation | AllReduceInputGrad | AllGatherLoss,
              phase: str) -> None:
        """Sum the summands, or gather the parts, of all ranks. ConfigError for a task's own array that cannot take the
        sum in its place."""
        ((part, whole),) = share(action, self.segments).becomes
        array = values.pop(part)
        if not array.flags.c_contiguous:  # `reshape` would give a copy, and the sum be lost
            raise ConfigError(f"{part} is no contiguous array, so ranks cannot sum it in place: let the segment return "
                              "np.ascontiguousarray of it")
        begin = begin_all_gather if isinstance(action, AllGatherLoss) else begin_all_reduce
        begin(self.tensor, array.reshape(-1), unit=self._name(action), phase=phase).finish()
        values[whole] = self.ledger.rekind(array, KEPT_INPUT) if whole.name is Name.KEPT else array

    def partition_kept(self, values: Values, action: PartitionKept) -> None:
        """Keep this rank's part of what all have alike."""
        kept = v.kept(action.segment, action.mb)
        whole = values.pop(kept)
        part = self.ledger.empty(whole.size // self.tensor.size, whole.dtype, KEPT_INPUT)
        np.copyto(part, whole.reshape(self.tensor.size, -1)[self.tensor.rank])
        self._shapes[kept], values[v.kept_part(action.segment, action.mb)] = whole.shape, part

    def gather_kept(self, values: Values, action: GatherKept, phase: str) -> None:
        """Make it whole again."""
        kept = v.kept(action.segment, action.mb)
        part = values.pop(v.kept_part(action.segment, action.mb))
        values[kept] = whole = self.ledger.empty(self._shapes.pop(kept), part.dtype, KEPT_INPUT)
        whole.reshape(self.tensor.size, -1)[self.tensor.rank] = part
        begin_all_gather(self.tensor, whole.reshape(-1), unit=self._name(action), phase=phase).finish()

    def _name(self, action: AllReduceActivation | AllReduceInputGrad | AllGatherLoss | GatherKept) -> str:
        work = share(action, self.segments).work
        assert work is not None, "what ranks share takes time"
        return f"{self.segments[work.index].name}{SHARED}{work.kind}"
