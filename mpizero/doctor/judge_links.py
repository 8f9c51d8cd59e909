"""What is wrong with the links between ranks. Pure: timings, interfaces -> findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mpizero.doctor.facts import Facts
from mpizero.doctor.findings import OK, WARNING, Finding
from mpizero.doctor.host import Interface
from mpizero.doctor.machine import Links
from mpizero.quantities import in_units


VIRTUAL = ("lo", "docker", "br-", "virbr", "cni", "flannel", "tun", "tap", "wg", "tailscale", "zt")
SLOW_INSIDE, SLOW_BETWEEN = 200e-6, 2e-3  # seconds of a message: cores are shared, or waits are asleep
LEAST_SHARE = 0.4  # of the speed that an interface states
LEAST_BETWEEN = 50e6  # bytes a second, where no speed is stated
MOSTLY = 0.5  # of the bytes that must show on an interface


def judge(facts: Facts, links: Links, rates: Mapping[str, Any]) -> list[Finding]:
    """rates: the fields of `Machine` that were measured."""
    return [*inside(facts, links, rates), *between(facts, links, rates)]


def inside(facts: Facts, links: Links, rates: Mapping[str, Any]) -> Iterator[Finding]:
    if not links.inside:
        return
    alpha = rates["intra_alpha"]
    seen = f"a message inside a host takes {micro(alpha)}, and {in_units(rates['intra_bandwidth'])}/s"
    if alpha > SLOW_INSIDE and not any(map(facts.is_crowded, facts.hosts)):
        yield Finding("inside hosts", WARNING, f"{seen}, though each rank has a core: ranks share one, or other "
                      "programs use them", "mpirun --bind-to none, and see what else runs there (top)")
    else:
        crowd = ", much of it waiting for a core" if alpha > SLOW_INSIDE else ""
        yield Finding("inside hosts", OK, seen + crowd)


def between(facts: Facts, links: Links, rates: Mapping[str, Any]) -> Iterator[Finding]:
    if not links.alone:
        return
    alpha, bandwidth = rates["alpha"], rates["inter_bandwidth"]
    seen = f"a message between hosts takes {micro(alpha)}, and {in_units(bandwidth)}/s"
    carriers = {host: carrier(facts.hosts[host].interfaces, carried, bytes_between(links))
                for host, carried in zip(facts.hosts, links.carried, strict=True)}
    names = ", ".join(sorted({each.name for each in carriers.values() if each is not None})) or "no interface"
    if alpha > SLOW_BETWEEN and not any(map(facts.is_crowded, facts.hosts)):
        yield Finding("between hosts", WARNING, f"{seen}, over {names}: so long a message is a VPN's or a busy core's",
                      "see what else runs there (top)" + _or_elsewhere(facts))
    stated = min((each.speed / 8 for each in carriers.values() if each and each.speed), default=None)
    least = LEAST_BETWEEN if stated is None else LEAST_SHARE * stated
    if bandwidth < least:
        of = "less than any Ethernet of 1 Gb/s" if stated is None else (
            f"{100 * bandwidth / stated:.0f} % of what {names} states")
        yield Finding("between hosts", WARNING, f"{seen}, over {names}: {of}",
                      "look for a rate limit, a slow switch, or other traffic" + _or_elsewhere(facts))
    else:
        yield Finding("between hosts", OK, f"{seen}, over {names}")
    for host, used in carriers.items():
        yield from _interface(facts, host, used)


def _interface(facts: Facts, host: str, used: Interface | None) -> Iterator[Finding]:
    """Is the interface that carries the messages of `host` the right one?"""
    if used is None:
        yield Finding("interface", OK, "messages to other hosts show on no interface: they go by RDMA, or these hosts "
                      "share memory", hosts=(host,))
        return
    if used.name.startswith(VIRTUAL):
        yield Finding("interface", WARNING, f"messages to other hosts go over {used.name} ({used.address}), which is "
                      "no network card", _elsewhere(facts, best(facts.hosts[host].interfaces)), (host,))
    faster = best(facts.hosts[host].interfaces)
    if faster is not None and used.speed and (faster.speed or 0) > used.speed:
        yield Finding("interface", WARNING, f"messages to other hosts go over {used.name} of {_speed(used)}, while "
                      f"{faster.name} ({faster.address}) has {_speed(faster)}", _elsewhere(facts, faster), (host,))


def carrier(interfaces: tuple[Interface, ...], carried: Mapping[str, int], expected: float) -> Interface | None:
    """The interface that sent most; None if that is not what rings sent. expected: bytes."""
    known = [each for each in interfaces if each.name in carried]
    most = max(known, key=lambda each: carried[each.name], default=None)
    return most if most is not None and carried[most.name] > MOSTLY * expected else None


def bytes_between(links: Links) -> float:
    """That a host sent to others at least: each timing is of one call or more, and of one rank that leaves it."""
    return sum(each.sent for each in links.alone + links.beside)


def best(interfaces: tuple[Interface, ...]) -> Interface | None:
    """The fastest that is up, has an address and is a card."""
    cards = [each for each in interfaces if each.card and each.state != "down" and each.address and each.speed]
    return max(cards, key=lambda each: each.speed or 0, default=None)


def _or_elsewhere(facts: Facts) -> str:
    """A cure more where a host has several addresses."""
    many = max(sum(bool(each.address) and each.name != "lo" for each in host.interfaces)
               for host in facts.hosts.values())
    return f"; or {_elsewhere(facts)}" if many > 1 else ""


def _elsewhere(facts: Facts, interface: Interface | None = None) -> str:
    name = "NAME" if interface is None else interface.name
    choose = f"OMPI_MCA_btl_tcp_if_include={name}" if facts.open_mpi else f"UCX_NET_DEVICES={name} (or FI_TCP_IFACE)"
    return f"choose the interface: export {choose}"


def _speed(interface: Interface) -> str:
    return f"{(interface.speed or 0) / 1e9:g} Gb/s"


def micro(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"
