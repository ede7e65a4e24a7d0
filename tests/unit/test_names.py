from __future__ import annotations

import dataclasses

import pytest
from apportion import names
from apportion.model import ClaimUid

from tests.fakes import samples


@pytest.mark.parametrize("text", ["a", "gpu-0000-3b-00-0", "0", "a" * 63])
def test_labels(text: str) -> None:
    assert names.is_label(text)


@pytest.mark.parametrize("text", ["", "-", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "ä"])
def test_what_is_no_label(text: str) -> None:
    assert not names.is_label(text)


@pytest.mark.parametrize("text", ["apportion.gpu", "hami-core-gpu.project-hami.io", "gpu"])
def test_driver_names(text: str) -> None:
    assert names.is_driver_name(text)


@pytest.mark.parametrize(
    "text", ["", "a..b", ".a", "a.", "a.-b", "a-.b", "A.b", "a/b", "../x", "a." * 31 + "ab"]
)
def test_what_is_no_driver_name(text: str) -> None:
    assert not names.is_driver_name(text)


def test_a_node_name_may_be_longer_than_a_drivers() -> None:
    assert names.is_node_name("n" * 63 + "." + "n" * 189)
    assert not names.is_node_name("n" * 254)
    assert not names.is_node_name("node/0")


@pytest.mark.parametrize("text", [str(samples.CLAIM_UID), "a", "A0-"])
def test_uids(text: str) -> None:
    assert names.is_uid(text)


@pytest.mark.parametrize("text", ["", "..", "a/b", "-a", "a" * 64, "a.b", "a\x00"])
def test_what_cannot_name_a_file_is_no_uid(text: str) -> None:
    assert not names.is_uid(text)


@pytest.mark.parametrize(
    ("prefix", "good"),
    [
        ("", True),
        ("gpu-", True),
        ("hami-gpu-", True),
        ("g" * 50, True),
        ("g" * 51, False),
        ("-g", False),
        ("Gpu-", False),
        ("a.", False),
    ],
)
def test_a_prefix_must_make_a_label_with_what_follows(prefix: str, *, good: bool) -> None:
    assert names.is_device_prefix(prefix) is good


def test_the_longest_prefix_still_makes_a_label() -> None:
    gpu = samples.gpu(pci_bus_id="10000:3b:00.0")
    (name,) = names.device_names([gpu], prefix="g" * 50)
    assert names.is_label(name)


def test_devices_are_named_by_address_or_by_index() -> None:
    gpus = [samples.gpu(0), samples.gpu(1)]
    assert list(names.device_names(gpus)) == ["gpu-0000-3b-00-0", "gpu-0000-3c-00-0"]
    by_index = names.device_names(gpus, by="index", prefix="hami-gpu-")
    assert by_index == {"hami-gpu-0": gpus[0], "hami-gpu-1": gpus[1]}


def test_a_name_by_address_stays_when_another_card_leaves() -> None:
    second = samples.gpu(1)
    alone = dataclasses.replace(second, index=0, minor=0)
    assert list(names.device_names([samples.gpu(0), second]))[1:] == list(
        names.device_names([alone])
    )


def test_names_of_cdi_and_shares() -> None:
    uid = ClaimUid("u-1")
    assert names.share_key(uid, 2) == "u-1-2"
    assert names.claim_kind("apportion.gpu") == "k8s.apportion.gpu/claim"
    assert names.driver_kind("apportion.gpu") == "k8s.apportion.gpu/driver"
    assert names.claim_spec_file("apportion.gpu", uid) == "k8s.apportion.gpu-claim_u-1.json"
    assert names.driver_spec_file("apportion.gpu") == "k8s.apportion.gpu-driver.json"
