"""The deployment's variables, read into values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from fencepost import limits


class Retention(NamedTuple):
    """In days: how long ended runs are kept, and how long keys are kept after that purge."""

    run_days: int = limits.RUN_RETENTION_DAYS_DEFAULT
    key_days: int = limits.KEY_RETENTION_DAYS_DEFAULT


def retention(setting: Callable[[str], str | None]) -> Retention:
    """FENCEPOST_RUN_RETENTION_DAYS and FENCEPOST_KEY_RETENTION_DAYS, whole days from 1 on.

    Raises ValueError for any other text, so that the purge deletes nothing.
    """
    return Retention(
        _days(setting, "FENCEPOST_RUN_RETENTION_DAYS", limits.RUN_RETENTION_DAYS_DEFAULT),
        _days(setting, "FENCEPOST_KEY_RETENTION_DAYS", limits.KEY_RETENTION_DAYS_DEFAULT),
    )


def _days(setting: Callable[[str], str | None], name: str, default: int) -> int:
    text = setting(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= limits.RETENTION_DAYS_MAX:
        raise ValueError(f"{name} is not a number of days from 1 to {limits.RETENTION_DAYS_MAX}")
    return int(text)
