# SPDX-License-Identifier: Apache-2.0
"""Viewing an endpoint: the contents, the permitted viewers, and the viewer's display."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    SNAPSHOT,
    connected_pair,
    loopback_config,
    transfer,
    two_planes,
)
from file_commands import MRC, listening
from hypothesis import given
from hypothesis import strategies as st
from printed import printed
from slowness import PATIENCE

import mrc
from mrc import ConnectError, EvState, ProtocolError, StateError
from mrc.cli.terminal import blocks_text
from mrc.cli.top import Endpoint, EndpointWatch, Top, _all, checked, with_rates
from mrc.connect import remote_view
from mrc.connect.dial import dial
from mrc.observe import views
from mrc.observe.snapshot import snapshot
from mrc.results import plain


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets without this machine's own sockets."""
    folder = tmp_path / "endpoints"
    monkeypatch.setattr(views, "_homes", lambda: iter([folder]))
    monkeypatch.setattr(views, "_folders", lambda all_users: iter([folder]))
    yield folder


def _top(endpoint: Endpoint) -> Top:
    return Top(interval_seconds=1, endpoints=(endpoint,))


# ---- contents -------------------------------------------------------------------------------


async def test_snapshot__of_a_pair() -> None:
    async with connected_pair(**two_planes(program="mrc test")) as pair:
        await transfer(pair, bytes(100_000))
        await pair.near.deny(0)
        near, far = await pair.near_context.snapshot(), plain(await snapshot(pair.far_context))
        assert plain(checked(json.loads(json.dumps(near)))) == near
        (sender,), (receiver,) = near["qps"], far["qps"]
        assert near["program"] == "mrc test" and near["pid"] == os.getpid()
        assert sender["qpn"] == pair.near.qpn and sender["peer"] == pair.far_context.name
        assert sender["acknowledged_bytes"] == receiver["received_bytes"] == 100_000
        assert sum(plane["sent_bytes"] for plane in sender["planes"]) >= 100_000
        assert [ev["state"] for ev in sender["evs"]].count(EvState.DENIED.name) == 1
        assert near["counters"]["TX_DATA"] == sender["sent_packets"]
        await pair.near.close()
        assert (await pair.near_context.snapshot())["qps"] == []
        await pair.near_context.close()
        with pytest.raises(StateError):
            await pair.near_context.snapshot()


async def test_snapshot__fits_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.observe.snapshot.MAX_QPS", 2)
    monkeypatch.setattr("mrc.observe.snapshot.MAX_EVS", 10)
    async with connected_pair() as pair:
        others = [
            await pair.near_context.connect(LOOPBACK[4], pair.listener.port) for _ in range(2)
        ]
        found = await pair.near_context.snapshot()
        assert found["qps_total"] == 3
        assert [qp["evs"] is None for qp in found["qps"]] == [False, True]
        for qp in others:
            await qp.close()


# ---- local viewers --------------------------------------------------------------------------


async def test_local_view__answers_line_by_line(home: Path) -> None:
    async with connected_pair(local_view=True) as pair:
        found = [await views.look(path) for path in views.sockets()]
        (near,) = [each for each in found if each["qps"][0]["qpn"] == pair.near.qpn]
        assert len(found) == 2 and near["pid"] == os.getpid()
        assert os.stat(home).st_mode & 0o777 == 0o700
        reader, writer = await asyncio.open_unix_connection(views.sockets()[0])
        for _ in range(2):
            writer.write(b"again\n")
            assert json.loads(await reader.readline())["schema"] == 1
        await pair.near_context.close()
        await pair.far_context.close()
        assert await reader.read() == b""
        writer.close()
    assert os.listdir(home) == []


async def test_local_view__only_when_asked_for(home: Path) -> None:
    async with mrc.open(loopback_config()):
        assert not os.access(home, os.F_OK)


async def test_local_view__what_a_killed_process_left_is_swept(home: Path) -> None:
    os.mkdir(home, mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home / "1-1.sock"))
        left.listen()
    assert os.listdir(home) == ["1-1.sock"]
    async with mrc.open(loopback_config(local_view=True)):
        (name,) = os.listdir(home)
        assert name.startswith(f"{os.getpid()}-")


@pytest.mark.parametrize("trouble", ["others may enter", "no folder", "a link"])
async def test_local_view__no_place_is_no_failure(home: Path, trouble: str, tmp_path: Path) -> None:
    if trouble == "others may enter":
        os.mkdir(home)
        os.chmod(home, 0o755)
    elif trouble == "no folder":
        os.mknod(home)
    else:
        os.symlink(tmp_path, home)
    async with mrc.open(loopback_config(local_view=True)):
        assert views.sockets() == [] and os.listdir(tmp_path) == [home.name]


