# SPDX-License-Identifier: Apache-2.0
"""Which interfaces a rank uses, and where its peers find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc import ConfigError, ContextConfig
from mrc.torch.transport import check_interfaces, config_of, name_of


def test_config_of__all_interfaces() -> None:
    assert config_of({}).interfaces == ()
    assert config_of({}).program == "torch"
    assert config_of({"RANK": "3"}).program == "torch rank 3"


def test_config_of__named_interfaces() -> None:
    assert config_of({"GLOO_SOCKET_IFNAME": "eth1,eth2"}).interfaces == ("eth1", "eth2")


def test_config_of__ranks_of_one_host() -> None:
    assert config_of({"MASTER_ADDR": "127.0.0.1"}).interfaces == ("127.0.0.1",)
    assert config_of({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "x"}).interfaces == ("x",)


def test_name_of__the_address_towards_the_master() -> None:
    assert name_of({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"


def test_name_of__without_a_master() -> None:
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
