# SPDX-License-Identifier: Apache-2.0
"""Which file of tests/c covers which source: test_<module>.c, and those of this index."""

from __future__ import annotations

import re
from pathlib import Path

import cbuild
from project_text import report, under

# Modules of csrc, and the tests that cover them beside (or instead of) the file of their own name.
INDEX: dict[str, dict[str, str]] = {
    "core": {
        # base
        "base": "sealer audit",
        # wire
        "hkdf": "engine_seal",
        "icrc": "engine_loss",
        "seal": "engine_seal engine_seal_attacks",
        # path
        "cc": "engine_wan",
        "cc_delay": "cc engine_wan",
        "cc_nscc": "engine_nscc",
        "ev": "engine_ev",
        # shared
        "arena": "engine_rare",
        "mr": "engine_access",
        "probes": "engine_probe",
        "services": "query trace",
        # qp
        "peer": "engine_claims",
        "qp": "engine_states engine_stale",
        "requester": "engine_transfer engine_unsignaled",
        "responder": "engine_transfer engine_access",
        "rxwin": "engine_mpr",
        # send
        "burst": "engine_transfer",
        "requester_tx": "engine_send engine_transfer",
        "windows": "engine_nscc engine_planes",
        # recv
        "responder_rx": "engine_together engine_transfer",
        "responder_tx": "engine_nack",
        "reverse": "engine_reverse",
        # loss
        "acks": "engine_loss engine_stale",
        "detect": "engine_loss tail",
        "health": "engine_planes engine_loss",
        "requester_rx": "engine_nack engine_refusal",
        "sack_take": "engine_hostile engine_forged",
        "timeout": "reinject tail engine_refusal",
        # endpoint
        "answer": "engine_claims engine_rare",
        "endpoint": "engine_probe engine_claims",
        "ev_probe": "engine_ev",
        "port_status": "engine_ports",
        # top
        "commit": "engine_send engine_planes",
        "engine": "engine_together engine_forged",
        "schedule": "engine_turns",
        "verbs": "engine_states engine_access",
        "turn": "cost",
    },
    "msg": {
        "atomic": "msg_atomic",
        "chains": "msg_chains",
        "frame": "msg_limits",
        "incoming": "msg_steps msg_limits",
        "match": "msg msg_steps",
        "msg": "msg_cost",
        "operations": "msg_errors msg_steps",
        "outgoing": "msg_steps msg_limits msg_memory",
        "slots": "msg_slots",
    },
    "rc": {
        "incoming": "rc rc_sweep",
        "outgoing": "rc rc_sweep",
        "record": "rc rc_sweep",
    },
    "io": {
        "aead_ipsec_mb": "aead aead_ipsec_mb",
        "aead_libcrypto": "aead",
        "cause": "udp_open",
        "commands": "datapath",
        "datapath": "coalesce",
        "guards": "sigbus",
        "keys": "aead",
        "messages": "ctx",
        "socket": "udp_open",
    },
    "sim": {
        "crew": "shards",
        "engines": "fabric",
        "fault": "sim fabric",
        "flow": "sim",
        "frame": "fabric",
        "hop": "fabric",
        "host": "sim",
        "mail": "shards",
        "memory": "sim",
        "qps": "sim",
        "record": "sim",
        "sim_parts": "shards",
        "traffic": "sim",
    },
    "emu": {"ethernet": "emu_ethernet", "outbox": "emu", "ring": "emu"},
}
# Tests of what has no source of its own in these folders.
OTHERS = {
    "check",  # the harness itself
    "headers",  # csrc/io: which headers a source includes
    "latency",  # bench
    "mutate",  # tools
    "runs",  # csrc/program
    "ofi_connect",  # csrc/ofi, whose other tests are in tests/netns
}


def sources(folder: str) -> set[str]:
    return {path.stem for path in under(f"csrc/{folder}") if path.suffix == ".c"}


def files() -> dict[str, Path]:
    """The files test_<name> of tests/c. test_c.py runs the others."""
    found = {path.stem.removeprefix("test_"): path for path in under("tests/c")
             if path.stem.startswith("test_")}  # fmt: skip
    del found["c"]
    return found


def test_index__covers_every_source() -> None:
    report([
        f"csrc/{folder}: no test covers {module}: test_{module}.c, or a line of INDEX"
        for folder, index in INDEX.items()
        for module in sorted(sources(folder) - index.keys() - files().keys())
    ])  # fmt: skip


def test_index__names_sources_and_tests_that_exist() -> None:
    report([
        f"INDEX: {folder}/{module}: {name}"
        for folder, index in INDEX.items()
        for module, names in index.items()
        for name in ([module] if module not in sources(folder) else [])
        + sorted(set(names.split()) - files().keys())
    ])  # fmt: skip


def test_index__tests_link_what_they_cover() -> None:
    report([
        f"{files()[name]}: does not link csrc/{folder}, which holds {module}"
        for folder, index in INDEX.items()
        for module, names in index.items()
        for name in names.split()
        if files()[name].suffix == ".c"
        and folder not in cbuild.parts([cbuild.ROOT / files()[name]])
    ])  # fmt: skip


def test_tests__are_named_after_what_they_test() -> None:
    indexed = {
        name for index in INDEX.values() for names in index.values() for name in names.split()
    }
    modules = {path.stem for folder in INDEX for path in under(f"csrc/{folder}")}
    report([
        f"{path}: is named after no source, and INDEX does not name it"
        for name, path in sorted(files().items())
        if name not in indexed | modules | OTHERS or re.search(r"review|finding|issue", name)
    ])  # fmt: skip
