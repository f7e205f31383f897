# SPDX-License-Identifier: Apache-2.0
"""Which interfaces a rank uses, and where its peers find it."""

from __future__ import annotations

from mrc.torch.hosts import config_of, name_of


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
