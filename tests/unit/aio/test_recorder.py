# SPDX-License-Identifier: Apache-2.0
"""Recordings of a Context: which payload arrived when."""

from __future__ import annotations

import time

import pytest
from endpoints import READ, WRITE, connected_pair, two_planes

from mrc import ArgumentError, InUseError, StateError

MS = 1_000_000
KIB = 1 << 10


async def test_record__what_arrived_when() -> None:
    async with connected_pair(**two_planes()) as pair:
        target = bytearray(64 * KIB)
        async with (
            pair.near_context.register(bytes(64 * KIB), access=READ) as source,
            pair.far_context.register(target, access=WRITE) as mr,
        ):
            await pair.near.write(source, mr.remote)  # before the recording
            before_ns = time.monotonic_ns()
            async with pair.far_context.record([pair.far], width_ns=10 * MS) as recorder:
                await pair.near.write(source, mr.remote)
                between_ns = time.monotonic_ns()
                await pair.near.write(source, mr.remote, length=10)
                recording = await recorder.stop()
                await pair.near.write(source, mr.remote)  # after the recording
    assert before_ns < recording.start_monotonic_ns < between_ns
    assert recording.width_ns == 10 * MS and recording.planes.keys() == {1, 2}
    assert sum(recording.bytes) == 64 * KIB + 10
    assert len(recording.bytes) == recording.duration_ns // (10 * MS) + 1
    assert recording.first_ns is not None and recording.last_ns is not None
    assert recording.longest_gap_at_ns is not None
    end_ns = recording.longest_gap_at_ns + recording.longest_gap_ns
    assert 0 < recording.first_ns <= recording.longest_gap_at_ns < end_ns <= recording.last_ns
    assert recording.last_ns < recording.duration_ns
    assert recording.start_monotonic_ns + recording.last_ns > between_ns


async def test_record__other_qps_do_not_count() -> None:
    async with connected_pair() as pair:
        target = bytearray(KIB)
        async with (
            await pair.near_context.connect("127.0.0.1", pair.listener.port) as other,
            await pair.listener.accept() as accepted,
            pair.near_context.register(bytes(KIB), access=READ) as source,
            pair.far_context.register(target, access=WRITE) as mr,
            pair.far_context.record([accepted]) as recorder,
        ):
            await pair.near.write(source, mr.remote)
            await other.write(source, mr.remote, length=100)
            assert sum((await recorder.stop()).bytes) == 100
        assert (await pair.far_context.counters())["RX_RECORDED"] == 100


async def test_record__all_qps_also_those_that_come() -> None:
    async with connected_pair(**two_planes()) as pair, pair.far_context.record() as recorder:
        target = bytearray(KIB)
        async with (
            await pair.near_context.connect("127.0.0.1", pair.listener.port) as other,
            await pair.listener.accept(),
            pair.near_context.register(bytes(KIB), access=READ) as source,
            pair.far_context.register(target, access=WRITE) as mr,
        ):
            await pair.near.write(source, mr.remote)
            await other.write(source, mr.remote, length=100)
        recording = await recorder.stop()
    assert recording.planes.keys() == {1, 2}
    assert sum(recording.bytes) == KIB + 100


async def test_record__nothing_came() -> None:
    async with connected_pair() as pair, pair.far_context.record([pair.far]) as recorder:
        recording = await recorder.stop()
        assert await recorder.stop() == recording
    assert not any(recording.bytes)
    assert (recording.first_ns, recording.last_ns, recording.longest_gap_at_ns) == (None,) * 3


async def test_record__one_at_a_time_and_of_open_qps() -> None:
    async with connected_pair() as pair:
        with pytest.raises(ArgumentError, match="width_ns: 999"):
            pair.far_context.record([pair.far], width_ns=999)
        with pytest.raises(ArgumentError, match="qps: is empty"):
            pair.far_context.record([])
        async with pair.far_context.record([pair.far]):
            with pytest.raises(InUseError, match="one recording at a time"):
                async with pair.far_context.record([pair.far]):
                    pass
        async with pair.far_context.record([pair.far]) as recorder:
            await recorder.stop()
        await pair.far.close()
        with pytest.raises(StateError):
            async with pair.far_context.record([pair.far]):
                pass
        assert pair.far_context._opened().dispatcher.recording is None


async def test_record__ends_with_its_context() -> None:
    async with connected_pair() as pair, pair.far_context.record([pair.far]) as recorder:
        await pair.far_context.close()
        with pytest.raises(StateError):
            await recorder.stop()
