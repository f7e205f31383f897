# SPDX-License-Identifier: Apache-2.0
"""The tools of the attacks work: otherwise a failed attack would prove nothing."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest
from attack import forge
from attack.net import ADDRESSES, PORT, Net, crowd

from mrc.dissect.packet import UdpFlow


@pytest.mark.default
def test_net__an_honest_sender_is_served(net: Net, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"honest")
    (tmp_path / "in").mkdir()
    receiver = net.mrc("b", "recv", "--once", "--output", tmp_path / "in").until_listening()
    net.mrc("a", "send", tmp_path / "f", ADDRESSES["b"]).ends(0)
    receiver.ends(0)
    assert (tmp_path / "in" / "f").read_bytes() == b"honest"


def test_spoof__any_source_address_and_a_right_icrc(net: Net) -> None:
    body = forge.bth(forge.EV_PROBE, forge.ENDPOINT_QPN, 1) + bytes(8)
    with net.udp("v", PORT) as heard, net.raw() as raw:
        forge.spoof(raw, ADDRESSES["a"], ADDRESSES["v"], 4000, PORT, body)
        payload, source = heard.recvfrom(2048)
    assert source == (ADDRESSES["a"], 4000)
    assert payload[:-4] == body
    flow = UdpFlow(ip_address(ADDRESSES["a"]), ip_address(ADDRESSES["v"]), 4000, PORT)
    assert payload[-4:] == flow.icrc(body)


def test_tcp__the_crowd_of_the_attacker_reaches_the_exchange(net: Net, tmp_path: Path) -> None:
    net.mrc("b", "recv", "--output", tmp_path).until_listening()
    with net.tcp("b", source=crowd(700)) as tcp:
        tcp.sendall(forge.frame({"type": "rtr"}))
        refusal = forge.answer(tcp)
    assert refusal is not None and refusal["type"] == "refuse"
