"""Requests against servers that do what real ones do on bad days, byte by byte."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self

import pytest
from apportion.connections import Answer, Connections, Limits, Proxy, Server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GOODBYE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
HEADERS = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
PATIENT = Limits(5, 30)


class Play:
    """A server: each connection is played by the next script, the last one over and over."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.asked: list[bytes] = []
        self.over = threading.Event()
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def connections(self, most: int = 4) -> Connections:
        return Connections(Server("127.0.0.1", self.port), most)

    @property
    def count(self) -> int:
        return len(self._open)

    def hear(self, there: socket.socket) -> bool:
        """Read a request to the end of its headers; False: there is none any more."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = there.recv(4096)
            if not part:
                return False
            data += part
        self.asked.append(data)
        return True

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                there, _address = self._listener.accept()
            except OSError:
                return
            self._open.append(there)
            script = self._scripts[min(number, len(self._scripts) - 1)]
            self._start(functools.partial(self._play, script, there))

    def _play(self, script: Script, there: socket.socket) -> None:
        with there, contextlib.suppress(OSError):
            script(self, there)

    def _start(self, target: Callable[[], object]) -> None:
        thread = threading.Thread(target=target)
        self._threads.append(thread)
        thread.start()


Script = Callable[[Play, socket.socket], object]


def answer(*answers: bytes) -> Script:
    """Answer that many requests of a connection, then hang up."""

    def script(server: Play, there: socket.socket) -> None:
        for each in answers:
            if server.hear(there):
                there.sendall(each)

    return script


def keep(server: Play, there: socket.socket) -> None:
    """Answer for as long as somebody asks."""
    while server.hear(there):
        there.sendall(OK)


def drip(before: bytes) -> Script:
    """Answer with that at once, and then by a byte now and then without an end."""

    def script(server: Play, there: socket.socket) -> None:
        server.hear(there)
        there.sendall(before)
        while not server.over.wait(0.02):
            there.sendall(b"x")

    return script


def hang(server: Play, _there: socket.socket) -> None:
    """Say nothing."""
    server.over.wait()


@pytest.fixture
def play() -> Iterator[Callable[..., Play]]:
    with contextlib.ExitStack() as stack:
        yield lambda *scripts: stack.enter_context(Play(scripts))


def get(connections: Connections, limits: Limits = PATIENT, target: str = "/") -> Answer:
    return connections.request("GET", target, {}, b"", limits)


BEGINNINGS = {
    "nothing": b"",
    "header": HEADERS + b"X-Long: ",
    "body": HEADERS + b"Content-Length: 1000000\r\n\r\n",
    "chunk": CHUNKED + b"fffff\r\n",
    "end": HEADERS + b"\r\n",
}


@pytest.mark.parametrize("before", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_server_that_drips_has_the_time_of_one_request(
    play: Callable[..., Play], before: bytes
) -> None:
    """It drips for as long as the test lasts: were the limit one of each read, so would this."""
    server = play(drip(before))
    with pytest.raises(TimeoutError):
        _ = get(server.connections(), Limits(0.5, 0.5)).data


def test_a_server_that_says_nothing_has_no_more(play: Callable[..., Play]) -> None:
    server = play(hang)
    with pytest.raises(TimeoutError):
        get(server.connections(), Limits(0.2, 0.2))


def test_what_has_no_end_may_last_while_it_says_something(play: Callable[..., Play]) -> None:
    server = play(drip(HEADERS + b"\r\n"))
    found = get(server.connections(), Limits(5, 0.2, silence=30))
    stream = found.stream()
    # A byte each 20 ms: longer than the whole of another request may last.
    for _ in range(30):
        assert next(stream)
    found.close()


def test_what_has_no_end_may_not_be_silent(play: Callable[..., Play]) -> None:
    server = play(answer(HEADERS + b"\r\n{}", b""))
    found = get(server.connections(), Limits(5, 30, silence=0.2))
    stream = found.stream()
    assert next(stream) == b"{}"
    with pytest.raises(TimeoutError):
        next(stream)
    found.close()


def test_a_stream_is_ended_by_another_thread(play: Callable[..., Play]) -> None:
    server = play(answer(CHUNKED + b"2\r\n{}\r\n", b""))
    found = get(server.connections(), Limits(5, 30, silence=60))
    stream = found.stream()
    assert next(stream) == b"{}"
    closer = threading.Timer(0.1, found.shutdown)
    closer.start()
    with pytest.raises(http.client.IncompleteRead):
        next(stream)
    closer.join()
    found.close()


def test_a_connection_is_kept_also_after_chunks(play: Callable[..., Play]) -> None:
    chunks = b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
    server = play(answer(chunks, OK, b""))
    connections = server.connections()
    for status in (404, 200):
        found = get(connections)
        assert (found.status, found.data) == (status, b"ok")
    assert server.count == 1


def test_a_connection_that_was_closed_meanwhile_is_not_used(play: Callable[..., Play]) -> None:
    server = play(answer(OK), keep)
    connections = server.connections()
    assert get(connections).data == b"ok"
    # Until its end is there to be seen.
    assert connections._idle[0]._readable.poll(30_000)
    assert get(connections).data == b"ok"
    assert server.count == 2


def test_a_server_that_says_goodbye_is_asked_by_a_new_connection(
    play: Callable[..., Play],
) -> None:
    server = play(answer(GOODBYE, b""), keep)
    connections = server.connections()
    assert [get(connections).data for _ in range(3)] == [b"ok"] * 3
    assert server.count == 2


def test_an_answer_that_is_cut_is_none_and_its_connection_goes(play: Callable[..., Play]) -> None:
    server = play(answer(OK[:-1]), keep)
    connections = server.connections()
    with pytest.raises(http.client.IncompleteRead):
        _ = get(connections).data
    assert connections._idle == []
    assert get(connections).data == b"ok"


@pytest.mark.parametrize("nonsense", [b"", b"nonsense\r\n\r\n", HEADERS + b"X: y\r\n" * 200])
def test_no_answer_is_an_error_and_is_not_asked_for_again(
    play: Callable[..., Play], nonsense: bytes
) -> None:
    server = play(answer(nonsense))
    with pytest.raises((OSError, http.client.HTTPException)):
        get(server.connections())
    assert server.count == 1


def test_no_more_connections_are_kept_than_wanted(play: Callable[..., Play]) -> None:
    server = play(keep)
    connections = server.connections(most=2)
    answers = [get(connections) for _ in range(4)]
    assert [found.data for found in answers] == [b"ok"] * 4
    assert len(connections._idle) == 2


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/a b", {}), ("/\r\nX: y", {}), ("/ä", {}), ("", {}),
     ("/", {"A": "b\r\nX: y"}), ("/", {"A": "ä"}), ("/", {"A:\r\nB": "c"})],
)  # fmt: skip
def test_nothing_becomes_another_line(target: str, headers: dict[str, str]) -> None:
    # Port 9 has nobody: it is refused before anything is sent.
    with pytest.raises(ValueError, match=r"target|header"):
        Connections(Server("127.0.0.1", 9), 1).request("GET", target, headers, b"", PATIENT)


def test_a_request_as_it_is_sent(play: Callable[..., Play]) -> None:
    server = play(keep)
    server.connections().request("PATCH", "/a?b=c", {"X": "y"}, b"{}", PATIENT).data  # noqa: B018
    head, _, body = server.asked[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"PATCH /a?b=c HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}".encode(),
        b"Accept-Encoding: identity",
        b"Content-Length: 2",
        b"X: y",
    ]
    assert body == b"{}"


def test_a_proxy_is_asked_for_a_tunnel(play: Callable[..., Play]) -> None:
    server = play(answer(b"HTTP/1.1 200 Connected\r\n\r\n", OK, OK, b""))
    proxy = Proxy("127.0.0.1", server.port, {"Proxy-Authorization": "Basic x"})
    connections = Connections(Server("fd00::1", 443, proxy=proxy), 1)
    assert [get(connections).data for _ in range(2)] == [b"ok", b"ok"]
    tunnel, first, second = server.asked
    assert tunnel.split(b"\r\n")[:3] == [
        b"CONNECT [fd00::1]:443 HTTP/1.1",
        b"Host: [fd00::1]:443",
        b"Proxy-Authorization: Basic x",
    ]
    assert first == second
    assert b"Proxy" not in first


def test_a_proxy_that_refuses_is_no_server(play: Callable[..., Play]) -> None:
    server = play(answer(b"HTTP/1.1 407 Who are you?\r\n\r\n"))
    connections = Connections(Server("api", 443, proxy=Proxy("127.0.0.1", server.port)), 1)
    with pytest.raises(ConnectionError, match=r"the proxy 127\.0\.0\.1 says 407"):
        get(connections)
