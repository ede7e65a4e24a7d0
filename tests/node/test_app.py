"""The whole plugin as a process: simulated GPUs, a real API server, a kubelet that is played."""

from __future__ import annotations

import itertools
import json
import re
import socket
import urllib.request
import uuid

import pytest
from apportion.enforce import library

from tests.node.support.claims import deleted, share
from tests.node.support.kubelet import until
from tests.node.support.plugin import DRIVER
from tests.node.support.proxy import Fault, Proxy, containing
from tests.node.support.site import Site, error_of

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_FIRST, _SECOND = "gpu-0000-3b-00-0", "gpu-0000-af-00-0"
_GIB = 1 << 30
_NUMBER = itertools.count(1)


def test_a_claim_from_slice_to_clean_node(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    assert site.published() == [_FIRST, _SECOND]
    claim = site.claim(
        share(site.node, _FIRST, request="one"),
        share(site.node, _SECOND, request="two", memory="6Gi", cores="50"),
    )
    answer = site.kubelet.prepare(claim)
    assert error_of(answer, claim) == "", plugin.text()
    devices = answer.claims[claim["uid"]].devices
    assert [(list(d.request_names), d.pool_name, d.device_name) for d in devices] == [
        (["one"], site.node, _FIRST),
        (["two"], site.node, _SECOND),
    ]
    assert all(device.share_id for device in devices)
    (spec,) = site.host.cdi_specs()
    content = json.loads(spec.read_text())
    assert content["kind"] == f"k8s.{DRIVER}/claim"
    own = [f"{content['kind']}={device['name']}" for device in content["devices"]]
    assert [device.cdi_device_ids[0] for device in devices] == own
    keys = [path.name for path in site.host.share_folders()]
    assert keys == [f"{claim['uid']}-0", f"{claim['uid']}-1"]
    limits = (site.host.share_folders()[0] / "limits").read_text()
    assert f"memory {4 * _GIB}\n" in limits
    assert len(site.host.checkpoints()) == 1
    assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert site.clean()
    assert plugin.terminate() == 0


def test_after_sigkill_a_new_process_gives_the_same_answer(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    claim = site.claim()
    before = site.kubelet.prepare(claim)
    (slice_before,) = site.slices()
    ledger = site.host.share_folders()[0] / "ledger"
    inode = ledger.stat().st_ino
    plugin.kill()
    again = site.start()
    again.wait_for("registered the plugin")
    until(lambda: len(site.kubelet.plugins) == 1)
    assert site.kubelet.prepare(claim) == before
    assert ledger.stat().st_ino == inode
    until(lambda: again.health("readiness") == "SERVING", 60)
    assert site.slices() == [slice_before]
    assert site.kubelet.unprepare(claim).claims[claim["uid"]].error == ""
    assert site.host.share_folders() == []


def test_the_container_starts_again_in_the_same_pod(site: Site) -> None:
    pod = str(uuid.uuid4())
    plugin = site.start(pod=pod)
    site.ready(plugin)
    plugin.kill()
    again = site.start(pod=pod)
    site.ready(again)
    assert again.terminate() == 0


def test_a_second_process_of_the_pod_ends_with_one_line(site: Site) -> None:
    pod = str(uuid.uuid4())
    plugin = site.start(pod=pod)
    site.ready(plugin)
    second = site.start(pod=pod)
    assert second.process.wait(40) == 1
    assert re.search(r"\napportion plugin: another process of pod UID .*\n", second.text())
    assert plugin.health("readiness") == "SERVING"


def test_sigterm_lets_a_running_call_end(site: Site, proxy: Proxy) -> None:
    plugin = site.start(url=proxy.url, api_timeout_s="10")
    site.ready(plugin)
    claim = site.claim()
    slow = Fault(containing(f"resourceclaims/{claim['name']}"), hang=True, times=1)
    slow.then_forward = True
    proxy.faults = [slow]
    running = site.kubelet.in_background(lambda: site.kubelet.prepare(claim))
    until(lambda: slow.times == 0)
    plugin.signal_stop()
    plugin.wait_for("stopping signal=SIGTERM")
    until(lambda: not list((site.host.plugins / DRIVER).glob("*.sock")))
    proxy.released.set()
    assert error_of(running.result(30), claim) == "", plugin.text()
    assert plugin.process.wait(40) == 0
    assert site.published() == [_FIRST, _SECOND]


def test_an_api_server_that_is_away_at_the_start(site: Site, proxy: Proxy) -> None:
    url = proxy.url
    proxy.away()
    plugin = site.start(url=url)
    plugin.wait_for("slices cannot be published")
    site.kubelet.wait_for(1)
    assert plugin.health("liveness") == "SERVING"
    assert plugin.health("readiness") == "NOT_SERVING"
    proxy.back()
    until(lambda: plugin.health("readiness") == "SERVING")
    assert site.published() == [_FIRST, _SECOND]


def test_an_api_server_that_goes_away_in_the_middle_of_a_prepare(site: Site, proxy: Proxy) -> None:
    plugin = site.start(url=proxy.url)
    site.ready(plugin)
    claim = site.claim()
    for fault in (
        Fault(containing(claim["name"])),
        Fault(containing(claim["name"]), hang=True),
        Fault(containing(claim["name"]), status=503),
        Fault(containing(claim["name"]), status=429),
    ):
        proxy.faults = [fault]
        assert "tried again later" in error_of(site.kubelet.prepare(claim), claim)
        assert site.clean()
    proxy.faults = []
    assert error_of(site.kubelet.prepare(claim), claim) == ""
    proxy.away()
    # A pod must be able to end, and a repeated Prepare need not the API server's help to fail.
    assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert site.clean()
    assert plugin.health("readiness") == "SERVING"


def test_bad_claims_are_answered_each_and_leave_nothing(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    good = site.claim()
    missing = {"uid": str(uuid.uuid4()), "namespace": "default", "name": "no-such-claim"}
    renamed = good | {"uid": str(uuid.uuid4())}
    unknown = site.claim(share(site.node, "gpu-elsewhere"))
    large = site.claim(share(site.node, _SECOND, memory="64Gi"))
    answer = site.kubelet.prepare(good, missing, renamed, unknown, large)
    errors = {uid: entry.error for uid, entry in answer.claims.items()}
    assert errors.pop(good["uid"]) == "", plugin.text()
    assert len(errors) == 4
    assert all(errors.values())
    assert [path.name for path in site.host.share_folders()] == [f"{good['uid']}-0"]
    assert (len(site.host.cdi_specs()), len(site.host.checkpoints())) == (1, 1)


def test_without_a_driver_pods_can_end_and_with_it_all_begins(site: Site) -> None:
    site.host.remove_driver()
    plugin = site.start()
    site.kubelet.wait_for(1)
    plugin.wait_for(r"GPUs cannot be shared: no libnvidia-ml\.so\.1 below")
    claim = site.claim()
    assert error_of(site.kubelet.prepare(claim), claim)
    assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert plugin.health("liveness") == "SERVING"
    assert plugin.health("readiness") == "NOT_SERVING"
    site.host.install_driver()
    until(lambda: plugin.health("readiness") == "SERVING", 60)
    assert site.published() == [_FIRST, _SECOND]
    assert error_of(site.kubelet.prepare(claim), claim) == ""


def test_no_gpu_publishes_nothing_and_says_so(site: Site) -> None:
    site.host.gpus.write_config(gpus=())
    plugin = site.start()
    site.ready(plugin)
    assert site.slices() == []
    plugin.wait_for("no GPU to offer on this node")
    events = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={site.node}"
    until(
        lambda: [e["reason"] for e in site.server.call("GET", events)["items"]] == ["NoGpuToShare"]
    )


def test_a_plugin_that_cannot_prepare_does_not_take_over_from_one_that_can(site: Site) -> None:
    good = site.start()
    site.ready(good)
    claim = site.claim()
    bad = site.start(shim_dir="/nonexistent")
    bad.wait_for("GPUs cannot be shared")
    assert site.kubelet.registrations == 1
    assert error_of(site.kubelet.prepare(claim), claim) == ""
    given_up = site.start(shim_dir="/nonexistent")
    given_up.wait_for("GPUs cannot be shared")
    assert given_up.terminate() == 0
    good.kill()
    bad.wait_for("registered the plugin")
    assert error_of(site.kubelet.unprepare(claim), claim) == ""


def test_a_broken_update_that_is_rolled_back_leaves_the_slices_alone(site: Site) -> None:
    good = site.start()
    site.ready(good)
    (slice_before,) = site.slices()
    shim = site.host.root / "broken-shim"
    bad = site.start(shim_dir=str(shim))
    # Each file that comes makes the next failed scan say something else: four of them.
    for name in library.FILES:
        bad.wait_for(f"GPUs cannot be shared: {shim}/{name} is missing")
        if name != library.FILES[-1]:
            shim.mkdir(exist_ok=True)
            (shim / name).touch()
    assert bad.terminate() == 0
    assert site.slices() == [slice_before], bad.text()
    assert good.health("readiness") == "SERVING"


def test_a_rolling_update_never_leaves_kubelet_alone(site: Site) -> None:
    old = site.start()
    site.ready(old)
    claim = site.claim()
    before = site.kubelet.prepare(claim)
    (slice_before,) = site.slices()
    new = site.start()
    site.kubelet.wait_for(2)
    assert old.terminate() == 0
    until(lambda: len(site.kubelet.plugins) == 1)
    assert site.kubelet.prepare(claim) == before
    until(lambda: new.health("readiness") == "SERVING", 60)
    assert site.slices() == [slice_before]


def test_sockets_that_somebody_deletes_come_back(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    for path in (*site.host.registry.glob("*.sock"), *(site.host.plugins / DRIVER).glob("*.sock")):
        path.unlink()
    until(lambda: site.kubelet.registrations == 2)
    until(lambda: plugin.health("readiness") == "SERVING")


def test_a_claim_deleted_while_the_plugin_was_down_is_swept(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    claim = site.claim()
    site.kubelet.prepare(claim)
    plugin.kill()
    deleted(site.server, claim["name"])
    site.start()
    until(site.clean)


def test_metrics_tell_of_shares_and_slices(site: Site) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plugin = site.start(metrics_address=f"127.0.0.1:{port}")
    site.ready(plugin)
    claim = site.claim()
    site.kubelet.prepare(claim)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "apportion_published_devices 2.0" in text
    assert "apportion_prepared_shares 1.0" in text
    name = claim["name"]
    labels = rf'claim="{name}",device="{_FIRST}",namespace="default",uuid="GPU-'
    assert re.search(rf"apportion_share_memory_limit_bytes\{{{labels}\S+ 4.29\S+e\+09", text)
    assert re.search(rf"apportion_share_memory_used_bytes\{{{labels}\S+ 0.0", text)
    assert re.search(rf'apportion_share_info\{{.*pod="pod-of-{name}".*\}} 1.0', text)
    assert 'apportion_claim_seconds_count{method="prepare",result="ok"} 1.0' in text


def test_each_prepare_is_one_line_with_the_calls_id(site: Site) -> None:
    plugin = site.start(log_format="json")
    site.ready(plugin)
    claim = site.claim()
    site.kubelet.prepare(claim)
    plugin.wait_for("prepare answered")
    lines = [json.loads(line) for line in plugin.text().splitlines()]
    (share_line,) = (line for line in lines if line["message"] == "prepared")
    (call_line,) = (line for line in lines if line["message"] == "prepare answered")
    assert share_line["call"] == call_line["call"]
    assert share_line["claim"] == f"default/{claim['name']}"


def test_the_first_line_names_variables_that_are_no_settings(site: Site) -> None:
    links = {"service_host": "10.0.0.1", "service_port": "80", "port": "tcp://10.0.0.1:80"}
    plugin = site.start(**links)
    names = " ".join(sorted(f"APPORTION_{name.upper()}" for name in links))
    plugin.wait_for(rf'apportion \S+ starts .* ignored="{names}"')


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({"node_name": ""}, 2, "node_name is not set"),
        ({"kubeconfig": "/nonexistent"}, 2, "set kubeconfig to a file"),
        ({"plugins_dir": "/proc/nowhere"}, 1, "plugins_dir"),
        ({"health_address": "256.0.0.1:1"}, 2, "health_address"),
        ({"health_address": "192.0.2.1:1"}, 2, "health_address"),
        ({"metrics_address": "9400"}, 2, "metrics_address"),
        ({"proc": "/nonexistent"}, 1, "boot ID"),
    ],
)
def test_what_cannot_start_says_why_in_its_last_line(
    site: Site, settings: dict[str, str], status: int, said: str
) -> None:
    plugin = site.start(**settings)
    assert plugin.process.wait(60) == status
    last = plugin.text().splitlines()[-1]
    assert last.startswith("apportion plugin: ")
    assert said in last
    assert "Traceback" not in plugin.text()
