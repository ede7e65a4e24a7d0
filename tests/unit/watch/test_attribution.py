"""Whose a process is: by samples of procfs as kubelet, containerd and runc make it."""

from __future__ import annotations

import pytest
from apportion.model import ShareKey
from apportion.watch import attribution
from apportion.watch.attribution import Place, Stat
from hypothesis import given
from hypothesis import strategies as st

UID = "0d9b9f8e-3c1a-4f6e-9a53-8f1c2b7d6e40"
OTHER = "77777777-3c1a-4f6e-9a53-8f1c2b7d6e40"
KEY, SECOND = ShareKey(f"{UID}-0"), ShareKey(f"{UID}-1")
KNOWN = frozenset({KEY, SECOND})
PLACE = Place("0:25", "/apportion/shares/apportion.gpu")

# A container: its root, proc, a volume, the share of our CDI spec, the ledger over it.
CONTAINER = f"""\
892 640 0:301 / / rw,relatime master:211 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
893 892 0:304 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
901 892 8:1 /var/lib/kubelet/pods/x/volumes/my\\040data /data rw,relatime - ext4 /dev/sda1 rw
910 892 0:25 /apportion/shares/apportion.gpu/{KEY} /run/apportion/shares/{KEY} ro - tmpfs t rw
911 910 0:25 /apportion/shares/apportion.gpu/{KEY}/ledger /run/apportion/shares/{KEY}/ledger rw \
- tmpfs t rw
"""
PLUGIN = """\
500 499 0:300 / / rw,relatime - overlay overlay rw
510 500 0:25 /apportion /run/apportion rw,nosuid shared:5 - tmpfs tmpfs rw
520 500 8:1 /var/lib/kubelet/plugins /var/lib/kubelet/plugins rw - ext4 /dev/sda1 rw
"""


def test_a_share_is_told_by_file_system_and_place() -> None:
    assert attribution.shares(CONTAINER, PLACE, KNOWN) == {KEY}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            f"1 2 0:99 {PLACE.root}/{KEY} /run/apportion/shares/{KEY} ro - x x rw", id="fs"
        ),
        pytest.param(
            f"1 2 0:25 /elsewhere/{KEY} /run/apportion/shares/{KEY} ro - x x rw", id="root"
        ),
        pytest.param(
            "1 2 0:25 /apportion /run/apportion ro - tmpfs tmpfs rw", id="the whole of it"
        ),
        pytest.param(f"1 2 0:25 {PLACE.root} /run/shares ro - tmpfs tmpfs rw", id="all shares"),
        pytest.param(f"1 2 0:25 {PLACE.root}/{OTHER}-0 /x ro - tmpfs tmpfs rw", id="not known"),
        pytest.param(f"1 2 0:25 {PLACE.root}x/{KEY} /x ro - tmpfs tmpfs rw", id="a longer name"),
        pytest.param("", id="nothing"),
        pytest.param("1 2 0:25", id="cut off"),
    ],
)
def test_what_only_looks_like_one_is_none(line: str) -> None:
    assert attribution.shares(line, PLACE, KNOWN) == frozenset()


def test_where_it_is_mounted_does_not_matter_and_several_count() -> None:
    text = (
        f"1 2 0:25 {PLACE.root}/{SECOND} /tmp/hidden ro - tmpfs tmpfs rw\n"
        f"1 2 0:25 {PLACE.root}/{KEY}//deleted /x ro - tmpfs tmpfs rw\n"
    )
    assert attribution.shares(text, PLACE, KNOWN) == {KEY, SECOND}


def test_a_share_in_a_tmpfs_of_its_own() -> None:
    place = attribution.place_of(
        "/run/apportion/shares/apportion.gpu", "1 2 0:31 / /run/apportion rw - tmpfs t rw"
    )
    assert place == Place("0:31", "/shares/apportion.gpu")
    line = f"1 2 0:31 /shares/apportion.gpu/{KEY} /run/apportion/shares/{KEY} ro - tmpfs t rw"
    assert attribution.shares(line, place, KNOWN) == {KEY}


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/run/apportion/shares/apportion.gpu", PLACE),
        ("/run/apportion", Place("0:25", "/apportion")),
        ("/run/apportion-too", Place("0:300", "/run/apportion-too")),
        ("/", Place("0:300", "")),
    ],
)
def test_where_a_folder_lies(folder: str, found: Place) -> None:
    assert attribution.place_of(folder, PLUGIN) == found


