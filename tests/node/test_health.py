"""A GPU that falls ill and recovers, through the whole plugin, as slices and kubelet see it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from apportion.kubelet.pb import dra_health_v1_pb2 as pb

from tests.fakes.fakegpu import DEFAULT_GPUS
from tests.node.support.apiserver import ApiServer, add_node
from tests.node.support.claims import share, told
from tests.node.support.kubelet import FakeKubelet, until
from tests.node.support.plugin import DRIVER, Host, PluginProcess
from tests.node.support.site import Site, error_of

_FIRST, _SECOND = "gpu-0000-3b-00-0", "gpu-0000-af-00-0"
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
# Long enough for nothing to recover while a test looks.
_NEVER = {"health_quiet_s": "86400"}
_SOON = {"health_quiet_s": "1"}


def taints(site: Site, device: str) -> list[tuple[str, str, str]]:
    """Return key, value and effect of the taints of a published device."""
    found = [
        taint
        for body in site.slices()
        for there in body["spec"]["devices"]
        if there["name"] == device
        for taint in there.get("taints", ())
    ]
    return [(taint["key"], taint.get("value", ""), taint["effect"]) for taint in found]


def added(site: Site, device: str) -> list[str]:
    return [
        taint["timeAdded"]
        for body in site.slices()
        for there in body["spec"]["devices"]
        if there["name"] == device
        for taint in there.get("taints", ())
    ]


class Stream:
    """One of kubelet's health streams; `states` is the last response by device."""

    def __init__(self, plugin: PluginProcess, version: str = "v1alpha1") -> None:
        path = plugin.host.plugins / DRIVER / f"dra-{plugin.pod}.sock"
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.call: Any = self.channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )(pb.NodeWatchResourcesRequest(), timeout=60)

    def next(self) -> dict[str, tuple[str, str, str]]:
        """Return pool, state and message by device, as the next response has them."""
        return {
            entry.device.device_name: (
                entry.device.pool_name,
                pb.HealthStatus.Name(entry.health),
                entry.message,
            )
            for entry in next(self.call).devices
        }

    def until(self, device: str, state: str) -> str:
        """Read on until a device has a state; return its message."""
        while True:
            _pool, found, message = self.next()[device]
            if found == state:
                return message


@contextmanager
def watching(plugin: PluginProcess, version: str = "v1alpha1") -> Iterator[Stream]:
    stream = Stream(plugin, version)
    with stream.channel:
        yield stream


def record(site: Site) -> dict[str, Any]:
    content = json.loads((site.host.plugins / DRIVER / "health.json").read_text())
    return {entry["uuid"]: entry["conditions"] for entry in content["gpus"]}


def test_an_xid_taints_its_gpu_alone_and_goes_when_the_gpu_has_proven_itself(site: Site) -> None:
    plugin = site.start(**_SOON)
    site.ready(plugin)
    with watching(plugin) as stream:
        assert stream.next()[_FIRST] == (site.node, "HEALTHY", "")
        site.host.gpus.set_xid(0, 95)
        said = stream.until(_FIRST, "UNHEALTHY")
        assert said.startswith("Xid 95: an ECC error touched several programs; stop what uses")
        until(lambda: taints(site, _FIRST) == [(f"{DRIVER}/xid", "95", "NoSchedule")])
        assert taints(site, _SECOND) == []
        stream.until(_FIRST, "HEALTHY")
    until(lambda: taints(site, _FIRST) == [])
    assert plugin.says("self-test passed")
    assert plugin.says("a GPU is well again")
    assert plugin.health("readiness") == "SERVING"


def test_the_claims_of_a_bad_gpu_are_told(site: Site) -> None:
    site.ready(site.start(**_NEVER))
    bad, good = site.claim(share(site.node, _FIRST)), site.claim(share(site.node, _SECOND))
    for claim in (bad, good):
        assert error_of(site.kubelet.prepare(claim), claim) == ""

    def healthy(claim: dict[str, str]) -> list[tuple[str, str]]:
        conditions = [c for entry in told(site.server, claim["name"]) for c in entry["conditions"]]
        return [(c["status"], c["reason"]) for c in conditions if c["type"] == "Healthy"]

    fine = [("True", "NothingFound")]
    until(lambda: healthy(bad) == healthy(good) == fine)
    site.host.gpus.set_xid(0, 95)
    until(lambda: healthy(bad) == [("False", "Xid95")])
    assert healthy(good) == fine


def test_errors_of_programs_are_none_of_the_gpu(site: Site) -> None:
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    before = site.slices()
    for xid in (13, 31, 43, 45, 68, 69, 94):
        site.host.gpus.set_xid(0, xid)
        plugin.wait_for(rf"xid={xid}|xid-{xid}")
    with watching(plugin) as stream:
        assert stream.next()[_FIRST][1] == "HEALTHY"
    assert site.slices() == before


