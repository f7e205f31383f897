# SPDX-License-Identifier: Apache-2.0
"""An engine with one sealed QP, whose packets a test takes and gives one by one."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbuild
import cffi
from wire import vectors

from mrc._ffi_build import cut_cdef

EPOCH_BITS = 6  # the smallest: a new key after 64 packets
PATH_MTU = 256
MEMORY_BYTES = 1 << 16
PORT = 4791
_SEALS = """
int mrc_qp_set_seal(mrc_engine *engine, uint32_t qpn, const struct mrc_seal_attr *attr);
const struct mrc_aead *mrc_aead_ipsec_mb(void);
const struct mrc_aead *mrc_aead_libcrypto(void);
void vector_seal(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                 uint64_t counter, uint32_t ev, const uint8_t *packet, uint32_t header_bytes,
                 uint32_t imm_bytes, uint32_t payload_bytes, uint32_t pad, uint8_t *out);
int vector_open(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                uint32_t ev, uint8_t *packet, size_t bytes, uint64_t *counter);
"""


@functools.cache
def core() -> tuple[Any, Any]:
    """The compiled core."""
    ffi = cffi.FFI()
    headers = [(cbuild.CSRC / name).read_text() for name in ("classes.h", "mrc.h")]
    ffi.cdef("".join(map(cut_cdef, headers)) + _SEALS)
    io, extra = cbuild.CSRC / "io", Path(__file__).with_name("vectors.c")
    sources = [*cbuild._sources("core"), io / "aead.c", extra]
    return ffi, ffi.dlopen(str(cbuild.shared_library(sources, "sealing")))


def aead(library: str) -> Any:
    """The ciphers of a library; raises LookupError."""
    ffi, lib = core()
    found = getattr(lib, f"mrc_aead_{library}")()
    if found == ffi.NULL:
        raise LookupError(f"this host has no {library}")
    return found


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the QP: its numbers, its EVs on ports 1 and 2, the secret by which it sends."""

    qpn: int
    secret: bytes
    address: bytes
    evs: tuple[int, int]
    rkey: int = 7


def _side(side: str, host: int) -> Side:
    address = b"\xfd" + bytes(14) + bytes([host])
    return Side(vectors.QPNS[side], vectors.direction(side).secret, address, vectors.EVS[side])


ONE, OTHER = _side("connects", 1), _side("listens", 2)
Sent = tuple[int, bytes]
"""an EV and a packet"""


