from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from apportion import kube, kubeerrors
from apportion.connections import Limits
from apportion.errors import (
    ConfigError,
    FatalError,
    KubeConflictError,
    KubeError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    RetryableError,
)
from apportion.kube import Kube
from apportion.model import ClaimRef, ClaimUid

_EXPECTED: dict[int, type[KubeError]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    408: KubeUnavailableError,
    409: KubeConflictError,
    410: KubeExpiredError,
    429: KubeUnavailableError,
}
_REF = ClaimRef(ClaimUid("u"), "n", "c")
_CLAIM = b'{"metadata": {"name": "c", "namespace": "n", "uid": "u"}}'


@pytest.mark.parametrize("status", [s for s in range(100, 600) if not 200 <= s < 300])
def test_each_status_is_one_error(status: int) -> None:
    fallback = KubeInvalidError if 400 <= status < 500 else KubeUnavailableError
    assert kubeerrors.error_type(status) is _EXPECTED.get(status, fallback)


@pytest.mark.parametrize("kind", {*_EXPECTED.values(), KubeInvalidError}, ids=lambda k: k.__name__)
def test_each_error_is_either_retryable_or_fatal(kind: type[KubeError]) -> None:
    assert issubclass(kind, RetryableError) != issubclass(kind, FatalError)


class Answer:
    """Stands for the way to the API server below Kube: gives one answer, or raises."""

    def __init__(
        self, status: int = 200, data: bytes = _CLAIM, error: Exception | None = None
    ) -> None:
        self.status, self.data, self.error = status, data, error
        self.request: tuple[Any, ...] = ()

    def send(self, *request: Any, limits: Limits, **rest: Any) -> Any:
        self.request = (*request, rest, limits)
        if self.error:
            raise self.error
        return self


def _kube(answer: Answer, timeout: float = 10) -> Kube:
    return Kube(answer, timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        http.client.IncompleteRead(b"cut"),
        http.client.BadStatusLine("no HTTP"),
        ssl.SSLError("bad certificate"),
        ConnectionRefusedError("refused"),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
        ValueError("Invalid header value"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_an_answer_it_is_not_available(error: Exception) -> None:
    with pytest.raises(KubeUnavailableError) as raised:
        _kube(Answer(error=error)).get_claim(_REF)
    assert raised.value.status == 0
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"kind": "Status", "message": "claims \\"c\\" not valid"}', 'claims "c" not valid'),
        (b"<html>proxy</html>", "<html>proxy</html>"),
        (b'["list"]', '["list"]'),
        (b"[" * 100_000, "[" * 200),
        (b"x" * 9999, "x" * 200),
    ],
)
def test_the_message_is_the_servers_own(data: bytes, said: str) -> None:
    with pytest.raises(KubeInvalidError) as raised:
        _kube(Answer(422, data)).get_claim(_REF)
    path = "GET /apis/resource.k8s.io/v1/namespaces/n/resourceclaims/c"
    assert str(raised.value) == f"{path}: 422 {said}"
    assert raised.value.status == 422


MISSING: dict[str, Any] = {
    "kind": "Status",
    "message": "there is no claim",
    "reason": "NotFound",
    "details": {"name": "c", "group": "resource.k8s.io", "kind": "resourceclaims"},
    "code": 404,
}


def test_what_the_api_server_itself_does_not_have_is_not_found() -> None:
    with pytest.raises(KubeNotFoundError, match="there is no claim") as raised:
        _kube(Answer(404, json.dumps(MISSING).encode())).get_claim(_REF)
    assert raised.value.status == 404


@pytest.mark.parametrize(
    "said",
    [
        MISSING | {"kind": "Proxy"},
        MISSING | {"reason": ""},
        MISSING | {"details": {}},
        MISSING | {"details": None},
        MISSING | {"details": MISSING["details"] | {"name": "other"}},
        MISSING | {"details": MISSING["details"] | {"kind": "pods"}},
        {"kind": "Status", "message": "the server could not find the requested resource"},
        [],
        "404 page not found",
    ],
    ids=str,
)
def test_a_404_that_says_nothing_of_the_object_is_not_its_end(said: object) -> None:
    with pytest.raises(KubeUnavailableError, match=": 404 ") as raised:
        _kube(Answer(404, json.dumps(said).encode())).get_claim(_REF)
    assert raised.value.status == 404


@pytest.mark.parametrize("data", [b"404 page not found", b"", b"[" * 100_000])
def test_a_404_that_is_no_json_is_not_its_end(data: bytes) -> None:
    with pytest.raises(KubeUnavailableError):
        _kube(Answer(404, data)).get_claim(_REF)


