"""Functions of at most 60 lines, files of at most 400, nothing left for later: in Python and C."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FUNCTION = 60
MAX_FILE = 400
FOLDERS = ("plugin", "tests", "shim", "bench")
GENERATED = ("plugin/apportion/kubelet/pb/",)
# Put together here, so that this file does not hold what it looks for.
LEFT = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
UNDONE = re.compile("NotImplemented" + "Error|pytest\\." + "skip\\(|x" + "fail")
# The one mechanism by which a tier is skipped.
MAY_SKIP = ("tests/conftest.py",)


def _files(*endings: str) -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    names = {
        path.relative_to(ROOT).as_posix(): path
        for path in found
        if path.suffix in endings and path.is_file()
    }
    return [
        path
        for name, path in sorted(names.items())
        if not name.startswith(GENERATED) and ".egg-info" not in name
    ]


PYTHON = _files(".py")
C = _files(".c", ".h", ".def")
SHELL = _files(".sh", ".go", ".yaml", ".toml", ".map")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, decorators and docstring included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, (node.end_lineno or first) - first + 1


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, by the style that the C code keeps.

    A body opens with a brace that ends a line at file level (its own or the signature's) and
    closes with a brace in the first column.
    """
    start, name = 0, ""
    head: list[str] = []
    for number, line in enumerate(_bare(text).splitlines(), start=1):
        if start and line.startswith("}"):
            if name:
                yield name, number - start + 1
            start, head = 0, []
        elif not start and line.rstrip().endswith("{"):
            head.append(line)
            start, name = number - _lines_of_head(head) + 1, _function_of("\n".join(head))
        elif not start:
            head = [] if line.rstrip().endswith(";") else [*head, line]


def _bare(text: str) -> str:
    """Blank out comments and preprocessor lines; every line keeps its number."""
    for pattern in (r"/\*.*?\*/", r"//[^\n]*", r"(?m)^[ \t]*#(?:[^\n\\]|\\\n|\\.)*"):
        text = re.sub(pattern, lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    return text


def _lines_of_head(head: list[str]) -> int:
    return len([line for line in head if line.strip()])


def _function_of(head: str) -> str:
    """Return the name before the first parenthesis, "" for a struct, enum or initialiser."""
    match = re.search(r"([A-Za-z_]\w*)\s*\(", head)
    return match.group(1) if match and "=" not in head.split("(", 1)[0] else ""


def test_there_is_something_to_measure() -> None:
    assert len(PYTHON) > 10
    assert ROOT / "plugin/apportion/claims.py" in PYTHON


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_functions_of_python_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [f for f in python_functions(text) if f[1] > MAX_FUNCTION] == []


@pytest.mark.parametrize("path", C, ids=_name)
def test_functions_of_c_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [f for f in c_functions(text) if f[1] > MAX_FUNCTION] == []


@pytest.mark.parametrize("path", [*PYTHON, *C, *SHELL], ids=_name)
def test_files_are_short_and_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE
    assert LEFT.findall(text) == []
    if _name(path) not in MAY_SKIP:
        assert UNDONE.findall(text) == []


# The measure itself.


def test_a_python_function_is_measured_with_its_decorators() -> None:
    text = "@one\n@two\ndef f():\n    def g():\n        pass\n    return 1\n"
    assert sorted(python_functions(text)) == [("f", 6), ("g", 2)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("int f(void)\n{\n\treturn 1;\n}\n", [("f", 4)]),
        ("int f(void) {\n\tif (x) {\n\t}\n}\n", [("f", 4)]),
        ("static int\nf(int a,\n  int b)\n{\n}\n", [("f", 5)]),
        ("struct s {\n\tint a;\n};\n\nint g(void)\n{\n}\n", [("g", 3)]),
        ("enum { A, B };\nint x = 1;\nint g(void)\n{\n}\n", [("g", 3)]),
        ("static const int t[] = {\n\tf(1),\n};\n", []),
        (
            "/* f(x) {\n * }\n */\n#define M(x) \\\n\tdo {} while (0)\nint g(void)\n{\n}\n",
            [("g", 3)],
        ),
        ('extern "C" int f(void);\nint g(void)\n{\n\tint a[] = {\n\t1,\n\t};\n}\n', [("g", 6)]),
    ],
)
def test_a_c_function_is_measured_with_its_head(text: str, found: list[tuple[str, int]]) -> None:
    assert list(c_functions(text)) == found
