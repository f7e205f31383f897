# SPDX-License-Identifier: Apache-2.0
"""A file that one end cannot read or store does not stop the others; both ends name it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transfer_ends import both, chunks, make, receiving, sending, sessions, turns

from mrc.errors import ProtocolError
from mrc.transfer import plan, sender
from mrc.transfer.files import OutputDirectory, PartFile
from mrc.transfer.limits import CHUNK_BYTES, FileError, FinalError, mark_name
from mrc.transfer.messages import (
    MAX_LIST_BYTES,
    Abort,
    FailedFiles,
    FailedName,
    OfferDone,
    Pack,
    Refuse,
    TransferMessage,
    failed_of,
    from_dict,
    to_dict,
)
from mrc.transfer.plan import SendPlan, SourceFile, plan_of
from mrc.transfer.results import FailedFile
from mrc.transfer.sender import SendOptions
from mrc.transfer.session import TransferError
from mrc.transfer.sinks import PackSink

LARGE = 6 * CHUNK_BYTES  # has an offer of its own
DATA = os.urandom(LARGE + 2)
NAMES = ("top/a", "top/b", "top/c")
Copy = Callable[[], Awaitable[tuple[list[FailedFile], list[FailedFile]]]]


@pytest.fixture(params=[5, 3 * CHUNK_BYTES, LARGE], ids=["small", "of parts", "large"])
def top(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Three files of one size; `b` is the bad one."""
    path = tmp_path / "top"
    path.mkdir()
    for begin, name in enumerate("abc"):
        make(path, name, DATA[begin : begin + request.param])
    return path


@pytest.fixture
def copy(top: Path, inbox: Path) -> Copy:
    """Copies the folder, and checks that all but `b` arrives. Returns what each end leaves out."""
    return partial(copied, top, inbox)


async def copied(top: Path, inbox: Path) -> tuple[list[FailedFile], list[FailedFile]]:
    ours: list[FailedFile] = []
    theirs: list[FailedFile] = []
    async with sessions() as ends:
        sent, got = await both(
            sending(ends.sender, [str(top)], failed=ours),
            receiving(ends.receiver, inbox, failed=theirs),
        )
    assert [file.name for file in sent] == [file.name for file in got] == ["top/a", "top/c"]
    for name in "ac":
        assert (inbox / "top" / name).read_bytes() == (top / name).read_bytes()
    assert os.stat(inbox / "top").st_mtime_ns == os.stat(top).st_mtime_ns, "it is complete"
    assert [each.name for each in ours] == [each.name for each in theirs] == ["top/b"]
    assert [each.end for each in ours] == [each.end for each in theirs]
    return ours, theirs


def opens_not(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[SourceFile], None], module: object
) -> None:
    """The sender's `b` fails."""

    class Bad(SourceFile):
        def __init__(self, path: str, *, follow: bool = True) -> None:
            super().__init__(path, follow=follow)
            if path.endswith("b"):
                what(self)

    monkeypatch.setattr(module, "SourceFile", Bad)


def vanish(source: SourceFile) -> None:
    source.close()
    raise FileError(f"{source.path}: no such file")


def shrink(source: SourceFile) -> None:
    os.truncate(source.path, source.bytes - 1)


@pytest.mark.more
@pytest.mark.parametrize(
    ("what", "cause"),
    [(vanish, "no such file"), (shrink, "it shrank")],
)
async def test_send_plan__file_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, what: Callable[[SourceFile], None], cause: str
) -> None:
    for module in (plan, sender):
        opens_not(monkeypatch, what, module)
    ours, theirs = await copy()
    assert cause in ours[0].error and cause in theirs[0].error
    assert ours[0].end == "sender"


async def test_send_plan__a_file_that_grows(
    monkeypatch: pytest.MonkeyPatch, top: Path, inbox: Path
) -> None:
    """It is copied as it was when it was opened, and its date is that of then."""

    def grow(source: SourceFile) -> None:
        with open(source.path, "ab") as file:
            file.write(b"x")

    before = (top / "b").read_bytes(), (top / "b").stat().st_mtime_ns
    for module in (plan, sender):
        opens_not(monkeypatch, grow, module)
    grown: list[str] = []
    async with sessions() as ends:
        sent, got = await both(
            sending(ends.sender, [str(top)], how=SendOptions(on_grew=grown.append)),
            receiving(ends.receiver, inbox),
        )
    assert [file.name for file in sent] == [file.name for file in got] == list(NAMES)
    copy = inbox / "top" / "b"
    assert (copy.read_bytes(), copy.stat().st_mtime_ns) == before
    assert grown == [str(top / "b")]


@pytest.mark.more
async def test_send_plan__name_that_is_in_use(copy: Copy, inbox: Path) -> None:
    (inbox / "top").mkdir()
    make(inbox / "top", "b", b"theirs")
    with pytest.raises(AssertionError, match="it is complete"):
        await copy()  # it existed, so it keeps its own date
    assert (inbox / "top/b").read_bytes() == b"theirs"


