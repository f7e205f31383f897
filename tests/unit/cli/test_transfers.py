# SPDX-License-Identifier: Apache-2.0
"""mrc send and mrc recv as processes: options, folders, interrupted transfers, and when they
connect again.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import ssl
import statistics
import subprocess
import tarfile
import threading
import time
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from file_commands import MRC, listening, receiving
from ports import free_port
from printed import printed
from slowness import PATIENCE, until
from transfer_ends import call_before, make
from transfer_ends import until as eventually

import mrc
from mrc.cli.main import main
from mrc.cli.output import Exit
from mrc.connect import retry
from mrc.connect.retry import Retry, Trying, is_lost
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
)
from mrc.tasks import cancelled
from mrc.transfer import client
from mrc.transfer.limits import CHUNK_BYTES, part_name, record_name
from mrc.transfer.messages import Announced
from mrc.transfer.plan import PACKED_BYTES, Packer, plan_of
from mrc.transfer.sender import send_plan
from mrc.transfer.session import TransferError, TransferSession, VerificationError, connect_session


def connected(ctx: mrc.Context, where: str) -> AbstractAsyncContextManager[TransferSession]:
    """A session of always the same transfer."""
    host, _, port = where.rpartition(":")
    return connect_session(
        ctx, host, int(port), announced=Announced(), transfer="of this test", timeout=PATIENCE
    )


async def test_recv__its_account_of_a_transfer_that_came_back(tmp_path: Path) -> None:
    """The first connection leaves out a file and stores another. The second one knows neither."""
    inbox = tmp_path / "inbox"
    large, small = make(tmp_path, "large", bytes(PACKED_BYTES)), make(tmp_path, "small", b"1")
    with receiving("--output", inbox, "--json") as (receiver, where):
        async with mrc.open() as first, connected(first, where) as session:
            plan = plan_of([str(tmp_path / "missing"), large, small])
            batch = await anext(send_plan(session, plan))
            assert [file.name for file in batch.files] == ["large"]
            async with mrc.open() as second, connected(second, where) as again:
                async for _ in send_plan(again, plan_of([small])):
                    pass
        out, _ = receiver.communicate(timeout=PATIENCE)
    result = printed("recv", out.decode())
    assert [each["name"] for each in result["files"]] == ["large", "small"]
    assert [each["name"] for each in result["failed"]] == ["missing"]
    assert result["failed_count"] == 1
    assert receiver.returncode == Exit.NOT_ALL_COPIED


async def test_recv__its_account_of_a_pack_that_came_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender has not heard what is stored of the pack, so it sends all of it again."""
    inbox, top = tmp_path / "inbox", tmp_path / "top"
    (top / "in").mkdir(parents=True)
    (top / "in" / "link").symlink_to("a")
    for name in ("in/a", "x", "y", "z"):
        make(top, name, bytes(CHUNK_BYTES - 1))  # two chunks for each

    async def copy(session: TransferSession, without: tuple[str, ...] = ()) -> None:
        plan = plan_of([str(top)], links=True, exclude=lambda path: path in without)
        async for _ in send_plan(session, plan):
            pass

    more, filled = threading.Event(), count(1)

    def waits(*_: object) -> None:
        if next(filled) == 4:
            assert more.wait(PATIENCE)

    call_before(monkeypatch, Packer, "fill", waits)
    with receiving("--output", inbox, "--json") as (receiver, where):
        async with mrc.open() as first, connected(first, where) as session:
            lost = asyncio.create_task(copy(session))
            await eventually((inbox / "top" / "x").exists)
            async with mrc.open() as second, connected(second, where) as again:
                await copy(again, ("in/", "x"))
            more.set()
            await cancelled(lost)
        out, _ = receiver.communicate(timeout=PATIENCE)
    result = printed("recv", out.decode())
    assert sorted(each["name"] for each in result["files"]) == [
        f"top/{n}" for n in ("in/a", *"xyz")
    ]
    assert result["bytes"] == 4 * (CHUNK_BYTES - 1)
    assert (result["folders"], result["links"]) == (2, 1)


# ---- Transfers that are interrupted --------------------------------------------------------------


