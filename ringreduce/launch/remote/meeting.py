"""Which address rank 0 listens at: READY of all agents, LISTEN to that of rank 0's host, TRY to all others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from ringreduce.errors import MismatchError, UnavailableError
from ringreduce.job.tcp.interfaces import Interfaces
from ringreduce.launch.remote.messages import Kind
from ringreduce.launch.remote.news import Listening, Ready, Tried


class Meeting:
    """What the agents know of each other, by their hosts' numbers; 0 is rank 0's.

    Args:
        names: of the hosts.
        tell: sends a message to a host's agent.
        address: where rank 0 listens, if the user has said so: host and port, "" and 0 where not.
        ports: at which it may listen where no port is said.

    Methods raise UnavailableError, whose text is for the user, where the job cannot begin, and MismatchError where an
    agent speaks out of turn.
    """

    def __init__(
        self,
        names: Sequence[str],
        tell: Callable[[int, Kind, object], None],
        version: str,
        interfaces: Interfaces,
        address: tuple[str, int],
        ports: range,
    ) -> None:
        self.hosts: dict[int, Ready] = {}
        self._names = names
        self._tell = tell
        self._version = version
        self._interfaces = interfaces
        self._address = address
        self._ports = ports
        self._key = secrets.token_bytes(32).hex()
        self._asked: list[str] = []
        self._found: list[tuple[str, int]] | None = None
        self._reasons: dict[int, list[str]] = {}

    def name_of(self, host: int) -> str:
        """Once all are there: the name that the host has for itself, or, where any two have one, the user's for it."""
        own = [ready.name for ready in self.hosts.values()]
        return self.hosts[host].name if len(set(own)) == len(own) else self._names[host]

    def on_ready(self, host: int, news: Ready) -> bool:
        """One more is there. True: all are, and one host needs no address."""
        if host in self.hosts:
            raise MismatchError("READY for the second time")
        self.hosts[host] = news
        if news.version != self._version:
            raise UnavailableError(
                f"host {self._names[host]}: it has ringreduce {news.version}, and this host {self._version}: install "
                "one version on all hosts"
            )
        for other, known in self.hosts.items():
            if other != host and known.identity == news.identity:
                raise UnavailableError(
                    f"host {self._names[host]}: it is the same host as {self._names[other]}: name it once, with all "
                    "its slots"
                )
        if len(self.hosts) < len(self._names):
            return False
        if len(self._names) == 1:
            return True
        self._asked = self._candidates()
        port = self._address[1]
        ports = range(port, port + 1) if port else self._ports
        order = {"key": self._key, "hosts": self._asked, "ports": [ports.start, ports.stop]}
        self._tell(0, Kind.LISTEN, order | {"others": len(self._names) - 1})
        return False

    def on_listening(self, host: int, news: Listening) -> None:
        """Rank 0's host can be looked for."""
        # Where the user has named the host, the agent says which address the name leads to.
        is_asked = bool(self._address[0]) or {ip for ip, _ in news.addresses} <= set(self._asked)
        if host != 0 or self._found is not None or not self._asked or not is_asked:
            raise MismatchError("LISTENING where it was not asked to")
        self._found = news.addresses
        if not self._found:
            refused = "; ".join(f"{ip}: {why}" for ip, why in news.refused.items())
            raise UnavailableError(f"host {self._names[0]}: rank 0 cannot listen there: {refused}")
        for other in range(1, len(self._names)):
            self._tell(other, Kind.TRY, {"key": self._key, "addresses": self._found})

    def on_tried(self, host: int, news: Tried) -> tuple[str, int] | None:
        """What one more host reaches. Once all have said it: the address."""
        if self._found is None or host == 0 or host in self._reasons or len(news.reasons) != len(self._found):
            raise MismatchError("TRIED what it was not asked for")
        self._reasons[host] = news.reasons
        if len(self._reasons) < len(self._names) - 1:
            return None
        for number, address in enumerate(self._found):
            if not any(reasons[number] for reasons in self._reasons.values()):
                return address
        worst = max(self._reasons, key=lambda other: sum(map(bool, self._reasons[other])))
        tried = "; ".join(
            f"{ip} port {port}: {why}" for (ip, port), why in zip(self._found, self._reasons[worst], strict=True) if why
        )
        raise UnavailableError(
            f"no address of {self._names[0]}, where rank 0 runs, is reached from all hosts. From {self._names[worst]}: "
            f"{tried}. Open the way in the packet filter (RINGREDUCE_PORTS says at which ports), or name an "
            "interface (--network-interface)"
        )

    def _candidates(self) -> list[str]:
        """At which addresses rank 0's host may be found: where ssh has seen it, then those of its interfaces."""
        first, others = self.hosts[0], [ready for host, ready in self.hosts.items() if host != 0]
        if self._address[0]:
            return [self._address[0]]
        own = [ip for name, ip in first.addresses if self._interfaces.have(name)]
        if not own:
            has = ", ".join(sorted({name for name, _ in first.addresses})) or "none"
            which = f" that {self._interfaces.named_by} allows" if self._interfaces.names else ""
            raise UnavailableError(
                f"host {self._names[0]}: it has no network interface{which}, by which other hosts could reach it; it "
                f"has {has}"
            )
        seen = [first.seen_at] if first.seen_at else [ready.seen_from for ready in others]
        return list(dict.fromkeys([ip for ip in seen if ip in own] + own))