async def test_local_view__not_too_many_viewers(home: Path) -> None:
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(loopback_config(local_view=True)):
        (path,) = views.sockets()
        visits = []
        for _ in range(views.MAX_VIEWERS):
            visits.append(await asyncio.open_unix_connection(path))
            visits[-1][1].write(b"\n")
            assert await visits[-1][0].readline()
        with pytest.raises((ProtocolError, OSError)):
            await views.look(path)
        for _, writer in visits:
            writer.close()


async def test_sockets_of__one_process(home: Path) -> None:
    async with mrc.open(loopback_config(local_view=True)):
        (path,) = views.sockets()
        assert views.sockets_of(os.getpid()) == [path]
        assert views.sockets_of(int(str(os.getpid())[:-1])) == []


async def test_sockets__no_link_is_followed(home: Path, tmp_path: Path) -> None:
    """Another user's link in the folder could lead to any socket."""
    async with mrc.open(loopback_config(local_view=True)):
        (path,) = views.sockets()
        link = path.with_name("link.sock")
        link.symlink_to(path)
        assert views.sockets() == [path]
        with pytest.raises(OSError):
            await views.look(link)
        folder = tmp_path / "linked"
        folder.symlink_to(home)
        with pytest.raises(OSError):
            await views.look(folder / path.name)
        path.with_name("file.sock").touch()
        assert views.sockets() == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
async def test_sockets__those_of_others_only_when_root_asks(home: Path) -> None:
    async with mrc.open(loopback_config(local_view=True)):
        (path,) = views.sockets()
        os.chown(path, 65534, 65534)
        assert views.sockets() == views.sockets(all_users=True) == []  # the folder belongs to root
        os.chown(home, 65534, 65534)
        assert views.sockets() == []
        assert views.sockets(all_users=True) == [path]
        assert checked(await views.look(path, all_users=True))
        with pytest.raises(OSError):
            await views.look(path)


def test_folders__of_services_only_for_all_users() -> None:
    """The unit of `mrc recv` has a runtime folder in /run."""
    made = Path("/run", f"mrc-test-{os.getpid()}", "mrc-endpoints")
    try:
        made.mkdir(parents=True)
    except PermissionError:
        pytest.skip("needs root")
    try:
        assert made in views._folders(all_users=True)
        assert made not in views._folders(all_users=False)
    finally:
        made.rmdir()
        made.parent.rmdir()


async def test_look__an_answer_without_end(folder: Path) -> None:
    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(flood, folder / "x.sock"):
        with pytest.raises(ProtocolError, match="not a snapshot"):
            await views.look(folder / "x.sock")


