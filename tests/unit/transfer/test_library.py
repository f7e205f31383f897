# SPDX-License-Identifier: Apache-2.0
"""`mrc.transfer.send` and `receive` over loopback, as a program uses them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from slowness import PATIENCE
from transfer_ends import call_before, make, names

import mrc
import mrc.transfer
from mrc import transfer
from mrc.connect import retry
from mrc.tasks import cancelled
from mrc.transfer.limits import CHUNK_BYTES, part_name, record_name
from mrc.transfer.messages import Digest
from mrc.transfer.plan import PACKED_BYTES
from mrc.transfer.sinks import FileSink

HERE = mrc.ContextConfig(interfaces=("127.0.0.1",))
LARGE = 6 * CHUNK_BYTES  # more than a pack takes
SLOWLY = 100e6  # bit/s: 2 s for a large file, so a test has time to end it in the middle
Progresses = list[transfer.Progress]


@asynccontextmanager
async def receiving(folder: Path | int, **options: Any) -> AsyncIterator[transfer.Receiver]:
    all_options: dict[str, Any] = {"config": HERE, "port": 0, "bind": "127.0.0.1", **options}
    async with asyncio.timeout(PATIENCE), transfer.receive(folder, **all_options) as receiver:
        yield receiver


async def sending(receiver: transfer.Receiver, paths: Any, **options: Any) -> transfer.Transfer:
    all_options: dict[str, Any] = {"config": HERE, "port": receiver.port, **options}
    return await transfer.send(paths, "127.0.0.1", **all_options)


def large(folder: Path, name: str = "image") -> str:
    return make(folder, name, os.urandom(LARGE))


async def first(
    events: Progresses, wanted: Callable[[transfer.Progress], bool]
) -> transfer.Progress:
    """The first progress of this kind, once it is there."""
    while not (found := [each for each in events if wanted(each)]):  # noqa: ASYNC110 - of a list
        await asyncio.sleep(0.01)
    return found[0]


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Neither end leaves a task."""
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- What is sent --------------------------------------------------------------------------------


