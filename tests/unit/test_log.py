from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest
from apportion import log


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("apportion.test")


def _lines(form: str, level: str = "INFO") -> io.StringIO:
    stream = io.StringIO()
    log.setup(level, form, stream)
    return stream


def test_json_has_the_standard_fields_then_ours(logger: logging.Logger) -> None:
    stream = _lines("json")
    with log.call_id("c-1"):
        logger.info("share prepared", extra={"device": "gpu-0", "memory": 4096})
    line = json.loads(stream.getvalue())
    assert list(line) == ["time", "level", "logger", "message", "call", "device", "memory"]
    assert line["level"] == "INFO"
    assert line["logger"] == "apportion.test"
    assert line["message"] == "share prepared"
    assert line["call"] == "c-1"
    assert line["memory"] == 4096
    assert line["time"].endswith("Z")


def test_a_field_called_like_one_of_ours_takes_nothings_place(logger: logging.Logger) -> None:
    stream = _lines("json")
    logger.info("one", extra={"level": 9, "time": "never"})
    line = json.loads(stream.getvalue())
    assert line["level"] == "INFO"
    assert line["level_"] == 9
    assert line["time_"] == "never"


def test_text_quotes_what_would_not_read_as_one_value(logger: logging.Logger) -> None:
    stream = _lines("text")
    logger.warning(
        "claim refused",
        extra={"claim": "test/a", "error": "no such 'x'", "empty": "", "odd": "a=b", "tab": "a\tb"},
    )
    time, rest = stream.getvalue().rstrip("\n").split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        'WARNING claim refused claim=test/a error="no such \'x\'" empty="" odd="a=b" tab="a\\tb"'
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_makes_no_second_line(form: str, logger: logging.Logger) -> None:
    stream = _lines(form)
    logger.error("odd\n2026-01-01T00:00:00.000Z INFO    all is well\x1b[0m")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_kept(form: str, logger: logging.Logger) -> None:
    stream = _lines(form)
    try:
        int("the cause")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: invalid literal" in stream.getvalue()
    if form == "json":
        assert "the cause" in json.loads(stream.getvalue())["exception"]


def test_what_json_cannot_hold_is_written_as_text(logger: logging.Logger) -> None:
    stream = _lines("json")
    logger.info("path", extra={"path": {1}})
    assert json.loads(stream.getvalue())["path"] == "{1}"


def test_the_call_id_ends_with_its_block_and_stays_in_its_thread(logger: logging.Logger) -> None:
    stream = _lines("text")
    with log.call_id("outer"):
        with log.call_id("inner"):
            logger.info("one")
        thread = threading.Thread(target=logger.info, args=("two",))
        thread.start()
        thread.join()
        logger.info("three")
    logger.info("four")
    calls = ["call=inner" in line for line in stream.getvalue().splitlines()]
    assert calls == [True, False, False, False]
    assert ["call=" in line for line in stream.getvalue().splitlines()] == [
        True,
        False,
        True,
        False,
    ]


def test_a_level_below_the_least_is_not_logged(logger: logging.Logger) -> None:
    stream = _lines("text", "WARNING")
    logger.info("quiet")
    logger.warning("loud")
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["loud"]


def test_setup_twice_writes_once_and_standard_error_is_the_default(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log.setup("INFO", "json")
    log.setup("INFO", "text")
    logger.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_a_lasting_trouble_is_logged_when_it_begins_changes_and_ends(
    logger: logging.Logger,
) -> None:
    stream = _lines("text")
    trouble = log.Trouble(logger, "slices cannot be written")
    trouble.end()
    for state in ("away", "away", "forbidden"):
        trouble.begin(state, f"the API server is {state}")
    trouble.end()
    trouble.end()
    trouble.begin("away", "again", logging.ERROR)
    assert [line.split(maxsplit=1)[1] for line in stream.getvalue().splitlines()] == [
        "WARNING slices cannot be written: the API server is away",
        "WARNING slices cannot be written: the API server is forbidden",
        "INFO    slices cannot be written: all is well again",
        "ERROR   slices cannot be written: again",
    ]
