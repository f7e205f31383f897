# SPDX-License-Identifier: Apache-2.0
"""What a user agreed to is all that is stored, whatever the sender does then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transfer_ends import both, make, names, receiving, sending, sessions

from mrc.transfer.limits import FinalError, Quota, SenderLimits
from mrc.transfer.messages import MAX_NAMES, Announced
from mrc.transfer.plan import plan_of


def tree(top: Path) -> Path:
    (top / "tree/inner").mkdir(parents=True)
    (top / "tree/inner/file").write_bytes(b"12345")
    (top / "tree/link").symlink_to("inner")
    (top / "plain").write_bytes(b"1")
    return top


def test_announced__of_a_plan(tmp_path: Path) -> None:
    top = tree(tmp_path)
    plan = plan_of([str(top / "tree"), str(top / "plain")], links=True)
    told = Announced(bytes=6, files=2, folders=3, names=("tree", "plain"))
    assert plan.announced() == told == Announced.read(told.to_dict())
    named = plan_of([str(top / "plain")], name="x/y/z").announced()
    assert named == Announced(bytes=1, files=1, folders=2, names=("x",))
    inside = plan_of([f"{top}/tree/."], links=True).announced()
    assert inside == Announced(bytes=5, files=1, folders=2, names=("inner", "link"))
    many = (f"n{index}" for index in range(MAX_NAMES + 3))
    assert Announced.of_names(many, bytes=None, files=0, links=0).more == 3


@pytest.mark.parametrize(("agreed", "why"), [
    (Announced(bytes=6, files=1, folders=3), "the 4 files and folders that the receiver's user"),
    (Announced(bytes=6, files=2, folders=2), "the 4 files and folders that the receiver's user"),
    (Announced(bytes=5, files=9), "exceed the 5 bytes that the receiver's user accepted"),
    (Announced(files=9, names=("tree", "plain2")), "plain: the receiver's user accepted other"),
    (Announced(files=9, names=("plain",)), "accepted other names"),
])  # fmt: skip
async def test_receive__no_more_than_agreed(tmp_path: Path, agreed: Announced, why: str) -> None:
    top, inbox = tree(tmp_path / "from"), tmp_path / "inbox"
    inbox.mkdir()
    async with sessions() as ends:
        _, refused = await both(
            sending(ends.sender, [str(top / "tree"), str(top / "plain")], links=True),
            receiving(ends.receiver, inbox, agreed=agreed),
        )
    assert isinstance(refused, FinalError) and why in str(refused)
    assert sum(path.is_file() for path in inbox.rglob("[!.]*")) < 2


def test_quota__other_limits_still_hold() -> None:
    quota = Quota(SenderLimits(bytes=10, files=1), Announced(bytes=99, files=99))
    with pytest.raises(FinalError, match="--max-bytes"):
        quota.take("a", size=11)
    with pytest.raises(FinalError, match="--max-files"):
        quota.take("a", files=2)


def test_quota__an_error_says_what_is_left() -> None:
    quota = Quota(SenderLimits(bytes=9))
    quota.take("a", size=4)
    with pytest.raises(FinalError, match="6 bytes exceed the 5 bytes left of the limit of 9 bytes"):
        quota.take("b", size=6)


def test_quota__names_beyond_the_announced_ones() -> None:
    Quota(SenderLimits(), Announced(names=("a",), more=1)).check_name("b")
    Quota(SenderLimits()).check_name("b")
    with pytest.raises(FinalError):
        Quota(SenderLimits(), Announced(names=("a",))).check_name("b")


@pytest.mark.parametrize(
    ("told", "limits", "cause"),
    [
        (
            Announced(bytes=9, files=3, folders=2),
            {"files": 4},
            "5 files and folders: exceeds the l",
        ),
        (Announced(bytes=9, files=3), {"bytes": 8}, "9 bytes exceed the limit of 8 bytes"),
        (Announced(bytes=9), {"bytes": 8}, "the announced files: 9 bytes exceed"),
    ],
)
async def test_receive_files__all_that_is_announced_is_more_than_the_limit(
    tmp_path: Path, inbox: Path, told: Announced, limits: dict[str, Any], cause: str
) -> None:
    """Nothing is stored. With --update some of it may be there."""
    paths = [make(tmp_path, name, b"1") for name in "abc"]
    for update in (False, True):
        async with sessions(told) as ends:
            sent, refused = await both(
                sending(ends.sender, paths, update=update),
                receiving(ends.receiver, inbox, **limits),
            )
        if not update:
            assert cause in str(sent) and cause in str(refused) and names(inbox) == []
    assert names(inbox) == ["a", "b", "c"]
