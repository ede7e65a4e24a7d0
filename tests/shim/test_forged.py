"""No file counts as a share's but the plugin's own, wherever and however it is mounted."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.shim.support import (
    GIB,
    MARK,
    MIB,
    OK,
    OOM,
    SENTINEL,
    Client,
    Container,
    fresh_ledger,
    limits_text,
    mark,
    uuid,
)

LIMIT = 64 * MIB
LARGE = 8 * GIB
FORGED = "/run/apportion/shares/forged"

AS_THE_PLUGIN_MOUNTS = f"""
mkdir -p {FORGED} && mount --bind /run/volume {FORGED} && mount -o remount,ro,bind {FORGED}
mount --bind /run/volume/ledger {FORGED}/ledger
mount -o remount,rw,bind {FORGED}/ledger
"""

OF_A_LAYER = f"""
mkdir -p {FORGED} /run/empty
mount -t overlay -o lowerdir=/run/volume:/run/empty none {FORGED}
mount --bind /run/volume/ledger {FORGED}/ledger
"""


def volume(container: Container, trick: str, *, key: str | None = None) -> Container:
    """Return the container with a volume at /run/volume that looks like a share of 8 GiB.

    `key`: it bears the plugin's mark for the share of this key, as only a copy by the node's
    administrator could.
    """
    folder = container.folder / "volume"
    folder.mkdir()
    (folder / "limits").write_text(limits_text("forged", uuid(), LARGE))
    (folder / "limits").chmod(0o444)
    (folder / "ledger").write_bytes(fresh_ledger())
    (folder / "ledger").chmod(0o666)
    if key:
        mark(folder, key)
    bind = f"mkdir /run/volume && mount --bind {folder} /run/volume\n"
    return replace(container, extra=bind + trick)


def total(container: Container) -> int:
    """Return the card's size as an application sees it, which must agree with what it is given."""
    with container.client() as app:
        started, size = app.ask("start", 0), app.ask("total", 0)[1]
        assert app.ask("nvml", 0)[4] == size
        if size == 0:
            assert started == [OOM]
            assert app.ask("vmm-create", 2 * MIB, 0) == [OOM, 0]
        else:
            assert app.info() == (size, size)
            assert app.alloc(size) == OK
            assert app.ask("alloc", 4096) == [OOM, SENTINEL]
    return size


def test_a_marked_share_counts(container: Container) -> None:
    """The forgeries below lack nothing but the mark: with it they would count."""
    container.share(LIMIT)
    assert total(volume(container, AS_THE_PLUGIN_MOUNTS, key="forged")) == LIMIT + LARGE


@pytest.mark.parametrize(
    "trick",
    [
        AS_THE_PLUGIN_MOUNTS,
        f"ln -s /run/volume {FORGED}",
        f"ln -s /proc/self/root/run/volume {FORGED}",
        f"mkdir {FORGED}; cp /run/volume/* {FORGED}/",
        f"mkdir {FORGED}; ln -s /run/volume/limits /run/volume/ledger {FORGED}/",
    ],
)
def test_a_volume_is_no_share(container: Container, trick: str) -> None:
    container.share(LIMIT)
    assert total(volume(container, trick)) == LIMIT


def test_a_volume_in_the_place_of_all_shares_is_none(container: Container) -> None:
    """Root in the container may rename the folders above a mount."""
    container.share(LIMIT)
    moved = "mv /run/apportion/shares /run/old; mkdir /run/apportion/shares\n"
    assert total(volume(container, moved + AS_THE_PLUGIN_MOUNTS)) == 0


def test_the_layer_of_an_image_is_no_share_though_it_is_marked(container: Container) -> None:
    """An image can bring any attribute along, and be mounted as a volume; but not on a tmpfs."""
    container.share(LIMIT)
    assert total(volume(container, OF_A_LAYER, key="forged")) == LIMIT


def test_the_mark_is_of_one_share_alone(container: Container) -> None:
    container.share(LIMIT)
    assert total(volume(container, AS_THE_PLUGIN_MOUNTS, key="another")) == LIMIT


@pytest.mark.parametrize("key", [None, "another"])
def test_a_ledger_of_its_own_ends_the_share(container: Container, key: str | None) -> None:
    """A fresh ledger for each container would make as many shares of one."""
    share = container.share(LIMIT)
    over = f"mount --bind /run/volume/ledger /run/apportion/shares/{share.key}/ledger"
    assert total(volume(container, over, key=key)) == 0


def test_who_may_not_administer_the_node_cannot_mark(container: Container) -> None:
    share = container.share(LIMIT)
    code = f"""
import os
for path in ("/run/volume/limits", "/run/apportion/shares/{share.key}/ledger"):
    try:
        os.setxattr(path, {MARK!r}, b"forged")
    except OSError as error:
        print(error.errno)
"""
    other = volume(container, "")
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    assert other.run(*drop, "/usr/bin/python3", "-c", code).split() == ["1", "1"]


def test_a_pod_with_a_user_namespace_has_its_share(container: Container) -> None:
    """Nobody there is the owner of the plugin's files."""
    share = container.share(LIMIT)
    command = container.command("unshare", "--user", "/run/bin/client")
    with Client(command, None).start() as app:
        assert app.info() == (LIMIT, LIMIT)
        assert app.alloc(LIMIT) == OK
        assert app.ask("alloc", 4096) == [OOM, SENTINEL]
        assert share.total == LIMIT


def test_an_image_whose_run_is_a_link_has_its_shares(container: Container) -> None:
    container.share(LIMIT)
    trick = "mv /run/apportion/shares /run/elsewhere; ln -s /run/elsewhere /run/apportion/shares"
    assert total(replace(container, extra=trick)) == LIMIT


def test_files_without_a_mark_are_none(container: Container) -> None:
    share = container.share(LIMIT)
    for name in ("limits", "ledger"):
        os.removexattr(share.folder / name, MARK)
        assert total(container) == 0
        os.setxattr(share.folder / name, MARK, share.key.encode())
    assert total(container) == LIMIT
