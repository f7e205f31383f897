# SPDX-License-Identifier: Apache-2.0
"""Names in the documents are valid: commands parse, files and identifiers exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from os.path import normpath

import pytest
from project_text import ROOT, code_without_comments, is_c, sources, text

from mrc.cli import trust
from mrc.cli.main import build_parser
from mrc.torch import hosts

PAGES = (
    "README.md", "csrc/verbs/README.md",
    *(f"mrc/{room}/README.md" for room in ("transfer", "testbed", "perf")),
)  # fmt: skip
DOCUMENTS = [path for path in sources() if path.suffix == ".md"]


def code_blocks(document: str) -> Iterator[str]:
    for block in re.findall(r"^```\w*\n(.*?)^```", document, flags=re.DOTALL | re.MULTILINE):
        yield from block.splitlines()


def commands() -> list[str]:
    """Every line of a code block of these pages that runs mrc, without its prompt and comment."""
    found = []
    for line in chain.from_iterable(code_blocks((ROOT / page).read_text()) for page in PAGES):
        for part in re.split("[;&|]", line.partition("#")[0]):
            words = part.rpartition("$")[2].strip()
            if words.startswith("mrc "):
                found.append(words)
    return found


@pytest.mark.parametrize("command", commands())
def test_readme__commands_parse(command: str) -> None:
    words = shlex.split(command)
    build_parser().parse_args(words[1:])
    if "--" in words:  # a command for a host of the test bed
        inner = words[words.index("--") + 1 :]
        if inner[0] == "mrc":
            build_parser().parse_args(inner[1:])


def test_documents__name_files_that_exist() -> None:
    paths = {str(path) for path in sources()}
    folders = {str(parent) for path in sources() for parent in path.parents}
    missing = []
    for document in DOCUMENTS:
        plain = re.sub(r"^```.*?^```", "", text(document), flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(
            r"`((?:mrc|csrc|tests|tools|bench)/[\w./]*)`"
            r"|(?:\]\(|src(?:set)?=\")([\w./-]+)[)#\"]",
            plain,
        ):
            target = name[0].rstrip("/") or normpath(document.parent / name[1])
            if target not in paths | folders:
                missing.append(f"{document}: {target}")
    assert not missing


def test_documents__name_identifiers_that_exist() -> None:
    code = "\n".join(code_without_comments(path) for path in sources() if is_c(path))
    allowed = {"mrc_create_qp"}  # part of OCP's published API, documented as missing
    allowed |= {trust.CODE, trust.INSECURE, hosts.SECRET}  # of the environment
    missing = [
        f"{document}: {name}"
        for document in DOCUMENTS
        for name in re.findall(r"\b(?:mrc|MRC)_[A-Za-z]\w+\b", text(document))
        if name not in allowed and not re.search(rf"\b{name}\b", code)
    ]
    assert not missing
