"""What is right and wrong between hosts, from what the ranks of probe.py have found; and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ringreduce.doctor.finding import Finding

FEW_FILES = 1024
UNEVEN = 2.0
"""A direction or a pair that is so much slower than the other, or than the middle one, is pointed out."""
LONG_WAY_S = 5e-3
"""From here on windows and restarts after pauses matter: 1 Gbit/s fills 625 KB in 5 ms."""
RESENT_PART = 1e-3
WINDOW_PART = 0.25
"""Of its limit a window carries about a half, the rest is the kernel's own use: from here on the limit may be felt."""
FILTER = (
    "a packet filter, or the wrong network: RINGREDUCE_PORTS says at which ports ranks listen, --network-interface "
    "where rank 0 does"
)
MEETING = "docs/user/hosts.md has a list: What to check when it does not start"
CLOCK_S = 1.0
MIB = 1 << 20


def of_hosts(names: Sequence[str], facts: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    """Each host by itself. names: as the user has given them, by rank."""
    for rank, one in sorted(facts.items()):
        topic = f"host {names[rank]}"
        yield Finding(
            topic,
            "system",
            f"{one['name']}: Linux {one['kernel']}, {one['cores']} cores, Python {one['python']}, ringreduce "
            f"{one['ringreduce']}",
        )
        yield _interfaces(topic, one)
        yield _own_name(topic, one)
        few = 0 < one["files"] < FEW_FILES
        yield Finding(
            topic,
            "open files",
            str(one["files"]) if one["files"] >= 0 else "unlimited",
            "note" if few else "ok",
            "each group has a connection to each other host: ulimit -n 4096, or LimitNOFILE of sshd" if few else "",
        )


def of_pairs(
    names: Sequence[str], facts: dict[int, dict[str, Any]], pairs: Sequence[dict[str, Any]]
) -> Iterator[Finding]:
    """Each pair of hosts, the caller first."""
    rates = [rate for pair in pairs if not pair["problem"] for rate in (pair["there"], pair["back"])]
    middle = median(rates) if rates else 0.0
    for pair in pairs:
        ends = [pair["caller"], pair["answerer"]]
        name = f"{names[ends[0]]} - {names[ends[1]]}"
        if pair["problem"]:
            whose = f"at {pair['ip']}:" if "missing" not in pair else names[pair["missing"]]
            yield Finding("network", name, f"{whose} {pair['problem']}", "problem", _cure(pair, facts))
            continue
        yield _pair(name, pair, middle)
        yield from _windows(name, pair, [facts[rank]["sysctl"] for rank in ends if rank in facts])
        if abs(pair["clock_s"]) > CLOCK_S:
            value = f"the clock of {names[ends[1]]} is {abs(pair['clock_s']):.1f} s {_ahead(pair['clock_s'])}"
            hint = "times in logs do not fit together: run an NTP client (chrony) on all hosts"
            yield Finding("network", name, value, "note", hint)


def _interfaces(topic: str, one: dict[str, Any]) -> Finding:
    shown = []
    for name, ip, mtu, speed in one["interfaces"]:
        rate = f", {speed / 1000:g} Gbit/s" if speed else ""
        shown.append(f"{ip} ({name}, MTU {mtu}{rate})")
    if not shown:
        hint = "no other host reaches it: connect it to a network"
        return Finding(topic, "addresses", "only loopback ones", "problem", hint)
    return Finding(topic, "addresses", ", ".join(shown))


def _own_name(topic: str, one: dict[str, Any]) -> Finding:
    if one["own_name"]:
        return Finding(topic, "own name", f"{one['name']} leads to {', '.join(one['own_name'])}")
    hint = (
        "ringrun and torchrun's MASTER_ADDR do not need it; under srun and mpirun set RINGREDUCE_ADDRESS, or write its "
        "address into /etc/hosts"
    )
    return Finding(topic, "own name", f"{one['name']} leads to no address that other hosts reach", "note", hint)


def _pair(name: str, pair: dict[str, Any], middle: float) -> Finding:
    there, back = pair["there"], pair["back"]
    value = (
        f"{_time(pair['round_trip_s'])} round trip (99 %: {_time(pair['p99_s'])}), {_rate(there)} there, "
        f"{_rate(back)} back"
    )
    packets = pair["nbytes"] / max(1, pair["mss"])
    if pair["resent"]:
        value += f", {pair['resent']} packets sent again"
    if max(there, back) > UNEVEN * min(there, back):
        hint = "one direction is slower: look for a duplex mismatch, a bad cable, a shaper (tc qdisc), another job"
        return Finding("network", name, value, "note", hint)
    if max(there, back) * UNEVEN < middle:
        hint = f"half as fast as the others ({_rate(middle)}), and a ring goes at the pace of its slowest link"
        return Finding("network", name, value, "note", hint)
    if pair["resent"] > RESENT_PART * packets:
        return Finding("network", name, value, "note", "packets are lost on the way: ethtool -S, ip -s link")
    return Finding("network", name, value)


def _windows(name: str, pair: dict[str, Any], sysctls: list[dict[str, str]]) -> Iterator[Finding]:
    """What the kernel's limits do to a link with a long way."""
    needed = int(max(pair["there"], pair["back"]) * pair["round_trip_s"])
    for path in ("net/ipv4/tcp_wmem", "net/ipv4/tcp_rmem"):
        limits = [int(sysctl[path].split()[-1]) for sysctl in sysctls if sysctl.get(path)]
        if limits and needed > WINDOW_PART * min(limits):
            key = path.replace("/", ".")
            value = f"{key} allows {min(limits) / MIB:.1f} MiB a connection, {needed / MIB:.1f} MiB are under way"
            most = max(1 << (4 * needed).bit_length(), *limits)
            hint = f"the link may be faster: raise the last number of sysctl {key} to {most} where it is less"
            yield Finding("network", name, value, "note", hint)
    idle = any(sysctl.get("net/ipv4/tcp_slow_start_after_idle") == "1" for sysctl in sysctls)
    if idle and pair["round_trip_s"] > LONG_WAY_S:
        value = "each burst begins slowly after a pause"
        hint = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0 on both hosts"
        yield Finding("network", name, value, "note", hint)


def _cure(pair: dict[str, Any], facts: dict[int, dict[str, Any]]) -> str:
    if "full ones" in pair["problem"]:
        known = [one[2] for one in facts.get(pair["answerer"], {}).get("interfaces", ()) if one[1] == pair["ip"]]
        header = 48 if ":" in pair["ip"] else 28  # IP and ICMP
        return (
            "a hop has a smaller MTU than the hosts and does not say so (a tunnel, a VLAN): find it by `ping -M do -s "
            f"{(known or [1500])[0] - header} {pair['ip']}`, and set that MTU on both hosts: ip link set dev IF mtu N"
        )
    return FILTER if "no connection" in pair["problem"] or "has not come" in pair["problem"] else ""


def _ahead(seconds: float) -> str:
    return "ahead" if seconds > 0 else "behind"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _rate(nbytes_per_s: float) -> str:
    bits = nbytes_per_s * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"
