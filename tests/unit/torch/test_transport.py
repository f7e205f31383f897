# SPDX-License-Identifier: Apache-2.0
"""The transport of torch in one process, and what runs at `import torch`."""

from __future__ import annotations

import atexit
import queue
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from slowness import PATIENCE

from mrc import ConfigError, ContextConfig
from mrc.errors import ConnectError
from mrc.torch import entry
from mrc.torch.group import MemberAddress
from mrc.torch.transport import GlooTransport, check_interfaces, config_of, name_of

SPACE, USER = 7, 1
NOBODY = MemberAddress(
    bytes(16), "127.0.0.1", 1
).pack()  # its token is the smallest, so it has to dial


class Shim:
    """In place of the compiled library: keeps what it is told."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[int, str, bool]] = queue.Queue()

    def attach(self, functions: object) -> None: ...

    def stop(self) -> None: ...

    def lost(self, user: int, peer: int, text: str, *, everything: bool) -> None:
        self.told.put((user, text, everything))


@contextmanager
def transport() -> Iterator[tuple[GlooTransport, Shim]]:
    shim: Any = Shim()
    made = GlooTransport(shim)
    try:
        yield made, shim
    finally:
        made._at_exit()
        atexit.unregister(made._at_exit)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[GlooTransport, Shim]]]:
    """Ranks 0 and 1 of a group of three, connected with each other."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with ExitStack() as held:
        found = [held.enter_context(transport()) for _ in range(2)]
        addresses = [made.address() for made, _ in found]
        for rank, (made, _) in enumerate(found):
            made.open(SPACE, USER)
            made.connect(SPACE, 1 - rank, addresses[1 - rank])
        yield found


def test_failed__the_others_are_told(two: list[tuple[GlooTransport, Shim]]) -> None:
    for made, _ in two:
        assert len(made.ready(SPACE, PATIENCE)) == 1
    two[0][0].failed(SPACE, "timed out")
    assert two[1][1].told.get(timeout=PATIENCE) == (USER, "rank 0: timed out", True)


def test_ready__the_others_are_told_that_it_failed(two: list[tuple[GlooTransport, Shim]]) -> None:
    for made, _ in two:
        made.ready(SPACE, PATIENCE)
    two[0][0].connect(SPACE, 2, NOBODY)
    with pytest.raises(ConnectError, match=r"^rank 2 did not connect within 0\.01 s$"):
        two[0][0].ready(SPACE, 0.01)
    said = "rank 0: rank 2 did not connect within 0.01 s"
    assert two[1][1].told.get(timeout=PATIENCE) == (USER, said, True)


# ---- This host ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "interfaces"),
    [
        ({}, ()),
        ({"GLOO_SOCKET_IFNAME": "eth1,eth2"}, ("eth1", "eth2")),
        ({"MASTER_ADDR": "127.0.0.1"}, ("127.0.0.1",)),
        ({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "x"}, ("x",)),
    ],
)
def test_config_of__interfaces(environ: dict[str, str], interfaces: tuple[str, ...]) -> None:
    assert config_of(environ).interfaces == interfaces
    assert config_of(environ).program == "torch"
    assert config_of(environ | {"RANK": "3"}).program == "torch rank 3"


def test_name_of__the_address_towards_the_master() -> None:
    assert name_of({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert name_of({}) != ""
    assert name_of({"MASTER_ADDR": "no.such.host.invalid"}) != ""


def test_config_of__a_secret(tmp_path: Path) -> None:
    file = tmp_path / "job.key"
    file.write_bytes(bytes(range(32)))
    file.chmod(0o600)
    security = config_of({"MRC_SECRET": str(file)}).security
    assert security is not None and security.shared.bytes == bytes(range(32))
    assert config_of({"MRC_SECRET": ""}).security is None


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0, "no such file"),
        (bytes(31), 0o600, "has not 32 bytes; make one with: mrc key --secret"),
        (bytes(32), 0o644, r"others may read it \(mode 0644\): chmod 600"),
    ],
)
def test_config_of__a_wrong_secret(
    content: bytes | None, mode: int, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.key"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=why):
        config_of({"MRC_SECRET": str(file)})


def test_check_interfaces__none_can_be_used() -> None:
    two = ContextConfig(interfaces=("eth1", "eth2"))
    check_interfaces(two, ["no interface eth1"])
    check_interfaces(ContextConfig(), [])
    with pytest.raises(ConfigError, match=r"^GLOO_SOCKET_IFNAME: no interface eth1; eth2 is down$"):
        check_interfaces(two, ["no interface eth1", "eth2 is down"])


# ---- At `import torch` --------------------------------------------------------------------------


class FakeBackend:
    backend_list: tuple[str, ...] = ("gloo",)
    made: dict[str, Any]

    @classmethod
    def register_backend(cls, name: str, function: Any, devices: list[str]) -> None:
        cls.made = {name: devices}
        cls.backend_list = (*cls.backend_list, name)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeBackend]:
    """A torch.distributed that notes what is registered."""
    module = types.ModuleType("torch.distributed")
    fresh = type("Backend", (FakeBackend,), {"made": {}})
    module.is_available = lambda: True  # type: ignore[attr-defined]
    module.Backend = fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    monkeypatch.delenv("GLOO_DEVICE_TRANSPORT", raising=False)
    return fresh


def test_entry_point__is_torchs() -> None:
    (ours,) = [point for point in entry_points(group="torch.backends") if point.name == "mrc"]
    assert ours.load() is entry.autoload


def test_autoload__names_the_group(fake: type[FakeBackend]) -> None:
    entry.autoload()
    entry.autoload()
    assert fake.made == {"mrc": ["cpu", "cuda"]}
    assert fake.backend_list == ("gloo", "mrc")


def test_autoload__without_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "MRC")
    entry.autoload()
    assert "torch.distributed" not in sys.modules


def test_autoload__imports_little() -> None:
    """Without the variable, neither the engine nor asyncio is loaded."""
    program = (
        "import sys; before = set(sys.modules); import mrc.torch.entry;"
        "mrc.torch.entry.autoload(); print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "mrc.torch.entry" in loaded
    assert not {"asyncio", "mrc._core", "mrc.torch.transport", "ctypes"} & set(loaded)
    assert len(loaded) < 20, loaded
