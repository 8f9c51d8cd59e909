"""Flags for the machine that an estimate of time assumes, and what an answer says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from mpizero.errors import ConfigError
from mpizero.machine import ETHERNET_SOURCE, GPUS, SOURCES, Gpu, Machine
from mpizero.plan.measured import Measured, read_machine, remark
from mpizero.plan.options import RANKS_PER_HOST, Options, Parser, argument_type, count
from mpizero.quantities import in_units, parse_count, parse_flops, parse_latency, parse_rate, parse_share
from mpizero.text import counted

RATES: dict[str, tuple[Callable[[str], float], str, str]] = {  # field of Machine: how its flag is read, help, words
    "peak_flops": (parse_flops, "operations a second of a device, as 989TFLOPs", "peak"),
    "efficiency": (parse_share, "share of it that a model reaches, as 50%%", "of the peak"),
    "alpha": (parse_latency, "seconds that a message takes however short, as 10us", "a message"),
    "intra_alpha": (parse_latency, "the same inside a host", "a message inside a host"),
    "inter_bandwidth": (parse_rate, "of a NIC between hosts, as 50GB/s or 400Gb/s", "a NIC"),
    "intra_bandwidth": (parse_rate, "of a rank inside a host", "inside a host"),
    "memory_bandwidth": (parse_rate, "of the device's memory", "of device memory"),
    "update_bandwidth": (parse_rate, "what an optimizer's update makes of it", "of it in an update"),
    "host_bandwidth": (parse_rate, "between device and host, each way", "to the host"),
    "nvme_bandwidth": (parse_rate, "of a rank to NVMe", "to NVMe"),
    "host_adam": (lambda text: float(parse_count(text.removesuffix("/s"))),
                  "parameters a second that the CPUs of a host update", "parameters/s by a host's CPUs"),
}
LINKS = ("alpha", "intra_alpha", "inter_bandwidth", "intra_bandwidth")
COMPUTE = ("peak_flops", "efficiency", "memory_bandwidth", "update_bandwidth")
LIKE = {"intra_alpha": "as --alpha", "update_bandwidth": "all of it"}  # where there is no default
ONE, ALL = "one", "all-nics"


def add_gpu(parser: Parser, words: str) -> None:
    parser.add_argument("--gpu", type=str.lower, choices=list(GPUS), help=words)


def add_machine(parser: Parser, *names: str) -> None:
    """--gpu or --machine, and a flag for each rate; where links are among them, how rings use the NICs of a host."""
    add_gpu(parser, "rates of its data sheet and of its DGX; other flags win")
    parser.add_argument("--machine", type=argument_type(read_machine), metavar="FILE",
                        help="rates of a machine, measured by python -m mpizero.doctor --json FILE; other flags win")
    for name in names:
        read, words, _ = RATES[name]
        default = getattr(Machine(), name)
        shown = LIKE.get(name) or (f"{in_units(default)}/s" if read is parse_rate else f"{default:.3g}")
        parser.add_argument("--" + name.replace("_", "-"), type=argument_type(read), metavar="X",
                            help=f"{words} ({shown})")
    if "inter_bandwidth" in names:
        parser.add_argument("--nics", type=argument_type(count), metavar="N",
                            help="of a host, each of --inter-bandwidth (one a rank; --gpu v100: one for two)")
        parser.add_argument("--rings", choices=(ONE, ALL),
                            help="a ring leaves a host over one NIC, as mpizero's, or over all, as NCCL's (one; with "
                            "--gpu all-nics)")


def gpu_of(options: Options) -> Gpu | None:
    """What --gpu names."""
    return GPUS.get(options.get("gpu") or "")


def measured_of(options: Options) -> Measured | None:
    """What --machine names. ConfigError beside --gpu."""
    measured: Measured | None = options.get("machine")
    if measured is not None and options["gpu"] is not None:
        raise ConfigError(f"--gpu {options['gpu']} and --machine {measured.path} are two machines: leave one out")
    return measured


def with_host(options: Options) -> Options:
    """`options` with how many ranks share a host, where the user has not said: as many as when the machine was
    measured, or `RANKS_PER_HOST`."""
    if options.get("ranks_per_host", 1) is not None or options["ranks"] is None:
        return options
    measured = measured_of(options)
    return {**options, "ranks_per_host": measured and measured.ranks_per_host or RANKS_PER_HOST}


def _of_file(options: Options) -> dict[str, tuple[Any, str]]:
    """Field -> value and source, of --machine."""
    measured, asked = measured_of(options), [name for name in RATES if name in options]
    told = [name for name in asked if options[name] is not None]
    return {} if measured is None else measured.of(options.get("dtype"), asked, told)


def machine_of(options: Options, default: Machine = Machine()) -> Machine:
    """What `add_machine`'s flags say; where they say nothing the file or the GPU's data sheet, then the default."""
    gpu, own = gpu_of(options), {name: value for name, (value, _) in _of_file(options).items()}
    told = {name: options.get(name) or own.get(name) or getattr(gpu, name, None) or getattr(default, name)
            for name in RATES}
    nics, rings = options.get("nics"), options.get("rings")
    if nics is None and gpu is not None:
        nics = max(1, options.get("ranks_per_host", 1) // gpu.ranks_per_nic)
    elif nics is None and own:
        nics = own.get("nics", 1)
    all_nics = gpu is not None or own.get("all_nics", False)
    return Machine(**told, nics=nics, all_nics=all_nics if rings is None else rings == ALL)


def facts(options: Options, *names: str) -> dict[str, Any]:
    """What an answer tells of the machine: keys machine, gpu, sources (of the rates that count: rate -> where from),
    measured (of --machine: file, ranks_per_host, dtypes; null without)."""
    gpu, measured, machine = gpu_of(options), measured_of(options), machine_of(options)
    known = SOURCES | (gpu.sources if gpu else {}) | {name: source for name, (_, source) in _of_file(options).items()}
    told = measured and {"file": measured.path, "ranks_per_host": measured.ranks_per_host,
                         "dtypes": sorted(measured.by_dtype)}
    return {"machine": vars(machine), "gpu": gpu and gpu.name, "measured": told,
            "sources": {name: "flags" if options[name] is not None else known[name] for name in names
                        if getattr(machine, name) is not None}}


def rates_text(answer: Mapping[str, Any]) -> str:
    """The rates, by where they come from."""
    machine = answer["machine"]
    by_source: dict[str, list[str]] = {}
    for name, source in answer["sources"].items():
        if source == ETHERNET_SOURCE and answer["ranks"] <= answer["ranks_per_host"]:
            continue  # nothing leaves the host
        by_source.setdefault(source, []).append(_rate(name, machine[name]))
    order = sorted(by_source, key=lambda source: (source.startswith("assumed"), source == "flags"))
    text = ". ".join(f"{source[0].upper()}{source[1:]}: {', '.join(by_source[source])}" for source in order)
    text += remark(answer)
    return f"{text}. {_rings(answer)}" if "inter_bandwidth" in answer["sources"] else f"{text}."


def _rate(name: str, value: float) -> str:
    words = RATES[name][2]
    if name == "peak_flops":
        return f"{value / 1e12:g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"
    if name == "efficiency":
        return f"{100 * value:.3g} % {words}"
    if name in ("alpha", "intra_alpha"):
        return f"{1e6 * value:.3g} us {words}"
    return f"{value / 1e9:.2f}B {words}" if name == "host_adam" else f"{in_units(value)}/s {words}"


def _rings(answer: Mapping[str, Any]) -> str:
    machine, per_host = answer["machine"], answer["ranks_per_host"]
    nics = counted(machine["nics"] or per_host, "NIC")
    links = f"Links run at their full rates, {nics} a host"
    if machine["all_nics"]:
        return f"{links}; rings between hosts share all of them, as NCCL's do (--rings one: as mpizero's)."
    return (f"{links}; a ring leaves a host over one of them, as mpizero's do (NCCL's use all: --rings all-nics, or "
            "--gpu).")


assert set(RATES) | {"nics", "all_nics"} == {field.name for field in fields(Machine)}
