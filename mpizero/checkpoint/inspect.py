"""What is in a checkpoint, from its JSON files alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mpizero.checkpoint.contents import Contents, read_contents
from mpizero.dtypes import ITEMSIZE
from mpizero.quantities import in_units
from mpizero.text import readable, table


def inspect(path: str | Path) -> dict[str, Any]:
    """As `--json` has it. CheckpointError where a file is not what it should be."""
    contents = read_contents(path)
    about = contents.about
    return {
        "folder": str(contents.folder),
        **{key: about[key] for key in ("saved", "step", "updates", "position", "world_size", "runs")},
        "model": about.get("model"), "psi": sum(param.numel for param in contents.params),
        "bytes": sum(part.size for part in contents.parts), "scaler": about["scaler"], "settings": about["settings"],
        "data": about["data"], "versions": about.get("versions"), "states": _states(contents),
        "params": [{"name": param.name, "shape": list(param.shape), "elements": param.numel,
                    "states": dict(param.states)} for param in contents.params],
        "parts": [{"name": part.name, "bytes": part.size, "pieces": len(part.entries)} for part in contents.parts],
    }


def _states(contents: Contents) -> list[dict[str, Any]]:
    """Elements and bytes of each state, by dtype."""
    elements: Counter[tuple[str, str]] = Counter()
    for param in contents.params:
        for state, dtype in param.states.items():
            elements[state, dtype] += param.numel
    return [{"name": name, "dtype": dtype, "elements": count, "bytes": count * ITEMSIZE[dtype]}
            for (name, dtype), count in elements.items()]


def show(found: dict[str, Any]) -> str:
    """The same in aligned columns."""
    settings = {name: value for name, value in found["settings"].items() if value not in (None, False)}
    scale = {"loss scale": f"{found['scaler']['scale']:,g}"} if "scale" in found["scaler"] else {}
    facts = {
        "checkpoint": found["folder"], "saved": found["saved"], "step": f"{found['step']:,}",
        "updates": f"{found['updates']:,}", "next sample": f"{found['position']:,}", **scale,
        "model": f"{found['model']}: {found['psi']:,} parameters", "written by": f"{found['world_size']} ranks",
        "size": in_units(found["bytes"]), "data": found["data"].get("describe"),
        **{name.replace("_", "-"): value for name, value in settings.items() if name not in ("model", "data")},
    }
    width = max(map(len, facts))
    params = [[param["name"], " x ".join(map(str, param["shape"])) or "1", param["elements"],
               ", ".join(f"{name} {dtype}" for name, dtype in param["states"].items())] for param in found["params"]]
    states = [[each["name"], each["dtype"], each["elements"], each["bytes"]] for each in found["states"]]
    parts = [[part["name"], part["bytes"], part["pieces"]] for part in found["parts"]]
    return readable("\n\n".join([
        "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items()),
        table(["state", "dtype", "elements", "bytes"], states),
        table(["parameter", "shape", "elements", "states"], params),
        table(["part", "bytes", "pieces"], parts)]))