def test_d23_a_restart_after_xid_79_keeps_the_taint(site: Site) -> None:
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    site.host.gpus.set_xid(0, 79)
    wanted = [(f"{DRIVER}/xid", "79", "NoSchedule")]
    until(lambda: taints(site, _FIRST) == wanted)
    since = added(site, _FIRST)
    plugin.kill()
    again = site.start(**_NEVER)
    site.ready(again)
    assert again.says("a GPU is still unhealthy")
    assert taints(site, _FIRST) == wanted
    assert added(site, _FIRST) == since
    with watching(again) as stream:
        assert stream.next()[_FIRST][1] == "UNHEALTHY"


def test_i17_an_xid_before_a_restart_goes_when_the_gpu_has_proven_itself(site: Site) -> None:
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    site.host.gpus.set_xid(0, 79)
    until(lambda: taints(site, _FIRST) != [])
    plugin.kill()
    again = site.start(**_SOON)
    site.ready(again)
    until(lambda: taints(site, _FIRST) == [], 40)
    assert again.says("self-test passed")


def test_what_a_reboot_ends_it_ends(site: Site, short: Path) -> None:
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    site.host.gpus.set_xid(0, 79)
    until(lambda: taints(site, _FIRST) != [])
    plugin.kill()
    boot = short / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(f"{uuid.uuid4()}\n")
    again = site.start(proc=str(short / "proc"), **_NEVER)
    site.ready(again)
    until(lambda: taints(site, _FIRST) == [])


def test_a_lost_gpu_stays_published_with_a_taint_and_comes_back(site: Site) -> None:
    plugin = site.start(**_SOON)
    site.ready(plugin)
    claim = site.claim()
    before = site.kubelet.prepare(claim)
    assert error_of(before, claim) == ""
    with watching(plugin) as stream:
        site.host.gpus.lose(0)
        stream.until(_FIRST, "UNHEALTHY")
        until(lambda: taints(site, _FIRST) == [(f"{DRIVER}/lost", "", "NoSchedule")])
        assert site.published() == [_FIRST, _SECOND]
        # What kubelet asks again after its own restart it gets as before.
        assert site.kubelet.prepare(claim) == before
        assert plugin.health("readiness") == "SERVING"
        site.host.gpus.clear()
        stream.until(_FIRST, "HEALTHY")
    until(lambda: taints(site, _FIRST) == [])


def test_a_gpu_that_nvml_no_longer_lists_is_gone_also_after_a_restart(site: Site) -> None:
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    plugin.kill()
    site.host.gpus.remove(0)
    again = site.start(taint_lost="NoExecute", **_NEVER)
    site.ready(again)
    until(lambda: taints(site, _FIRST) == [(f"{DRIVER}/gone", "", "NoExecute")])
    assert site.published() == [_FIRST, _SECOND]


def test_readings_come_and_go_without_a_trial(site: Site) -> None:
    plugin = site.start(taint_note="None", **_NEVER)
    site.ready(plugin)
    gpus = site.host.gpus
    gpus.set_option(0, "remap_pending", "1")
    gpus.set_option(0, "clock_reasons", "64")
    gpus.set_option(1, "recovery_action", "1")
    until(
        lambda: (
            taints(site, _FIRST)
            == [(f"{DRIVER}/remap-pending", "", "None"), (f"{DRIVER}/thermal", "", "None")]
        )
    )
    until(lambda: taints(site, _SECOND) == [(f"{DRIVER}/recovery", "1", "NoSchedule")])
    with watching(plugin) as stream:
        found = stream.next()
        assert found[_FIRST][1] == "HEALTHY"
        assert "the GPU is hot" in found[_FIRST][2]
        assert found[_SECOND][1] == "UNHEALTHY"
    gpus.clear()
    # Notes stand for a minute more; tests/unit/watch has that.
    until(lambda: taints(site, _SECOND) == [])


def test_an_nvml_that_hangs_holds_up_no_call_and_taints_the_gpu(site: Site) -> None:
    plugin = site.start(nvml_timeout_s="1", health_quiet_s="1")
    site.ready(plugin)
    claim = site.claim()
    with watching(plugin) as stream:
        stream.next()
        site.host.gpus.hang(0, "nvmlDeviceGetMemoryInfo", 10_000)
        plugin.wait_for("reason=hang")
        # All of these while the driver does not answer.
        assert error_of(site.kubelet.prepare(claim), claim) == ""
        assert error_of(site.kubelet.unprepare(claim), claim) == ""
        assert "has not answered" in stream.until(_FIRST, "UNHEALTHY")
        until(lambda: taints(site, _FIRST) == [(f"{DRIVER}/hang", "", "NoSchedule")])
        assert taints(site, _SECOND) == []
        site.host.gpus.clear()
        stream.until(_FIRST, "HEALTHY")
    until(lambda: taints(site, _FIRST) == [], 40)


