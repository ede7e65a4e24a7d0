"""The plugin's mirror of the ledger against the header that the shim is compiled with."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from apportion.enforce import layout, shares
from apportion.model import Capacity, DeviceName, GpuUuid, Share, ShareKey

_INCLUDE = Path(__file__).parents[3] / "shim/include"

_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "apportion/ledger.h"
#include "apportion/limits.h"
#define H(field) (unsigned)offsetof(struct apportion_ledger_header, field)
#define S(field) (unsigned)offsetof(struct apportion_ledger_slot, field)
#define C(field) (unsigned)offsetof(struct apportion_ledger_cores, field)
int main(int argc, char **argv)
{
    struct apportion_ledger_header h;
    struct apportion_ledger_slot s;
    if (argc > 1) { /* write a ledger as the shim would leave it */
        FILE *f = fopen(argv[1], "r+b");
        if (!f || fread(&h, sizeof h, 1, f) != 1)
            return 1;
        if (h.magic != APPORTION_LEDGER_MAGIC || h.slot_count != APPORTION_LEDGER_SLOT_COUNT)
            return 2;
        if (h.context_mib != 518)
            return 3;
        h.total = 11; h.denied = 12; h.peak = 13; h.dirty = 14; h.clean = 15; h.top = 2;
        s = (struct apportion_ledger_slot){.seq = 5, .used = 77, .pid = 42, .started = 9};
        rewind(f);
        fwrite(&h, sizeof h, 1, f);
        fseek(f, APPORTION_LEDGER_SLOTS_OFFSET + APPORTION_LEDGER_SLOT_SIZE, SEEK_SET);
        fwrite(&s, sizeof s, 1, f);
        return fclose(f);
    }
    printf("{\"magic\": %llu, \"version\": %u, \"header\": %zu, \"slot\": %zu, \"count\": %u,"
           " \"offset\": %u, \"size\": %u, \"sweep\": %u, \"slots\": %u,"
           " \"fields\": [%u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u, %u],"
           " \"slot_fields\": [%u, %u, %u, %u, %u, %u],"
           " \"cores\": %u, \"cores_fields\": [%u, %u, %u, %u, %u],"
           " \"first\": \"%s\", \"mark\": \"%s\", \"key\": %d, \"bytes\": %d}\n",
           (unsigned long long)APPORTION_LEDGER_MAGIC, APPORTION_LEDGER_VERSION, sizeof h, sizeof s,
           APPORTION_LEDGER_SLOT_COUNT, APPORTION_LEDGER_SLOTS_OFFSET, APPORTION_LEDGER_SIZE,
           (unsigned)APPORTION_LEDGER_LOCK_SWEEP, (unsigned)APPORTION_LEDGER_LOCK_SLOTS,
           H(magic), H(version), H(header_size), H(slot_size), H(slot_count), H(total), H(denied),
           H(peak), H(dirty), H(clean), H(top), H(context_mib),
           S(seq), S(used), S(pid), S(started), S(namespace), S(object),
           APPORTION_LEDGER_CORES_OFFSET, C(used_ns), C(waited_ns), C(overrun_ns), C(wanted_ns),
           C(carry_ns),
           APPORTION_LIMITS_FIRST_LINE, APPORTION_MARK,
           APPORTION_LIMITS_KEY_MAX, APPORTION_LIMITS_MAX_BYTES);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed to compare the layouts"
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(_PROGRAM)
    command = [compiler, "-std=c11", f"-I{_INCLUDE}", "-o", "layout", "layout.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder / "layout"


def offsets(form: str) -> list[int]:
    """Return where each field of a struct format without holes starts."""
    sizes = {"Q": 8, "q": 8, "I": 4}
    found = [0]
    for code in form.lstrip("<"):
        found.append(found[-1] + sizes[code])
    return found[:-1]


def test_layout_equals_the_header(program: Path) -> None:
    said = json.loads(subprocess.run([program], check=True, capture_output=True, timeout=10).stdout)
    assert said["magic"] == layout.MAGIC
    assert layout.MAGIC.to_bytes(8, "little") == b"APPLEDG1"
    assert said["version"] == layout.VERSION
    assert said["header"] == layout.HEADER.size
    assert said["slot"] == layout.SLOT.size
    assert said["count"] == layout.SLOT_COUNT
    assert said["offset"] == layout.SLOTS_OFFSET
    assert said["size"] == layout.SIZE
    assert said["sweep"] == layout.LOCK_SWEEP
    assert said["slots"] == layout.LOCK_SLOTS
    assert said["mark"] == layout.MARK
    assert said["fields"] == offsets(layout.HEADER.format)
    seq, used, pid, _, started, namespace, _, _, thing = offsets(layout.SLOT.format)
    assert said["cores"] == layout.CORES_OFFSET
    assert said["cores_fields"] == offsets(layout.CORES.format)
    assert said["cores"] + said["cores_fields"][3] == layout.WANTED_OFFSET
    assert said["slot_fields"] == [seq, used, pid, started, namespace, thing]


def test_c_reads_what_the_plugin_makes_and_the_plugin_what_c_leaves(
    program: Path, tmp_path: Path
) -> None:
    share = Share(
        ShareKey("uid-0"), "gpu", "n", DeviceName("d"), None, GpuUuid("GPU-1"), Capacity(1, 1)
    )
    made = shares.Shares(tmp_path)
    made.prepare(share, context_mib=518)
    ledger = tmp_path / share.key / shares.LEDGER
    subprocess.run([program, ledger], check=True, timeout=10)
    usage = made.usage(share.key)
    assert (usage.total, usage.denied, usage.peak) == (11, 12, 13)
    # The slot's byte is not locked: its owner is dead and holds nothing.
    assert (usage.held, usage.processes) == (0, 0)
    assert made.prepare(share) is False


def test_share_keys_and_limits_fit_what_the_shim_takes(program: Path) -> None:
    said = json.loads(subprocess.run([program], check=True, capture_output=True, timeout=10).stdout)
    assert said["first"] == "apportion-limits 1"
    longest = "0a1b2c3d-0000-4000-8000-000000000002-9999"
    assert len(longest) <= said["key"]
    assert said["bytes"] >= 512
