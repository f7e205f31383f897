# SPDX-License-Identifier: Apache-2.0
"""`mrc run --rc`: programs that SEND, READ and ATOMIC, over the WRITEs of MRC."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from ports import free_port, is_taken
from slowness import PATIENCE, until
from verbs.building import sanitized

import mrc
from mrc.config import ContextConfig

from .conftest import SAID_OF_RC, Agent

REFUSED = "libmrc: a work request of kind 9 is refused: --rc does not emulate it\n"
EMULATED = [
    "several pieces", "immediates and inline", "order", "long messages", "no receive",
    "late receive", "short receive", "receive without memory", "reads and atomics", "rights",
    "refused", "solicited events", "another life",
]  # fmt: skip
SHARED = ["one takes all", "turns", "limit", "failed end", "many"]
PARTS = {"parts": (EMULATED, SAID_OF_RC + REFUSED), "shared": (SHARED, SAID_OF_RC)}


@pytest.mark.parametrize("name", PARTS)
def test_program(agent: Agent, programs: Path, name: str) -> None:
    code, out, err = agent.output(programs / "emulated", name, rc=True)
    assert (code, err) == (0, PARTS[name][1])
    assert out.splitlines() == PARTS[name][0]


@pytest.mark.slow
def test_stopped_peer__is_noticed_while_a_message_waits_for_its_receive(
    agent: Agent, programs: Path
) -> None:
    assert agent.output(programs / "peers", "stopped", "quiet", rc=True)[:2] == (0, "quiet\n")


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_programs__under_a_sanitizer(agent: Agent, tmp_path: Path, sanitizer: str) -> None:
    folder = sanitized(tmp_path, sanitizer)
    for name, (parts, said) in PARTS.items():
        done = agent.linked(folder / "emulated", name, ASAN_OPTIONS="detect_leaks=0", MRC_RC="1")
        if name == "shared":  # a sanitizer needs memory of its own
            assert done.stdout.splitlines()[: len(parts) - 1] == parts[:-1]
        else:
            assert (done.returncode, done.stderr) == (0, said), name


# ---- A hostile peer -------------------------------------------------------------------------

INBOX_BYTES = 32 * (65536 + 4096)
HEADER = struct.pack("<IIII", 0, 1, 0, 0)  # frames read, receives granted and wanted
FRAMES = {
    "a kind that does not exist": HEADER + struct.pack("<BBBBI", 77, 0, 0, 0, 0),
    "bytes beyond the frame": HEADER + struct.pack("<BBBBIII", 1, 0, 0, 0, 5000, 5000, 0),
    "more than it announces": HEADER + struct.pack("<BBBBIII", 1, 0, 0, 0, 8, 4, 0) + bytes(8),
    "an answer to nothing": HEADER + struct.pack("<BBBBI", 6, 0, 0, 0, 0),
    "a message without a receive": HEADER + 2 * struct.pack("<BBBBIII", 3, 0, 0, 0, 0, 0, 0),
    "a credit for no frame": struct.pack("<IIII", 1 << 20, 0, 0, 0),
    "too many questions": HEADER + 17 * struct.pack("<BBBBIQII", 4, 0, 0, 0, 0, 4096, 1, 0),
    "too short": b"",
}


async def attack(agent: Agent, qpn: int, frame: bytes) -> None:
    """Connects as an end that has an inbox, and writes one frame."""
    claim = {"from": 3, "to": qpn, "rc": {"address": 4096, "rkey": 1, "shared": False}}
    async with (
        mrc.open(ContextConfig(interfaces=("lo",))) as context,
        context.connect("127.0.0.1", port=agent.port, private=claim) as qp,
        context.register(frame or b"0") as region,
    ):
        inbox = qp.peer.private["rc"]
        target = mrc.RemoteMemory(inbox["address"], inbox["rkey"], INBOX_BYTES)
        with suppress(mrc.MrcError):  # the QP fails before it answers, or not
            if frame:
                await qp.write(region, target, imm=0, timeout=PATIENCE)
            else:
                await qp.write(imm=0, timeout=PATIENCE)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_hostile_peer__fails_its_own_qp_only(agent: Agent, programs: Path, frame: bytes) -> None:
    with agent.started(programs / "emulated", "victim", rc=True) as victim:
        try:
            assert victim.stdout is not None
            asyncio.run(attack(agent, int(victim.stdout.readline()), frame))
            out, err = victim.communicate(timeout=PATIENCE)
        finally:
            victim.kill()
    assert (victim.returncode, out) == (0, "failed\n"), err
    assert "its peer has broken the protocol of --rc: the QP fails" in err


# ---- Programs of others, unmodified ---------------------------------------------------------

PERFTEST = ("-d", "mrc0", "-x", "0", "-F")
PINGPONG = ("-d", "mrc0", "-g", "0")
FEW = ("-n", "200")
RUNS = [
    ("ibv_rc_pingpong", *PINGPONG, *FEW),
    ("ibv_srq_pingpong", *PINGPONG, *FEW),
    ("ib_send_bw", *PERFTEST, "-s", "1000000", "-n", "50"),
    ("ib_read_bw", *PERFTEST, "-s", "100000", *FEW),
    ("ib_atomic_bw", *PERFTEST, *FEW),
]
MORE = [
    ("ib_send_bw", *PERFTEST, "-a", "-n", "20"),
    ("ibv_rc_pingpong", *PINGPONG, *FEW, "-e", "-s", "100000"),
    ("ibv_srq_pingpong", *PINGPONG, *FEW, "-e", "-q", "4"),
    ("ib_send_bw", *PERFTEST, *FEW, "-e"),
    ("ib_send_bw", *PERFTEST, *FEW, "-q", "64", "-s", "1000"),
    ("ib_send_bw", *PERFTEST, *FEW, "-b"),
    ("ib_send_bw", *PERFTEST, *FEW, "--use-srq", "-q", "4"),
    ("ib_send_lat", *PERFTEST, "-a", "-n", "20"),
    ("ib_read_bw", *PERFTEST, "-a", "-n", "20"),
    ("ib_read_lat", *PERFTEST, *FEW),
    ("ib_read_bw", *PERFTEST, *FEW, "-b", "-q", "4"),
    ("ib_atomic_bw", *PERFTEST, *FEW, "-A", "CMP_AND_SWAP", "-b"),
    ("ib_atomic_lat", *PERFTEST, *FEW),
    ("ib_write_bw", *PERFTEST, *FEW),
    ("ib_write_lat", *PERFTEST, *FEW),
]


def run_both(agent: Agent, program: Sequence[str], port: int) -> None:
    """Its server and its client."""
    command = [*program, "-p", str(port)]
    with agent.started(*command, rc=True) as server:
        try:
            until(lambda: server.poll() is not None or is_taken(port))
            code, out, err = agent.output(*command, "127.0.0.1", rc=True)
            if code:
                server.kill()
            served, errors = server.communicate(timeout=PATIENCE)
            assert (code, SAID_OF_RC in err) == (0, True), out + err + served + errors
            assert (server.returncode, SAID_OF_RC in errors) == (0, True), served + errors
        finally:
            server.kill()


@pytest.mark.default
@pytest.mark.parametrize(
    "program", [*RUNS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)], ids=" ".join
)
def test_others(agent: Agent, program: Sequence[str]) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip("needs perftest and ibverbs-utils: apt-get install perftest ibverbs-utils")
    run_both(agent, program, free_port())


@pytest.mark.parametrize("first", [True, False])
def test_others__with_rc_on_one_side_are_refused_in_words(agent: Agent, first: bool) -> None:
    """The end that dials hears it at once, and the other one when its agent asks: perftest may have
    ended by then.
    """
    if shutil.which("ib_write_bw") is None:
        pytest.skip("needs perftest: apt-get install perftest")
    port = free_port()
    command = ["ib_write_bw", *PERFTEST, "-b", "-p", str(port)]
    words = "start both with mrc run --rc, or neither"
    with agent.started(*command, rc=first) as server:
        until(lambda: server.poll() is not None or is_taken(port))
        with agent.started(*command, "127.0.0.1", rc=not first) as client:
            assert client.stderr is not None and server.stderr is not None
            until(lambda: client.poll() is not None or server.poll() is not None)
            client.kill()
            server.kill()
            assert words in client.stderr.read() + server.stderr.read()
