from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

_PLUGIN = Path(__file__).parents[2] / "plugin/apportion"
_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@pytest.mark.parametrize("path", sorted(_PLUGIN.rglob("*.py")), ids=lambda path: path.name)
def test_no_field_of_a_log_line_takes_a_name_of_loggings(path: Path) -> None:
    """`logging` raises KeyError for `extra={"created": …}`, in the middle of what was logged."""
    used = {
        key.value
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "extra"
        for part in ast.walk(word.value)
        if isinstance(part, ast.Dict)
        for key in part.keys
        if isinstance(key, ast.Constant)
    }
    assert used & _TAKEN == set()
