"""Horovod's exception classes at Horovod's place. What ringreduce itself raises is in ringreduce.errors."""

from __future__ import annotations

from ringreduce.errors import HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed. Never raised here: there is no elastic training yet.

    Args:
        skip_sync: hosts were removed only, so that state need not be synchronized.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework's version differs from the one compiled against. Never raised here: nothing is compiled against one.

    Args:
        name: the framework. version: of the build. installed_version: of what is installed.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"built with {name} {version}, but {name} {installed_version} is installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
