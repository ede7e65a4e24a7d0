"""The list of pure modules is whole, and what must be covered is looked at file by file."""

from __future__ import annotations

import ast
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugin"
GATE = runpy.run_path(str(ROOT / "scripts" / "coverage_gate.py"))
PURE: tuple[str, ...] = GATE["pure_modules"]()


def _report(**percent: float) -> dict[str, Any]:
    return {
        "files": {
            f"/venv/site-packages/apportion/{name.replace('__', '/')}.py": {
                "summary": {"percent_covered": value},
                "missing_lines": [3, 5],
            }
            for name, value in percent.items()
        }
    }


def test_each_module_that_says_it_is_pure_is_in_the_list() -> None:
    says = {
        ".".join(path.relative_to(PLUGIN).with_suffix("").parts)
        for path in PLUGIN.rglob("*.py")
        if re.search(
            r"\bpure\b",
            ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "",
            re.IGNORECASE,
        )
    }
    assert len(says) > 8
    assert sorted(says - set(PURE)) == []


@pytest.mark.parametrize("module", sorted({*PURE, *GATE["ALSO"]}))
def test_each_module_of_the_lists_is_there(module: str) -> None:
    assert (PLUGIN / module.replace(".", "/")).with_suffix(".py").is_file()


def test_each_file_counts_by_itself() -> None:
    report = _report(slices=100.0, cdi__spec=94.9, claims=95.0, myslices=0.0)
    modules = ("apportion.slices", "apportion.cdi.spec", "apportion.claims")
    assert GATE["faults"](modules, report) == ["apportion.cdi.spec: 94.9 %, not covered: 3, 5"]


def test_what_was_not_measured_is_not_covered() -> None:
    assert GATE["faults"](["apportion.gone"], _report(slices=100.0)) == [
        "apportion.gone: measured 0 times"
    ]


@pytest.mark.parametrize(("percent", "status"), [(100.0, 0), (94.0, 1)])
def test_the_exit_status_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], percent: float, status: int
) -> None:
    names = [name.removeprefix("apportion.").replace(".", "__") for name in (*PURE, *GATE["ALSO"])]
    report = _report(**dict.fromkeys(names, 100.0) | {"quantity": percent})
    (tmp_path / "report").write_text(json.dumps(report))
    assert GATE["main"](tmp_path / "report") == status
    assert ("apportion.quantity" in capsys.readouterr().out) is bool(status)
