"""What `make test-matrix` makes of a run."""

from __future__ import annotations

from tests import matrix

_REPORT = """<?xml version="1.0"?>
<testsuites><testsuite>
<testcase classname="tests.cluster.test_a" name="test_good"/>
<testcase classname="tests.cluster.test_a" name="test_bad"><failure>x</failure></testcase>
<testcase classname="tests.cluster.test_b" name="test_odd"><error>x</error></testcase>
<testcase classname="tests.cluster.test_b" name="test_not_run"><skipped message="no"/></testcase>
</testsuite></testsuites>
"""


def test_what_was_skipped_did_not_pass() -> None:
    outcome = matrix.read("1.36", _REPORT, ())
    assert outcome.passed == 1
    assert outcome.failed == (
        "tests.cluster.test_a::test_bad",
        "tests.cluster.test_b::test_odd",
        "tests.cluster.test_b::test_not_run",
    )


def test_the_table_says_what_was_run_and_what_was_not() -> None:
    good = matrix.Outcome("1.36", 60, (), ())
    poor = matrix.Outcome("1.34", 50, ("x",), ("no b", "no a", "no b"))
    lines = matrix.table([poor, good]).splitlines()[2:]
    assert lines[0].startswith("| 1.34.4 | ")
    assert lines[0].endswith("| 50 passed, 1 failed | 1: no a; 2: no b |")
    assert lines[1] == "| 1.36.1 | none | 60 passed | nothing |"
