"""The self-test's child among mounts of its own, with the real shim on the simulated driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from apportion.enforce import proof
from apportion.enforce.proof import Trial
from apportion.errors import EnforcementError
from apportion.model import GpuUuid

from tests.fakes.fakegpu import DEFAULT_GPUS, FakeDriver
from tests.shim import support

# A front that shows the share's size and refuses nothing.
_IDLE_FRONT = """
#include <stddef.h>
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return 0;
}
"""

# The same, but cuMemCreate is refused, and counted in the ledger as the real front does.
_HALF_FRONT = (
    _IDLE_FRONT
    + """
#include <fcntl.h>
#include <unistd.h>
int cuMemCreate(void *handle, size_t bytes, const void *properties, unsigned long long flags)
{
    const unsigned long long denied = 1;
    int fd = open("/run/apportion/shares/selftest-0/ledger", O_WRONLY);
    (void)handle, (void)bytes, (void)properties, (void)flags;
    return pwrite(fd, &denied, sizeof denied, 32) == sizeof denied ? 2 : 999;
}
"""
)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    assert os.geteuid() == 0, "these tests make mount namespaces: run them as root"


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path / "fakegpu")
    driver.write_config()
    return driver


@pytest.fixture
def front(tmp_path: Path) -> Path:
    folder = tmp_path / "front"
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(support.SHIM / name, folder)
    return folder


def trial(front: Path, uuid: str = DEFAULT_GPUS[1].uuid) -> Trial:
    cuda, nvml = (
        (support.LIBDIR / name).resolve() for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    )
    return Trial(front, cuda, nvml, (("libother.so.1", str(nvml)),), GpuUuid(uuid))


def verdict(tried: Trial, fake: FakeDriver, time_limit_s: float = 60) -> proof.Verdict:
    environ = dict(os.environ) | {"FAKEGPU_DIR": str(fake.state_dir)}
    return proof.run(tried, time_limit_s=time_limit_s, environ=environ)


def run(tried: Trial, fake: FakeDriver, time_limit_s: float = 60) -> str:
    return verdict(tried, fake, time_limit_s).said


def test_the_shim_passes_and_nothing_is_left(front: Path, fake: FakeDriver) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    found = verdict(trial(front), fake)
    assert found.said == "totals are the share's; an allocation over the limit was refused"
    assert found.context_mib == 100
    assert Path("/proc/self/mounts").read_text() == mounts
    assert not Path("/run/apportion/shares/selftest-0").exists()
    assert fake.used(1) == 0


@pytest.fixture
def idle_front(front: Path, tmp_path: Path) -> Path:
    add_front(front, tmp_path, _IDLE_FRONT)
    return front


def add_front(front: Path, tmp_path: Path, source: str) -> None:
    """Build a front for libcuda of `source` in place of the real one."""
    (tmp_path / "front.c").write_text(source)
    stub = tmp_path / "libcuda.so.1"
    real = "/run/apportion/driver/libcuda.so.1"
    for command in (
        ["gcc", "-shared", "-o", str(stub), f"-Wl,-soname,{real}", "-x", "c", "/dev/null"],
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-o",
            str(front / "libcuda.so.1"),
            "-Wl,-soname,libcuda.so.1,--no-as-needed",
            str(tmp_path / "front.c"),
            str(stub),
        ],
    ):
        subprocess.run(command, check=True, timeout=60)


def fill(fake: FakeDriver, context_mib: int) -> None:
    """Let the card have less than the self-test tries."""
    card = replace(DEFAULT_GPUS[1], memory_mib=1024, reserved_mib=0, context_mib=context_mib)
    fake.write_config((DEFAULT_GPUS[0], card))


def test_a_small_card_passes_by_the_fronts_own_refusal(front: Path, fake: FakeDriver) -> None:
    fill(fake, 100)
    found = verdict(trial(front), fake)
    assert (found.doubt, found.context_mib) == ("", 100)


def test_on_a_full_card_one_way_is_tried_and_the_other_left_in_doubt(
    front: Path, fake: FakeDriver
) -> None:
    fill(fake, 2000)
    found = verdict(trial(front), fake)
    assert found.said.endswith("was refused by cuMemCreate")
    assert (found.doubt, found.context_mib) == ("it has no room for a context", 0)


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetCount", "cuDeviceTotalMem"])
def test_a_driver_that_wants_for_memory_itself_leaves_all_in_doubt(
    front: Path, fake: FakeDriver, function: str
) -> None:
    # The total is the front's own; without one, it is the driver's that says so.
    if function == "cuDeviceTotalMem":
        shutil.copy(support.LIBDIR / "libcuda.so.1", front / "libcuda.so.1")
    fake.inject(None, function, 2)
    assert verdict(trial(front), fake) == proof.Verdict("", 0, f"{function} gave CUDA error 2")


@pytest.mark.parametrize("context_mib", [500, 1500])
def test_contexts_of_any_size_pass(front: Path, fake: FakeDriver, context_mib: int) -> None:
    """They count against the share, so a large one needs a larger share."""
    fake.write_config((DEFAULT_GPUS[0], replace(DEFAULT_GPUS[1], context_mib=context_mib)))
    found = verdict(trial(front), fake)
    assert found.said == "totals are the share's; an allocation over the limit was refused"
    assert found.context_mib == context_mib


def test_what_a_context_takes_is_unknown_where_the_driver_does_not_tell(
    front: Path, fake: FakeDriver
) -> None:
    fake.inject(None, "nvmlDeviceGetComputeRunningProcesses", 3)
    assert verdict(trial(front), fake).context_mib == 0


@pytest.mark.parametrize("context_mib", [100, 2000], ids=["a context fits", "none fits"])
def test_a_full_card_does_not_pass_for_a_front_that_refuses_nothing(
    idle_front: Path, fake: FakeDriver, context_mib: int
) -> None:
    fill(fake, context_mib)
    with pytest.raises(EnforcementError, match=r"by the driver.* and not by the front.* doctor"):
        run(trial(idle_front), fake)


def test_a_driver_that_cannot_try_is_no_pass(idle_front: Path, fake: FakeDriver) -> None:
    fake.inject(None, "cuMemCreate", 801)
    with pytest.raises(EnforcementError, match="cuMemCreate over the limit gave CUDA error 801"):
        run(trial(idle_front), fake)


def test_a_front_that_refuses_cumemcreate_alone_fails(
    front: Path, fake: FakeDriver, tmp_path: Path
) -> None:
    add_front(front, tmp_path, _HALF_FRONT)
    with pytest.raises(EnforcementError, match="was granted by cuMemAlloc"):
        run(trial(front), fake)


def test_i3_the_driver_without_a_front_fails(tmp_path: Path, fake: FakeDriver) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(support.LIBDIR / name, bare / name)
    with pytest.raises(EnforcementError, match=r"cuDeviceTotalMem says .* instead of the share's"):
        run(trial(bare), fake)


def test_a_front_of_cuda_alone_fails(front: Path, fake: FakeDriver) -> None:
    shutil.copy(support.LIBDIR / "libnvidia-ml.so.1", front / "libnvidia-ml.so.1")
    with pytest.raises(EnforcementError, match="nvmlDeviceGetMemoryInfo says"):
        run(trial(front), fake)


def test_a_front_that_shows_and_does_not_refuse_fails(idle_front: Path, fake: FakeDriver) -> None:
    with pytest.raises(EnforcementError, match="an allocation over the limit was granted"):
        run(trial(idle_front), fake)
    assert fake.used(1) == 0


@pytest.mark.parametrize("taken", [2, 3])
def test_a_front_that_takes_a_share_without_a_good_schedule_fails(
    front: Path, tmp_path: Path, fake: FakeDriver, taken: int
) -> None:
    add_front(front, tmp_path, _IDLE_FRONT.replace("(size_t)1 <<", f"(size_t){taken} <<"))
    with pytest.raises(EnforcementError, match=r"schedule is damaged or missing is taken beside"):
        run(trial(front), fake)


def test_a_front_that_takes_no_schedule_at_all_fails(
    front: Path, tmp_path: Path, fake: FakeDriver
) -> None:
    add_front(front, tmp_path, _IDLE_FRONT.replace("(size_t)1 <<", "(size_t)0 <<"))
    with pytest.raises(EnforcementError, match="says 0 bytes instead of the share's"):
        run(trial(front), fake)


def test_a_missing_front_fails(front: Path, fake: FakeDriver) -> None:
    (front / "libcuda.so.1").unlink()
    with pytest.raises(EnforcementError, match=r"libcuda\.so\.1: cannot open shared object"):
        run(trial(front), fake)


def test_another_gpu_than_asked_for_fails(front: Path, fake: FakeDriver) -> None:
    with pytest.raises(EnforcementError, match="none of them is GPU-9"):
        run(trial(front, "GPU-99999999-0000-4000-8000-000000000000"), fake)


def test_a_driver_that_does_not_start_fails_with_its_code(front: Path, fake: FakeDriver) -> None:
    fake.inject(None, "cuInit", 999)
    with pytest.raises(EnforcementError, match="cuInit gave error 999"):
        run(trial(front), fake)


def test_another_code_than_out_of_memory_fails(front: Path, fake: FakeDriver) -> None:
    fake.inject(None, "cuDevicePrimaryCtxRetain", 46)
    with pytest.raises(EnforcementError, match="cuDevicePrimaryCtxRetain gave error 46"):
        run(trial(front), fake)


def test_a_driver_that_hangs_fails_in_time_and_leaves_no_process(
    front: Path, fake: FakeDriver
) -> None:
    fake.hang(None, "cuInit", 60_000)
    with pytest.raises(EnforcementError, match="no answer within 3 s"):
        run(trial(front), fake, time_limit_s=3)
    assert fake.accounts() == ()


def test_a_real_library_that_is_not_there_fails(front: Path, fake: FakeDriver) -> None:
    gone = Trial(front, Path("/nonexistent/libcuda.so"), trial(front).nvml, (), GpuUuid("GPU-1"))
    with pytest.raises(EnforcementError, match="cannot mount /nonexistent"):
        run(gone, fake)