def test_a_list_cannot_be_missing() -> None:
    with pytest.raises(KubeUnavailableError, match="not served"):
        _kube(Answer(404, json.dumps(MISSING).encode())).list_claims()


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (Answer(403), "; does the plugin's ServiceAccount have the rights in deploy/base?"),
        (Answer(503), "; tried again later"),
        (Answer(error=TimeoutError("slow")), "; tried again later"),
        (Answer(404), "; tried again later"),
        (Answer(409), ""),
    ],
)
def test_only_the_plugin_is_told_of_its_rights_and_of_the_next_try(
    answer: Answer, hint: str
) -> None:
    with pytest.raises(KubeError) as raised:
        _kube(answer).get_claim(_REF)
    assert "ServiceAccount" not in str(raised.value)
    assert "again" not in str(raised.value)
    assert kubeerrors.hinted(raised.value) == f"{raised.value}{hint}"


@pytest.mark.parametrize(("timeout", "expected"), [(10, Limits(5, 10)), (2, Limits(2, 2))])
def test_every_call_has_limits_for_connecting_and_for_all_of_it(
    timeout: float, expected: Limits
) -> None:
    answer = Answer()
    _kube(answer, timeout).get_claim(_REF)
    assert answer.request[-1] == expected


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_be_another_path_never_leaves(name: str) -> None:
    answer = Answer()
    with pytest.raises(KubeInvalidError):
        _kube(answer).get_claim(ClaimRef(ClaimUid("u"), "n", name))
    assert answer.request == ()


class Lines(Answer):
    """A watch's answer, in chunks that know nothing of lines."""

    def __init__(self, *chunks: bytes) -> None:
        super().__init__()
        self.chunks = chunks
        self.closed = False

    def stream(self) -> Any:
        yield from self.chunks

    def close(self) -> None:
        self.closed = True

    def shutdown(self) -> None:
        raise ValueError("there is nothing to shut down")


def test_events_are_lines_however_they_are_cut() -> None:
    one, two = ({"metadata": {"resourceVersion": version}} for version in ("1", "ä"))
    events = [{"type": "ADDED", "object": one}, {"type": "BOOKMARK", "object": two}]
    data = b"".join(json.dumps(e, ensure_ascii=False).encode() + b"\n" for e in events)
    lines = Lines(*(data[n : n + 7] for n in range(0, len(data), 7)))
    found = list(_kube(lines).watch_slices("d", "n", "1"))
    assert found == [("ADDED", one), ("BOOKMARK", two)]
    assert lines.closed


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, KubeUnavailableError),
        (410, KubeExpiredError),
        (500, KubeUnavailableError),
        ("x", KubeUnavailableError),
    ],
)
def test_an_error_event_is_raised_as_its_status(code: object, kind: type[KubeError]) -> None:
    event = {"type": "ERROR", "object": {"code": code, "message": "too old"}}
    with pytest.raises(kind, match="too old"):
        list(_kube(Lines(json.dumps(event).encode() + b"\n")).watch_slices("d", "n", "1"))


def test_a_closed_watch_ends_without_an_error() -> None:
    class Cut(Lines):
        def stream(self) -> Any:
            yield b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}\n'
            raise http.client.IncompleteRead(b"cut")

    watch = _kube(Cut()).watch_slices("d", "n", "1")
    events = iter(watch)
    next(events)
    watch.close()
    assert list(events) == []
    with pytest.raises(KubeUnavailableError):
        list(_kube(Cut()).watch_slices("d", "n", "1"))


def test_a_watch_that_is_closed_before_it_is_read_still_closes_its_connection() -> None:
    lines = Lines()
    watch = _kube(lines).watch_slices("d", "n", "1")
    watch.close()
    assert list(watch) == []
    assert lines.closed


@pytest.mark.parametrize("content", ["nonsense", "clusters: []", "", "[", "- a", "users: 3"])
def test_a_kubeconfig_that_is_none_is_a_setting_to_correct(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match="set kubeconfig"):
        kube.connect(str(path), 10)


@pytest.mark.parametrize("name", ["missing", "missing:other", "nonsense"])
def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "nonsense").write_text("- a")
    given = ":".join(str(tmp_path / one) for one in name.split(":"))
    with pytest.raises(ConfigError) as raised:
        kube.connect(given, 10)
    words = str(raised.value)
    assert words.startswith(f"cannot reach a Kubernetes API by {given}: ")
    assert ("there is no such file" in words) == ("missing" in name)
    assert ".;" not in words


def test_neither_pod_nor_kubeconfig_is_a_setting_to_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for path in ("", str(tmp_path / "missing")):
        with pytest.raises(ConfigError, match=r"[^.]; .*set kubeconfig"):
            kube.connect(path, 10)
