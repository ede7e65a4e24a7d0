"""Which shares count, and for which card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.shim.support import (
    BLOCK,
    GIB,
    LEDGER_SIZE,
    MIB,
    OK,
    OOM,
    Container,
    fresh_ledger,
    limits_text,
    uuid,
)  # fmt: skip

LIMIT = 64 * MIB
KEY = "0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10-0"
GOOD = limits_text(KEY, uuid(), LIMIT)


def refused(container: Container, *, user: int = 0, env: dict[str, str] | None = None) -> bool:
    """Return whether a container gets nothing at all, told without a crash."""
    with container.client(user=user, env=env) as app:
        nothing = app.ask("start", 0) == [OOM]
        assert app.ask("vmm-create", BLOCK, 0) == ([OOM, 0] if nothing else [OK, 1])
        if not nothing:
            assert app.info() == (LIMIT - BLOCK, LIMIT)
        assert app.ask("total", 0) == [OK, 0 if nothing else LIMIT]
        assert app.ask("nvml", 0)[4] == (0 if nothing else LIMIT)
        app.end()
    return nothing


def test_a_good_share_counts(container: Container) -> None:
    container.share(LIMIT, text=GOOD)
    assert not refused(container)


def test_no_share_is_no_memory(container: Container) -> None:
    assert refused(container)


def test_a_share_of_another_card_is_no_share_of_this_one(container: Container) -> None:
    container.share(LIMIT, gpu=uuid(1))
    assert refused(container)


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", GOOD[:-1], GOOD + "\n", GOOD + "x", GOOD + "x 1\n", GOOD + "memory 1\n", GOOD * 2,
        GOOD.replace("limits 1", "limits 2"), GOOD.replace("limits 1", "limits 1 "),
        GOOD.replace("memory 6", "memory -6"), GOOD.replace("memory 6", "memory +6"),
        GOOD.replace("memory 6", "memory 06"), GOOD.replace("memory 6", "memory  6"),
        GOOD.replace("memory 67108864", "memory 64Mi"), GOOD.replace("memory 67108864", "memory "),
        GOOD.replace("memory 67108864", "memory 18446744073709551616"),
        GOOD.replace("memory 67108864", "memory 9223372036854775808"),
        GOOD.replace("memory 67108864\n", ""), GOOD.replace("cores 30", "cores 101"),
        GOOD.replace("cores 30\n", ""), GOOD.replace("policy cap", "policy none"),
        GOOD.replace("GPU-", "MIG-"), GOOD.replace("GPU-6", "GPU-g"), GOOD.replace("GPU-6", "GPU-"),
        GOOD.replace("\n", "\r\n"), GOOD.replace("memory", "Memory"),
        GOOD.replace("memory", " memory"),
        GOOD.replace("memory 6", "memory\t6"), GOOD.replace("memory", "mem\0ry"),
        GOOD.replace(KEY, KEY + "x"), GOOD.replace(KEY, "../" + KEY), GOOD.replace(KEY, ""),
        GOOD + "#" * 1100,
    ],
)  # fmt: skip
def test_a_limits_file_with_a_fault_is_refused(container: Container, text: str) -> None:
    container.share(LIMIT, key=KEY, text=text)
    assert refused(container)


def test_keys_may_come_in_any_order(container: Container) -> None:
    first, *rest = GOOD.splitlines(keepends=True)
    container.share(LIMIT, key=KEY, text=first + "".join(reversed(rest)))
    assert not refused(container)


def test_limits_on_a_writable_mount_are_refused(container: Container) -> None:
    container.share(LIMIT).read_only = False
    assert refused(container)


def test_limits_that_are_a_link_are_refused(container: Container) -> None:
    share = container.share(LIMIT)
    (share.folder / "limits").rename(share.folder / "other")
    (share.folder / "limits").symlink_to("other")
    assert refused(container)


@pytest.mark.parametrize(
    "ledger",
    [
        b"", b"\0" * LEDGER_SIZE, fresh_ledger()[:-1], fresh_ledger() + b"\0", fresh_ledger()[:64],
        b"X" + fresh_ledger()[1:], fresh_ledger()[:8] + b"\2" + fresh_ledger()[9:],
        fresh_ledger()[:12] + b"\0" + fresh_ledger()[13:], b"\xff" * LEDGER_SIZE,
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_refused(container: Container, ledger: bytes) -> None:
    container.share(LIMIT, ledger=ledger)
    assert refused(container)


def test_senseless_figures_in_a_ledger_do_no_more_than_refuse(container: Container) -> None:
    """All fields behind the checked ones at their largest, slots included."""
    container.share(LIMIT, ledger=fresh_ledger()[:24] + b"\xff" * (LEDGER_SIZE - 24))
    with container.client() as app:
        app.ask("start", 0)
        app.ask("alloc", 4096)
        app.ask("info")
        app.ask("churn", 100, MIB, 1, 2)
        app.end()


def test_two_shares_of_one_card_add_up(container: Container) -> None:
    one, two = container.share(LIMIT), container.share(LIMIT)
    with container.client().start() as app:
        assert app.info() == (2 * LIMIT, 2 * LIMIT)
        assert app.ask("total", 0) == [OK, 2 * LIMIT]
        assert app.ask("nvml", 0)[4] == 2 * LIMIT
        _, pointer = app.ask("alloc", LIMIT + 10 * MIB)
        assert (one.total, two.total) == (LIMIT, 10 * MIB)
        assert app.alloc(LIMIT) == OOM
        assert (one.total, two.total) == (LIMIT, 10 * MIB)
        assert app.alloc(LIMIT - 10 * MIB) == OK
        assert app.ask("free", pointer) == [OK]
        assert one.total + two.total == LIMIT - 10 * MIB
        assert app.ask("churn", 3000, 4 * MIB, 3, 4)[0] == 0
        assert app.ask("free-each", 1)[1] == 1
        assert (one.total, two.total) == (0, 0)


def test_a_container_with_one_of_two_shares_has_that_one_only(container: Container) -> None:
    one, two = container.share(LIMIT), container.share(LIMIT)
    other = replace(container, shares=[one])
    with container.client().start() as both, other.client().start() as single:
        assert both.alloc(LIMIT + 10 * MIB) == OK
        assert single.alloc(BLOCK) == OOM
        both.kill()
        assert single.alloc(LIMIT) == OK
        assert two.total == 10 * MIB


def test_a_bad_share_beside_a_good_one_adds_nothing(container: Container) -> None:
    container.share(LIMIT, key=KEY)
    container.share(LIMIT, key="bad", text="apportion-limits 1\n")
    container.share(LIMIT, key="broken", ledger=b"short")
    assert not refused(container)


@pytest.mark.parametrize(
    "visible", [None, "0", "1", "0,1", "1,0", uuid(1), f"{uuid(1)},{uuid(0)}", uuid(1)[:24]]
)
def test_i8_limits_follow_the_card_whatever_is_visible(
    container: Container, visible: str | None
) -> None:
    container.share(LIMIT, gpu=uuid(0))
    container.share(2 * LIMIT, gpu=uuid(1))
    order = {None: [0, 1], "0": [0], "0,1": [0, 1], "1,0": [1, 0], f"{uuid(1)},{uuid(0)}": [1, 0]}
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for ordinal, card in enumerate(order.get(visible, [1])):
        with container.client(env=env).start(ordinal) as app:
            limit = LIMIT * (card + 1)
            assert app.info() == (limit, limit)
            assert app.ask("total", ordinal) == [OK, limit]
            assert app.alloc(limit + 1) == OOM
            assert app.alloc(limit) == OK


def test_i7_no_environment_variable_loosens_anything(container: Container) -> None:
    container.share(LIMIT, key=KEY)
    env = {
        "APPORTION_SHARES_DIR": "/tmp", "APPORTION_DISABLE": "1", "CUDA_DEVICE_MEMORY_LIMIT": "0",
        "CUDA_DISABLE_CONTROL": "true", "LD_LIBRARY_PATH": "", "CUDA_MPS_PIPE_DIRECTORY": "/tmp",
    }  # fmt: skip
    assert not refused(container, env=env)
    assert not refused(container, env={})


def test_an_ordinary_user_has_the_same_limit(container: Container) -> None:
    share = container.share(LIMIT, key=KEY)
    assert not refused(container, user=1000)
    with container.client(user=1000).start() as one, container.client().start() as two:
        assert one.alloc(LIMIT - BLOCK) == OK
        assert two.alloc(2 * BLOCK) == OOM
        one.kill()
        assert two.alloc(LIMIT) == OK
        assert share.total == LIMIT


def test_only_the_log_variable_makes_it_speak(container: Container) -> None:
    container.share(LIMIT, key="bad", text="")
    with container.client(env={"APPORTION_SHIM_LOG": "1"}) as app:
        assert app.ask("start", 0) == [OOM]
        app.process.stdin.close()  # type: ignore[union-attr]
        assert "apportion-shim: share bad refused" in app.errors()


def test_a_limit_above_the_card_is_the_card(container: Container) -> None:
    container.share(64 * GIB)
    with container.client().start() as app:
        free, total = app.info()
        assert free == total == app.ask("total", 0)[1] <= 15 * GIB
