"""What is said of a feature that is off, and what docs/versions.md says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from apportion import features
from apportion.features import Feature

_DOCUMENT = Path(__file__).resolve().parents[2] / "docs/versions.md"


@pytest.mark.parametrize("feature", features.ALL, ids=lambda feature: feature.gate)
def test_one_line_says_what_is_seen_what_that_means_what_goes_on_and_what_to_do(
    feature: Feature,
) -> None:
    text = feature.off("this was seen")
    assert text.startswith(f"this was seen, so {feature.without}; {feature.rest}. To have it, ")
    assert f"the feature gate {feature.gate} of kube-apiserver" in text
    assert "\n" not in text


def test_what_is_told_of_taints_names_what_1_34_needs_besides() -> None:
    assert "--runtime-config=resource.k8s.io/v1alpha3=true" in features.TAINTS.switch_on()


def test_the_document_has_each_feature_with_the_version_and_the_programs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([^|]+) \|", _DOCUMENT.read_text(), re.MULTILINE)
    known = {row[0]: row[1:] for row in rows}
    assert {gate: known.get(gate) for gate in (f.gate for f in features.ALL)} == {
        f.gate: (f.since, f.where) for f in features.ALL
    }
