"""Rows of docs/escapes.md that need an image of their own, on the real container runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.support import CLAIM, SYSTEM
from tests.fakes.fakegpu import DEFAULT_GPUS, LIBDIR, MIB
from tests.harness import Cluster, oci
from tests.lab import testbed
from tests.lab.walk import Walk
from tests.shim import support

COMPAT = "/usr/local/cuda/compat"
OVER = str(1024 * MIB + 1)
FORGED = 8192 * MIB
HELD, AROUND, NOTHING = "0 2", "0 0", "none"

APPLETS = ("cat", "chmod", "cp", "env", "sh", "sleep")
GLIBC = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
FOLDERS = (
    "bin", "dev", "etc", "lib", "lib/x86_64-linux-gnu", "lib64", "proc", "run", "sys", "tmp", "usr",
    "usr/lib", "usr/local", "usr/local/cuda", "usr/local/cuda/compat", "forged-0", "forged-1",
)  # fmt: skip

# The share of the claim, and what the pod's containers may add.
POD = f"""{CLAIM}---
apiVersion: v1
kind: Pod
metadata: {{{{name: {{name}}}}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: {{volumes}}
  initContainers: {{first}}
  containers:
  - name: main
    image: {{image}}
    imagePullPolicy: IfNotPresent
    command: [/bin/sleep, infinity]
    volumeMounts: {{mounts}}
    resources: {{{{claims: [{{{{name: gpu}}}}]}}}}
  resourceClaims:
  - {{{{name: gpu, resourceClaimName: {{name}}}}}}
"""

pytestmark = pytest.mark.timeout(400)


def image(folder: Path, name: str, files: dict[str, Path], *environment: str) -> Path:
    """Write an image with busybox's sleep, these files, and a link to where shares lie."""
    tree = oci.Tree(
        folders=FOLDERS,
        files={"bin/busybox": Path("/bin/busybox"), **files},
        links={
            **{f"bin/{applet}": "busybox" for applet in APPLETS},
            "shares": "/run/apportion/shares",
        },
    )
    oci.write_layer(tree, folder / f"{name}.layer")
    made = oci.Image(f"localhost/{name}:1", ("/bin/sh",), ("PATH=/bin", *environment))
    oci.write_archive(made, folder / f"{name}.layer", folder / f"{name}.tar")
    return folder / f"{name}.tar"


def forged(folder: Path) -> dict[str, Path]:
    """Files of an image that look like shares of all cards."""
    ledger = folder / "ledger"
    ledger.write_bytes(support.fresh_ledger())
    files: dict[str, Path] = {}
    for index, gpu in enumerate(DEFAULT_GPUS):
        name = f"forged-{index}"
        (folder / name).write_text(support.limits_text(name, gpu.uuid, FORGED))
        files |= {f"{name}/limits": folder / name, f"{name}/ledger": ledger}
    return files


def own_driver(folder: Path) -> Path:
    """An image that brings a libcuda, and names its folder to the dynamic linker in both ways."""
    conf = folder / "ld.so.conf"
    conf.write_text(f"{COMPAT}\ninclude /etc/ld.so.conf.d/*.conf\n")
    libraries = Path("/lib/x86_64-linux-gnu")
    files = {
        "lib64/ld-linux-x86-64.so.2": Path("/lib64/ld-linux-x86-64.so.2").resolve(),
        **{f"lib/x86_64-linux-gnu/{name}": (libraries / name).resolve() for name in GLIBC},
        "etc/ld.so.conf": conf,
        "bin/escape": support.PROGRAMS / "escape",
        f"{COMPAT[1:]}/libcuda.so.1": (support.LIBDIR / "libcuda.so.1").resolve(),
        **forged(folder),
    }
    return image(folder, "own-driver", files, f"LD_LIBRARY_PATH={COMPAT}")


def musl(folder: Path) -> Path:
    loader = Path("/lib/ld-musl-x86_64.so.1").resolve()
    files = {"lib/ld-musl-x86_64.so.1": loader, "bin/escape": support.PROGRAMS / "escape-musl"}
    return image(folder, "musl", files)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder: Path = tmp_path_factory.mktemp("escapes")
    support.build()
    options = testbed.options(folder / "fakegpu", name="escapes")
    images = (*options.images, own_driver(folder), musl(folder))
    with Cluster(replace(options, images=images)) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        walk.kubectl("rollout", "status", "-n", SYSTEM, "daemonset/apportion-plugin")
        yield walk


def start(
    walk: Walk,
    name: str,
    image_name: str,
    *,
    volumes: object = (),
    mounts: object = (),
    first: object = (),
) -> None:
    words = {"volumes": volumes, "mounts": mounts, "first": first}
    said = {key: json.dumps(value) for key, value in words.items()}
    walk.cluster.apply(POD.format(name=name, config="", image=f"localhost/{image_name}:1", **said))
    walk.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=100s")


def escape(walk: Walk, name: str, *arguments: str, env: tuple[str, ...] = ()) -> str:
    """Return what the program says that asks for a little more than the share."""
    command = ("/bin/env", *env, "/bin/escape", "handle", OVER, *arguments)
    return walk.kubectl("exec", name, "-c", "main", "--", *command).strip()


def test_an_image_with_a_libcuda_of_its_own(walk: Walk) -> None:
    start(walk, "own", "own-driver")
    assert escape(walk, "own", env=("-u", "LD_LIBRARY_PATH")) == HELD, "the ld cache has ours first"
    assert escape(walk, "own", f"/{LIBDIR}/libcuda.so.1") == HELD
    assert escape(walk, "own") == AROUND, "the guard's"
    assert escape(walk, "own", f"{COMPAT}/libcuda.so.1") == AROUND


def test_an_image_with_musl(walk: Walk) -> None:
    start(walk, "musl", "musl")
    assert escape(walk, "musl") == NOTHING
    for folder in (f"/{LIBDIR}", support.DRIVER_DIR):
        assert escape(walk, "musl", f"{folder}/libcuda.so.1") == NOTHING


def test_a_volume_that_an_image_leads_to_the_shares_is_none(walk: Walk) -> None:
    """As no policy can see it: the path of the mount is the image's link."""
    names = [f"forged-{index}" for index in range(len(DEFAULT_GPUS))]
    copies = "; ".join(f"cp /{name}/* /data/{name}/ && chmod 444 /data/{name}/limits && "
                       f"chmod 666 /data/{name}/ledger" for name in names)  # fmt: skip
    start(
        walk,
        "forger",
        "own-driver",
        volumes=[{"name": name, "emptyDir": {"medium": "Memory"}} for name in names],
        first=[
            {
                "name": "copy",
                "image": "localhost/own-driver:1",
                "command": ["/bin/sh", "-c", copies],
                "volumeMounts": [{"name": name, "mountPath": f"/data/{name}"} for name in names],
            }
        ],
        mounts=[
            mount
            for name in names
            for mount in (
                {"name": name, "mountPath": f"/shares/{name}", "readOnly": True},
                {"name": name, "mountPath": f"/shares/{name}/ledger", "subPath": "ledger"},
            )
        ],
    )
    for name in names:
        there = walk.kubectl(
            "exec", "forger", "-c", "main", "--", "/bin/cat", f"/run/apportion/shares/{name}/limits"
        )
        assert f"memory {FORGED}\n" in there
    assert escape(walk, "forger", env=("-u", "LD_LIBRARY_PATH")) == HELD
