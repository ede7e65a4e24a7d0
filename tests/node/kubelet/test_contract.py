"""One test for each line of kubelet's contract with a DRA plugin, from socket to files and back.

Source: doc comments of k8s.io/dynamic-resource-allocation/kubeletplugin, and what
pkg/kubelet/cm/dra/manager.go of Kubernetes 1.36 does.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from apportion.kubelet import Kubelet, stream, supported_versions
from apportion.kubelet.pb import dra_health_v1_pb2, dra_v1_pb2
from apportion.model import ClaimUid
from grpc_health.v1 import health_pb2

from tests.node.kubelet.conftest import DRIVER, UID, Site, claim
from tests.node.prepare.world import DEVICES, NODE
from tests.node.support.kubelet import APIS, FakeKubelet, call, unary, until

_VERSIONS = tuple(APIS)


def test_registration_names_type_driver_endpoint_and_services(
    site: Site, kubelet: FakeKubelet
) -> None:
    info = kubelet.plugins[0].info
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint.startswith(str(site.plugin_dir))
    assert tuple(info.supported_versions) == (
        *("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        *("v1.DRAResourceHealth", "v1beta1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
    )
    until(lambda: site.statuses == [True])


def test_every_service_that_is_advertised_is_served_and_no_other(kubelet: FakeKubelet) -> None:
    channel = kubelet.plugins[0].channel
    assert set(supported_versions()) == set(APIS)
    for api in APIS.values():
        call(channel, api, "NodePrepareResources", [])
        call(channel, api, "NodeUnprepareResources", [])
    for service in stream.supported_versions():
        response = dra_health_v1_pb2.NodeWatchResourcesResponse
        answers: Any = channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=dra_health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=response.FromString,
        )(dra_health_v1_pb2.NodeWatchResourcesRequest(), timeout=20)
        assert isinstance(next(answers), response)
        answers.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "v2.DRAPlugin/NodePrepareResources", dra_v1_pb2.Claim(), dra_v1_pb2.Claim, 5)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_refused_registration_is_an_error_a_person_can_act_on(
    site: Site,
    plugin: Kubelet,  # noqa: ARG001 - it must run
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeKubelet(site.registry, versions=("v2.DRAPlugin",)) as old:
        until(lambda: bool(old.refusals))
    until(lambda: site.statuses == [False])
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "kubelet refused the plugin" in errors[0].getMessage()
    assert "v2" not in errors[0].getMessage()
    assert "none of" in vars(errors[0])["error"]


@pytest.mark.parametrize("version", _VERSIONS)
def test_each_claim_asked_for_gets_an_entry_and_no_other(
    kubelet: FakeKubelet, version: str
) -> None:
    claims = [claim(n) for n in range(12)]
    answer = kubelet.prepare(*claims, version=version)
    assert set(answer.claims) == {one["uid"] for one in claims}
    answer = kubelet.unprepare(*claims, version=version)
    assert set(answer.claims) == {one["uid"] for one in claims}
    assert not any(entry.error for entry in answer.claims.values())


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_device_has_requests_pool_name_and_cdi_ids_with_its_own_first(
    kubelet: FakeKubelet, version: str
) -> None:
    (device,) = kubelet.prepare(claim(), version=version).claims[UID.format(0)].devices
    assert list(device.request_names) == ["gpu"]
    assert (device.pool_name, device.device_name) == (NODE, DEVICES[0])
    # Kubelet's health reports name a device by its first CDI ID: that must be the share's.
    own, shared = device.cdi_device_ids
    assert own.endswith(f"claim={UID.format(0)}-0")
    assert shared.endswith("driver=all")


def test_a_kubelet_that_knows_only_the_old_version_is_served_in_it(
    site: Site,
    plugin: Kubelet,  # noqa: ARG001 - it must run
) -> None:
    with FakeKubelet(site.registry, versions=("v1beta1.DRAPlugin",)) as old:
        old.wait_for(1)
        (device,) = old.prepare(claim()).claims[UID.format(0)].devices
        assert "share_id" not in device.DESCRIPTOR.fields_by_name
        assert old.unprepare(claim()).claims[UID.format(0)].error == ""


def test_share_id_is_returned_where_the_version_has_it(kubelet: FakeKubelet) -> None:
    entry = kubelet.prepare(claim(), version="v1.DRAPlugin").claims[UID.format(0)]
    assert entry.devices[0].share_id == f"share-of-{UID.format(0)}"


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("method", ["prepare", "unprepare"])
def test_an_error_of_one_claim_is_its_entry_and_fails_no_other(
    site: Site, kubelet: FakeKubelet, version: str, method: str
) -> None:
    site.claims.errors = {UID.format(1): "no such claim", UID.format(2): RuntimeError("boom")}
    answer = getattr(kubelet, method)(*(claim(n) for n in range(4)), version=version)
    errors = {uid: entry.error for uid, entry in answer.claims.items()}
    assert errors[UID.format(0)] == errors[UID.format(3)] == ""
    assert errors[UID.format(1)] == "no such claim"
    assert "RuntimeError: boom" in errors[UID.format(2)]


def test_prepare_repeated_after_a_restart_of_kubelet_gives_the_same_answer(
    site: Site, kubelet: FakeKubelet
) -> None:
    before = kubelet.prepare(claim())
    files, inodes = site.world.state(), site.inodes()
    # It may come with the node's /var/run anew: containers find no spec there that is not written.
    site.world.cdi.claim_path(ClaimUid(UID.format(0))).unlink()
    with FakeKubelet(site.registry) as restarted:
        restarted.wait_for(1)
        assert restarted.prepare(claim()) == before
    assert before.claims[UID.format(0)].devices
    assert (site.world.state(), site.inodes()) == (files, inodes)


def test_prepare_repeated_after_a_restart_of_the_plugin_gives_the_same_answer(
    site: Site, plugin: Kubelet, kubelet: FakeKubelet
) -> None:
    before = kubelet.prepare(claim())
    files, inodes = site.world.state(), site.inodes()
    plugin.stop(5)
    until(lambda: not kubelet.plugins)
    second = site.plugin("ffffffff-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    second.serve()
    second.register()
    kubelet.wait_for(1)
    assert kubelet.prepare(claim()) == before
    assert before.claims[UID.format(0)].devices
    # Running containers have these very files mounted.
    assert (site.world.state(), site.inodes()) == (files, inodes)
    # What the first process prepared, the second one takes back.
    assert kubelet.unprepare(claim()).claims[UID.format(0)].error == ""
    assert site.world.cdi.claims() == site.world.store.uids() == set()
    assert site.inodes().keys() <= {str(site.world.config.driver_shares_dir)}
    second.stop(5)


def test_unprepare_of_an_unknown_claim_and_repeated_is_success(
    site: Site, kubelet: FakeKubelet
) -> None:
    kubelet.prepare(claim(1))
    files, inodes = site.world.state(), site.inodes()
    kubelet.prepare(claim())
    assert site.world.state() != files
    for _ in range(2):
        assert kubelet.unprepare(claim()).claims[UID.format(0)].error == ""
        assert (site.world.state(), site.inodes()) == (files, inodes)
    assert kubelet.unprepare(claim(9)).claims[UID.format(9)].error == ""
    assert (site.world.state(), site.inodes()) == (files, inodes)


def test_an_error_of_unprepare_is_reported_so_that_kubelet_asks_again(
    site: Site, kubelet: FakeKubelet
) -> None:
    kubelet.prepare(claim())
    site.claims.errors = {UID.format(0): "share is in use"}
    assert kubelet.unprepare(claim()).claims[UID.format(0)].error == "share is in use"
    site.claims.errors = {}
    assert kubelet.unprepare(claim()).claims[UID.format(0)].error == ""


def test_a_claim_of_the_same_name_with_a_new_uid_is_another_claim(
    site: Site, kubelet: FakeKubelet
) -> None:
    old = site.create(0, "same")
    assert kubelet.prepare(old).claims[old["uid"]].error == ""
    new = site.create(1, "same")
    assert kubelet.prepare(new).claims[new["uid"]].error == ""
    assert "UID" in kubelet.prepare(old).claims[old["uid"]].error
    assert site.world.store.uids() == {old["uid"], new["uid"]}
    kubelet.unprepare(old)
    assert site.world.store.uids() == site.world.cdi.claims() == {new["uid"]}
    assert {path.rpartition("/")[2] for path in site.inodes()} >= {f"{new['uid']}-0"}
    assert not [path for path in site.inodes() if old["uid"] in path]


def test_an_empty_call_is_answered_with_nothing(kubelet: FakeKubelet) -> None:
    assert len(kubelet.prepare().claims) == 0
    assert len(kubelet.unprepare().claims) == 0


def test_calls_are_finished_before_the_plugin_goes_and_new_ones_refused(
    site: Site, plugin: Kubelet, kubelet: FakeKubelet
) -> None:
    """A call cut in the middle would block the pod until kubelet's next try, 90 s later."""
    gate = site.hold(UID.format(0))
    running = site.in_thread(lambda: kubelet.prepare(claim()))
    site.claims.entered.acquire()
    stopping = site.in_thread(lambda: plugin.stop(20))
    until(lambda: list(site.plugin_dir.glob("*.sock")) == [])
    # Kubelet cuts calls when the registration socket goes: it has to stay until they are over.
    assert len(kubelet.plugins_on_disk()) == 1
    gate.set()
    assert running.result(20).claims[UID.format(0)].error == ""
    stopping.result(20)
    assert kubelet.plugins_on_disk() == []


def test_two_plugins_overlap_in_a_rolling_update_and_the_old_one_may_go(
    site: Site, plugin: Kubelet, kubelet: FakeKubelet
) -> None:
    second = site.plugin("ffffffff-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    second.serve()
    second.register()
    kubelet.wait_for(2)
    plugin.stop(5)
    until(lambda: len(kubelet.plugins) == 1)
    assert kubelet.prepare(claim()).claims[UID.format(0)].error == ""
    second.stop(5)


@pytest.mark.parametrize("service", ["", "liveness", "readiness"])
def test_health_is_served_on_the_dra_socket_and_by_tcp(
    plugin: Kubelet, kubelet: FakeKubelet, service: str
) -> None:
    expected = {"": "SERVING", "liveness": "SERVING", "readiness": "NOT_SERVING"}

    def status(channel: grpc.Channel) -> str:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = unary(
            channel, "grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse, 5
        )
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    with grpc.insecure_channel(f"127.0.0.1:{plugin.health_port}") as tcp:
        for channel in (tcp, kubelet.plugins[0].channel):
            assert status(channel) == expected[service]
        plugin.set_ready(ready=True)
        assert status(tcp) == "SERVING"
