"""The plugin's mirror of the schedule file against the header that the shim is compiled with."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from apportion.cores import layout
from apportion.cores.layout import State
from apportion.cores.slots import CELLS, Slot
from hypothesis import given
from hypothesis import strategies as st

_INCLUDE = Path(__file__).parents[3] / "shim/include"
_MS = 1_000_000

_PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include "apportion/schedule.h"
#define S(field) (unsigned)offsetof(struct apportion_schedule, field)
#define T(field) (unsigned)offsetof(struct apportion_schedule_state, field)
static void list(const char *name, const struct apportion_slot_time *slots, unsigned count)
{
    printf(" \"%s\": [", name);
    for (unsigned i = 0; i < count; i++)
        printf("%s[%llu, %llu]", i ? ", " : "", (unsigned long long)slots[i].start_ns,
               (unsigned long long)slots[i].length_ns);
    printf("],");
}
int main(int argc, char **argv)
{
    static struct apportion_schedule s;
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!f || fread(&s, sizeof s, 1, f) != 1)
        return 1;
    struct apportion_schedule_state *in_force = &s.state[s.generation & 1];
    printf("{\"magic\": %d, \"version\": %d, \"size\": %d, \"generation\": %llu,"
           " \"period\": %llu, \"until\": %llu,", s.magic == APPORTION_SCHEDULE_MAGIC,
           s.version == APPORTION_SCHEDULE_VERSION, s.size == APPORTION_SCHEDULE_SIZE,
           (unsigned long long)s.generation, (unsigned long long)in_force->period_ns,
           (unsigned long long)in_force->guest_until_ns);
    list("own", in_force->own, in_force->own_count);
    list("guest", in_force->guest, in_force->guest_count);
    printf(" \"name\": \"%s\", \"most\": %u, \"at\": [%u, %u],"
           " \"state\": [%u, %u, %u, %u, %u, %u]}",
           APPORTION_SCHEDULE_NAME, APPORTION_SCHEDULE_SLOTS, S(generation), S(state[1]),
           T(guest_until_ns), T(own_count), T(guest_count), T(reserved), T(own), T(guest));
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed to compare the layouts"
    folder = tmp_path_factory.mktemp("schedule")
    (folder / "schedule.c").write_text(_PROGRAM)
    command = [compiler, "-std=c11", f"-I{_INCLUDE}", "-o", "schedule", "schedule.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder / "schedule"


def test_c_reads_what_the_plugin_writes(program: Path, tmp_path: Path) -> None:
    state = State(50 * _MS, Slot(20, 30), (Slot(0, 20), Slot(60, 40)), guest_until=77)
    path = tmp_path / "schedule"
    path.write_bytes(layout.fresh(state))
    out = subprocess.run([program, path], check=True, capture_output=True, timeout=10).stdout
    said = json.loads(out)
    assert (said["magic"], said["version"], said["size"], said["generation"]) == (1, 1, 1, 1)
    assert (said["period"], said["until"]) == (50 * _MS, 77)
    assert said["own"] == [[10 * _MS, 15 * _MS]]
    assert said["guest"] == [[0, 10 * _MS], [30 * _MS, 20 * _MS]]
    assert said["name"] == "schedule"
    assert said["most"] == layout.MAX_SLOTS
    assert said["at"] == [layout.GENERATION_OFFSET, layout.offset(1)]
    assert said["state"] == [8, 16, 20, 24, 32, 32 + 16 * layout.MAX_SLOTS]


_SLOT = st.integers(0, CELLS - 1).flatmap(
    lambda start: st.builds(Slot, st.just(start), st.integers(1, CELLS - start))
)
_STATE = st.builds(
    State,
    st.integers(1, 10**9).map(lambda cell: cell * CELLS),
    _SLOT,
    st.lists(_SLOT, min_size=1, max_size=5).map(tuple),
    st.integers(0, 2**63),
)


@given(_STATE)
def test_what_is_written_is_read(state: State) -> None:
    assert layout.unpack(layout.fresh(state)) == state


@pytest.mark.parametrize("generation", [1, 2, 3, 2**63])
def test_a_file_may_start_with_any_generation(generation: int) -> None:
    data = layout.fresh(State(100, Slot(7, 1)), generation)
    assert layout.generation(data) == generation
    assert layout.unpack(data) == State(100, Slot(7, 1))


def test_without_guests_there_is_no_time_until_which_they_may_run() -> None:
    found = layout.unpack(layout.fresh(State(100, Slot(0, 1), (), 55)))
    assert found == State(100, Slot(0, 1), (), 0)


def test_more_guests_than_the_file_takes_are_left_out() -> None:
    guests = tuple(Slot(2 * n, 1) for n in range(40))
    found = layout.unpack(layout.fresh(State(100, Slot(99, 1), guests, 55)))
    assert found is not None
    assert found.guests == guests[: layout.MAX_SLOTS]


GOOD = layout.fresh(State(50 * _MS, Slot(20, 30)))
_IN_FORCE = layout.offset(1)


def changed(at: int, *numbers: int, code: str = "Q") -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(f"<{len(numbers)}{code}", data, at, *numbers)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        bytes(layout.SIZE),
        changed(0, 1),
        changed(8, 2, code="I"),
        changed(12, 5, code="I"),
        changed(layout.GENERATION_OFFSET, 0),
        changed(layout.GENERATION_OFFSET, 2),  # the other state was never written
        changed(_IN_FORCE, 0),
        changed(_IN_FORCE, 50 * _MS + 1),
        changed(_IN_FORCE + 16, 0, code="I"),
        changed(_IN_FORCE + 16, 2, code="I"),
        changed(_IN_FORCE + 20, 33, code="I"),
        changed(_IN_FORCE + 20, 1, code="I"),  # a guest slot of no length
        changed(_IN_FORCE + 32, 1),
        changed(_IN_FORCE + 40, 0),
        changed(_IN_FORCE + 40, 41 * _MS),
        changed(_IN_FORCE + 40, 15 * _MS + 1),
    ],
)
def test_what_the_plugin_could_not_have_written_is_no_schedule(data: bytes) -> None:
    assert layout.unpack(data) is None