def test_of_mounts_over_each_other_the_last_one_counts() -> None:
    over = PLUGIN + "530 510 0:44 / /run/apportion rw - tmpfs tmpfs rw\n"
    assert attribution.place_of("/run/apportion", over) == Place("0:44", "")
    assert attribution.place_of("/run/apportion", "") is None


def test_who_sees_all_shares() -> None:
    assert attribution.sees_all(PLUGIN, PLACE)
    assert attribution.sees_all("1 2 0:25 / /run rw - tmpfs tmpfs rw", PLACE)
    assert attribution.sees_all(f"1 2 0:25 {PLACE.root} /x rw - tmpfs tmpfs rw", PLACE)
    assert not attribution.sees_all(CONTAINER, PLACE)
    assert not attribution.sees_all("1 2 0:99 /apportion /run rw - tmpfs tmpfs rw", PLACE)
    assert not attribution.sees_all("1 2 0:25 /apportion/sha /run rw - tmpfs tmpfs rw", PLACE)


SYSTEMD = UID.replace("-", "_")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/4d1e", id="v2 cgroupfs"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/"
            "cri-containerd-4d1e.scope",
            id="v2 systemd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-4d1e.scope",
            id="guaranteed",
        ),
        pytest.param(f"0::/../../pod{UID}/4d1e", id="from another cgroup namespace"),
        pytest.param(
            "12:cpu,cpuacct:/\n"
            f"11:memory:/kubepods/burstable/pod{UID}/4d1e\n1:name=systemd:/kubepods/pod{UID}/4d1e",
            id="v1",
        ),
        pytest.param(f"3:memory:/outer/node-a/kubepods/pod{UID}/4d1e", id="below a node's own"),
        pytest.param(
            f"0::/kubepods/pod{UID}/4d1e/docker/99aa/kubepods/pod{OTHER}/x", id="nested, with a lie"
        ),
        pytest.param(f"0::/kubelet-kubepods-pod{SYSTEMD}.slice/x:y", id="a colon"),
    ],
)
def test_the_pod_by_its_cgroup(path: str) -> None:
    assert attribution.pod_uid(path) == UID


def test_a_static_pods_uid_has_no_dashes() -> None:
    plain = UID.replace("-", "")
    assert attribution.pod_uid(f"0::/kubepods/pod{plain}/x") == plain


@pytest.mark.parametrize(
    "path",
    [
        "0::/",
        "",
        "0::/system.slice/nvidia-persistenced.service",
        "0::/user.slice/user-0.slice/session-1.scope",
        f"0::/kubepods/tripod{UID}x",
        "0::/kubepods/pod-of-mine/x",
        "0::/docker/4d1e",
    ],
)
def test_what_is_in_no_pod(path: str) -> None:
    assert attribution.pod_uid(path) is None


def test_stat_with_any_name() -> None:
    rest = "4 4 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2"
    assert attribution.stat(f"77 (a) Z 3 (b)) S 12 {rest}") == Stat(
        gone=False, parent=12, start=98765
    )
    assert attribution.stat(f"77 (x) Z 12 {rest}") == Stat(gone=True, parent=12, start=98765)
    exiting = rest.replace("4194560", "4194564", 1)
    assert attribution.stat(f"77 (x) R 12 {exiting}") == Stat(gone=True, parent=12, start=98765)
    assert attribution.stat("77 (x) S 12") is None
    assert attribution.stat("") is None


def test_the_pid_in_the_innermost_namespace() -> None:
    assert attribution.own_pid("Name:\tx\nNSpid:\t4242\t17\t3\nNSsid: 1") == 3
    assert attribution.own_pid("Name:\tx\n") == 0
    assert attribution.own_pid("NSpid:\n") == 0


@given(st.text(), st.text())
def test_nothing_that_procfs_could_say_breaks_it(text: str, folder: str) -> None:
    attribution.shares(text, PLACE, KNOWN)
    attribution.place_of(folder, text)
    attribution.pod_uid(text)
    attribution.stat(text)