BLOCK = os.urandom(32 << 20)
SIZE = 10 * len(BLOCK)
SLOWLY = ("--rate", "400mbit")  # 7 s for SIZE: a test that ends it in the middle has time


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with (tmp_path / "image").open("wb") as file:
        for _ in range(SIZE // len(BLOCK)):
            file.write(BLOCK)
    return tmp_path / "image"


def until_stored(inbox: Path) -> None:
    """Waits until a block of the image is there."""
    part = inbox / part_name("image")
    until(lambda: part.exists() and part.stat().st_blocks * 512 > len(BLOCK))


def sent(*words: str | Path, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command: list[str | Path] = [*MRC, "send", *words]
    return subprocess.run(command, input=data, capture_output=True, check=False)


@pytest.mark.more
@pytest.mark.parametrize(("who", "how"), [("sender", signal.SIGINT), ("receiver", signal.SIGKILL)])
def test_send__goes_on(source: Path, tmp_path: Path, who: str, how: signal.Signals) -> None:
    inbox = tmp_path / "inbox"
    with receiving("--output", inbox, *SLOWLY) as (receiver, where):
        command: list[str | Path] = [*MRC, "send", "--retry", "0", source, where]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as sender:
            until_stored(inbox)
            (sender if who == "sender" else receiver).send_signal(how)
            _, notes = sender.communicate(timeout=PATIENCE)
        receiver.communicate(timeout=PATIENCE)
    assert sender.returncode != 0
    if how == signal.SIGINT:
        assert (inbox / record_name(part_name("image"))).exists()
        assert "the same command goes on" in notes
    with receiving("--output", inbox) as (receiver, where):
        done = sent("--json", source, where)
        receiver.communicate(timeout=PATIENCE)
    assert (done.returncode, receiver.returncode) == (0, 0), done.stderr
    resumed = json.loads(done.stdout)["resumed_bytes"]
    assert (inbox / "image").stat().st_size == SIZE
    assert subprocess.run(["cmp", source, inbox / "image"], check=False).returncode == 0
    if how == signal.SIGINT:
        assert resumed > len(BLOCK) // 2
        assert b"goes on behind" in done.stderr
    assert sorted(os.listdir(inbox)) == ["image"]


@pytest.mark.more
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_send__standard_input_does_not_go_on(tmp_path: Path, how: signal.Signals) -> None:
    """It cannot be read twice: the sender promises nothing, and the receiver does not wait."""
    with receiving("--output", tmp_path / "inbox") as (receiver, where):
        command = [*MRC, "send", "-", where]
        with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as sender:
            assert sender.stdin is not None
            sender.stdin.write(BLOCK)
            sender.stdin.flush()
            until(lambda: any(path.stat().st_size for path in (tmp_path / "inbox").iterdir()))
            sender.send_signal(how)
            assert sender.stderr is not None
            assert b"goes on where" not in sender.stderr.read()
        _, notes = receiver.communicate(timeout=PATIENCE)
    assert receiver.returncode != 0 and b"may come back" not in notes
    assert os.listdir(tmp_path / "inbox") == []


@pytest.mark.more
def test_send__goes_on_by_itself(source: Path, tmp_path: Path) -> None:
    """The receiver is killed and starts again, while the sender waits for it."""
    inbox, port = tmp_path / "inbox", str(free_port())
    with receiving("--output", inbox, "--port", port, *SLOWLY) as (receiver, where):
        command = [*MRC, "send", "--json", "--retry", f"{PATIENCE}s", str(source), where]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as sender:
            until_stored(inbox)
            receiver.kill()
            receiver.wait(PATIENCE)
            with receiving("--output", inbox, "--port", port) as (receiver, _):
                out, notes = sender.communicate(timeout=PATIENCE)
                assert sender.returncode == 0, notes
                assert receiver.wait(PATIENCE) == 0
    assert "to connect again" in notes and "connected again" in notes
    result = json.loads(out)
    assert result["retries"] == 1 and result["bytes"] == SIZE
    assert subprocess.run(["cmp", source, inbox / "image"], check=False).returncode == 0
    assert sorted(os.listdir(inbox)) == ["image"]


@pytest.mark.more
def test_send__a_source_that_shrinks(source: Path, tmp_path: Path) -> None:
    """Its pages are gone while the engine reads them."""
    inbox = tmp_path / "inbox"
    with receiving("--output", inbox, *SLOWLY) as (receiver, where):
        with subprocess.Popen([*MRC, "send", source, where], stderr=-1, text=True) as sender:
            until_stored(inbox)
            os.truncate(source, 4096)
            _, notes = sender.communicate(timeout=PATIENCE)
        receiver.communicate(timeout=PATIENCE)
    assert "changed while it was sent" in notes
    assert (sender.returncode, receiver.returncode) == (Exit.NOT_ALL_COPIED,) * 2
    assert not (inbox / "image").exists()


# ---- Folders and pipes ---------------------------------------------------------------------------


SMALL = 4096


def many(folder: Path, folders: int, files: int) -> Path:
    for n in range(folders):
        inner = folder / f"d{n:02}"
        inner.mkdir(parents=True)
        for m in range(files):
            (inner / f"f{m:02}").write_bytes(os.urandom(SMALL))
    return folder


def test_send__one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    source, inbox = many(tmp_path / "tree", 1, 3), tmp_path / "inbox"
    (source / "link").symlink_to("d00/f00")
    (source / "d00/f02").chmod(0o755)
    os.utime(source / "d00/f02", (1_000_000_000, 1_000_000_000))
    (inbox / "tree" / "d00").mkdir(parents=True)
    (inbox / "tree" / "d00" / "f01").write_bytes(b"theirs")
    with receiving("--output", inbox, "--json") as (receiver, where):
        done = sent("--json", source, tmp_path / "nothing", where)
        out, notes = receiver.communicate(timeout=PATIENCE)
    assert (done.returncode, receiver.returncode) == (6, 6), done.stderr
    failed = [("nothing", "sender"), ("tree/d00/f01", "receiver")]
    for told in (done.stdout, out):
        result = json.loads(told)
        assert [(each["name"], each["end"]) for each in result["failed"]] == failed
        assert len(result["files"]) == 2
    assert b"not copied: 127.0.0.1: tree/d00/f01: exists in" in done.stderr
    assert b"not copied: tree/d00/f01: exists in" in notes
    assert b"skipped 1 file" in done.stderr and b"--follow" in done.stderr
    theirs, ours = inbox / "tree/d00/f02", source / "d00/f02"
    assert theirs.read_bytes() == ours.read_bytes() and theirs.stat().st_mode == ours.stat().st_mode
    assert theirs.stat().st_mtime_ns == ours.stat().st_mtime_ns


def test_send__from_a_pipe_to_a_pipe(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(many(tmp_path / "tree", 2, 3), "tree")
    with receiving("--stdout") as (receiver, where):
        done = sent("-", where, "--name", "x.tar", data=archive.getvalue())
        out, notes = receiver.communicate(timeout=PATIENCE)
    assert (done.returncode, receiver.returncode) == (0, 0), done.stderr
    assert out == archive.getvalue()
    assert b"x.tar" in notes


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("socat") is None, reason="apt-get install socat")
def test_send__many_small_files_beside_tar(tmp_path: Path) -> None:
    """10,000 files of 4 KiB take at most twice as long as through tar and one TCP flow directly
    after: the median of five pairs.
    """
    source, number = many(tmp_path / "many", 100, 100), count()

    def ratio() -> float:
        inbox, theirs = tmp_path / f"mrc{next(number)}", tmp_path / "tar"
        with receiving("--output", inbox) as (receiver, where):
            begin = time.monotonic()
            done = sent(source, where)
            assert receiver.wait(PATIENCE) == done.returncode == 0, done.stderr
            ours = time.monotonic() - begin
        found = ours / by_tar(source, theirs)
        shutil.rmtree(inbox)
        shutil.rmtree(theirs)
        return found

    assert statistics.median(ratio() for _ in range(5)) < 2


def by_tar(source: Path, target: Path) -> float:
    """Seconds of `tar c | socat` to `socat | tar x`, both ends complete."""
    target.mkdir()
    port = free_port()
    listen = f"socat -u TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr STDOUT | tar x -C {target}"
    with subprocess.Popen(["bash", "-o", "pipefail", "-c", listen]) as receiver:
        send = f"tar c -C {source} . | socat -u STDIN TCP:127.0.0.1:{port},retry=200,interval=0.01"
        begin = time.monotonic()
        subprocess.run(["bash", "-o", "pipefail", "-c", send], check=True)
        assert receiver.wait(PATIENCE) == 0
        return time.monotonic() - begin


# ---- When mrc send connects again by itself ------------------------------------------------------


def caused(cause: Exception) -> ConnectError:
    error = ConnectError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "lost", "passes"),
    [
        (PathError("x"), True, True),
        (PeerGoneError("x"), True, True),
        (ConnectTimeoutError("x"), False, True),
        (BusyError("x"), False, True),
        (caused(ConnectionRefusedError()), False, True),
        (caused(OSError()), False, True),
        (caused(caused(OSError())), False, True),
        (caused(ssl.SSLError()), False, False),
        (caused(ConnectRefusedError("x")), False, False),
        (ConnectError("wrong code"), False, False),
        (ConnectRefusedError("x"), False, False),
        (TransferError("x"), False, False),
        (VerificationError("x"), False, False),
        (ProtocolError("x"), False, False),
    ],
)
def test_errors(error: MrcError, lost: bool, passes: bool) -> None:
    assert (is_lost(error), error.may_pass) == (lost, passes)


