# SPDX-License-Identifier: Apache-2.0
"""Small changes of C source that a test should notice. It works on text only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from .mutants import Mutant, other_number, put

# A binary operator has a blank on each side, because clang-format adds them.
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "<<": ">>",
    ">>": "<<", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<=",
}  # fmt: skip
OPERATOR = re.compile(
    r"(?<= )(" + "|".join(map(re.escape, sorted(SWAPS, key=len, reverse=True))) + r")(?= |$)"
)
WORDS = {"true": "false", "false": "true", "mrc_min": "mrc_max", "mrc_max": "mrc_min"}
WORD = re.compile(r"\b(true|false)\b|\bmrc_(?:min|max)(?=_u(?:32|64)\()")
STEP = re.compile(r"\+\+|--")
NEGATION = re.compile(r"!(?=[\w(])")
NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-fA-F]+|\d+)([uUlL]*)(?![\w.])")
CONDITION = re.compile(r"^ *(?:\} else )?if \(")
# A statement on a line of its own that is not a declaration.
STATEMENT = re.compile(
    r"""^\ *(?:(?:return|break|continue|goto\ \w+);$
    |(?:\(void\))?\w+\(.*\);$
    |\*?[\w.>\-\[\]()]+\ (?:[-+*/%|&^]|<<|>>)?=\ .*;$
    |(?:\+\+|--)?[\w.>\-\[\]()]+(?:\+\+|--)?;$)""",
    re.VERBOSE,
)
ASSERTION = re.compile(r"\b(?:mrc_assert|_Static_assert)\(")


def mutants(file: str, text: str) -> list[Mutant]:
    """Every change of the bodies of a file's functions, in the order of the text."""
    plain = blank(text)
    original = text.split("\n")
    lines = without_assertions(plain).split("\n")
    found = []
    for function, first, last in functions(plain):
        seen: Counter[str] = Counter()
        for number in range(first, last + 1):
            before = original[number - 1]
            nth = seen[before.strip()]
            seen[before.strip()] += 1
            for after in dict.fromkeys(changes(lines[number - 1], before)):
                if after != before:
                    found.append(Mutant(file, function, number, before, after, nth))
    return found


def blank(text: str) -> str:
    """The text with blanks in place of comments, preprocessor lines and quoted text."""

    def blanks(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^#(?:\\\n|[^\n])*"
    return re.sub(pattern, blanks, text, flags=re.DOTALL | re.MULTILINE)


def without_assertions(plain: str) -> str:
    """The text without assertions. A changed assertion has no effect in a correct program."""
    for match in reversed(list(ASSERTION.finditer(plain))):
        end = closing(plain, match.end() - 1)
        inside = re.sub(r"[^\n]", " ", plain[match.start() : end + 1])
        plain = plain[: match.start()] + inside + plain[end + 1 :]
    return plain


def closing(text: str, at: int) -> int:
    """The offset of the bracket that closes the one at `at`; the end of the text if none does."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def functions(plain: str) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of the body of every function."""
    depth = 0
    head = ""
    first = 0
    for number, line in enumerate(plain.split("\n"), 1):
        if depth == 0:
            head = line if not line.startswith(" ") else head + line
            first = number + 1
        depth += line.count("{") - line.count("}")
        name = re.search(r"(\w+)\(", head)
        if depth == 0 and line.startswith("}") and name and not re.match(r".*\) *=", head):
            yield name[1], first, number - 1


def changes(code: str, line: str) -> Iterator[str]:
    """Yields the line with each possible change. `code` is the line with blanks for non-code."""
    for pattern, swap in ((OPERATOR, SWAPS), (WORD, WORDS)):
        for match in pattern.finditer(code):
            yield put(line, match.start(), match.end(), swap[match[0]])
    for match in STEP.finditer(code):
        yield put(line, match.start(), match.end(), "--" if match[0] == "++" else "++")
    for match in NEGATION.finditer(code):
        yield put(line, match.start(), match.end(), "")
    for match in NUMBER.finditer(code):
        if code[: match.end()].endswith("= {0"):
            continue  # {0} sets the whole object to zero, not one member
        yield put(line, match.start(1), match.end(1), str(other_number(int(match[1], 0))))
    if condition := CONDITION.match(code):
        end = closing(code, condition.end() - 1)
        if end < len(code):
            yield put(line, condition.end(), end, "true")
            yield put(line, condition.end(), end, "false")
    if STATEMENT.match(code.rstrip()):
        yield " " * (len(code) - len(code.lstrip())) + ";"
