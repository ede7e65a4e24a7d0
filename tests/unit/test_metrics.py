from __future__ import annotations

import dataclasses
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import prometheus_client
import pytest
from apportion import __version__
from apportion.errors import ConfigError
from apportion.metrics import GuardSample, HealthSample, Metrics, ShareSample
from apportion.model import ClaimRef, ClaimUid, CoresUse

_GIB = 1 << 30
_DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"


def sample(
    device: str = "gpu-0",
    *,
    claim: str = "c",
    pods: tuple[str, ...] = ("pod-a",),
    used: int | None = 1,
    time: CoresUse | None = None,
) -> ShareSample:
    return ShareSample(device, "GPU-1", "default", claim, pods, 4 * _GIB, used, cores=30, time=time)


def scrape(metrics: Metrics) -> dict[str, float]:
    text = prometheus_client.generate_latest(metrics.registry).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _space, value in lines}


def test_what_runs_is_named() -> None:
    found = scrape(Metrics(lambda: ()))
    assert found[f'apportion_build_info{{version="{__version__}"}}'] == 1


def test_claims_are_counted_by_method_and_result() -> None:
    metrics = Metrics(lambda: ())
    metrics.observe("prepare", False, 0.2)
    metrics.observe("prepare", True, 0.1)
    metrics.observe("unprepare", False, 0.1)
    found = scrape(metrics)
    assert found['apportion_claim_seconds_count{method="prepare",result="ok"}'] == 1
    assert found['apportion_claim_seconds_count{method="prepare",result="error"}'] == 1
    assert found['apportion_claim_seconds_sum{method="prepare",result="ok"}'] == 0.2
    assert found['apportion_claim_errors_total{method="prepare"}'] == 1
    # A counter that appears with its first error hides that error from rate().
    assert found['apportion_claim_errors_total{method="unprepare"}'] == 0


def test_publishing_is_counted() -> None:
    metrics = Metrics(lambda: ())
    metrics.published(2)
    metrics.publish_failed()
    found = scrape(metrics)
    assert found["apportion_published_devices"] == 2
    assert found["apportion_publish_errors_total"] == 1


def test_shares_are_read_when_asked_for() -> None:
    shares: list[ShareSample] = []
    metrics = Metrics(lambda: shares)
    assert scrape(metrics)["apportion_prepared_shares"] == 0
    shares.append(sample(used=3 * _GIB))
    found = scrape(metrics)
    labels = 'claim="c",device="gpu-0",namespace="default",uuid="GPU-1"'
    assert found["apportion_prepared_shares"] == 1
    assert found[f"apportion_share_memory_limit_bytes{{{labels}}}"] == 4 * _GIB
    assert found[f"apportion_share_memory_used_bytes{{{labels}}}"] == 3 * _GIB


def test_two_shares_of_one_gpu_in_a_claim_are_one_series() -> None:
    metrics = Metrics(lambda: [sample(used=5), sample(used=7)])
    found = scrape(metrics)
    labels = 'claim="c",device="gpu-0",namespace="default",uuid="GPU-1"'
    assert found["apportion_prepared_shares"] == 2
    assert found[f"apportion_share_memory_limit_bytes{{{labels}}}"] == 8 * _GIB
    assert found[f"apportion_share_memory_used_bytes{{{labels}}}"] == 12


def test_time_on_the_gpu_is_in_seconds_and_summed_like_memory() -> None:
    half = CoresUse(used=1_500_000_000, waited=250_000_000, overrun=1_000_000)
    found = scrape(Metrics(lambda: [sample(time=half), sample(time=half), sample(claim="d")]))
    labels = 'claim="c",device="gpu-0",namespace="default",uuid="GPU-1"'
    cores = {name: value for name, value in found.items() if "share_cores" in name}
    assert {name: value for name, value in cores.items() if labels in name} == {
        f"apportion_share_cores_limit_ratio{{{labels}}}": 0.6,
        f"apportion_share_cores_used_seconds_total{{{labels}}}": 3.0,
        f"apportion_share_cores_waited_seconds_total{{{labels}}}": 0.5,
        f"apportion_share_cores_overrun_seconds_total{{{labels}}}": 0.002,
    }
    # A ledger that cannot be read has no time, but its share a limit.
    assert [name.partition("{")[0] for name in cores if 'claim="d"' in name] == [
        "apportion_share_cores_limit_ratio"
    ]


def test_each_pod_of_a_share_has_a_series_of_its_own() -> None:
    shares = [sample(pods=("pod-b", "pod-a")), sample(pods=("pod-a",)), sample(claim="d", pods=())]
    found = scrape(Metrics(lambda: shares))
    labels = 'device="gpu-0",namespace="default",pod="{}",uuid="GPU-1"'
    assert {name: value for name, value in found.items() if "share_info" in name} == {
        f'apportion_share_info{{claim="c",{labels.format(pod)}}}': 1 for pod in ("pod-a", "pod-b")
    }
    # Amounts belong to the claim, however many pods use it: a sum over them is a sum of shares.
    assert len([name for name in found if "limit_bytes" in name]) == 2