class Notes(list[str]):
    def take(self, trying: Trying) -> None:
        self.append(str(trying))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    return Notes()


async def test_wait__only_after_a_loss(notes: Notes) -> None:
    for error, connected in ((PathError("x"), False), (TransferError("x"), True)):
        with pytest.raises(type(error)):
            await Retry(60, notes.take).wait(error, connected=connected, progress=True)
    with pytest.raises(PathError):
        await Retry(0, notes.take).wait(PathError("x"), connected=True, progress=True)
    assert not notes


async def test_wait__a_refusal_ends_it(notes: Notes) -> None:
    again = Retry(60, notes.take)
    await again.wait(PathError("lost"), connected=True, progress=True)
    await again.wait(ConnectTimeoutError("late"), connected=False, progress=False)
    with pytest.raises(ConnectRefusedError):
        await again.wait(ConnectRefusedError("no"), connected=False, progress=False)
    assert len(notes) == 1 and "lost; trying for 60 s to connect again" in notes[0]


async def test_wait__its_time_ends_and_the_loss_is_the_cause(notes: Notes) -> None:
    again = Retry(1e-6, notes.take)
    await again.wait(PathError("lost"), connected=True, progress=True)
    with pytest.raises(PathError, match="lost"):
        while True:
            await again.wait(ConnectTimeoutError("late"), connected=False, progress=False)
    assert notes[-1] == "cannot connect again: late"


