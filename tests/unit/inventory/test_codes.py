from __future__ import annotations

import pynvml
import pytest
from apportion.errors import FatalError, NvmlDeviceError, NvmlUnavailableError, RetryableError
from apportion.inventory import codes, nvml

ALL = sorted(
    (value, name)
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
)

LIBRARY = {
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
}
PASSING = {
    "NVML_ERROR_ALREADY_INITIALIZED",
    "NVML_ERROR_INSUFFICIENT_SIZE",
    "NVML_ERROR_TIMEOUT",
    "NVML_ERROR_OPERATING_SYSTEM",
    "NVML_ERROR_IN_USE",
    "NVML_ERROR_MEMORY",
    "NVML_ERROR_INSUFFICIENT_RESOURCES",
    "NVML_ERROR_NOT_READY",
}


def test_the_walk_below_is_over_all_codes() -> None:
    assert len(ALL) >= 31


@pytest.mark.parametrize(("code", "name"), ALL)
def test_every_code_is_in_the_table_with_words(code: int, name: str) -> None:
    assert codes.meaning(code) != codes.meaning(31), name  # what a code of no table means
    assert codes.meaning(code).text
    assert not codes.meaning(code).text.endswith(".")


@pytest.mark.parametrize(("code", "name"), ALL)
def test_every_code_is_retryable_or_fatal_as_listed(code: int, name: str) -> None:
    error = nvml.failure(code, "GPU 0")
    assert error.code == code
    assert str(error).startswith("GPU 0: ")
    assert str(error).endswith(f"(NVML code {code})")
    if name in LIBRARY | PASSING:
        assert isinstance(error, NvmlUnavailableError)
        assert isinstance(error, RetryableError)
    else:
        assert isinstance(error, NvmlDeviceError)
        assert isinstance(error, FatalError)
    assert codes.concerns_all(code) is (name in LIBRARY)


def test_a_code_of_a_newer_driver_concerns_one_gpu_and_keeps_its_number() -> None:
    error = nvml.failure(31, "GPU 0")
    assert isinstance(error, NvmlDeviceError)
    assert "does not know (NVML code 31)" in str(error)


def test_nvml_is_started_anew_for_what_that_heals() -> None:
    healed = {name for code, name in ALL if code in codes.HEALED_BY_REOPENING}
    assert healed == LIBRARY | {
        "NVML_ERROR_GPU_IS_LOST",
        "NVML_ERROR_RESET_REQUIRED",
        "NVML_ERROR_GPU_NOT_FOUND",
        "NVML_ERROR_UNKNOWN",
    }


def test_brands_and_architectures_are_those_of_pynvml() -> None:
    """A number that is misread here would publish a wrong name."""
    assert codes.BRANDS[pynvml.NVML_BRAND_TESLA] == "Tesla"
    assert codes.BRANDS[pynvml.NVML_BRAND_GEFORCE] == "GeForce"
    assert codes.BRANDS[pynvml.NVML_BRAND_QUADRO_RTX] == "Quadro RTX"
    assert codes.BRANDS[pynvml.NVML_BRAND_NVIDIA] == "NVIDIA"
    for name in ("KEPLER", "MAXWELL", "PASCAL", "VOLTA", "TURING", "AMPERE", "HOPPER", "RUBIN"):
        code = getattr(pynvml, f"NVML_DEVICE_ARCH_{name}")
        assert codes.ARCHITECTURES[code] == name.capitalize()
    assert codes.ARCHITECTURES[pynvml.NVML_DEVICE_ARCH_ADA] == "Ada Lovelace"
    assert codes.ARCHITECTURES[pynvml.NVML_DEVICE_ARCH_BLACKWELL] == "Blackwell"