async def test_look__an_answer_while_this_process_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "ANSWER_SECONDS", 0.3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        time.sleep(0.6)  # noqa: ASYNC251 the stop
        writer.write(b"{}\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, folder / "x.sock"):
        assert await views.look(folder / "x.sock") == {}


# ---- remote viewers -------------------------------------------------------------------------


async def test_remote_view__refused_unless_it_was_asked_for() -> None:
    async with connected_pair() as pair:
        channel = await dial(None, LOOPBACK[4], pair.listener.port)
        with pytest.raises(ConnectError, match="restart the program with --top"):
            await remote_view.look_at_peer(channel)
        await channel.close()


async def test_remote_view__answers_again_and_again() -> None:
    async with connected_pair(remote_view=True) as pair:
        channel = await dial(None, LOOPBACK[4], pair.listener.port)
        for _ in range(2):
            assert len(checked(await remote_view.look_at_peer(channel)).qps) == 1
        await transfer(pair, bytes(1000))  # connecting and writing still work
        await channel.send(remote_view.RemoteView.TOP, version=2)
        with pytest.raises(ConnectError, match="only version 1 of"):
            await channel.expect(remote_view.RemoteView.TOP)
        await channel.close()


async def test_remote_view__tells_nothing_that_a_forged_packet_needs() -> None:
    async with connected_pair(remote_view=True) as pair:
        channel = await dial(None, LOOPBACK[4], pair.listener.port)
        first = checked(await remote_view.look_at_peer(channel))
        second = checked(await remote_view.look_at_peer(channel))
        (qp,) = first.qps
        assert first.udp_port is None and qp.qpn is None
        assert qp.evs and all(ev.ev is None for ev in qp.evs)
        told = json.dumps(plain(first))
        evs = await pair.far.evs()
        secrets = {pair.far.qpn, pair.far_context.udp_port, *(ev.ev for ev in evs)}
        # Whole numbers: a time in nanoseconds may have the digits of a port within it.
        assert not {str(secret) for secret in secrets} & set(re.findall(r"\d+", told))
        assert second.qps[0].id == qp.id is not None
        assert blocks_text(_all(_top(with_rates(first, first))))
        channel.abort()


async def test_remote_view__not_too_many_viewers() -> None:
    async with connected_pair(remote_view=True) as pair:
        channels = [
            await dial(None, LOOPBACK[4], pair.listener.port)
            for _ in range(remote_view.MAX_REMOTE_VIEWERS + 1)
        ]
        for channel in channels[:-1]:
            await remote_view.look_at_peer(channel)
        with pytest.raises(ConnectError, match="4 viewers are connected"):
            await remote_view.look_at_peer(channels[-1])
        for channel in channels:
            channel.abort()


# ---- the viewer's display -------------------------------------------------------------------


def test_checked__control_characters_reach_no_terminal() -> None:
    evil = copy.deepcopy(SNAPSHOT) | {"host": "\x1b]0;gotcha\x07" + "x" * 1000}
    assert re.fullmatch(r"\\x1b\]0;gotcha\\x07x+\.\.\.", checked(evil).host)
    assert len(checked(evil).host) == 128


def _broken() -> Iterator[dict[str, Any]]:
    for name in ("schema", "host", "qps", "ports", "counters", "monotonic_ns"):
        yield {key: value for key, value in SNAPSHOT.items() if key != name}
        yield SNAPSHOT | {name: None}
    for name in SNAPSHOT["qps"][0].keys() & {"peer", "planes", "rtt_ns", "acknowledged_bytes"}:
        yield SNAPSHOT | {"qps": [SNAPSHOT["qps"][0] | {name: []} | {"planes": [{}]}]}
    yield SNAPSHOT | {"qps": [1]}
    yield SNAPSHOT | {"qps": [SNAPSHOT["qps"][0] | {"evs": [{}]}]}
    yield SNAPSHOT | {"schema": 2}
    nested: list[Any] = []
    for _ in range(500):
        nested = [nested]
    yield SNAPSHOT | {"host": nested}


@pytest.mark.parametrize("found", list(_broken()))
def test_checked__refuses_what_it_cannot_show(found: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        checked(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(SNAPSHOT)), value=JSON)
def test_checked__what_passes_can_be_shown(name: str, value: Any) -> None:
    try:
        found = checked(SNAPSHOT | {name: value})
    except ProtocolError:
        return
    assert blocks_text(_all(_top(with_rates(None, found))))


def test_with_rates__of_the_time_between() -> None:
    later = copy.deepcopy(SNAPSHOT) | {"monotonic_ns": 3 * 10**9}
    qp = later["qps"][0]
    qp |= {"acknowledged_bytes": 3000, "retransmitted_packets": 5}
    qp["planes"][0] |= {"sent_bytes": 3600}
    before, now = checked(SNAPSHOT), checked(later)
    (shown,) = with_rates(before, now).qps
    assert shown.acknowledged_bits_per_second == 8000
    assert shown.retransmitted_packets_per_second == 2
    assert shown.planes[0].sent_bits_per_second == 10_000
    (new,) = with_rates(before, checked(later | {"qps": [qp | {"qpn": 9}]})).qps
    assert new.acknowledged_bits_per_second == 0
    assert with_rates(None, now).qps[0].planes[0].sent_bits_per_second == 0


# ---- the commands ---------------------------------------------------------------------------


def top(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MRC, "top", *words], capture_output=True, text=True, check=False)


def test_top__local_and_remote(tmp_path: Path) -> None:
    with listening("recv", "--top", "--output", tmp_path) as (receiver, _, host):
        (seen,) = printed("top", top(host, "--json", "-i", "0.1").stdout)["endpoints"]
        text = top("--local", "--once", "-i", "0.1").stdout
    assert seen["pid"] == receiver.pid and seen["program"] == "mrc recv"
    assert f"mrc recv, pid {receiver.pid}" in text


def test_top__not_shown(tmp_path: Path) -> None:
    with listening("recv", "--output", tmp_path) as (_, _, host):
        done = top(host, "--json")
    assert done.returncode == 3 and "restart the program with --top" in done.stderr
    assert printed("top", done.stdout)["exit_code"] == 3