async def test_send_plan__file_that_cannot_be_created(
    monkeypatch: pytest.MonkeyPatch, copy: Copy
) -> None:
    init = PartFile.__init__

    def fails(self: PartFile, directory: OutputDirectory, folder: object, name: str, *rest: object,
              **options: object) -> None:  # fmt: skip
        if name == "top/b":
            raise FileError(f"{name}: is odd")
        init(self, directory, folder, name, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PartFile, "__init__", fails)
    ours, _ = await copy()
    assert (ours[0].error, ours[0].end) == ("top/b: is odd", "receiver")


@pytest.mark.more
@pytest.mark.parametrize("at", [0, 2 * CHUNK_BYTES])
async def test_send_plan__write_that_fails(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, top: Path, inbox: Path, at: int
) -> None:
    """Nothing of the file is left, and the sender has stopped sending it. The folder has a mark."""
    if (top / "b").stat().st_size <= at:
        at = 0
    write = PartFile._write

    def fails(self: PartFile, offset: int, chunk: memoryview) -> None:
        if self.name == "top/b" and offset >= at:
            raise OSError(errno.EIO, "broken sector")
        write(self, offset, chunk)

    monkeypatch.setattr(PartFile, "_write", fails)
    ours, _ = await copy()
    assert "cannot write: broken sector" in ours[0].error
    assert sorted(os.listdir(inbox)) == [mark_name("top"), "top"]
    assert not (inbox / "top/b").exists()


@pytest.mark.more
async def test_send_plan__commit_that_fails(
    monkeypatch: pytest.MonkeyPatch, copy: Copy, inbox: Path
) -> None:
    commit = PartFile.commit

    def fails(self: PartFile, *meta: object) -> None:
        if self.name == "top/b":
            make(inbox / "top", "b", b"from another program")
        commit(self, *meta)  # type: ignore[arg-type]

    monkeypatch.setattr(PartFile, "commit", fails)
    ours, _ = await copy()
    assert "exists in" in ours[0].error and ours[0].end == "receiver"


async def test_send_plan__folder_that_is_a_file_there(tmp_path: Path, inbox: Path) -> None:
    """All below it fails, and the folder too."""
    (tmp_path / "top/in").mkdir(parents=True)
    for path in ("top/a", "top/in/x", "top/in/y", "top/z"):
        make(tmp_path, path, path.encode())
    (inbox / "top").mkdir()
    make(inbox / "top", "in", b"a file")
    failed: list[FailedFile] = []
    async with sessions() as ends:
        sent, _ = await both(
            sending(ends.sender, [f"{tmp_path}/top"], failed=failed),
            receiving(ends.receiver, inbox),
        )
    assert [file.name for file in sent] == ["top/a", "top/z"]
    assert [each.name for each in failed] == ["top/in/x", "top/in/y", "top/in"]


def test_plan_of__what_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "secret", "z"):
        (tmp_path / "top" / name).mkdir(parents=True)
    make(tmp_path / "top", ".x.mrc-01234567", b"reserved")
    scandir = os.scandir

    def refuses(path: str) -> object:
        if path.endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    plan = plan_of([f"{tmp_path}/top", f"{tmp_path}/nothing"])
    assert [entry.name for entry in plan.entries] == ["top/a", "top/z", "top"]
    assert [each.name for each in plan.failed] == ["top/.x.mrc-01234567", "top/secret", "nothing"]


def test_plan_of__an_error_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "top" / "in").mkdir(parents=True)
    for name, target in (("absolute", "/etc/passwd"), ("out", "../../x"), (".x.mrc-01234567", "a")):
        (tmp_path / "top" / "in" / name).symlink_to(target)
    plan = plan_of([f"{tmp_path}/top"], links=True)
    assert [each.error for each in plan.failed] == [
        f"{tmp_path}/top/in/.x.mrc-01234567: '.x.mrc-01234567' is reserved for temporary files of"
        " mrc: rename the file",
        f"{tmp_path}/top/in/absolute: the link is not relative",
        f"{tmp_path}/top/in/out: the link may lead out of the folder that is sent",
    ]


def test_plan_of__nothing_can_be_sent() -> None:
    with pytest.raises(FileError, match=r"^/nowhere: no such file$"):
        plan_of(["/nowhere"])
    with pytest.raises(FileError, match=r"^/nowhere: no such file, nor can the other 1 be sent$"):
        plan_of(["/nowhere", "/nor/here"])


def test_failed_of__no_message_is_too_long() -> None:
    many = [(f"\udc80{n}" * 300, "é" * 4000) for n in range(500)]
    messages = list(failed_of(many))
    assert [each.name for message in messages for each in message.files] == [n for n, _ in many]
    assert max(len(json.dumps(to_dict(message))) for message in messages) <= MAX_LIST_BYTES


@pytest.mark.parametrize(
    "message",
    [
        FailedFiles((FailedName("d/" * 3000, f"{'d/' * 3000}: no such file"),)),
        Refuse("all", f"{'d/' * 3000}: no such file"),
        OfferDone("", 0, f"{'d/' * 3000}: no such file"),
        Abort(f"{'d/' * 3000}: no such file"),
    ],
)
def test_to_dict__a_path_of_any_length_fits(message: TransferMessage) -> None:
    """It ended the session: the other end refused the message."""
    heard = from_dict(to_dict(message))
    last = heard.files[0] if isinstance(heard, FailedFiles) else heard
    assert isinstance(last, (FailedName, Refuse, OfferDone, Abort))
    assert last.error.endswith(": no such file")


