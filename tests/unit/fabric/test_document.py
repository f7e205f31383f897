# SPDX-License-Identifier: Apache-2.0
"""Files that a user was given: whatever is in them, one line says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrc.errors import BadFileError
from mrc.fabric import document, hostconfig

LOADERS = {
    "document": lambda path: document.load(path, str(path)),
    "hostconfig": hostconfig.read,
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = " + "9" * 5000, "not TOML: a number has too many digits"),
        ("a = 0." + "9" * 5000 + "e" + "9" * 5000, None),
        ("a = " + "[" * 3000 + "]" * 3000, "not TOML: is nested too deeply"),
        ("a = " + "{a=" * 3000 + "}" * 3000, "not TOML: is nested too deeply"),
        ("a = 9999-99-99", "not TOML: "),
        ("a = 2026-02-30", "not TOML: "),
        ("a = 2026-01-01T25:00:00", "not TOML: "),
        ("a = ", "not TOML: "),
        ("a = 1\na = 2", "not TOML: "),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_parsed__a_wrong_text_is_one_line(
    loader: str, text: str, complaint: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    try:
        LOADERS[loader](path)
    except BadFileError as error:
        assert str(error).startswith(f"{path}: {complaint or ''}")
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 300
    else:
        assert complaint is None


@pytest.mark.parametrize("loader", LOADERS)
def test_text_of__refuses(loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = LOADERS[loader]
    monkeypatch.setattr(document, "MOST_BYTES", 1 << 20)
    path = tmp_path / "x.toml"
    path.write_bytes(b"#" * (1 << 20))
    if loader == "document":
        assert load(path) == {}
    path.write_bytes(b"#" * ((1 << 20) + 1))
    for there in (path, Path("/dev/zero")):
        with pytest.raises(BadFileError, match=f"^{there}: has more than 1 MiB, which is the"):
            load(there)
    path.write_bytes(b"\xff")
    with pytest.raises(BadFileError, match=f"^{re.escape(str(path))}: is no text in UTF-8: "):
        load(path)
    with pytest.raises(BadFileError, match=f"^{re.escape(str(tmp_path))}: "):
        load(tmp_path)
