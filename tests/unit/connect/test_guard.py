# SPDX-License-Identifier: Apache-2.0
"""Contexts that prove themselves to each other, over loopback: by secrets, keys and a certificate
authority.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest
from meetings import A, B, TestAuthority, exchange, host, meet, refused, waiting
from slowness import PATIENCE

from mrc.connect import admission
from mrc.connect import connect as connecting_module
from mrc.connect.admission import Owner
from mrc.connect.identity import ChangedError, Identity, KnownHosts, load
from mrc.connect.proofs import new_code
from mrc.connect.security import Authority, Commands, Security
from mrc.enums import Seal
from mrc.errors import ConfigError, ConnectError, MrcError

SECRET = bytes(range(32))


@pytest.fixture
def ours(tmp_path: Path) -> Identity:
    return load(tmp_path / "a.pem")


@pytest.fixture
def theirs(tmp_path: Path) -> Identity:
    return load(tmp_path / "b.pem")


async def test_plain__proves_nothing() -> None:
    ((out, back),) = await meet(None, None)
    assert (out.peer.identity, back.peer.identity) == ("", "")
    assert out.seal is back.seal is Seal.NONE


async def test_key__both_know_each_other(ours: Identity, theirs: Identity) -> None:
    ((out, back),) = await meet(
        Security(identity=ours.path, peer=theirs.fingerprint),
        Security(identity=theirs.path, allow=(ours.fingerprint,)),
    )
    assert out.peer.identity == theirs.fingerprint
    assert back.peer.identity == ours.fingerprint
    assert out.seal is back.seal is Seal.AEAD
    # The secrets follow from these, so no end keeps them, nor the note of an agent: an index.
    assert {each._peer.attributes.seal_random for each in (out, back)} == {"0" * 64}


async def test_key__from_a_file_of_keys(ours: Identity, theirs: Identity, tmp_path: Path) -> None:
    (tmp_path / "peers").write_text(f"# a comment\n{ours.fingerprint} a's laptop\n")
    await meet(
        Security(identity=ours.path, peer=theirs.fingerprint),
        Security(identity=theirs.path, allow=(str(tmp_path / "peers"),)),
    )


async def test_key__one_that_may_not(ours: Identity, theirs: Identity) -> None:
    why = await refused(
        Security(identity=ours.path, peer=theirs.fingerprint),
        Security(identity=theirs.path, allow=(theirs.fingerprint,)),
    )
    assert ours.fingerprint in why and "--allow" in why


async def test_key__of_another_host(
    ours: Identity, theirs: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides learn why."""
    why = await refused(
        Security(identity=ours.path, peer=ours.fingerprint),
        Security(identity=theirs.path, allow_any=True),
    )
    assert f"is {theirs.fingerprint}, not {ours.fingerprint}: compare that with: mrc key" in why
    assert f"127.0.0.1 refused this host: 127.0.0.1 is {theirs.fingerprint}, not" in caplog.text


async def test_known_hosts__first_asked_then_remembered_then_changed(
    ours: Identity, theirs: Identity, tmp_path: Path
) -> None:
    asked: list[str] = []

    async def ask(host: str, shown: str) -> bool:
        asked.append(shown)
        return True

    known = tmp_path / "known"
    listening = Security(identity=theirs.path, allow_any=True)
    security = Security(identity=ours.path, known_hosts=known)
    assert "is not known" in await refused(security, listening)
    asking = dataclasses.replace(security, ask=ask)
    await meet(asking, listening)
    await meet(asking, listening)
    await meet(security, listening)
    assert asked == [theirs.fingerprint]
    assert KnownHosts(known).fingerprint("127.0.0.1") == theirs.fingerprint
    with pytest.raises(ChangedError, match="another key than before"):
        await meet(asking, Security(identity=ours.path, allow_any=True))


async def test_known_hosts__nobody_waits_while_the_user_thinks(
    ours: Identity, theirs: Identity, tmp_path: Path
) -> None:
    async with waiting(Security(identity=theirs.path, allow_any=True)) as (other, listener):

        async def ask(host: str, shown: str) -> bool:
            async with asyncio.timeout(PATIENCE):
                while other._opened().admission.pending:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)
            return True

        connecting = Security(identity=ours.path, known_hosts=tmp_path / "known", ask=ask)
        async with host(connecting) as one:
            out, _ = await exchange(one, listener)
    assert out.peer.identity == theirs.fingerprint