async def test_send__a_file_and_a_folder(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    make(tree / "inner", "small", b"small")
    paths = [Path(large(tmp_path)), tree]
    async with receiving(tmp_path / "new" / "inbox") as receiver:
        sent = await sending(receiver, paths)
        received = (await anext(receiver)).result()
    inbox = tmp_path / "new" / "inbox"
    assert (inbox / "image").read_bytes() == paths[0].read_bytes()
    assert (inbox / "tree/inner/small").read_bytes() == b"small"
    for result in (sent, received):
        assert [file.name for file in result.files] == ["image", "tree/inner/small"]
        assert (result.folders, result.bytes, result.failed_count) == (2, LARGE + 5, 0)
    assert (sent.role, received.role) == ("sender", "receiver")
    assert sent.files[0].digest == Digest(paths[0].read_bytes()).hexdigest()


async def test_send__what_is_not_copied_is_in_the_result(tmp_path: Path) -> None:
    good, inbox = make(tmp_path, "good", b"1"), tmp_path / "inbox"
    inbox.mkdir()
    there = make(tmp_path, "there", b"new")
    (inbox / "there").write_bytes(b"old, and it stays")
    async with receiving(inbox) as receiver:
        sent = await sending(receiver, [good, str(tmp_path / "missing"), there])
        received = (await anext(receiver)).result()
    for result in (sent, received):
        assert {(each.name, each.end) for each in result.failed} == {
            ("missing", "sender"), ("there", "receiver"),
        }  # fmt: skip
        assert [file.name for file in result.files] == ["good"]
    assert (inbox / "there").read_bytes() == b"old, and it stays"


async def test_send__its_choices(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "b.o"):
        make(tree, name, b"1")
    (tree / "link").symlink_to("a")
    async with receiving(tmp_path / "inbox") as receiver:
        sent = await sending(receiver, tree, links=True, exclude=["*.o"], name="other")
        assert (sent.links, sent.excluded, sent.unchanged) == (1, 1, 0)
        again = await sending(receiver, tree, update=True, exclude="*.o", name="other")
        assert (again.unchanged, again.skipped, again.files) == (1, 1, ())
    assert names(tmp_path / "inbox" / "other") == ["a", "link"]


async def test_send__without_names(tmp_path: Path) -> None:
    """The names of a million files take memory."""
    async with receiving(tmp_path / "inbox", list_files=False) as receiver:
        sent = await sending(receiver, make(tmp_path, "a", b"123"), list_files=False)
        received = (await anext(receiver)).result()
    for result in (sent, received):
        assert (result.files, result.bytes) == ((), 3)


async def test_both__over_contexts_of_the_caller(tmp_path: Path) -> None:
    """They stay open, and serve two transfers."""
    file = make(tmp_path, "a", b"1")
    async with mrc.open(HERE) as there, mrc.open(HERE) as here:
        for number in range(2):
            inbox = tmp_path / f"inbox{number}"
            async with receiving(inbox, context=there, config=None) as receiver:
                assert receiver.context is there
                await sending(receiver, file, context=here, config=None)
            assert names(inbox) == ["a"]
        assert there.udp_port and here.udp_port


async def test_receive__into_an_open_file(tmp_path: Path) -> None:
    paths = [make(tmp_path, "a", b"first "), make(tmp_path, "b", b"second")]
    reading, writing = os.pipe()
    try:
        async with receiving(writing) as receiver:
            await sending(receiver, paths)
            assert [each.error async for each in receiver] == [None], "it serves one sender"
        assert os.read(reading, 100) == b"first second"
    finally:
        os.close(reading)
        os.close(writing)


# ---- Progress ------------------------------------------------------------------------------------


async def test_progress__counts_up_to_the_total(tmp_path: Path) -> None:
    sent: Progresses = []
    received: Progresses = []
    small = make(tmp_path, "small", b"small")
    async with receiving(tmp_path / "inbox", on_progress=received.append) as receiver:
        await sending(receiver, [large(tmp_path), small], rate=SLOWLY, on_progress=sent.append)
        await anext(receiver)
    for progresses in (sent, received):
        done = [each.done_bytes for each in progresses]
        assert done == sorted(done) and done[-1] == LARGE + len("small")
        assert len({each for each in done if 0 < each < LARGE}) > 3, "several times a second"
        moving = [each for each in progresses if each.event is None]
        assert {(each.bytes, each.planes) for each in moving} == {(LARGE + 5, 1)}
        assert any(each.file == "image" and each.files == 0 for each in moving)
        assert progresses[-1].files == 2
        batches = [
            each.event for each in progresses if isinstance(each.event, transfer.StoredBatch)
        ]
        assert [batch.count for batch in batches] == [1, 1]
        assert 0.3 * SLOWLY < max(each.rate_bits_per_second for each in moving) < 3 * SLOWLY
    kinds = [type(each.event) for each in sent if each.event is not None]
    assert kinds[:2] == [transfer.TransferPlanned, transfer.Connected]
    assert kinds[-2:] == [transfer.Transfer, transfer.Disconnected]
    assert {each.host for each in sent} == {"127.0.0.1"}


async def test_progress__an_error_of_the_user_ends_the_transfer(tmp_path: Path) -> None:
    def fail(progress: transfer.Progress) -> None:
        if progress.done_bytes:
            raise KeyError("of the user")

    async with receiving(tmp_path / "inbox") as receiver:
        with pytest.raises(KeyError, match="of the user"):
            await sending(receiver, large(tmp_path), rate=SLOWLY, on_progress=fail)
        assert isinstance((await anext(receiver)).error, mrc.MrcError)
        await sending(receiver, make(tmp_path, "next", b"1"))
        assert (await anext(receiver)).result().bytes == 1
    assert "next" in names(tmp_path / "inbox")


# ---- The end of it -------------------------------------------------------------------------------


async def test_cancel__leaves_a_part_that_goes_on(tmp_path: Path) -> None:
    file, inbox = large(tmp_path), tmp_path / "inbox"
    sent: Progresses = []
    async with receiving(inbox, rate=SLOWLY) as receiver:
        task = asyncio.create_task(sending(receiver, file, on_progress=sent.append))
        await first(sent, lambda each: each.done_bytes > 2 * CHUNK_BYTES)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(sent[-1].event, transfer.Resumable)
        assert "stopped the transfer" in str((await anext(receiver)).error)
        await receiver.until_idle()
        assert names(inbox) == sorted([part_name("image"), record_name(part_name("image"))])
    async with receiving(inbox) as receiver:
        sent.clear()
        result = await sending(receiver, file, on_progress=sent.append)
    assert result.resumed_bytes >= CHUNK_BYTES
    (resumed,) = (each.event for each in sent if isinstance(each.event, transfer.Resumed))
    assert resumed.there_bytes == result.resumed_bytes
    assert names(inbox) == ["image"]


async def test_close__while_a_transfer_runs(tmp_path: Path) -> None:
    sent: Progresses = []
    async with receiving(tmp_path / "inbox") as receiver:
        task = asyncio.create_task(
            sending(receiver, large(tmp_path), rate=SLOWLY, retry=0, on_progress=sent.append)
        )
        await first(sent, lambda each: each.done_bytes > CHUNK_BYTES)
        await receiver.close()
        await receiver.close()
        with pytest.raises(transfer.TransferError, match="the receiver was stopped"):
            await task
        assert [each async for each in receiver] == []


async def test_send__goes_on_after_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver ends without a word, and another listens there."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    port, sent, inbox = free_port(), Progresses(), tmp_path / "inbox"
    async with receiving(inbox, port=port, rate=SLOWLY) as receiver:
        task = asyncio.create_task(sending(receiver, large(tmp_path), on_progress=sent.append))
        await first(sent, lambda each: each.done_bytes > CHUNK_BYTES)
        for qp in receiver.context.qps:
            await qp.abort("")
    trying = await first(sent, lambda each: isinstance(each.event, transfer.Trying))
    assert isinstance(trying.event, transfer.Trying) and trying.event.lost
    async with receiving(inbox, port=port):
        assert (await task).retries == 1
    assert names(inbox) == ["image"]


async def test_receive__two_senders_at_once(tmp_path: Path) -> None:
    received: Progresses = []
    files = [large(tmp_path, name) for name in ("one", "two")]
    async with receiving(tmp_path / "inbox", on_progress=received.append) as receiver:
        await asyncio.gather(*(sending(receiver, file, rate=SLOWLY) for file in files))
        results = [(await anext(receiver)).result() for _ in files]
    assert sorted(each.files[0].name for each in results) == ["one", "two"]
    moving = [each.transfer for each in received if each.event is None]
    assert set(moving) == {1, 2} and moving != sorted(moving), "at the same time"
    for name in ("one", "two"):
        assert (tmp_path / "inbox" / name).read_bytes() == (tmp_path / name).read_bytes()


async def test_receive__once(tmp_path: Path) -> None:
    """Its iterator ends after the first sender whose data arrives; a failed one does not count."""
    refused = make(tmp_path, ".hidden", b"1")
    async with receiving(tmp_path / "inbox", once=True, max_bytes=1000) as receiver:
        with pytest.raises(transfer.TransferError, match="--max-bytes"):
            await sending(receiver, make(tmp_path, "much", bytes(1001)))
        await sending(receiver, [make(tmp_path, "a", b"1"), refused])
        ended = [each async for each in receiver]
    assert "max-bytes" in str(ended[0].error)
    with pytest.raises(mrc.MrcError, match="max-bytes"):
        ended[0].result()
    assert [file.name for file in ended[1].result().files] == ["a"]
    assert ended[1].result().failed[0].name == ".hidden"


@pytest.mark.parametrize("waits", [False, True])
async def test_receive__asks_the_program(tmp_path: Path, waits: bool) -> None:
    offers: list[transfer.Offered] = []
    sent: Progresses = []

    def accept(offered: transfer.Offered) -> Any:
        async def later() -> bool:
            await asyncio.sleep(0)
            return answer

        offers.append(offered)
        answer = offered.announced.names != ("unwanted",)
        return later() if waits else answer

    async with receiving(tmp_path / "inbox", accept=accept) as receiver:
        await sending(receiver, make(tmp_path, "wanted", b"1"), on_progress=sent.append)
        with pytest.raises(transfer.TransferError, match="did not accept"):
            await sending(receiver, make(tmp_path, "unwanted", b"1"))
        result = (await anext(receiver)).result()
    assert names(tmp_path / "inbox") == ["wanted"]
    assert [(each.peer, each.announced.bytes) for each in offers] == [("127.0.0.1", 1)] * 2
    assert any(each.waiting for each in sent) is waits is (result.waited_seconds > 0)


# ---- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paths": []}, "paths: names nothing"),
        ({"paths": [7]}, "paths: "),
        ({"paths": ["-", "-"]}, "paths: -: names standard input twice"),
        ({"paths": ["a", "b"], "name": "c"}, "name: requires"),
        ({"name": "../a"}, "name: "),
        ({"update": True, "no_meta": True}, "update: not with no_meta"),
        ({"links": True, "follow": True}, "links: not with follow"),
        ({"exclude": ["!"]}, "exclude: "),
        ({"port": 0}, "port: 0 is not a number from 1"),
        ({"rate": -1}, "rate: -1"),
        ({"rate": float("nan")}, "rate: nan"),
        ({"rate": "20mbit"}, "rate: '20mbit'"),
        ({"timeout": float("nan")}, "timeout: "),
        ({"retry": -1.0}, "retry: -1.0"),
        ({"wait": None}, "wait: None"),
        ({"context": object(), "config": HERE}, "config: not with context"),
    ],
)
async def test_send__wrong_arguments(options: dict[str, Any], said: str) -> None:
    paths = options.pop("paths", "a")
    with pytest.raises(mrc.ArgumentError) as error:
        await transfer.send(paths, "127.0.0.1", **options)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 65536}, "port: 65536"),
        ({"port": True}, "port: True"),
        ({"max_bytes": 0}, "max_bytes: 0"),
        ({"max_files": "9"}, "max_files: '9'"),
        ({"rate": -1}, "rate: -1"),
        ({"idle": 0}, "idle: 0"),
        ({"memory": 1}, "memory: 1 is not a number from 4194304"),
        ({"bins": 1_000_000}, "bins: requires once"),
        ({"bins": 1, "once": True}, "bins: requires once, and at least 1000 ns"),
        ({"context": object(), "config": HERE}, "config: not with context"),
    ],
)
def test_receive__wrong_arguments(options: dict[str, Any], said: str) -> None:
    with pytest.raises(mrc.ArgumentError) as error:
        transfer.receive("inbox", **options)
    assert str(error.value).startswith(said)


