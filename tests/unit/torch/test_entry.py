# SPDX-License-Identifier: Apache-2.0
"""What `import torch` pays for mrc: nearly nothing, unless the variable asks for it."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.metadata import entry_points
from typing import Any

import pytest

from mrc.torch import entry


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