async def test_known_hosts__the_user_says_no(
    ours: Identity, theirs: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(host: str, shown: str) -> bool:
        return False

    connecting = Security(identity=ours.path, known_hosts=tmp_path / "known", ask=ask)
    why = await refused(connecting, Security(identity=theirs.path, allow_any=True))
    assert why == "127.0.0.1 was not accepted"
    assert not (tmp_path / "known").exists()
    assert f"does not know this host's key {theirs.fingerprint} yet" in caplog.text


async def test_ways__nobody_is_asked_about_a_host_that_takes_no_key(
    ours: Identity, theirs: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides learn what to run."""

    async def ask(host: str, shown: str) -> bool:
        raise AssertionError

    commands = Commands("mrc perf --server", "mrc perf host-b")
    connecting = Security(
        identity=ours.path, known_hosts=tmp_path / "known", ask=ask, commands=commands
    )
    code = new_code()
    why = await refused(connecting, Security(identity=theirs.path, code=code))
    assert "takes a one-time code, not a key" in why
    assert why.endswith("code that 127.0.0.1 shows into: mrc perf host-b --code")
    assert f"127.0.0.1 refused this host: {why}" in caplog.text
    why = await refused(connecting, Security(identity=theirs.path, plain_loopback=True))
    assert "start mrc perf --server --code on 127.0.0.1" in why
    assert why.endswith("into: mrc perf host-b --code")
    why = await refused(connecting, Security(identity=theirs.path, secret=SECRET))
    assert "mrc perf host-b --secret FILE" in why
    why = await refused(Security(secret=SECRET), Security(identity=theirs.path, allow_any=True))
    assert "takes a key (--allow), not a secret" in why and "mrc send FILE HOST --code" in why


async def test_secret__both_have_it(theirs: Identity) -> None:
    listening = Security(identity=theirs.path, secret=SECRET)
    ((out, back),) = await meet(Security(secret=SECRET), listening)
    assert (out.peer.identity, back.peer.identity) == ("secret", "secret")
    assert "another one" in await refused(Security(secret=bytes(32)), listening)


async def test_code__is_good_for_one_pair_and_its_further_qps(theirs: Identity) -> None:
    code = new_code()
    listening = Security(identity=theirs.path, code=code)
    met = await meet(Security(code=code.upper().replace("-", " ")), listening, times=3)
    assert [back.peer.identity for _, back in met] == ["code", "secret", "secret"]
    assert all(out.seal is Seal.AEAD for out, _ in met)


async def test_code__a_wrong_one_is_the_only_guess(theirs: Identity) -> None:
    right, said = "maple-rocket-cider", []
    async with waiting(Security(identity=theirs.path, code=right)) as (_, listener):
        for guess in ("maple-rocket-cobra", right):
            async with host(Security(code=guess)) as one:
                with pytest.raises(ConnectError) as caught:
                    await one.connect("127.0.0.1", listener.port, timeout=PATIENCE)
                said.append(str(caught.value))
    assert "code is wrong" in said[0]
    assert "mrc recv --code prints a new one" in said[0]
    assert "has no one-time code, or it has been used: mrc recv --code prints" in said[1]


async def test_downgrade__is_refused(ours: Identity, theirs: Identity) -> None:
    listening = Security(identity=theirs.path, allow=(ours.fingerprint,))
    why = await refused(Security(plain_loopback=True), listening)  # nothing was chosen
    assert "encrypted exchanges only: connect without --insecure, and on the same host" in why
    connecting = Security(identity=ours.path, peer=theirs.fingerprint)
    assert "--insecure" in await refused(connecting, None)


async def test_plain_loopback__where_it_is_allowed(theirs: Identity) -> None:
    ((_, back),) = await meet(None, Security(identity=theirs.path, plain_loopback=True))
    assert back.peer.identity == ""


@pytest.mark.parametrize("seal", [Seal.NONE, Seal.AUTH, Seal.AEAD])
async def test_seal__the_stronger_wish_holds(theirs: Identity, seal: Seal) -> None:
    listening = Security(identity=theirs.path, secret=SECRET)
    ((out, back),) = await meet(Security(secret=SECRET), listening, seal=seal)
    assert out.seal is back.seal is seal


async def test_seal__needs_an_encrypted_exchange() -> None:
    with pytest.raises(MrcError, match="require an encrypted exchange"):
        await meet(None, None, seal=Seal.AUTH)


# ---- Processes of this host --------------------------------------------------------------------


async def test_loopback__a_process_of_this_user_needs_no_proof() -> None:
    ((out, back),) = await meet(Security(plain_loopback=True), Security(plain_loopback=True))
    assert (out.peer.identity, back.peer.identity, out.seal) == ("", "", Seal.NONE)


async def test_loopback__another_user_proves_himself(
    ours: Identity, theirs: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if both ends were another user's: neither believes the other."""
    monkeypatch.setattr(admission, "owner_of", lambda *ends: Owner(os.geteuid() + 1, accepted=True))
    known = Security(identity=ours.path, peer=theirs.fingerprint, plain_loopback=True)
    listening = Security(identity=theirs.path, allow=(ours.fingerprint,), plain_loopback=True)
    ((out, back),) = await meet(known, listening)
    assert (out.peer.identity, back.peer.identity) == (theirs.fingerprint, ours.fingerprint)
    assert out.seal is Seal.AEAD
    stranger = Security(identity=ours.path, known_hosts=tmp_path / "known", plain_loopback=True)
    assert "is not known" in await refused(stranger, listening)
    why = await refused(None, listening)
    assert "accepts encrypted exchanges only" in why


async def test_loopback__one_who_hangs_up_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "owner_of", lambda *ends: None)
    assert "encrypted exchanges only" in await refused(None, Security(plain_loopback=True))


async def test_loopback__a_known_name_is_never_plain(
    ours: Identity, theirs: Identity, tmp_path: Path
) -> None:
    known = KnownHosts(tmp_path / "known")
    known.add("127.0.0.1", theirs.fingerprint)
    listening = Security(identity=theirs.path, allow_any=True, plain_loopback=True)
    connecting = Security(identity=ours.path, known_hosts=known.path, plain_loopback=True)
    ((out, _),) = await meet(connecting, listening)
    assert (out.peer.identity, out.seal) == (theirs.fingerprint, Seal.AEAD)
    with pytest.raises(ChangedError, match="another key than before"):
        await meet(connecting, Security(identity=ours.path, allow_any=True, plain_loopback=True))


async def test_secret__needs_no_known_hosts(tmp_path: Path) -> None:
    """The file of another way is not read, so it cannot be wrong either."""
    known = tmp_path / "known"
    known.write_text("")
    known.chmod(0o666)
    ((out, _),) = await meet(Security(secret=SECRET, known_hosts=known), Security(secret=SECRET))
    assert out.peer.identity == "secret"


# ---- A certificate authority ---------------------------------------------------------------------


CLOCKS = "check the clocks"


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestAuthority:
    """Without retries: a peer that refuses a certificate looks like one that drops connections."""
    monkeypatch.setattr(connecting_module, "_DROPS", 0)
    return TestAuthority(tmp_path)


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
    assert (out.peer.identity, back.peer.identity) == (B, A)
    assert out.seal is back.seal is Seal.AEAD
    assert not (tmp_path / "identity.pem").exists(), "nobody needs a key beside"


async def test_names__from_a_file(connecting: Security, listening: Security, ca: TestAuthority,
                                  tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "peers").write_text(f"{A}  # trainers\n")
    allow = (str(tmp_path / "peers"),)
    ((_, back),) = await meet(connecting, dataclasses.replace(listening, allow=allow))
    assert back.peer.identity == A


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
    ours, theirs = (dataclasses.replace(each, authority=two) for each in (connecting, listening))
    assert "more than one" in await refused(ours, listening)
    assert "more than one" in await refused(connecting, theirs)


async def test_no_name__the_address_counts(ca: TestAuthority, connecting: Security) -> None:
    anybody = dataclasses.replace(connecting, peer="")
    here = Security(authority=ca.issue(file="here", addresses=("127.0.0.1",)))
    ((out, back),) = await meet(anybody, here)
    assert (out.peer.identity, back.peer.identity) == ("certificate", A)
    there = Security(authority=ca.issue(B, file="there", addresses=("127.0.0.9",)))
    why = await refused(anybody, there)
    assert "for another address" in why and "--peer" in why


@pytest.mark.parametrize(
    ("begins", "ends", "words"), [(-3, -2, "has expired"), (2, 3, "is not valid yet")]
)
async def test_dates__of_either_side(
    connecting: Security, listening: Security, ca: TestAuthority, begins: int, ends: int,
    words: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
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
    with pytest.raises(ConfigError, match=r"^peer: .* is no"):
        Security(authority=authority, peer=peer)


# ---- Files that change ------------------------------------------------------------------------


async def test_files__are_read_anew_when_they_change(
    connecting: Security, ca: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the writes of certificate and key the pair of before counts."""
    listening = Security(authority=ca.issue(B))
    async with waiting(listening) as (_, listener):

        async def shown(peer: str) -> str:
            async with host(dataclasses.replace(connecting, peer=peer)) as one:
                return (await exchange(one, listener))[0].peer.identity

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
    new = TestAuthority(tmp_path, "new")
    async with waiting(listening) as (_, listener), host(connecting) as one:
        await exchange(one, listener)
        new.issue(A), new.issue(B)  # over the files of both hosts
        os.replace(new.ca, ca.ca)
        await exchange(one, listener)
        old = TestAuthority(tmp_path, "old").issue(A, file="old")
        stale = Security(authority=dataclasses.replace(old, ca=ca.ca), peer=B)
        async with host(stale) as late:
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
    async with waiting(listening) as (_, listener), host(Security(authority=files)) as one:
        with pytest.raises(ConfigError) as caught:
            await one.connect("127.0.0.1", listener.port, timeout=PATIENCE)
    assert words in str(caught.value) and "\n" not in str(caught.value)
