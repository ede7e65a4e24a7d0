"""How GPUs are offered by the settings: the same for what is published and for what is shown."""

from __future__ import annotations

from apportion import quantity
from apportion.config import Config
from apportion.slices import Policy


def policy(config: Config) -> Policy:
    """Return how the GPUs of this node are offered."""
    return Policy(
        driver=config.driver_name,
        node=config.node_name,
        naming=config.device_naming,
        prefix=config.device_prefix,
        memory_capacity=config.memory_capacity,
        cores_min=config.cores_min,
        mode_of=config.mode_of,
        mps_reserve=config.mps_reserve_mib * quantity.MIB,
    )
