from __future__ import annotations

import copy
from typing import Any

import pytest
from apportion import slices
from apportion.publisher.plan import Body, Plan, match, plan

from tests.fakes import samples

NODE = "node-1"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u1", "controller": True}
POLICY = slices.Policy(driver="apportion.gpu", node=NODE)


def bodies(generation: int, groups: int = 1) -> list[Body]:
    """Return `groups` slices with one GPU each."""
    found = []
    for n in range(groups):
        device = samples.device(n)
        (body,) = slices.slices([device], POLICY, generation=generation)
        body["spec"]["pool"]["resourceSliceCount"] = groups
        found.append(body)
    return found


def stored(body: Body, name: str, *, pool: str = NODE, generation: int = 0) -> Body:
    """Return a slice as the API server would have it."""
    found = copy.deepcopy(body)
    found["spec"]["pool"]["name"] = pool
    if generation:
        found["spec"]["pool"]["generation"] = generation
    found["metadata"] = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    found["metadata"]["ownerReferences"] = [dict(OWNER)]
    return found


def run(found: list[Body], groups: int = 1, **options: Any) -> Plan:
    todo = plan(found, lambda n: bodies(n, groups), pool=NODE, owner=OWNER, **options)
    assert todo is not None
    return todo


def test_nothing_known_changes_nothing() -> None:
    there = [stored(bodies(1)[0], "a")]
    assert plan(there, lambda _n: None, pool=NODE, owner=OWNER) is None


def test_the_first_slice_is_generation_one_and_goes_with_the_node() -> None:
    todo = run([])
    assert (todo.generation, todo.update, todo.delete) == (1, (), ())
    (body,) = todo.create
    assert body["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert body["metadata"]["ownerReferences"] == [OWNER]
    assert body["metadata"]["generateName"]


def test_what_is_right_stays() -> None:
    todo = run([stored(body, f"s{n}") for n, body in enumerate(bodies(4, 2))], groups=2)
    assert not todo
    assert todo.generation == 4


def test_after_a_deletion_the_generation_never_goes_back() -> None:
    todo = run([], floor=5)
    assert todo.generation == 6
    assert todo.create[0]["spec"]["pool"]["generation"] == 6


def test_one_changed_slice_is_put_right_within_its_generation() -> None:
    changed = stored(bodies(3)[0], "a")
    changed["spec"]["devices"][0]["name"] = "stranger"
    changed["metadata"]["labels"] = {"their": "own"}
    todo = run([changed])
    assert (todo.generation, todo.create, todo.delete) == (3, (), ())
    (body,) = todo.update
    assert body["spec"] == bodies(3)[0]["spec"]
    assert body["metadata"]["labels"] == {"their": "own"}
    assert body["metadata"]["resourceVersion"] == "7"


def test_several_changes_make_a_new_generation_of_all_slices() -> None:
    there = [stored(body, f"s{n}") for n, body in enumerate(bodies(3, 3))]
    for body in there[:2]:
        body["spec"]["devices"][0]["attributes"] = {}
    todo = run(there, groups=3)
    assert todo.generation == 4
    assert [body["metadata"]["name"] for body in todo.update] == ["s0", "s1", "s2"]
    assert {body["spec"]["pool"]["generation"] for body in todo.update} == {4}


def test_one_of_several_slices_missing_renews_the_others() -> None:
    there = [stored(body, f"s{n}") for n, body in enumerate(bodies(3, 2))][:1]
    todo = run(there, groups=2)
    assert (todo.generation, len(todo.update), len(todo.create)) == (4, 1, 1)
    all_bodies = [*todo.update, *todo.create]
    assert {body["spec"]["pool"]["generation"] for body in all_bodies} == {4}
    assert {body["spec"]["pool"]["resourceSliceCount"] for body in all_bodies} == {2}
    names = [body["spec"]["devices"][0]["name"] for body in all_bodies]
    assert len(set(names)) == 2


def test_a_duplicate_is_removed_and_the_first_stays() -> None:
    there = [stored(bodies(2)[0], name) for name in ("b", "a", "c")]
    todo = run(there)
    assert (todo.generation, todo.update, todo.create) == (2, (), ())
    assert [body["metadata"]["name"] for body in todo.delete] == ["b", "c"]


def test_a_slice_of_an_older_generation_is_removed() -> None:
    there = [stored(bodies(2)[0], "old"), stored(bodies(3)[0], "new")]
    todo = run(there)
    assert [body["metadata"]["name"] for body in todo.delete] == ["old"]
    assert not todo.update


def test_a_slice_of_another_pool_is_removed() -> None:
    there = [stored(bodies(2)[0], "ours"), stored(bodies(9)[0], "other", pool="elsewhere")]
    todo = run(there)
    assert todo.generation == 2
    assert [body["metadata"]["name"] for body in todo.delete] == ["other"]


def test_no_gpu_removes_all_slices() -> None:
    todo = run([stored(bodies(2)[0], "a")], groups=0)
    assert [body["metadata"]["name"] for body in todo.delete] == ["a"]
    assert not todo.create


@pytest.mark.parametrize("owners", [[], [OWNER | {"uid": "of the old node"}]])
def test_a_wrong_owner_is_put_right(owners: list[dict[str, Any]]) -> None:
    there = stored(bodies(2)[0], "a")
    there["metadata"]["ownerReferences"] = owners
    (body,) = run([there]).update
    assert body["metadata"]["ownerReferences"] == [OWNER]


def test_a_generation_that_somebody_lowered_is_put_right() -> None:
    (body,) = run([stored(bodies(5)[0], "a", generation=2)], floor=5).update
    assert body["spec"]["pool"]["generation"] == 5


def _without_gated_fields(body: Body) -> Body:
    for device in body["spec"]["devices"]:
        del device["allowMultipleAllocations"]
        for capacity in device["capacity"].values():
            del capacity["requestPolicy"]
    return body


def test_dropped_fields_are_written_again_unless_they_are_accepted() -> None:
    there = [_without_gated_fields(stored(bodies(2)[0], "a"))]
    assert len(run(there).update) == 1
    assert not run(there, accept_dropped=True)


def test_accepting_dropped_fields_accepts_no_other_change() -> None:
    there = _without_gated_fields(stored(bodies(2)[0], "a"))
    there["spec"]["devices"][0]["attributes"] = {}
    assert len(run([there], accept_dropped=True).update) == 1


def test_each_body_gets_the_slice_that_has_its_devices() -> None:
    wanted = bodies(1, 3)
    there = [stored(wanted[2], "a"), stored(wanted[0], "b"), stored(wanted[0], "c")]
    matched, spare = match(wanted, there)
    assert {n: body["metadata"]["name"] for n, body in matched.items()} == {0: "b", 1: "c", 2: "a"}
    assert spare == ()
