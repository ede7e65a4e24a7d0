from __future__ import annotations

import logging

import pytest
from apportion import log
from apportion.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from apportion.kubelet.server import ClaimServer, supported_versions
from apportion.model import ClaimOutcome, ClaimRef, PreparedDevice
from hypothesis import given, settings
from hypothesis import strategies as st

_UID = "4e7c6a5e-6f0c-4d6e-9d3b-2c1f0a9b8d7e"


class Counting:
    def __init__(self, outcome: ClaimOutcome | Exception) -> None:
        self.calls: list[ClaimRef] = []
        self.outcome = outcome

    def __call__(self, ref: ClaimRef) -> ClaimOutcome:
        self.calls.append(ref)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def _answer(server: ClaimServer, *claims: dict[str, str]) -> dict[str, str]:
    """Return the errors by UID, by the path of a call without its socket."""
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(**claim) for claim in claims]
    )
    found = server._prepare(dra_v1_pb2, request)
    server.close()
    return {uid: entry.error for uid, entry in found.claims.items()}


def _server(action: Counting) -> ClaimServer:
    return ClaimServer(action, action, lambda _method, _failed, _seconds: None)


def test_versions_are_advertised_newest_first() -> None:
    assert supported_versions() == ("v1.DRAPlugin", "v1beta1.DRAPlugin")


@pytest.mark.parametrize("missing", ["namespace", "name"])
def test_a_claim_without_its_names_is_refused(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    action = Counting(ClaimOutcome())
    claim = {"uid": _UID, "namespace": "n", "name": "c"} | {missing: ""}
    assert "without its namespace or name" in _answer(_server(action), claim)[_UID]
    assert action.calls == []
    assert "claim refused" in [record.getMessage() for record in caplog.records]


def test_a_claim_named_twice_is_prepared_once() -> None:
    action = Counting(ClaimOutcome())
    claim = {"uid": _UID, "namespace": "n", "name": "c"}
    assert _answer(_server(action), claim, claim) == {_UID: ""}
    assert len(action.calls) == 1


def test_one_uid_with_two_names_is_refused() -> None:
    action = Counting(ClaimOutcome())
    one = {"uid": _UID, "namespace": "n", "name": "c"}
    error = _answer(_server(action), one, one | {"name": "d"})[_UID]
    assert "n/c and n/d" in error
    assert action.calls == []


def test_what_escapes_becomes_the_claims_error_and_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    action = Counting(RuntimeError("boom"))
    errors = _answer(_server(action), {"uid": _UID, "namespace": "n", "name": "c"})
    assert "RuntimeError: boom" in errors[_UID]
    assert any(record.exc_info for record in caplog.records)


def test_an_error_that_is_no_text_still_reaches_kubelet() -> None:
    action = Counting(ClaimOutcome(error="cannot write /x\udcff"))
    errors = _answer(_server(action), {"uid": _UID, "namespace": "n", "name": "c"})
    assert errors[_UID] == "cannot write /x?"


def test_an_endless_error_is_cut() -> None:
    action = Counting(ClaimOutcome(error="x" * 100_000))
    errors = _answer(_server(action), {"uid": _UID, "namespace": "n", "name": "c"})
    assert len(errors[_UID]) == 2000


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "uid": st.sampled_from(["", "..", "a", "b", _UID]) | st.text(max_size=70),
                "namespace": st.sampled_from(["", "n"]) | st.text(max_size=9),
                "name": st.sampled_from(["", "c"]) | st.text(max_size=9),
            }
        ),
        max_size=12,
    ),
    st.sampled_from([ClaimOutcome(), ClaimOutcome(error="no"), RuntimeError("boom")]),
)
@settings(deadline=None)
def test_whatever_is_asked_each_uid_has_one_entry_and_is_acted_on_at_most_once(
    claims: list[dict[str, str]], outcome: ClaimOutcome | Exception
) -> None:
    action = Counting(outcome)
    errors = _answer(_server(action), *claims)
    assert set(errors) == {claim["uid"] for claim in claims}
    asked = [ref.uid for ref in action.calls]
    assert sorted(asked) == sorted(set(asked))
    assert all(ref.namespace and ref.name for ref in action.calls)
    if isinstance(outcome, Exception) or outcome.error:
        assert all(errors.values())


def test_devices_of_a_failed_claim_are_not_sent() -> None:
    device = PreparedDevice(("r",), "p", "d", ("k/c=x",))
    server = _server(Counting(ClaimOutcome((device,), error="no")))
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(uid=_UID, namespace="n", name="c")]
    )
    entry = server._prepare(dra_v1_pb2, request).claims[_UID]
    server.close()
    assert (entry.error, len(entry.devices)) == ("no", 0)


@pytest.mark.parametrize("share", [None, "a1b2"])
def test_the_versions_differ_by_the_share_id_alone(share: str | None) -> None:
    device = PreparedDevice(("r/s",), "pool", "gpu-0", ("k/c=share", "k/d=driver"), share)
    server = _server(Counting(ClaimOutcome((device,))))
    texts = []
    for api in (dra_v1_pb2, dra_v1beta1_pb2):
        request = api.NodePrepareResourcesRequest(
            claims=[api.Claim(uid=_UID, namespace="n", name="c")]
        )
        found = server._prepare(api, request).claims[_UID].devices[0]
        assert list(found.request_names) == ["r/s"]
        assert list(found.cdi_device_ids) == ["k/c=share", "k/d=driver"]
        texts.append((found.pool_name, found.device_name, getattr(found, "share_id", None)))
    server.close()
    assert texts == [("pool", "gpu-0", share or ""), ("pool", "gpu-0", None)]


def test_all_lines_of_a_call_carry_one_id_also_from_other_threads() -> None:
    seen: list[str] = []

    def action(_ref: ClaimRef) -> ClaimOutcome:
        record = logging.makeLogRecord({"msg": "step", "levelname": "INFO"})
        seen.append(log.TextFormatter().format(record).partition("call=")[2])
        return ClaimOutcome()

    server = ClaimServer(action, action, lambda _method, _failed, _seconds: None)
    _answer(server, *({"uid": f"{_UID}-{n}", "namespace": "n", "name": f"c{n}"} for n in range(5)))
    assert len(seen) == 5
    assert len(set(seen)) == 1
    assert seen[0]


def test_the_observer_is_told_of_each_claim() -> None:
    told: list[tuple[str, bool]] = []
    server = ClaimServer(
        Counting(ClaimOutcome(error="no")),
        Counting(ClaimOutcome()),
        lambda method, failed, seconds: told.append((method, failed and seconds >= 0)),
    )
    _answer(server, {"uid": _UID, "namespace": "n", "name": "c"})
    assert told == [("prepare", True)]