def test_a_ledger_that_cannot_be_read_is_left_out() -> None:
    found = scrape(Metrics(lambda: [sample(used=None)]))
    assert not [name for name in found if "used_bytes" in name]
    assert [name for name in found if "limit_bytes" in name]


def test_names_of_others_cannot_break_the_format() -> None:
    found = scrape(Metrics(lambda: [sample(claim='x"} 1\ny')]))
    assert len([name for name in found if "limit_bytes" in name]) == 1


def test_they_are_served_over_http() -> None:
    metrics = Metrics(lambda: [sample()])
    port = metrics.serve("127.0.0.1:0")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"apportion_prepared_shares 1.0" in answer.read()
    metrics.stop()
    metrics.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_taken_port_is_refused_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="free port"):
            Metrics(lambda: ()).serve(f"127.0.0.1:{taken.getsockname()[1]}")


def test_the_truth_is_shown_beside_the_ledger_and_left_out_where_it_is_not_known() -> None:
    labels = 'claim="c",device="gpu-0",namespace="default",uuid="GPU-1"'
    shares = [dataclasses.replace(sample(), truth=truth) for truth in (5, 7, None)]
    assert scrape(Metrics(lambda: shares))[f"apportion_share_truth_bytes{{{labels}}}"] == 12
    assert not [name for name in scrape(Metrics(lambda: [sample()])) if "truth" in name]


def test_what_the_guard_saw_and_did() -> None:
    seen = GuardSample(sees=True, seconds=0.25, unattributed={("GPU-1", "host"): 3})
    metrics = Metrics(lambda: (), lambda: seen)
    ref = ClaimRef(ClaimUid("u"), "default", "c")
    metrics.guard_found("gpu-0", "GPU-1", ref)
    metrics.guard_killed("gpu-0", "GPU-1", ref)
    metrics.guard_killed("gpu-0", "GPU-1", ref)
    found = scrape(metrics)
    labels = 'device="gpu-0",namespace="default",uuid="GPU-1"'
    assert found[f"apportion_guard_excesses_total{{{labels}}}"] == 1
    assert found[f"apportion_guard_kills_total{{{labels}}}"] == 2
    assert found["apportion_guard_sees"] == 1
    assert found["apportion_guard_scan_seconds"] == 0.25
    assert found['apportion_unattributed_bytes{uuid="GPU-1",where="host"}'] == 3


def test_claims_that_come_and_go_make_no_new_series_of_the_guards_counters() -> None:
    metrics = Metrics(lambda: ())

    def series() -> set[str]:
        return {name for name in scrape(metrics) if "guard" in name and "_created" not in name}

    metrics.guard_found("gpu-0", "GPU-1", ClaimRef(ClaimUid("u"), "default", "c"))
    metrics.guard_killed("gpu-0", "GPU-1", ClaimRef(ClaimUid("u"), "default", "c"))
    before = series()
    for number in range(20):
        ref = ClaimRef(ClaimUid(f"u{number}"), "default", f"from-a-template-{number}")
        metrics.guard_found("gpu-0", "GPU-1", ref)
        metrics.guard_killed("gpu-0", "GPU-1", ref)
    assert series() == before


def test_a_guard_that_is_off_has_no_gauges() -> None:
    assert not [name for name in scrape(Metrics(lambda: ())) if "guard_sees" in name]


def test_a_gpus_health_and_its_xids() -> None:
    metrics = Metrics(lambda: ())
    metrics.watch_health(
        lambda: [
            HealthSample("gpu-0", "GPU-1", "", healthy=True),
            HealthSample("gpu-1", "GPU-2", "xid-79", healthy=False),
        ]
    )
    metrics.count_xid("GPU-2", 79)
    metrics.count_xid("GPU-2", 79)
    found = scrape(metrics)
    assert found['apportion_gpu_health{device="gpu-0",reason="",uuid="GPU-1"}'] == 1
    assert found['apportion_gpu_health{device="gpu-1",reason="xid-79",uuid="GPU-2"}'] == 0
    assert found['apportion_gpu_xids_total{uuid="GPU-2",xid="79"}'] == 2


def test_the_documented_metrics_are_those_that_there_are() -> None:
    guard = GuardSample(sees=True, seconds=0.0, unattributed={})
    metrics = Metrics(lambda: [sample()], lambda: guard)
    metrics.watch_health(lambda: [HealthSample("gpu-0", "GPU-1", "", healthy=True)])
    families = metrics.registry.collect()
    found = sorted(
        family.name + ("_total" if family.type == "counter" else "") for family in families
    )
    rows = re.findall(r"^\| `(apportion_\w+)`", _DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == found


def test_describing_reads_no_share() -> None:
    def never() -> list[ShareSample]:
        raise AssertionError("read without a scrape")

    read: Callable[[], list[ShareSample]] = never
    Metrics(read)
