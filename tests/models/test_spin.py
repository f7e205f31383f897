# SPDX-License-Identifier: Apache-2.0
"""Spin on proofs, sealed packets, emulated RC: no state breaks an assertion, each flaw is found."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec import Struct

FOLDER = Path(__file__).with_name("spin")
MODELS = ("credits", "epochs", "proofs", "replays")
SMALL = ("credits", "replays")
QUICK: list[pytest.MarkDecorator] = []
SLOW = [pytest.mark.slow]

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None, reason="spin is not installed"
)


class Flaw(Struct, frozen=True):
    """A change of a model, and the assertion that some state breaks then."""

    model: str
    before: str
    after: str
    breaks: str


FLAWS = {
    "epochs that were skipped seem to have keys": Flaw(
        "epochs", " && epoch >= oldest", "", "before==((epochs*32)+newest)"
    ),
    "a replay counts as the newest packet": Flaw(
        "epochs",
        "inline advance(counter) {\n",
        "inline advance(counter) {\n  opened = 0;\n",
        "right|| !(due)",
    ),
    "a look ahead changes the receiver before the check": Flaw(
        "epochs",
        "    wait = LOOK;\n",
        "    wait = LOOK;\n    epochs = epoch + 1;\n",
        "before==((epochs*32)+newest)",
    ),
    "a retransmission keeps its counter": Flaw(
        "epochs", "    sent++;\n", "    if\n    :: sent++\n    :: skip\n    fi;\n", "!(used[sent])"
    ),
    "a proof does not cover the certificate": Flaw(
        "proofs", "#define SERVER(who) (who) ", "#define SERVER(who) 0 ", "0"
    ),
    "both sides prove the secret alike": Flaw(
        "proofs",
        "#define SIDE(who)   (who) ",
        "#define SIDE(who) (who == LISTENS -> CONNECTS : who) ",
        "!(let_in_by_key[host])",
    ),
    "the connecting side does not compare the key": Flaw(
        "proofs", "      host == known; ", "      true; ", "let_in_by_key[known]"
    ),
    "a message goes before there is a receive for it": Flaw(
        "credits", " && end[me].messages < end[me].granted", "", "received==2"
    ),
    "a credit needs a slot": Flaw(
        "credits", "atomic { OWES ->", "atomic { OWES && HAS_SLOT ->", "answered==2"
    ),
    "no credit goes without a record": Flaw(
        "credits", "atomic { OWES ->", "atomic { false ->", "answered==2"
    ),
    "no counter is too old": Flaw(
        "replays", ":: i + REPLAY >= newest ->", ":: true ->", "data[i]=="
    ),
}


def search(model: str, folder: Path) -> str:
    """What Spin's search of all states prints; the first broken assertion ends it.

    Processes may wait for ever, because packets get lost.
    """
    for command in (
        ["spin", "-a", f"{model}.pml"],
        ["gcc", "-O2", "-w", "-DSAFETY", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
    done = subprocess.run(
        ["./pan", "-E", "-m100000"], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "spin")


@pytest.mark.more
@pytest.mark.parametrize(
    "model", [pytest.param(each, marks=QUICK if each in SMALL else SLOW) for each in MODELS]
)
def test_spin__holds(model: str, folder: Path) -> None:
    printed = search(model, folder)
    assert "errors: 0\n" in printed, printed
    assert "max search depth too small" not in printed
    assert "Search not completed" not in printed
    states = re.search(r"(\d+) states, stored", printed)
    assert states is not None
    assert int(states[1]) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAWS)
def test_spin__flaw_is_found(name: str, folder: Path) -> None:
    flaw = FLAWS[name]
    path = folder / f"{flaw.model}.pml"
    text = path.read_text()
    assert text.count(flaw.before) == 1
    path.write_text(text.replace(flaw.before, flaw.after))
    broken = re.search(r"assertion violated (.*) \(at depth", search(flaw.model, folder))
    assert broken is not None
    assert flaw.breaks in broken[1]
