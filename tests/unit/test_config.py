# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from mrc.config import ContextConfig
from mrc.errors import ConfigError


def test_config__the_defaults_are_valid_and_give_up_after_about_nine_seconds() -> None:
    config = ContextConfig()
    interval = 1.024e-6 * 2**config.timeout
    linear = config.retry_linear * interval
    exponential = sum(interval * 2**k for k in range(1, config.retry_exp + 1))
    assert 8 < linear + exponential < 10


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("udp_port", [-1, 65536]),
        ("evs_per_pair", [0, 65]),
        ("mpr", [0, 100, 129, 4224]),
        ("sq_depth", [0, 65537]),
        ("max_wimm", [0, 1025]),
        ("timeout", [0, 25]),
        ("retry_linear", [-1, 8]),
        ("retry_exp", [-1, 26]),
        ("spray", [-1, 65]),
        ("mtu_limit", [0, 252, 1026, 16388]),
        ("spin_us", [-1, 65536]),
        ("max_pending", [0]),
        ("max_unread", [0]),
        ("exchange_timeout", [0.0, -1.0]),
        ("linger", [-1.0]),
    ],
)
def test_config__each_value_out_of_range_is_named(name: str, values: list[int]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            ContextConfig(**{name: value})
