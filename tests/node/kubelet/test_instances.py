"""Sockets: their names and modes, what dead instances left, and what somebody deleted."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from apportion.errors import ConfigError, FatalError, StorageError
from apportion.kubelet import Kubelet, instance
from apportion.kubelet.instance import MAX_SOCKET_PATH

from tests.node.kubelet.conftest import DRIVER, POD, UID, Site, claim
from tests.node.support.kubelet import FakeKubelet, until

_OTHER = "ffffffff-bbbb-4ccc-8ddd-eeeeeeeeeeee"
_HAMI = "hami-core-gpu.project-hami.io"
_KUBELET = Path("/var/lib/kubelet")


def _dead_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    return path


def test_sockets_carry_the_pods_uid(site: Site) -> None:
    own = instance(DRIVER, site.plugin_dir, site.registry, POD)
    assert own.dra_socket == site.plugin_dir / f"dra-{POD}.sock"
    assert own.registration_socket == site.registry / f"{DRIVER}-{POD}-reg.sock"


def test_without_a_pod_uid_each_process_has_its_own(site: Site) -> None:
    names = {instance(DRIVER, site.plugin_dir, site.registry, "").identity for _ in range(2)}
    assert len(names) == 2


def test_a_long_driver_name_shortens_the_uid_in_both_paths() -> None:
    own = instance(_HAMI, _KUBELET / "plugins" / _HAMI, _KUBELET / "plugins_registry", POD)
    assert MAX_SOCKET_PATH - 4 <= len(str(own.registration_socket)) <= MAX_SOCKET_PATH
    assert POD.replace("-", "").startswith(own.identity)
    assert own.dra_socket.name == f"dra-{own.identity}.sock"


def test_a_path_that_cannot_be_short_enough_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"107 bytes.*shorten driver_name"):
        instance("x" * 63, Path("/" + "p" * 50), Path("/" + "r" * 50), POD)


def test_sockets_are_for_root_alone(site: Site, plugin: Kubelet) -> None:  # noqa: ARG001
    for path in (*site.plugin_dir.glob("*.sock"), *site.registry.glob("*.sock")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_sockets_of_the_dead_are_removed_at_start_and_no_others(site: Site) -> None:
    site.plugin_dir.mkdir(parents=True)
    dead = [
        _dead_socket(site.plugin_dir / f"dra-{_OTHER}.sock"),
        _dead_socket(site.registry / f"{DRIVER}-{_OTHER}-reg.sock"),
    ]
    foreign = [
        _dead_socket(site.registry / f"other.gpu-{_OTHER}-reg.sock"),
        _dead_socket(site.registry / f"{DRIVER}-extra-{_OTHER}-reg.sock"),
        _dead_socket(site.plugin_dir / "something.sock"),
    ]
    plugin = site.plugin()
    plugin.serve()
    assert [path for path in dead if path.exists()] == []
    assert [path for path in foreign if not path.exists()] == []
    plugin.stop(1)


def test_sockets_of_a_living_plugin_survive_every_sweep(site: Site, plugin: Kubelet) -> None:
    second = site.plugin(_OTHER)
    second.serve()
    second.register()
    plugin.sweep()
    second.sweep()
    with FakeKubelet(site.registry) as kubelet:
        kubelet.wait_for(2)
        assert kubelet.prepare(claim()).claims[UID.format(0)].error == ""
    second.stop(1)


def test_an_instance_between_lock_and_socket_is_not_dead(site: Site) -> None:
    starting = instance(DRIVER, site.plugin_dir, site.registry, _OTHER)
    starting.acquire()
    _dead_socket(starting.dra_socket)
    own = instance(DRIVER, site.plugin_dir, site.registry, POD)
    own.acquire()
    assert own.sweep() == []
    starting.release()
    assert own.sweep() == [starting.dra_socket]
    own.release()


def test_others_are_alive_only_while_they_listen(site: Site, plugin: Kubelet) -> None:
    own = instance(DRIVER, site.plugin_dir, site.registry, _OTHER)
    assert own.others_alive()
    plugin.stop(1)
    _dead_socket(site.plugin_dir / f"dra-{POD}.sock")
    assert not own.others_alive()


def test_two_processes_of_one_pod_are_refused(site: Site, plugin: Kubelet) -> None:  # noqa: ARG001
    with pytest.raises(FatalError, match=f"another process of pod UID {POD}"):
        site.plugin()


def test_after_sigkill_a_container_of_the_same_pod_starts_again(site: Site) -> None:
    code = (
        "import sys, time; from pathlib import Path; from apportion.kubelet import instance;"
        "own = instance(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]);"
        "own.acquire(); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, DRIVER, site.plugin_dir, site.registry, POD],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        process.send_signal(signal.SIGKILL)
    _dead_socket(site.plugin_dir / f"dra-{POD}.sock")
    again = site.plugin()
    again.serve()
    again.stop(1)


@pytest.mark.parametrize("which", ["dra", "registration", "both", "folder"])
def test_deleted_sockets_are_made_again_and_kubelet_comes_back(
    site: Site, plugin: Kubelet, kubelet: FakeKubelet, which: str
) -> None:
    dra = next(site.plugin_dir.glob("*.sock"))
    registration = next(site.registry.glob("*.sock"))
    for path in {"dra": [dra], "registration": [registration]}.get(which, [dra, registration]):
        path.unlink()
    if which == "folder":
        site.registry.rmdir()
        site.registry.mkdir()
    before = kubelet.registrations
    plugin.check()
    assert (dra.exists(), registration.exists()) == (True, True)
    if which != "dra":
        until(lambda: kubelet.registrations == before + 1)
    assert kubelet.prepare(claim()).claims[UID.format(0)].error == ""
    plugin.check()
    assert (dra.exists(), registration.exists()) == (True, True)


def test_a_check_after_the_stop_makes_nothing(site: Site, plugin: Kubelet) -> None:
    plugin.stop(1)
    plugin.check()
    assert [*site.plugin_dir.glob("*.sock"), *site.registry.glob("*.sock")] == []


def test_an_unusable_folder_is_an_error_with_what_to_do(site: Site) -> None:
    site.plugin_dir.parent.mkdir()
    site.plugin_dir.write_text("a file")
    with pytest.raises(StorageError, match="cannot prepare the plugin's folders"):
        site.plugin()


def test_a_taken_health_port_is_an_error_with_what_to_do(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plugin = site.plugin(health=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConfigError, match="health_address"):
            plugin.start_health()


def test_the_lock_is_gone_with_its_holder(site: Site) -> None:
    own = instance(DRIVER, site.plugin_dir, site.registry, POD)
    own.acquire()
    assert os.path.lexists(own.lock_file)
    own.release()
    own.release()
    assert not os.path.lexists(own.lock_file)
