"""What left a host, from the kernel's counters and a run's summary."""

from __future__ import annotations

COUNTERS = """Inter-|   Receive | Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9000 90 0 0 0 0 0 0 8000 80 0 0 0 0 0 0
  eth0: 1000 10 0 0 0 0 0 0 20000 20 0 0 0 0 0 0
eth1:5 1 0 0 0 0 0 0 300 3 0 0 0 0 0 0
"""


def test_counters_of_all_interfaces_but_the_loopback(load):
    assert load("host_bytes").sent(COUNTERS) == (20_300, 23)


def test_rows_of_hosts(load):
    """Each rank has read its host's counters; a host counts once. Of 2 steps."""
    traffic = [{"between_hosts_bytes_per_step": sent, "planned_between_hosts_bytes_per_step": sent + 1}
               for sent in (100, 200, 400)]
    counts = [(1000, 4), (9999, 9), (2000, 5)]
    told = load("host_bytes").with_hosts({"losses": [1.0, 0.5], "traffic": traffic}, counts, ["b", "b", "a"])
    assert told["hosts"] == [
        {"name": "b", "ranks": [0, 1], "inter_host_bytes_per_step": 300, "planned_inter_host_bytes_per_step": 302,
         "interface_bytes_per_step": 500.0, "interface_payload_bytes_per_step": (1000 - 66 * 4) / 2},
        {"name": "a", "ranks": [2], "inter_host_bytes_per_step": 400, "planned_inter_host_bytes_per_step": 401,
         "interface_bytes_per_step": 1000.0, "interface_payload_bytes_per_step": (2000 - 66 * 5) / 2}]
    assert [row["inter_host_bytes_per_step"] for row in told["traffic"]] == [100, 200, 400]
