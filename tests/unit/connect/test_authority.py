# SPDX-License-Identifier: Apache-2.0
"""Contexts that know each other by a certificate authority, over loopback."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from meetings import A, B, TestAuthority, exchange, meet, refused
from slowness import PATIENCE

import mrc
from mrc.connect import connect as connecting_module
from mrc.enums import Seal
from mrc.errors import ConfigError, ConnectError
from mrc.trust.identity import load
from mrc.trust.security import Authority, Security

CLOCKS = "check the clocks"


@pytest.fixture
def ca(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path)


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that refuses a certificate looks like one that drops connections: see upgrade.py."""
    monkeypatch.setattr(connecting_module, "_DROPS", 0)


@pytest.fixture
def listening(ca: TestAuthority) -> Security:
    return Security(authority=ca.issue(B), allow=(A,))


@pytest.fixture
def connecting(ca: TestAuthority) -> Security:
    return Security(authority=ca.issue(A), peer=B)


async def test_names__both_know_each_other(
    connecting: Security, listening: Security, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRC_IDENTITY", str(tmp_path / "identity.pem"))
    ((out, back),) = await meet(connecting, listening)
    assert (out.peer_identity, back.peer_identity) == (B, A)
    assert out.seal is back.seal is Seal.AEAD
    assert not (tmp_path / "identity.pem").exists(), "nobody needs a key beside"


async def test_names__from_a_file(connecting: Security, listening: Security, ca: TestAuthority,
                                  tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "peers").write_text(f"{A}  # trainers\n")
    allow = (str(tmp_path / "peers"),)
    ((_, back),) = await meet(connecting, dataclasses.replace(listening, allow=allow))
    assert back.peer_identity == A


async def test_names__one_that_may_not(
    connecting: Security, listening: Security, ca: TestAuthority
) -> None:
    why = await refused(connecting, dataclasses.replace(listening, allow=(B,)))
    assert f"{A} may not connect" in why and "--allow" in why
    nameless = dataclasses.replace(connecting, authority=ca.issue())
    assert "without a SPIFFE name may not connect" in await refused(nameless, listening)


async def test_names__of_another_host(connecting: Security, listening: Security) -> None:
    why = await refused(dataclasses.replace(connecting, peer=A), listening)
    assert f"is {B}, not {A}" in why


async def test_names__a_certificate_has_one(
    connecting: Security, listening: Security, ca: TestAuthority
) -> None:
    two = ca.issue(A, B, file="two")
    assert "more than one" in await refused(
        dataclasses.replace(connecting, authority=two), listening
    )
    assert "more than one" in await refused(
        connecting, dataclasses.replace(listening, authority=two)
    )


async def test_no_name__the_address_counts(ca: TestAuthority, connecting: Security) -> None:
    anybody = dataclasses.replace(connecting, peer="")
    here = Security(authority=ca.issue(file="here", addresses=("127.0.0.1",)))
    ((out, back),) = await meet(anybody, here)
    assert (out.peer_identity, back.peer_identity) == ("certificate", A)
    there = Security(authority=ca.issue(B, file="there", addresses=("127.0.0.9",)))
    why = await refused(anybody, there)
    assert "for another address" in why and "--peer" in why


@pytest.mark.parametrize(
    ("begins", "ends", "words"), [(-3, -2, "has expired"), (2, 3, "is not valid yet")]
)
async def test_dates__of_either_side(
    connecting: Security,
    listening: Security,
    ca: TestAuthority,
    begins: int,
    ends: int,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both sides learn why: the one that must act, and the one that refuses."""
    theirs = ca.issue(B, file="late", begins=begins, ends=ends)
    why = await refused(connecting, dataclasses.replace(listening, authority=theirs))
    assert "127.0.0.1: its certificate" in why and words in why and CLOCKS in why
    assert f"{theirs.certificate}: this certificate {words}" in caplog.text
    caplog.clear()
    ours = ca.issue(A, file="late", begins=begins, ends=ends)
    why = await refused(dataclasses.replace(connecting, authority=ours), listening)
    assert str(ours.certificate) in why and words in why and CLOCKS in why
    assert f"127.0.0.1: its certificate {words}" in caplog.text


async def test_authority__another_one(
    connecting: Security, listening: Security, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides learn why."""
    other = TestAuthority(tmp_path, "other")
    theirs = dataclasses.replace(listening, authority=other.issue(B, file="x"))
    assert "not of this host's authority" in await refused(connecting, theirs)
    unknown = "it does not know this host's authority: both hosts need the same --ca"
    assert f"127.0.0.1 refused this host: {unknown}" in caplog.text
    caplog.clear()
    # The listening side alone has another authority.
    assert listening.authority is not None
    mixed = dataclasses.replace(listening.authority, ca=other.ca)
    why = await refused(connecting, dataclasses.replace(listening, authority=mixed))
    assert "does not know this host's authority: both hosts need the same --ca" in why
    assert "not of this host's authority" in caplog.text


async def test_authority__beside_keys(
    connecting: Security, listening: Security, tmp_path: Path
) -> None:
    ours, theirs = load(tmp_path / "a.pem"), load(tmp_path / "b.pem")
    key = Security(identity=ours.path, peer=theirs.fingerprint)
    assert "requires a certificate of its authority: --ca" in await refused(key, listening)
    keys = Security(identity=theirs.path, allow=(ours.fingerprint,))
    assert "is of no authority" in await refused(connecting, keys)


@pytest.mark.parametrize("peer", ["spiffe://cluster/a", "mrc:SHA256:" + "A" * 43])
def test_peer__of_the_right_kind(ca: TestAuthority, peer: str) -> None:
    authority = None if peer.startswith("spiffe") else ca.issue(A)
    with pytest.raises(ConfigError, match=r"peer: .* is not a"):
        Security(authority=authority, peer=peer)


# ---- Files that change -------------------------------------------------------------------------


async def test_files__are_read_anew_when_they_change(
    connecting: Security, ca: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the writes of certificate and key the pair of before counts."""
    listening = Security(authority=ca.issue(B))
    config = mrc.ContextConfig(interfaces=("lo",), security=connecting)
    async with (
        mrc.Context(dataclasses.replace(config, security=listening)) as other,
        await other.listen("127.0.0.1", 0) as listener,
    ):

        async def shown(peer: str) -> str:
            security = dataclasses.replace(connecting, peer=peer)
            async with mrc.Context(dataclasses.replace(config, security=security)) as one:
                return (await exchange(one, listener))[0].peer_identity

        assert await shown(B) == B
        renewed = ca.issue(B + "/2", file="renewed")
        assert listening.authority is not None
        os.replace(renewed.certificate, listening.authority.certificate)
        for _ in range(2):
            assert await shown(B) == B
        said = [record.message for record in caplog.records if "stay in use" in record.message]
        assert len(said) == 1 and "is not the key of" in said[0]
        os.replace(renewed.key, listening.authority.key)
        assert await shown(B + "/2") == B + "/2"
        with pytest.raises(ConnectError, match="/2, not"):
            await shown(B)


async def test_files__a_new_authority_ends_the_old_one(
    connecting: Security, ca: TestAuthority, tmp_path: Path
) -> None:
    listening = Security(authority=ca.issue(B))
    config = mrc.ContextConfig(interfaces=("lo",), security=listening)
    new = TestAuthority(tmp_path, "new")
    async with (
        mrc.Context(config) as other,
        await other.listen("127.0.0.1", 0) as listener,
        mrc.Context(dataclasses.replace(config, security=connecting)) as one,
    ):
        await exchange(one, listener)
        new.issue(A), new.issue(B)  # over the files of both hosts
        os.replace(new.ca, ca.ca)
        await exchange(one, listener)
        old = TestAuthority(tmp_path, "old").issue(A, file="old")
        stale = Security(authority=dataclasses.replace(old, ca=ca.ca), peer=B)
        async with mrc.Context(dataclasses.replace(config, security=stale)) as late:
            with pytest.raises(ConnectError, match="does not know this host's authority"):
                await late.connect("127.0.0.1", listener.port, timeout=PATIENCE)


@pytest.mark.parametrize("wrong", ["missing", "garbage", "other key", "password", "no ca"])
async def test_files__wrong_ones_are_named(
    ca: TestAuthority, listening: Security, wrong: str
) -> None:
    good, other = ca.issue(A), ca.issue(A, file="other", password=b"secret" * (wrong == "password"))
    garbage = ca.folder / "garbage"
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    files, words = {
        "missing": (Authority(good.ca, ca.folder / "no.crt", good.key), "no.crt: no such file"),
        "garbage": (Authority(good.ca, garbage, good.key), "garbage, "),
        "other key": (Authority(good.ca, good.certificate, other.key), "is not the key of"),
        "password": (Authority(good.ca, other.certificate, other.key), "without a password"),
        "no ca": (Authority(garbage, good.certificate, good.key), "no certificate of an auth"),
    }[wrong]
    config = mrc.ContextConfig(interfaces=("lo",), security=listening)
    async with (
        mrc.Context(config) as other_side,
        await other_side.listen("127.0.0.1", 0) as listener,
        mrc.Context(dataclasses.replace(config, security=Security(authority=files))) as one,
    ):
        with pytest.raises(ConfigError) as caught:
            await one.connect("127.0.0.1", listener.port, timeout=PATIENCE)
    assert words in str(caught.value) and "\n" not in str(caught.value)
