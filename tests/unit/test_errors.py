from __future__ import annotations

import inspect
import pickle

import pytest
from apportion import errors

ALL = [
    kind
    for _name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ApportionError)
]
BASES = {
    errors.ApportionError,
    errors.RetryableError,
    errors.FatalError,
    errors.NvmlError,
    errors.KubeError,
}
LEAVES = [kind for kind in ALL if kind not in BASES]


@pytest.mark.parametrize("kind", LEAVES)
def test_each_error_is_retryable_or_fatal_and_never_both(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.RetryableError) != issubclass(kind, errors.FatalError)


@pytest.mark.parametrize("kind", ALL)
def test_each_error_says_what_it_is_for(kind: type[Exception]) -> None:
    assert kind.__doc__


def test_only_the_bases_are_neither() -> None:
    assert BASES - {errors.RetryableError, errors.FatalError} == {
        kind for kind in ALL if not issubclass(kind, errors.RetryableError | errors.FatalError)
    }


@pytest.mark.parametrize("kind", LEAVES)
def test_the_words_are_kept(kind: type[Exception]) -> None:
    error = kind("gone", 15) if issubclass(kind, errors.NvmlError) else kind("gone")
    assert str(error) == "gone"


def test_the_codes_of_others_are_kept() -> None:
    assert errors.NvmlDeviceError("lost", 15).code == 15
    assert errors.KubeConflictError("changed", 409).status == 409
    assert errors.KubeUnavailableError("no answer").status == 0


def test_an_error_of_the_api_survives_a_copy() -> None:
    copy = pickle.loads(pickle.dumps(errors.KubeNotFoundError("no claim", 404)))  # noqa: S301 - our own bytes
    assert (str(copy), copy.status) == ("no claim", 404)