@pytest.mark.parametrize("words", [("paths", "--watch"), ("paths", "--watch", "--json"), ("top",)])
def test_watching__until_interrupted(tmp_path: Path, words: tuple[str, ...]) -> None:
    command, *options = words
    with listening("recv", "--top", "--output", tmp_path) as (_, _, host):
        argv = [*MRC, command, host, *options, "-i", "0.05"]
        with subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) as viewer:
            assert viewer.stdout is not None
            heads = 0
            while heads < 2:
                line = viewer.stdout.readline()
                assert line, "it ended by itself"
                heads += re.match(r'paths to|\S+: mrc recv|\{"result"', line) is not None
            viewer.send_signal(signal.SIGINT)
            viewer.communicate(timeout=PATIENCE)
    assert viewer.returncode == 130


# ---- The endpoints of this machine, also those whose process does not answer ---------------------


ANSWER = json.dumps(SNAPSHOT).encode() + b"\n"
NEVER = 0.05  # seconds for an endpoint that does not answer


@pytest.fixture
def folder(home: Path) -> Path:
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that was stopped."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


def silent_at(path: Path) -> socket.socket:
    """The kernel takes connections to it, and nobody answers them."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


@contextmanager
def endpoint(path: Path, line: bytes) -> Iterator[None]:
    """Answers each request with a line, or with an end."""

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # it has ended
            while True:
                with server.accept()[0] as visit:
                    if visit.recv(1):
                        visit.sendall(line)

    with silent_at(path) as server:
        thread = Thread(target=serve, args=[server])
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RD)
            thread.join()


def answer_one(server: socket.socket) -> None:
    """Answers the first request whose viewer still waits."""
    while True:
        with server.accept()[0] as visit, suppress(BrokenPipeError):
            if visit.recv(1):
                visit.sendall(ANSWER)
                return


async def test_look__names_a_process_that_is_stopped(folder: Path, stopped: int) -> None:
    path = folder / f"{stopped}-1.sock"
    async with EndpointWatch(NEVER) as here:
        with silent_at(path):
            await here.look()
            here.seconds = 1e6
            with endpoint(folder / "1-1.sock", ANSWER):
                seen = await here.look()
        assert list(seen.endpoints) == [str(folder / "1-1.sock")]
        (silent,) = seen.unanswered
        assert silent.pid == stopped and silent.program == "sleep"
        assert silent.error == f"no answer in 0.05 s: the process is stopped (kill -CONT {stopped})"
        assert not (await here.look()).unanswered, "it has ended"


async def test_look__waits_once_for_what_does_not_answer(folder: Path) -> None:
    """Others are shown without a delay; a late answer counts when it comes."""
    path = folder / "1-1.sock"
    async with EndpointWatch(NEVER) as here:
        with silent_at(path) as silent:
            assert len((await here.look()).unanswered) == 1
            here.seconds = 1e6
            assert len((await here.look()).unanswered) == 1
            await asyncio.to_thread(answer_one, silent)
            seen = await here.look()
            while seen.unanswered:
                await asyncio.sleep(0)
                seen = await here.look()
            assert list(seen.endpoints) == [str(path)]


async def test_look__many_that_do_not_answer(folder: Path) -> None:
    """They take no turns of others."""
    async with EndpointWatch(NEVER) as here:
        with ExitStack() as stack:
            for number in range(12):
                stack.enter_context(silent_at(folder / f"1-{number}.sock"))
            await here.look()
            here.seconds = 1e6
            stack.enter_context(endpoint(folder / "1-99.sock", ANSWER))
            seen = await here.look()
            assert len(seen.unanswered) == 12 and len(seen.endpoints) == 1


@pytest.mark.parametrize("line", [b"{}\n", b""], ids=["another version", "no place for a viewer"])
async def test_look__names_an_endpoint_that_cannot_be_read(folder: Path, line: bytes) -> None:
    with endpoint(folder / "1-1.sock", line):
        async with EndpointWatch(60) as here:
            (found,) = (await here.look()).unanswered
    assert found.pid == 1 and found.error


async def test_look__names_an_endpoint_whose_queue_is_full(folder: Path) -> None:
    """Each earlier viewer of a stopped process has taken a place in it."""
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as viewers:
        server.bind(str(folder / "1-1.sock"))
        server.listen(0)
        viewers.enter_context(socket.socket(socket.AF_UNIX)).connect(server.getsockname())
        async with EndpointWatch(60) as here:
            (found,) = (await here.look()).unanswered
            assert found.error == "too many viewers wait for an answer"