async def test_send__nothing_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(transfer.FileError, match="missing: no such file"):
        await transfer.send(tmp_path / "missing", "127.0.0.1", config=HERE)


async def test_send__nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(mrc.ConnectError, match="no program listens"):
        await transfer.send(make(tmp_path, "a", b"1"), "127.0.0.1", port=free_port(), config=HERE)


async def test_send__bytes_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(_: FileSink, index: int, chunk: memoryview) -> None:
        chunk[0] ^= 1

    call_before(monkeypatch, FileSink, "store", damage)
    async with receiving(tmp_path / "inbox") as receiver:
        with pytest.raises(transfer.VerificationError):
            await sending(receiver, make(tmp_path, "a", os.urandom(PACKED_BYTES)))
        assert isinstance((await anext(receiver)).error, transfer.VerificationError)
    assert names(tmp_path / "inbox") == []


async def test_receive__a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        opening = receiving(tmp_path / "inbox", port=taken.getsockname()[1])
        with pytest.raises(mrc.InUseError):
            async with opening:
                pass


async def test_receive__where_no_file_may_be(tmp_path: Path) -> None:
    with pytest.raises(transfer.FileError, match="is not a directory"):
        async with receiving(Path(make(tmp_path, "file", b""))):
            pass


def test_door__names_all_that_is_public() -> None:
    assert transfer.__all__[:2] == ["send", "receive"]
    assert all(getattr(transfer, name) is not None for name in transfer.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = transfer.nothing  # type: ignore[attr-defined]


async def test_readme__its_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(transfer.__file__).with_name("README.md").read_text()
    names_of: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names_of)
    port = free_port()
    serving = asyncio.create_task(names_of["serve"](str(tmp_path / "inbox"), port))
    make(tmp_path, "a", b"123")
    await transfer.send(tmp_path / "a", "127.0.0.1", port=port, wait=PATIENCE, config=HERE)
    await names_of["archive"](str(tmp_path / "a"), "127.0.0.1", port)
    await cancelled(serving)
    assert "3 bytes, " in capsys.readouterr().out