def test_plan_of__a_path_that_no_receiver_takes(tmp_path: Path) -> None:
    """Such a folder can be made step by step, and listed by its descriptor."""
    top, name = tmp_path / "top", "x" * 250
    top.mkdir()
    plan, above = SendPlan(), "/".join([name] * 16)  # 4015 bytes
    for base in ("ok", "y" * 100):
        make(top, base, b"1")
    plan._add_folder(str(top), above, (), "")
    assert [entry.name for entry in plan.entries] == [f"{above}/ok", above]
    (failed,) = plan.failed
    assert "is longer than 4095 bytes" in failed.error


async def test_send_plan__a_receiver_that_fails_what_it_was_not_sent(tmp_path: Path) -> None:
    """It could fill the memory of its sender with names."""
    (tmp_path / "top").mkdir()
    make(tmp_path / "top", "a", b"1")
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [f"{tmp_path}/top"]))
        assert isinstance(await ends.receiver.hear(), Pack)
        await ends.receiver.say(FailedFiles((FailedName("top/b", "odd"),)))
        (outcome,) = await both(sent)
    assert isinstance(outcome, ProtocolError) and "was not sent" in str(outcome)


async def test_send_plan__a_system_that_lets_nothing_be_removed(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender connected again and again: it heard of no cause."""
    unlink = os.unlink

    def refuses(path: Any, **options: Any) -> None:
        if "dir_fd" in options:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        unlink(path, **options)

    def changed(*_: object) -> None:
        raise FileError("b: is odd")

    monkeypatch.setattr(os, "unlink", refuses)
    monkeypatch.setattr(PartFile, "commit", changed)
    (tmp_path / "top").mkdir()
    make(tmp_path / "top", "b", b"1")
    async with sessions() as ends:
        ways = sending(ends.sender, [f"{tmp_path}/top"]), receiving(ends.receiver, inbox)
        sent, received = await both(*ways)
    assert isinstance(received, FinalError) and "disk quota exceeded" in str(received)
    assert isinstance(sent, TransferError) and "disk quota exceeded" in str(sent)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
async def test_receive_files__an_error_of_its_system_is_told(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(PackSink, "store", fails)
    (tmp_path / "top").mkdir()
    async with sessions() as ends:
        ways = sending(ends.sender, [f"{tmp_path}/top"]), receiving(ends.receiver, inbox)
        sent, received = await both(*ways)
    assert isinstance(received, type(error))
    assert isinstance(sent, TransferError) and "refused the files" in str(sent)


async def test_receive_files__both_ends_hear_of_a_chunk_before_the_next_one(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk may fail a hundred thousand files; their names are kept until they are told."""
    (tmp_path / "top").mkdir()
    for n in range(8):
        make(tmp_path / "top", f".{n}", bytes(2 * CHUNK_BYTES))
    untold: list[int] = []
    store = PackSink.store

    def counts(self: PackSink, index: int, chunk: memoryview) -> None:
        untold.append(len(self.failed))
        store(self, index, chunk)

    monkeypatch.setattr(PackSink, "store", counts)
    failed: list[FailedFile] = []
    async with sessions() as ends:
        await both(
            sending(ends.sender, [f"{tmp_path}/top"]),
            receiving(ends.receiver, inbox, failed=failed),
        )
    assert len(failed) == 8 and set(untold) == {0}


async def test_send_plan__a_refused_file_is_not_sent_to_its_end(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [make(tmp_path, "b", bytes(40 * CHUNK_BYTES)), make(tmp_path, "c", bytes(LARGE))]
    write = PartFile._write

    def fails(self: PartFile, offset: int, chunk: memoryview) -> None:
        if self.name == "b":
            raise OSError(errno.EIO, "broken sector")
        write(self, offset, chunk)

    monkeypatch.setattr(PartFile, "_write", fails)
    failed: list[FailedFile] = []
    async with sessions() as ends:
        sent, _ = await both(
            sending(ends.sender, paths, failed=failed), receiving(ends.receiver, inbox)
        )
        assert len(chunks(ends.out)) < 36
    assert [each.name for each in failed] == ["b"] and [file.name for file in sent] == ["c"]
    assert os.listdir(inbox) == ["c"]


async def test_receive_files__the_output_folder_was_removed(tmp_path: Path, inbox: Path) -> None:
    """No file can be stored any more, so there is one error with the remedy."""
    paths = [make(tmp_path, name, b"1") for name in "ab"]
    async with sessions() as ends:
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await turns(1)  # it has opened the folder
        os.rmdir(inbox)
        sent, refused = await both(sending(ends.sender, paths), received)
    removed = f"{inbox}: the folder was removed; start mrc recv again"
    assert str(refused) == removed and str(sent) == f"h1 refused the files: {removed}"
