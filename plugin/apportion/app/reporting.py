"""The part that tells claims of their shares, put together from the others."""

from __future__ import annotations

import functools
from collections.abc import Callable

from apportion.claimstatus import Condition
from apportion.config import Config
from apportion.enforce import Enforcer
from apportion.events import Recorder
from apportion.kube import Kube
from apportion.ledger.store import Store
from apportion.model import Share
from apportion.reporter import Reporter
from apportion.reporter.look import Look
from apportion.reporter.marks import Marks


def make_reporter(
    config: Config,
    *,
    api: Kube,
    store: Store,
    enforcer: Enforcer,
    events: Recorder,
    conditions: Callable[[Share], tuple[Condition, ...]],
) -> Reporter:
    """Return it, wired; nothing happens yet."""
    return Reporter(
        api,
        store=store,
        look=Look(
            node=config.node_name,
            usage=enforcer.usage,
            limited=lambda: (allowance.key for allowance in enforcer.allowances()),
            conditions=conditions,
        ),
        marks=Marks(config.plugin_dir / "told"),
        driver=config.driver_name,
        node=config.node_name,
        interval_s=config.status_interval_s,
        on_dropped=functools.partial(events.on_node, "StatusDropped"),
    )
