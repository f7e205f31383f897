# SPDX-License-Identifier: Apache-2.0
"""Small changes of source that a test should notice: names them, applies them.

tools/maintainers/mutate runs the tests.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SMALL = 16  # numbers below are increased by one, other numbers are doubled


@dataclass(frozen=True, slots=True)
class Mutant:
    """Some lines of one function, changed. Mostly it is one line."""

    file: str  # relative to the root of the tree
    function: str
    line: int  # from 1
    before: str
    after: str
    nth: int  # among equal lines of the function, from 0

    @property
    def id(self) -> str:
        """The name of the change. It stays the same if the function moves within its file."""
        parts = (self.file, self.function, self.before.strip(), self.after.strip(), str(self.nth))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    def rank(self, seed: int) -> str:
        """The key for sorting in the order of a seed. It is independent of other mutants."""
        return hashlib.sha256(f"{seed} {self.id}".encode()).hexdigest()

    def apply(self, text: str) -> str:
        """The text of the file with the change."""
        lines = text.split("\n")
        first, end = self.line - 1, self.line + self.before.count("\n")
        assert "\n".join(lines[first:end]) == self.before, f"{self.file} is not what it was"
        lines[first:end] = self.after.split("\n")
        return "\n".join(lines)

    def diff(self) -> str:
        """The change as a diff."""
        head = f"--- {self.file}:{self.line} {self.function}()  [{self.id}]"
        before, after = self.before.replace("\n", "\n-"), self.after.replace("\n", "\n+")
        return f"{head}\n-{before}\n+{after}"


def other_number(value: float) -> float:
    return value + 1 if value < SMALL else value * 2


def put(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


# ---- of C ----------------------------------------------------------------------------------------

# A binary operator has a blank on each side, because clang-format adds them.
C_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "<<": ">>",
    ">>": "<<", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<=",
}  # fmt: skip
OPERATOR = re.compile(
    r"(?<= )(" + "|".join(map(re.escape, sorted(C_SWAPS, key=len, reverse=True))) + r")(?= |$)"
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


def of_c(file: str, text: str) -> list[Mutant]:
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
    for pattern, swap in ((OPERATOR, C_SWAPS), (WORD, WORDS)):
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


# ---- of Python -----------------------------------------------------------------------------------

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.expr | ast.stmt  # what has a place in the text
# What is said to people only, or noticed by every test that comes by.
LEFT_ALONE = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
SHOWN = {"__repr__", "__str__"}

Edit = tuple[Node | tuple[int, int], str]


def of_python(file: str, text: str) -> list[Mutant]:
    """Every change of the bodies of a file's functions, in the order of the text."""
    source = _Source(text)
    found = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for name, function in _functions(ast.parse(text)):
        for (start, end), new in sorted(set(source.edits(function))):
            line, before, after = source.lines(start, end, new)
            key = (name, before.strip(), after.strip())
            if after != before:
                found.append(Mutant(file, name, line, before, after, seen[key]))
                seen[key] += 1
    return found


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, Function]]:
    """Every function and its name with its classes; also functions inside functions."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            name = f"{inside}.{node.name}".removeprefix(".")
            if isinstance(node, FUNCTION) and node.name not in SHOWN:
                yield name, node
        yield from _functions(node, name)


class _Source:
    """Python text, and where the nodes of its tree are in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def place(self, node: Node) -> tuple[int, int]:
        """The offsets of a node's begin and end."""
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def offset(self, line: int, column: int) -> int:
        """`column` counts bytes."""
        start = self.starts[line - 1]
        return start + len(self.text[start : self.starts[line]].encode()[:column].decode())

    def lines(self, start: int, end: int, new: str) -> tuple[int, str, str]:
        """The first line of a change, its lines, and the same lines with the change."""
        line = self.text.count("\n", 0, start) + 1
        first = self.starts[line - 1]
        last = (self.text + "\n").index("\n", end)
        return line, self.text[first:last], self.text[first:start] + new + self.text[end:last]

    # ---- changes ---------------------------------------------------------------------------------

    def edits(self, function: Function) -> Iterator[tuple[tuple[int, int], str]]:
        """Offsets and new text of each change of a function's own body."""
        # How often the function gives a value to each of its names.
        bound = Counter(
            node.arg if isinstance(node, ast.arg) else node.id
            for node in ast.walk(function)
            if isinstance(node, ast.arg)
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        )
        stack: list[ast.AST] = list(function.body)
        while stack:
            node = stack.pop()
            is_log = isinstance(node, ast.Expr) and ast.unparse(node).startswith("logger.")
            if isinstance(node, (*FUNCTION, ast.ClassDef, *LEFT_ALONE)) or is_log:
                continue
            for old, new in self.of_node(node):
                yield (old if isinstance(old, tuple) else self.place(old)), new
            if isinstance(node, ast.stmt):
                if _can_go(node, bound, function):
                    yield self.place(node), "pass"
                if isinstance(node, ast.Return) and node.value is not None:
                    yield from self.returned(node.value, function)
            stack.extend(
                child for child in ast.iter_child_nodes(node)
                if child is not getattr(node, "annotation", None)
            )  # fmt: skip

    def of_node(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                    yield from self.swap(left, operator, right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self.swap(left, node.op, right)
            case ast.BinOp():
                yield from self.swap(node.left, node.op, node.right)
            case ast.AugAssign():
                yield from self.swap(node.target, node.op, node.value)
            case ast.UnaryOp(op=ast.Not()):
                yield node, self.text[slice(*self.place(node.operand))]
            case ast.Constant(value=bool()):
                yield node, str(not node.value)
            case ast.Constant(value=int() | float() as value):
                yield node, str(other_number(value))
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                yield node.func, NAMES[name]
            case ast.If() | ast.IfExp():
                yield node.test, "True"
                yield node.test, "False"
            case ast.comprehension():
                for test in node.ifs:
                    yield test, "True"

    def swap(self, left: Node, operator: ast.AST, right: Node) -> Iterator[Edit]:
        """The change of the operator between two nodes."""
        if type(operator) not in SWAPS:
            return
        old, new = SWAPS[type(operator)]
        start, end = self.place(left)[1], self.place(right)[0]
        pattern = re.escape(old).replace(r"\ ", r"\s+")
        between = re.sub("#.*", lambda comment: " " * len(comment[0]), self.text[start:end])
        if found := re.search(pattern, between):
            yield (start + found.start(), start + found.end()), new

    def returned(
        self, value: ast.expr, function: Function
    ) -> Iterator[tuple[tuple[int, int], str]]:
        """Another value of the declared type."""
        declared = ast.unparse(function.returns) if function.returns else ""
        if re.search(r"\bNone$", declared) and not isinstance(value, ast.Constant):
            yield self.place(value), "None"
        if declared == "bool" and not isinstance(value, (ast.Constant, ast.Compare)):
            yield self.place(value), f"not ({self.text[slice(*self.place(value))]})"


def _can_go(node: ast.stmt, bound: Counter[str], function: Function) -> bool:
    """Whether the rest of the function is valid without this statement."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            return True
        case ast.Raise() | ast.Break() | ast.Continue() | ast.Return(value=None):
            return True
        case ast.Assign():
            if function.name == "__init__":
                return False  # every user of the object would fail
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                if any(isinstance(part, ast.Name) and bound[part.id] < 2 for part in parts):
                    return False
            return True
    return False
