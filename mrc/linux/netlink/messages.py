# SPDX-License-Identifier: Apache-2.0
"""pyroute2's message classes, without the rest of pyroute2.

The package's first lines load all of it (NDB, ethtool, nftables), which takes longer than a whole
`mrc testbed` command. So these modules are loaded below a package that runs its first lines only
when a program uses another of its names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

_PACKAGE = "pyroute2"


class _Waiting(ModuleType):
    """A package that has not run its first lines."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        module = f"{self.__name__}.{name}"
        if importlib.util.find_spec(module):
            return importlib.import_module(module)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _wait() -> None:
    if _PACKAGE not in sys.modules and (spec := importlib.util.find_spec(_PACKAGE)):
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _Waiting
        sys.modules[_PACKAGE] = package


_wait()

from pyroute2.netlink import nla, nlmsg  # noqa: E402
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: E402
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # noqa: E402
from pyroute2.netlink.rtnl.ndmsg import ndmsg  # noqa: E402
from pyroute2.netlink.rtnl.tcmsg import sched_netem, sched_tbf, tcmsg  # noqa: E402

__all__ = [
    "ifaddrmsg",
    "ifinfmsg",
    "ndmsg",
    "nla",
    "nlmsg",
    "sched_netem",
    "sched_tbf",
    "tcmsg",
]
