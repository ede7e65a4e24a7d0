"""What the cluster is built from, and what a machine may lack."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import golang, kueue, pin, progress, project_image, requirements
from tests.harness.errors import HarnessError
from tests.harness.versions import CONTAINERD, KUBERNETES, KUEUE

_GO = Path(golang.__file__).parent / "go"


@pytest.mark.parametrize("minor", sorted(KUBERNETES))
def test_each_kubernetes_of_the_table_is_pinned(minor: str) -> None:
    version = KUBERNETES[minor].version
    assert version.startswith(f"{minor}.")
    text = (_GO / "kubernetes" / minor / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{version}\n" in text
    assert f"k8s.io/dynamic-resource-allocation v0.{version.partition('.')[2]}\n" in text
    build = golang.kubernetes_build(minor, KUBERNETES[minor])
    assert f"gitVersion=v{version} " in build.flags[-1]
    assert all(source.is_file() for source in build.sources)


def test_containerd_of_the_table_is_pinned() -> None:
    text = (_GO / "containerd/go.mod").read_text()
    assert f"github.com/containerd/containerd/v2 v{CONTAINERD} " in text
    assert all(source.is_file() for source in golang.containerd_build().sources)


def test_kueue_of_the_table_is_pinned() -> None:
    text = (_GO / "kueue/go.mod").read_text()
    assert f"sigs.k8s.io/kueue v{KUEUE} " in text
    build = golang.kueue_build()
    assert f"GitVersion=v{KUEUE}" in build.flags[-1]
    assert all(source.is_file() for source in build.sources)


def test_kueues_manifest_names_the_image_that_is_built_here() -> None:
    text = "a:\n  image: registry.example/kueue:main\n  imagePullPolicy: Always\n"
    made = kueue._released(text)
    assert made == f"a:\n  image: {kueue.IMAGE}\n  imagePullPolicy: IfNotPresent\n"
    with pytest.raises(HarnessError, match="name 0 images"):
        kueue._released(made)


def test_what_is_kept_of_a_module_is_its_own_files(tmp_path: Path) -> None:
    work, module, entry = (tmp_path / name for name in ("work", "module", "entry"))
    for folder in (work, module / "config", entry):
        folder.mkdir(parents=True)
    (module / "config/a.yaml").write_text("a: 1\n")
    (module / "config/a.yaml").chmod(0o444)  # as Go's module cache has it
    go = tmp_path / "go"
    expected = "list -m -f {{.Dir}} example.com/m"
    go.write_text(f'#!/bin/sh\n[ "$*" = "{expected}" ] && echo {module}\n')
    go.chmod(0o755)
    golang._keep(go, work, ("example.com/m", "config"), entry)
    assert (entry / "config/a.yaml").read_text() == "a: 1\n"
    (entry / "config/a.yaml").write_text("another run may write")


def test_module_files_ask_for_no_newer_go_than_pip_brings() -> None:
    for path in _GO.rglob("go.mod"):
        match = re.search(r"^go (\S+)$", path.read_text(), re.MULTILINE)
        assert match
        assert match[1] in {"1.24.0", "1.25.0", "1.26.0"}


def test_a_new_versions_go_mod_starts_from_upstreams() -> None:
    upstream = (
        "go 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/kube-openapi v0.0.0-2026-ab\n)\n"
        "replace (\n\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet\n)\n"
    )
    text = pin.head("1.37.2", upstream)
    replaced = [line.split()[0] for line in text.splitlines() if "=>" in line]
    assert replaced == ["k8s.io/api", "k8s.io/kubelet"]
    assert "\tk8s.io/api => k8s.io/api v0.37.2\n" in text
    assert "require k8s.io/kubernetes v1.37.2\n" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_pip_settings_of_the_environment_win_and_others_are_left_out() -> None:
    lines = [
        ":env:.cert='/env/bundle'",
        "global.cert='/file/bundle'",
        "global.index-url='file:///wheels'",
        "install.user='true'",
    ]
    settings = project_image.parse_pip_settings(lines)
    assert settings == {"cert": "/env/bundle", "index-url": "file:///wheels"}
    text = project_image.pip_config(settings)
    assert text == "[global]\ncert = /env/bundle\nindex-url = file:///wheels\n"


def test_pip_settings_with_several_values_keep_them() -> None:
    text = project_image.pip_config({"find-links": "\n/a\n/b"})
    assert text == "[global]\nfind-links = /a\n    /b\n"


def test_only_paths_that_exist_are_shown_to_the_build(tmp_path: Path) -> None:
    bundle = tmp_path / "certs/bundle"
    bundle.parent.mkdir()
    bundle.touch()
    settings = {"cert": str(bundle), "find-links": f"{tmp_path} /no/such https://x.example"}
    assert project_image.pip_paths(settings) == [tmp_path, tmp_path / "certs"]


def _no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "DEBIAN_PACKAGES", {"no-such-program": "some-package"})
    monkeypatch.setattr(
        shutil, "which", lambda name: None if name == "apt-get" else f"/usr/bin/{name}"
    )
    monkeypatch.setattr(requirements, "_missing_packages", lambda: ["some-package"])


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda m: m.setattr("os.geteuid", lambda: 1000), "root"),
        (lambda m: m.setattr("platform.machine", lambda: "riscv64"), "x86_64"),
        (
            lambda m: (
                m.setattr(golang, "find", lambda: None),
                m.setattr("importlib.util.find_spec", lambda _: None),
            ),
            "Go",
        ),
        (_no_packages, "some-package"),
        (lambda m: m.setattr("tests.harness.cgroups.hierarchies", list), "cgroup"),
        (lambda m: m.setattr(requirements, "_NAMESPACES", ["false"]), "namespaces"),
    ],
)
def test_what_a_machine_lacks_is_one_line(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], object], word: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    break_it(monkeypatch)
    reason = requirements.missing()
    assert reason
    assert word in reason
    assert "\n" not in reason