def test_an_nvml_that_hangs_at_its_new_start_taints_what_it_cannot_tell_of(site: Site) -> None:
    plugin = site.start(nvml_timeout_s="1", **_NEVER)
    site.ready(plugin)
    site.host.gpus.hang(None, "nvmlInit", 8_000)
    site.host.gpus.lose(0)
    until(lambda: taints(site, _SECOND) == [(f"{DRIVER}/hang", "", "NoSchedule")], 30)


def test_a_gpu_that_reports_no_xids_is_said_to_be(site: Site) -> None:
    site.host.gpus.set_option(0, "events", "no")
    plugin = site.start(taint_note="None", **_NEVER)
    site.ready(plugin)
    until(lambda: taints(site, _FIRST) == [(f"{DRIVER}/unmonitored", "", "None")])
    assert plugin.says("reports no Xids")
    assert taints(site, _SECOND) == []


def test_taints_are_off_where_they_are_not_wished(site: Site) -> None:
    plugin = site.start(taint_lost="off", **_NEVER)
    site.ready(plugin)
    with watching(plugin) as stream:
        site.host.gpus.set_xid(0, 79)
        stream.until(_FIRST, "UNHEALTHY")
    assert taints(site, _FIRST) == []
    assert record(site)[DEFAULT_GPUS[0].uuid][0]["number"] == 79


@pytest.mark.parametrize("version", _VERSIONS)
def test_i26_what_is_advertised_is_served(site: Site, version: str) -> None:
    plugin = site.start()
    site.ready(plugin)
    assert f"{version}.DRAResourceHealth" in site.kubelet.plugins[-1].info.supported_versions
    with watching(plugin, version) as stream:
        assert set(stream.next()) == {_FIRST, _SECOND}


def test_streams_end_cleanly_at_a_stop_and_hold_up_nothing(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    with ExitStack() as stack:
        # The last is one that nobody reads.
        streams = [stack.enter_context(watching(plugin, version)) for version in _VERSIONS]
        for stream in streams[:2]:
            stream.next()
        assert plugin.terminate() == 0
        for stream in streams[:2]:
            for _response in stream.call:
                pass
            assert stream.call.code() is grpc.StatusCode.OK


def test_more_streams_than_kubelet_opens_leave_calls_alone(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    claim = site.claim()
    with ExitStack() as stack:
        streams = [stack.enter_context(watching(plugin)) for _ in range(8)]
        for stream in streams:
            stream.next()
        with pytest.raises(grpc.RpcError) as refused:
            stack.enter_context(watching(plugin)).next()  # once the others are surely open
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_of(site.kubelet.prepare(claim), claim) == ""
        streams[0].channel.close()
        until(lambda: _answers(plugin))


def _answers(plugin: PluginProcess) -> bool:
    with watching(plugin) as stream:
        try:
            return bool(stream.next())
        except grpc.RpcError:
            return False


def test_an_api_server_that_drops_taints_gets_no_unhealthy_gpu(
    taintless_server: ApiServer, short: Path
) -> None:
    node = "taintless-node"
    add_node(taintless_server, node)
    host = Host(short)
    with ExitStack() as stack, FakeKubelet(host.registry) as kubelet:
        site = Site(taintless_server, node, host, kubelet, stack)
        plugin = site.start(**_SOON)
        site.ready(plugin)
        host.gpus.set_option(0, "recovery_action", "1")
        until(lambda: site.published() == [_SECOND])
        assert plugin.says("switch on the feature gate DRADeviceTaints")
        # Kubelet may still prepare what was allocated, and hears how it is.
        with watching(plugin) as stream:
            assert stream.next()[_FIRST][1] == "UNHEALTHY"
        host.gpus.clear()
        until(lambda: site.published() == [_FIRST, _SECOND])


def test_a_mark_that_cannot_be_read_ends_no_plugin(site: Site) -> None:
    told = site.host.plugins / DRIVER / "told"
    told.mkdir(parents=True)
    mark = told / str(uuid.uuid4())
    mark.write_bytes(b"[" * 100_000)
    plugin = site.start(**_NEVER)
    site.ready(plugin)
    until(lambda: not mark.exists() or plugin.process.poll() is not None, 40)
    assert plugin.process.poll() is None, plugin.text()


def test_two_plugins_of_a_rolling_update_do_not_keep_each_other_from_a_taint(site: Site) -> None:
    first = site.start(**_NEVER)
    site.ready(first)
    second = site.start(**_NEVER)
    until(lambda: second.says("registered the plugin"), 60)
    site.host.gpus.set_xid(0, 48)
    until(lambda: taints(site, _FIRST) != [], 60)
    site.host.gpus.set_xid(1, 79)
    until(lambda: taints(site, _SECOND) != [], 60)
    assert not first.says("slices keep being changed")
    assert not second.says("slices keep being changed")
