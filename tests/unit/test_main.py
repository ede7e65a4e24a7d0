from __future__ import annotations

import os
import subprocess
import sys

import pytest
from apportion import __version__, cli
from apportion.__main__ import main
from apportion.errors import StorageError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("APPORTION_")]:
        monkeypatch.delenv(name)


def test_each_command_of_the_table_has_what_a_command_needs() -> None:
    assert list(cli.COMMANDS) == ["plugin", "status", "doctor", "version"]
    for command in cli.COMMANDS.values():
        module = command.load()
        assert callable(module.add_arguments)
        assert callable(module.run)


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    assert f"usage: apportion {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"apportion {__version__}\n"


@pytest.mark.parametrize("argv", [[], ["unknown"], ["plugin", "--unknown"], ["version", "x"]])
def test_wrong_usage_is_exit_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert "usage: apportion" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [["--hel"], ["plugin", "--cores", "5"], ["status", "--clust"], ["doctor", "--out=json"]],
)
def test_flags_are_not_abbreviated(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert "usage: apportion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plugin", "--cores-min", "many"], "cores_min"),
        (["plugin", "--config", "/nonexistent"], "/nonexistent"),
        *(
            (["plugin", "--metrics-address", address], "metrics_address")
            for address in ("9400", ":9400", "host:9400", "0.0.0.0:x", "0.0.0.0:65536", "::1:-1")
        ),
    ],
)
def test_a_bad_setting_is_exit_status_2_and_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_unknown_setting_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPORTION_CORES_MAXIMUM", "3")
    assert main(["plugin"]) == 2
    assert "APPORTION_CORES_MAXIMUM" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [(StorageError("the disk is full"), "the disk is full"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_failure_is_exit_status_1_and_one_line(
    error: BaseException,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr("apportion.cli.version.run", fail)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == f"apportion version: {said}\n"


def test_a_reader_that_went_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(
        [sys.executable, "-m", "apportion", "version"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(write)
    assert (found.returncode, found.stderr) == (1, b"")
