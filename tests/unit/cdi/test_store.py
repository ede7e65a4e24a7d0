from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from apportion.cdi.store import CdiStore
from apportion.errors import StorageError
from apportion.model import ClaimUid

STATIC = "k8s.apportion.gpu-driver.json"

A = ClaimUid("0a")


@pytest.fixture
def store(tmp_path: Path) -> CdiStore:
    return CdiStore(tmp_path / "cdi", "apportion.gpu")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claims_spec_has_its_name_and_everybody_may_read_it(store: CdiStore) -> None:
    store.write_claim(A, {"kind": "x"})
    path = store.folder / "k8s.apportion.gpu-claim_0a.json"
    assert json.loads(path.read_text()) == {"kind": "x"}
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(store.folder) == [path.name]


def test_writing_again_replaces_what_somebody_changed(store: CdiStore) -> None:
    store.write_claim(A, {"kind": "x"})
    store.claim_path(A).write_text("{")
    store.write_claim(A, {"kind": "x"})
    assert json.loads(store.claim_path(A).read_text()) == {"kind": "x"}


def test_removing_is_idempotent(store: CdiStore) -> None:
    store.remove_claim(A)
    store.write_claim(A, {})
    store.remove_claim(A)
    store.remove_claim(A)
    assert names(store.folder) == []


def test_only_specs_of_our_claims_are_listed(store: CdiStore) -> None:
    store.write_claim(A, {})
    store.write_driver({})
    for name in (
        "k8s.other.gpu-claim_0b.json",
        "k8s.apportion.gpu-claim_.json",
        "k8s.apportion.gpu-claim_0c.yaml",
        ".k8s.apportion.gpu-claim_0d.json.01.tmp",
        "nvidia.yaml",
    ):
        (store.folder / name).touch()
    assert store.claims() == {"0a"}


def test_the_static_spec_is_written_once_and_again_when_it_is_gone_or_changed(
    store: CdiStore,
) -> None:
    path = store.folder / STATIC
    spec = {"kind": "x"}
    store.write_driver(spec)
    first = path.stat().st_ino
    store.write_driver(spec)
    store.write_driver(dict(spec))
    assert path.stat().st_ino == first
    path.write_text("{}")
    store.write_driver(spec)
    assert json.loads(path.read_text()) == spec
    path.unlink()
    store.write_driver(spec)
    assert json.loads(path.read_text()) == spec
    store.write_driver({"kind": "y"})
    assert json.loads(path.read_text()) == {"kind": "y"}


def test_a_new_plugin_leaves_an_equal_static_spec_alone(store: CdiStore) -> None:
    store.write_driver({"kind": "x"})
    first = (store.folder / STATIC).stat().st_ino
    CdiStore(store.folder, "apportion.gpu").write_driver({"kind": "x"})
    assert (store.folder / STATIC).stat().st_ino == first


def test_leftovers_of_ours_are_swept_and_of_others_not(store: CdiStore) -> None:
    store.write_claim(A, {})
    ours = ".k8s.apportion.gpu-claim_0b.json.0123.tmp"
    theirs = ".k8s.apportion.gpux-claim_0b.json.0123.tmp"
    for name in (ours, theirs):
        (store.folder / name).touch()
    assert store.sweep() == (ours,)
    assert names(store.folder) == [theirs, "k8s.apportion.gpu-claim_0a.json"]


def test_a_full_disk_leaves_the_old_spec(store: CdiStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_claim(A, {"old": 1})

    def full(*_arguments: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="free space"):
        store.write_claim(A, {"new": 1})
    assert json.loads(store.claim_path(A).read_text()) == {"old": 1}
    assert names(store.folder) == ["k8s.apportion.gpu-claim_0a.json"]
