"""A process that calls a C library as it is told, so that tests can play several programs.

Arguments of a call: integers, strings, None (NULL), `Out` (a pointer to eight bytes, given back)
and `Buffer` (a pointer to bytes, given back). The library need not be the simulated one.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Out:
    """A pointer to eight bytes that hold `preset` before the call."""

    preset: int = 0


@dataclass(frozen=True)
class Buffer:
    """A pointer to these bytes, or to as many zeros."""

    content: bytes


class Process:
    """A child with the library loaded; it ends with the `with` block, or by `kill`."""

    def __init__(self, library: Path, environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, __file__, str(library)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: str, *arguments: int | str | Out | Buffer | None) -> tuple[int, ...]:
        """Calls the function; returns its result and what `Out` arguments hold afterwards."""
        result, outs, _ = self._ask({"call": function, "arguments": _encoded(arguments)})
        return (result, *outs)

    def fetch(
        self, function: str, *arguments: int | str | Out | Buffer | None
    ) -> tuple[int, tuple[bytes, ...]]:
        """Calls the function; returns its result and what `Buffer` arguments hold afterwards."""
        result, _, buffers = self._ask({"call": function, "arguments": _encoded(arguments)})
        return result, tuple(bytes.fromhex(text) for text in buffers)

    def call_in_fork(self, function: str, *arguments: int | str | Out | Buffer | None) -> int:
        """Calls the function in a child that the process forks for it; returns its result."""
        request = {"call": function, "arguments": _encoded(arguments), "fork": True}
        return int(self._ask(request)[0])

    def address(self, symbol: str) -> int:
        """The symbol's address in the process, 0 when the library does not export it."""
        return int(self._ask({"symbol": symbol})[0])

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self._child.kill()
        self._end()

    def close(self) -> None:
        """Lets the process end by itself."""
        if self._child.stdin:
            self._child.stdin.close()
        self._end()

    def _end(self) -> None:
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                stream.close()

    def _ask(self, request: dict[str, object]) -> tuple[int, list[int], list[str]]:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended at {request}")
        result, outs, buffers = json.loads(answer)
        return result, outs, buffers


def _encoded(arguments: tuple[int | str | Out | Buffer | None, ...]) -> list[object]:
    encoded: list[object] = []
    for argument in arguments:
        if isinstance(argument, Out):
            encoded.append({"out": argument.preset})
        elif isinstance(argument, Buffer):
            encoded.append({"buffer": argument.content.hex()})
        else:
            encoded.append(argument)
    return encoded


class _Call:
    """One call's arguments, as ctypes wants them."""

    def __init__(self, arguments: list[object]) -> None:
        self.outs: list[ctypes.c_uint64] = []
        self.buffers: list[ctypes.Array[ctypes.c_char]] = []
        self.values = [self._value(argument) for argument in arguments]

    def _value(self, argument: object) -> object:
        if isinstance(argument, dict) and "out" in argument:
            self.outs.append(ctypes.c_uint64(argument["out"]))
            return ctypes.byref(self.outs[-1])
        if isinstance(argument, dict):
            content = bytes.fromhex(argument["buffer"])
            self.buffers.append(ctypes.create_string_buffer(content, len(content)))
            return self.buffers[-1]
        if isinstance(argument, str):
            return argument.encode()
        # Integers of any width travel in a 64-bit register.
        return None if argument is None else ctypes.c_int64(int(str(argument)))


def _call(library: ctypes.CDLL, request: dict[str, object]) -> tuple[int, list[int], list[str]]:
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    call = _Call(arguments)
    result = int(getattr(library, str(request["call"]))(*call.values))
    return result, [out.value for out in call.outs], [buffer.raw.hex() for buffer in call.buffers]


def _forked(library: ctypes.CDLL, request: dict[str, object]) -> tuple[int, list[int], list[str]]:
    child = os.fork()
    if child == 0:
        os._exit(_call(library, request)[0])
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), [], []


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def main() -> None:
    """Answers one request per line until the input ends."""
    library = ctypes.CDLL(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        answer: tuple[int, list[int], list[str]]
        if "symbol" in request:
            answer = (_address(library, request["symbol"]), [], [])
        elif "fork" in request:
            answer = _forked(library, request)
        else:
            answer = _call(library, request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
