# SPDX-License-Identifier: Apache-2.0
"""The checkout of a program of tools/ or bench/, and the Python in its .venv from tools/setup.

It requires only the standard library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv" / "bin" / "python"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
sys.path.append(str(ROOT / "tests"))  # modules that the programs share with tests


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the program with the exit code of `main`, or with 130 after ^C."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def set_up(otherwise: str = "") -> Iterator[None]:
    """Surrounds imports. If one is missing, restarts the program with the Python of .venv, or ends
    it with a message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if os.access(VENV, os.X_OK) and Path(sys.prefix) != VENV.parent.parent:
            os.execv(VENV, [str(VENV), *sys.argv])
        sys.exit(
            f"{Path(sys.argv[0]).name}: {error.name} is not installed: run tools/setup{otherwise}"
        )


def output(*words: object, **options: Any) -> str:
    """What a command prints; ends the program with its last lines if it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        sys.exit(f"{Path(sys.argv[0]).name}: {' '.join(command)} failed:\n{said}")
    return str(done.stdout)


def git(*words: str, root: Path = ROOT) -> str:
    """What git prints, or nothing if it fails or is not there."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def between(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """The page with these lines between two markers; ends the program if the first one is not there
    once, or the other not behind it.
    """
    tool, places = Path(sys.argv[0]).name, page.count(begin)
    if places != 1:
        sys.exit(f"{tool}: {places} places have {begin.strip()}, not 1")
    head, _, rest = page.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        sys.exit(f"{tool}: {end.strip()} is missing behind {begin.strip()}")
    text = "".join(f"{line}\n" for line in lines)
    return f"{head}{begin}{text}{end}{tail}"


def renew(name: str, description: str | None, page: Path, drawn: Callable[[str], str]) -> int:
    """The main function of a program that writes tables into a page."""
    parser = argparse.ArgumentParser(prog=f"tools/{name}", description=description)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a table is outdated"
    )
    args = parser.parse_args()
    text = page.read_text()
    true = drawn(text)
    if text == true:
        return 0
    if args.check:
        print(f"{name}: a table in {page} is outdated: run tools/{name}")
        return 1
    page.write_text(true)
    return 0


def parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """The parser of a program whose help ends with examples."""
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
