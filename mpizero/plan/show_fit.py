"""What people read of a fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mpizero.plan.command import in_common
from mpizero.plan.memory import show_compare
from mpizero.plan.options import wrapped
from mpizero.plan.rates import rates_text
from mpizero.plan.steps import k_text
from mpizero.planner.model import PROGRAMS
from mpizero.planner.recommend import seconds
from mpizero.quantities import in_units
from mpizero.text import counted, precision, table

MARGIN_FOR = "the device's context, buffers of communication, operators at work and fragmentation"
MEMORIES = {"device_memory": "device", "host_memory": "host", "nvme": "NVMe"}
WHOLE = {"compute_seconds": "own s", "exposed_seconds": "exposed s", "seconds": "step s"}  # columns of seconds
DIVIDED = {"exposed_seconds": "exposed s", "seconds": "step s", "paced": "x T"}  # with tensor parallel ranks
_RECOMPUTE = ("--recompute takes its time here, and saves no bytes: of activations at most what --activations says is "
              "known, and that counts as it is")


def show(answer: dict[str, Any]) -> str:
    memory = ", ".join(f"{words} {in_units(answer[key])}" for key, words in MEMORIES.items()
                       if answer[key] is not None)
    frozen = f" ({answer['frozen_psi']:,} frozen)" if answer["frozen_psi"] else ""
    margin = (f"{100 * answer['margin']:g} % of a device ({in_units(answer['margin'] * answer['device_memory'])}) are "
              f"kept free, for {MARGIN_FOR}") if answer["margin"] else "no margin is kept free"
    parts = [_wrapped(f"{answer['model']}, psi = {answer['psi']:,}{frozen}"),
             _wrapped(f"{counted(answer['ranks'], 'rank')}, {answer['ranks_per_host']:,} a host; {_precision(answer)}, "
                      f"{k_text(answer)}; {answer['tokens']:,} tokens x {answer['accumulation']} a rank and step; "
                      f"{memory}; {margin}"),
             *([_wrapped(_activations(answer))] if answer["activations_of"] else
               [_wrapped(_RECOMPUTE)] if answer["recompute"] else []),
             _show_rows(answer["rows"]), *([_train(answer)] if answer["exact"] else []), _wrapped(_legend(answer)),
             _wrapped(_machine(answer)),
             _wrapped(f"{'Recommended' if answer['recommended'] else 'No recommendation'}: {answer['reason']}.")]
    for stage, entry in answer.get("compare", {}).items():
        parts.append(f"stage {stage}\n" + show_compare(entry["others"], entry["after_backward"], entry["peak"]))
    return "\n\n".join(parts)


def _activations(answer: Mapping[str, Any]) -> str:
    """Whose they are, and of what they consist."""
    terms, interval = answer["terms"], answer["recompute_interval"]
    text = f"Activations are {PROGRAMS[answer['activations_of']]} (--activations-of {answer['activations_of']})"
    if terms is None:
        return f"{text}."
    blocks, loss = counted(terms["blocks"], "block"), "a fused loss" if answer["fused_loss"] else "loss"
    each = "each" if interval == 1 else f"every {interval} together"
    if len(answer["rows"][0]["by_tensor_size"]) > 1 or terms["tensor_size"] > 1:
        blocks = f"with T {terms['tensor_size']} {blocks}"
    kept = (f"{blocks} keep an input of {in_units(terms['input_of_a_block'])} {each}, and as many are computed again "
            "at a time, of " if answer["recompute"] else f"{blocks} of ")
    return f"{text}: {kept}{in_units(terms['block'])}; last norm, logits and {loss} {in_units(terms['end'])}."


def _precision(answer: Mapping[str, Any]) -> str:
    wire = answer["reduce_dtype"] or answer["dtype"]
    return precision({"dtype": answer["dtype"], "reduce_dtype": wire, "sum_dtype": wire})


def _show_rows(found: list[dict[str, Any]]) -> str:
    fits, divided = {True: "yes", False: "NO", None: "?"}, _divided(found)
    body = [[row["stage"], row["offload"], f"{row['shard_size']:,}", *([f"{row['tensor_size']}"] if divided else []),
             in_units(row["device_bytes"]) + (" + ?" if row["activations"] is None else ""),
             _or_nothing(row["needs"]["host"]), _or_nothing(row["needs"]["nvme"]), _or_nothing(row["host_bytes"]),
             *(seconds(row[key]) for key in (DIVIDED if divided else WHOLE)), fits[row["fits"]]]
            for row in found]
    rest = ["T", "device", "host", "NVMe", "leaving", *DIVIDED.values()] if divided else [
        "device", "host", "NVMe", "out of host", *WHOLE.values()]
    names = ["stage", "offload", "F", *rest, "fits"]
    return table(names, body, right=names[2:-1])


def _divided(found: list[dict[str, Any]]) -> bool:
    """Whether there is a word of tensor parallel ranks."""
    return any(set(row["by_tensor_size"]) != {1} for row in found)


def _or_nothing(nbytes: int) -> str:
    return in_units(nbytes) if nbytes else "-"


def _legend(answer: Mapping[str, Any]) -> str:
    sizes = list(dict.fromkeys(row["activations"] for row in answer["rows"]))
    kept = ("states, gathered one unit ahead; + ?: activations, unknown for this model" if sizes == [None] else
            f"states, gathered one unit ahead, and activations ({', '.join(map(in_units, sizes))} of the latter)")
    if answer["exact"]:
        kept = f"all that mpizero.train needs there, activations of {', '.join(map(in_units, sizes))} included, exact"
    tried = max(len(row["seconds_by_size"]) for row in answer["rows"])
    divided, out, own = _divided(answer["rows"]), "Out of host", "Own: the device's own work, computing and update; "
    tensor = ""
    if divided:
        each = ", ".join(map(str, dict.fromkeys(size for row in answer["rows"] for size in row["by_tensor_size"])))
        tensor = (f"T: ranks that compute one batch together, the best of {each}; x T: seconds for as many samples as "
                  "a step takes where T is 1, by which rows are compared. ")
        out, own = "Leaving", ""
    beyond = "the device's own work, computing and update" if divided else "it"
    return (f"F: ranks that share one copy of the states, the best of {counted(tried, 'size')}. {tensor}Device: the "
            f"most on a rank's, of {kept}. Host, NVMe: peaks of a rank; the ranks of a host share its memory. {out}: "
            "sent to other hosts in a step by the busiest host, all its ranks together. "
            f"{own}exposed: what the step waits for beyond {beyond}. "
            f"Fits ?: depends on what was not told{_untold(answer)}. Offload: cpu is mpizero.train's --offload "
            "optimizer=cpu, cpu+params adds params=cpu, nvme is both in files.")


def _train(answer: Mapping[str, Any]) -> str:
    """With what `mpizero.train` needs these bytes."""
    rows = [re.split(" (?=--)", row["train"]) for row in answer["rows"]]
    common, made = in_common(rows), answer["made_by_train"]
    whose = "" if made else " (and a model of your own: it makes no such one)"
    lines = _wrapped(f"mpizero.train needs so much with{whose} {' '.join(common)} and, row by row,").splitlines()
    return "\n".join([*lines, *(f"  {' '.join(flag for flag in row if flag not in common)}" for row in rows)])


def _untold(answer: Mapping[str, Any]) -> str:
    flags = {"host": "--host-memory", "nvme": "--nvme", "activations": "--activations"}
    untold = {what for row in answer["rows"] if row["fits"] is None for what in row["unknown"]}
    return f" ({', '.join(flag for what, flag in flags.items() if what in untold)})" if untold else ""


def _machine(answer: Mapping[str, Any]) -> str:
    work = ("6 psi + 12 L h s operations a token, attention's scores included" if answer["attention_flops"] else
            "6 psi operations a token; attention's scores, of which a bare size tells nothing, are left out")
    measured = answer["measured"]
    gpu = (f" on {answer['gpu']}" if answer["gpu"] else ", where flags say nothing of an H100" if measured is None else
           f" on the machine of {measured['file']}")
    wrong = (answer["dtype"] == "float32" and answer["sources"]["peak_flops"] != "flags"
             and not (measured and "float32" in measured["dtypes"]))
    of_16_bits = " The peak is of 16-bit operands: give --peak-flops of float32." if wrong else ""
    return f"Seconds are an estimate{gpu}: {work}. {rates_text(answer)}{of_16_bits}"


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(text))
