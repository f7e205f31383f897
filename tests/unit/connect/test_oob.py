# SPDX-License-Identifier: Apache-2.0
"""The codec of the exchange: round trips, refusals, and arbitrary bytes."""

from __future__ import annotations

import copy
import dataclasses
import json
import struct
from ipaddress import ip_interface
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mrc.connect.oob import (
    FRAME_BYTES,
    SNAPSHOT_BYTES,
    VERSION,
    Attributes,
    Hello,
    decode_body,
    decode_length,
    encode_frame,
    hello_from_dict,
    hello_to_dict,
)
from mrc.connect.parse import MAX_WHOLE
from mrc.errors import ProtocolError
from mrc.fabric.paths import RemotePort

HELLO = Hello(
    host="h0",
    attributes=Attributes(
        qpn=0x1234,
        first_psn=0xABCDEF,
        path_mtu=8844,
        mpr=1024,
        max_wimm=128,
        integrity="icrc",
        udp_port=4791,
        ports=(
            RemotePort("p1", ip_interface("fd00:a:0::1/64"), (40000,), 8844),
            RemotePort("p2", ip_interface("10.0.0.1/24"), (40001, 40002), 1428),
        ),
    ),
    private={"service": "files", "n": [1, 2, {"deep": None}]},
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_WHOLE, MAX_WHOLE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_encode_frame__round_trip(fields: dict[str, Any]) -> None:
    message = {**fields, "type": "x"}
    frame = encode_frame(message)
    assert decode_length(frame[:4], SNAPSHOT_BYTES) == len(frame) - 4
    assert decode_body(frame[4:]) == message


def test_encode_frame__a_message_over_the_limit() -> None:
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        encode_frame({"type": "x", "blob": "x" * SNAPSHOT_BYTES})


@pytest.mark.parametrize("length", [SNAPSHOT_BYTES + 1, 0xFFFFFFFF])
def test_decode_length__out_of_bounds(length: int) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        decode_length(struct.pack(">I", length))


def test_decode_length__over_the_limit_of_the_moment() -> None:
    header = struct.pack(">I", FRAME_BYTES + 1)
    with pytest.raises(ProtocolError, match="4097 bytes, the limit is 4096"):
        decode_length(header)
    assert decode_length(header, FRAME_BYTES + 1) == FRAME_BYTES + 1


def test_decode_length__http_is_no_frame() -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        decode_length(b"GET ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"type": 1}',
        b"nonsense",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"type": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_decode_body__no_message(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        decode_body(body)


@given(st.binary(max_size=300))
def test_decode_body__any_bytes_give_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = decode_body(body)
    except ProtocolError:
        return
    assert isinstance(message["type"], str)


def test_hello__round_trip_through_json() -> None:
    assert hello_from_dict(json.loads(json.dumps(hello_to_dict(HELLO)))) == HELLO


def test_hello__other_readings() -> None:
    other = replace(HELLO, attributes=dataclasses.replace(HELLO.attributes, readings=("C3-B",)))
    message = hello_to_dict(other)
    assert message["attributes"]["readings"] == ("C3-B",)
    assert hello_from_dict(message) == other
    assert "readings" not in hello_to_dict(HELLO)["attributes"]


def test_hello__its_bytes() -> None:
    """Later versions must send the same bytes, so that different versions can connect."""
    said = replace(HELLO, host="h\u00e9", private={"n": [1, 2.5, {"deep": None}]})
    assert encode_frame(hello_to_dict(said))[4:].decode() == (
        '{"type":"hello","version":3,"host":"h\\u00e9","private":{"n":[1,2.5,{"deep":null}]},'
        '"attributes":{"qpn":4660,"first_psn":11259375,"path_mtu":8844,"mpr":1024,"max_wimm":128,'
        '"integrity":"icrc","udp_port":4791,"trim_nack":false,"dynamic_mpr":false,'
        '"seal":"none","seal_random":"","service_time":false,"sack_times":false,"inbox":null,'
        '"ports":[{"nic":"p1","address":"fd00:a::1/64","source_ports":[40000],"mtu":8844},'
        '{"nic":"p2","address":"10.0.0.1/24","source_ports":[40001,40002],"mtu":1428}]}}'
    )


def test_hello__unknown_keys_are_ignored() -> None:
    message = hello_to_dict(HELLO)
    message["colour"] = "blue"
    message["attributes"]["future"] = {"x": 1}
    message["attributes"]["ports"][0]["speed"] = 400
    assert hello_from_dict(message) == HELLO


@pytest.mark.parametrize("version", [0, 1, 1000])
def test_hello__another_version_is_named_whatever_else_it_says(version: int) -> None:
    with pytest.raises(
        ProtocolError, match=f"speaks version {version} .* this host version {VERSION}"
    ):
        hello_from_dict({"type": "hello", "version": version})


def set_at(message: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    target: Any = message
    for name in parents:
        target = target[int(name) if name.isdigit() else name]
    target[last] = value


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("version", [None, "1", True]),
        ("host", [None, 7, "x" * 256, "a\nb"]),
        ("private", [None, [], "x"]),
        ("attributes", [None, [], 1]),
        ("attributes.qpn", [None, -1, 0, 2, 1 << 24, 3.0, True, "3"]),
        ("attributes.first_psn", [None, -1, 1 << 24]),
        ("attributes.path_mtu", [None, 0, 252, 1025, 16388]),
        ("attributes.mpr", [None, 0, 127, 1000, 4224]),
        ("attributes.max_wimm", [None, 0, 65536]),
        ("attributes.integrity", [None, "none", 0]),
        ("attributes.udp_port", [None, 0, 65536]),
        ("attributes.ports", [None, [], [None] * 33, ["x"], {}]),
        ("attributes.ports.0.nic", [None, 1, "x" * 65]),
        ("attributes.ports.0.address", [None, "x", 1, "10.0.0.300", "1" * 65]),
        ("attributes.ports.0.address", ["224.0.0.1/24", "ff02::1", "0.0.0.0", "::", "240.0.0.1"]),
        ("attributes.ports.0.address", ["255.255.255.255", "10.0.0.255/24", "::ffff:10.0.0.1"]),
        ("attributes.ports.0.source_ports", [None, [], [0], [65536], ["1"], [1] * 65]),
        ("attributes.ports.0.mtu", [None, -4, 16388]),
    ],
)
def test_hello__each_attribute_is_checked(path: str, values: list[object]) -> None:
    for value in values:
        message = copy.deepcopy(hello_to_dict(HELLO))
        set_at(message, path, value)
        with pytest.raises(ProtocolError, match=path.rpartition(".")[2].rstrip("s")):
            hello_from_dict(message)


@given(JSON)
def test_hello__any_json_gives_a_hello_or_a_protocol_error(value: object) -> None:
    message = hello_to_dict(HELLO)
    for candidate in (value, {**message, "attributes": value}):
        if not isinstance(candidate, dict):
            continue
        try:
            hello_from_dict(candidate)
        except ProtocolError:
            pass


def test_hello__optional_capabilities_default_to_none() -> None:
    message = hello_to_dict(
        replace(HELLO, attributes=dataclasses.replace(HELLO.attributes, trim_nack=True))
    )
    assert hello_from_dict(message).attributes.trim_nack
    for name in ("trim_nack", "dynamic_mpr", "service_time", "sack_times"):
        del message["attributes"][name]
    assert hello_from_dict(message) == HELLO