@pytest.mark.parametrize(
    ("words", "named"),
    [(["FILE"], True), (["-"], False), (["--no-resume", "FILE"], False)],
)
def test_send__names_only_a_transfer_that_may_go_on(
    words: list[str], named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver waits for the sender of a transfer with a name."""
    found: list[str] = []

    def connect(*_: Any, transfer: str, **__: Any) -> Any:
        found.append(transfer)
        raise ConnectRefusedError("no")

    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "connect_session", connect)
    assert main(["send", "--insecure", *words, "127.0.0.1"]) == Exit.UNREACHABLE
    assert [bool(transfer) for transfer in found] == [named]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-resume"], "mrc recv: removed what was left of a, b, c and 1 other file\n"),
        ([], ""),
    ],
)
def test_recv__names_what_it_removes(words: list[str], said: str, tmp_path: Path) -> None:
    """What interrupted transfers have left; without --no-resume it is kept: they may go on."""
    parts = [part_name(name) for name in "abcd"]
    for part in parts:
        (tmp_path / part).touch()
        (tmp_path / record_name(part)).touch()
    with listening("recv", "--insecure", "--output", tmp_path, *words) as (_, heard, _):
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ([] if words else sorted([*parts, *map(record_name, parts)]))
    assert heard.rpartition("mrc recv: listening on")[0] == said


async def test_wait__connections_without_progress_share_one_time(notes: Notes) -> None:
    again = Retry(60, notes.take)
    await again.wait(PathError("x"), connected=True, progress=True)
    until = again._until
    for progress in (False, True):
        again.connected()
        await again.wait(PathError("x"), connected=True, progress=progress)
        assert (again._until > until) is progress
    assert again.count == 2


async def test_wait__for_a_listener(notes: Notes) -> None:
    """Before the first connection, for the time of --wait; a refusal ends it."""
    nobody = caused(ConnectionRefusedError())
    first = Retry(0, notes.take, first=60)
    for _ in range(3):
        await first.wait(nobody, connected=False, progress=False)
    assert notes == ["x; trying for 60 s"]
    with pytest.raises(ConnectRefusedError):
        await first.wait(ConnectRefusedError("no"), connected=False, progress=False)
    for seconds in (0.0, 1e-9):
        brief = Retry(0, notes.take, first=seconds)
        with pytest.raises(ConnectError, match="x"):
            while True:
                await brief.wait(nobody, connected=False, progress=False)


@pytest.mark.parametrize(
    ("serves", "words"),
    [
        (("perf", "--server", "--one-off"), ("perf", "HOST", "-n", "1M")),
        (("recv", "--once", "--output", "INBOX"), ("send", "FILE", "HOST")),
        (("recv", "--output", "INBOX"), ("paths", "HOST")),
    ],
)
def test_wait__begins_before_the_listener(
    serves: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_bytes(b"1")
    port = free_port()
    there = {"HOST": f"127.0.0.1:{port}", "FILE": str(tmp_path / "FILE"), "INBOX": str(tmp_path)}
    command = [*MRC, *(there.get(word, word) for word in words), "--wait", str(PATIENCE)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as client:
        assert client.stderr is not None
        said = client.stderr.readline()
        assert f"no program listens on TCP port {port}" in said and "trying for" in said
        listens = [*MRC, *(there.get(word, word) for word in serves), "--port", str(port)]
        with subprocess.Popen(listens, stdout=-1, stderr=-1) as listener:
            assert client.wait(PATIENCE) == 0, client.stderr.read()
            listener.terminate()