class Engine:
    """The engine of one side; time is the test's."""

    def __init__(self, library: str, mode: int, own: Side, peer: Side) -> None:
        self.ffi, self._lib = core()
        self.own, self._peer, self.mode = own, peer, mode
        self.now_ns = 1_000_000
        config = {
            "seed": 1, "max_qps": 1, "ports": 2, "seal_epoch_bits": EPOCH_BITS,
            "aead": aead(library),
        }  # fmt: skip
        self._engine = self._lib.mrc_engine_create(self._struct("engine_config", config))
        assert self._engine != self.ffi.NULL
        self.memory = self.ffi.new("uint8_t[]", MEMORY_BYTES)
        self._bursts = self.ffi.new("struct mrc_burst[64]")
        self._create(mode)

    def _struct(self, name: str, fields: dict[str, Any]) -> Any:
        return self.ffi.new(f"struct mrc_{name} *", fields)

    def _done(self, code: int) -> None:
        assert code == 0, code

    @property
    def address(self) -> int:
        return int(self.ffi.cast("uintptr_t", self.memory))

    def _create(self, mode: int) -> None:
        lib, qpn, own, peer = self._lib, self.own.qpn, self.own, self._peer
        create = {"qpn": qpn, "sq_depth": 64, "mpr": 128, "max_wimm": 8}
        rtr = self._struct("qp_rtr_attr", {"dest_qpn": peer.qpn})
        rts = self._struct("qp_rts_attr", {
            "path_mtu": PATH_MTU, "peer_mpr": 128, "peer_max_wimm": 8, "timeout": 14,
        })  # fmt: skip
        seal = self._struct("seal_attr", {
            "mode": mode, "peer_qpn": peer.qpn, "send": own.secret, "receive": peer.secret,
        })  # fmt: skip
        evs = self.ffi.new("struct mrc_ev_attr[]", [
            {"src": own.address, "dst": peer.address, "ev": ev, "dport": PORT, "port": port,
             "family": 6} for port, ev in enumerate(own.evs, 1)
        ])  # fmt: skip
        sources = self.ffi.new("struct mrc_peer_source[]", [
            {"address": peer.address, "sport": ev >> 16} for ev in peer.evs
        ])  # fmt: skip
        access = lib.MRC_ACCESS_LOCAL_READ | lib.MRC_ACCESS_REMOTE_WRITE
        address, rkey = self.address, self.own.rkey
        self._done(lib.mrc_mr_register(self._engine, address, MEMORY_BYTES, rkey, access, 0))
        self._done(lib.mrc_qp_create(self._engine, self._struct("qp_create_attr", create)))
        self._move(lib.MRC_QP_INIT)
        self._done(lib.mrc_qp_set_seal(self._engine, qpn, seal))
        self._done(lib.mrc_qp_set_evs(self._engine, qpn, evs, 2))
        self._done(lib.mrc_qp_set_peer(self._engine, qpn, sources, 2))
        self._move(lib.MRC_QP_RTR, rtr=rtr)
        self._move(lib.MRC_QP_RTS, rts=rts)

    def _move(self, state: int, *, rtr: Any = None, rts: Any = None) -> None:
        null = self.ffi.NULL
        self._done(
            self._lib.mrc_qp_modify(
                self._engine, self.own.qpn, state, rtr or null, rts or null, self.now_ns
            )
        )

    def close(self) -> None:
        self._lib.mrc_engine_destroy(self._engine)

    def write(self, to: int, data: bytes, imm: int | None = None) -> None:
        """Posts a write to an address of the peer."""
        self.ffi.memmove(self.memory, data, len(data))
        wr = {"local": self.address, "va": to, "lkey": self.own.rkey, "rkey": self._peer.rkey,
              "bytes": len(data), "opcode": self._lib.MRC_WR_WRITE, "imm": imm or 0}  # fmt: skip
        if imm is not None:
            wr["opcode"] = self._lib.MRC_WR_WRITE_IMM
        posted = self._struct("wr", wr)
        self._done(self._lib.mrc_qp_post(self._engine, self.own.qpn, posted, 1, self.now_ns))

    def probe(self, packet_bytes: int = 0) -> None:
        """Probes the EV."""
        fields = {"qpn": self.own.qpn, "bytes": packet_bytes, "timeout_ns": 10**9}
        probe = self._struct("probe_attr", fields)
        assert self._lib.mrc_engine_probe_evs(self._engine, probe, 1, self.now_ns) == 1

    def port_up(self, port: int, *, up: bool) -> None:
        self._lib.mrc_engine_port_up(self._engine, port, up, self.now_ns)

    def sent(self) -> list[Sent]:
        """The packets that are due now."""
        made: list[Sent] = []
        while True:
            n = self._lib.mrc_engine_transmit(self._engine, self._bursts, 64, self.now_ns)
            if n == 0:
                return made
            for burst in self._bursts[0:n]:
                ev = burst.sport << 16 | burst.flow_label
                made += [(ev, packet) for packet in self._packets(burst)]
            taken = self.ffi.new("int[]", [1] * n)
            self._lib.mrc_engine_commit(self._engine, self._bursts, taken, n, self.now_ns)

    def _packets(self, burst: Any) -> Iterator[bytes]:
        at = 0
        for packet in burst.packets[0 : burst.n_packets]:
            payload, n = packet.payload, packet.payload_bytes
            total = packet.header_bytes + n + packet.trailer_bytes
            if burst.staged != self.ffi.NULL:
                yield bytes(self.ffi.buffer(burst.staged + at, total))
                at += total
                continue
            yield (
                bytes(self.ffi.buffer(packet.header, packet.header_bytes))
                + (bytes(self.ffi.buffer(payload, n)) if n else b"")
                + bytes(self.ffi.buffer(packet.trailer, packet.trailer_bytes))
            )

    def later(self, ns: int) -> None:
        """Time goes on."""
        self.now_ns += ns
        self._lib.mrc_engine_expire(self._engine, self.now_ns)

    def receive(self, ev: int, packet: bytes) -> str:
        """A packet of the peer arrives; the drop reason or ""."""
        meta = self._struct("meta", {
            "src": self._peer.address, "dst": self.own.address, "sport": ev >> 16,
            "flow_label": ev & 0xFFFF, "dport": PORT, "family": 6,
            "port": 1 + self._peer.evs.index(ev),
        })  # fmt: skip
        n = len(packet)
        held = self.ffi.new("uint8_t[]", packet)
        drop = self._lib.mrc_engine_receive(self._engine, held, n, n, meta, self.now_ns)
        return self.ffi.string(self._lib.mrc_drop_name(drop)).decode() if drop else ""

    def completions(self) -> list[Any]:
        """Opcode, status and immediate of what has completed."""
        wcs = self.ffi.new("struct mrc_wc[64]")
        n = self._lib.mrc_cq_poll(self._engine, wcs, 64)
        return [(wc.opcode, wc.status, wc.imm) for wc in wcs[0:n]]

    def answered_probes(self) -> int:
        """Probes that have been answered since the last call."""
        events = self.ffi.new("struct mrc_event[64]")
        n = self._lib.mrc_engine_events(self._engine, events, 64)
        kind = self._lib.MRC_EVENT_PROBE
        return sum(event.type == kind and event.result == 0 for event in events[0:n])


@contextmanager
def engine(library: str, mode: int, own: Side, peer: Side) -> Iterator[Engine]:
    made = Engine(library, mode, own, peer)
    try:
        yield made
    finally:
        made.close()
