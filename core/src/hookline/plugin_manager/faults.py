"""Failures of plugins: error policy, attribution, quarantine, and a ledger of all failures of a run."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NoReturn, get_args

from hookline.errors import HooklineError, PluginError, did_you_mean
from hookline_hookspecs.errors import describe_error

if TYPE_CHECKING:
    from hookline.plugin_manager.events import Implementation

__all__ = [
    "ErrorPolicy",
    "Fault",
    "FaultHandler",
    "FaultLedger",
    "Interruption",
    "PluginExitError",
    "error_policy_of",
    "exits_as_errors",
    "raise_failures",
]

logger = logging.getLogger("hookline.plugins")

ErrorPolicy = Literal["raise", "warn", "disable"]

QUARANTINE_AFTER: Final = 3
"""A plugin is quarantined after this many failures of one implementation in a row."""


class Interruption(BaseException):
    """Ends the run from outside, as Ctrl-C does. It passes through plugins and is not counted as their failure."""


class PluginExitError(HooklineError):
    """A plugin or environment raised an exception that would end the process or thread, such as `SystemExit`."""

    def __init__(self, who: str, error: BaseException) -> None:
        super().__init__(
            f"{who} raised {error!r}, which would end the process. To end the run, set state.stop_reason; "
            "to report a failure, raise an Exception"
        )
        self.__cause__ = error


@contextmanager
def exits_as_errors(who: str) -> Iterator[None]:
    """Raise `PluginExitError` in place of an exception that would end the process."""
    try:
        yield
    except (Exception, KeyboardInterrupt, Interruption):
        raise
    except BaseException as error:
        raise PluginExitError(who, error) from error


@dataclass(slots=True)
class Fault:
    """One type of failure of one plugin in one event, and its count."""

    plugin: str
    event: str
    error: str
    """Type and message of the first exception."""
    count: int = 0


@dataclass(slots=True)
class FaultLedger:
    """All failures of a run, by plugin and event."""

    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    """The reason of each quarantined plugin."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Background calls dropped because of a full queue or the end of the run, by plugin."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, plugin: str, event: str, error: BaseException) -> Fault:
        # Messages often contain numbers that differ each time: count by type, keep the first message.
        key = (plugin, event, type(error).__name__)
        with self._lock:
            fault = self.faults.setdefault(key, Fault(plugin, event, describe_error(error)))
            fault.count += 1
        return fault

    def drop(self, plugin: str) -> None:
        with self._lock:
            self.dropped[plugin] += 1

    def failures_of(self, plugin: str) -> int:
        return sum(fault.count for fault in self.faults.values() if fault.plugin == plugin)

    def described(self) -> list[dict[str, str | int | None]]:
        """All failures as JSON data: plugin, event, times and what happened. Safe on any thread."""
        with self._lock:
            failed = [(own.plugin, own.event, own.count, own.error) for own in self.faults.values()]
            dropped = [(plugin, count) for plugin, count in sorted(self.dropped.items())]
        rows: list[tuple[str, str | None, int | None, str]] = [
            *failed,
            *((plugin, None, count, "background calls were dropped") for plugin, count in dropped),
            *((plugin, None, None, f"quarantined: {why}") for plugin, why in list(self.quarantined.items())),
        ]
        return [dict(zip(("plugin", "event", "times", "what"), row, strict=True)) for row in rows]

    def __bool__(self) -> bool:
        return bool(self.faults or self.quarantined or self.dropped)


class FaultHandler:
    """Applies the error policy of a plugin to its failures."""

    def __init__(self, ledger: FaultLedger, rebuild_emitters: Callable[[], None]) -> None:
        self._ledger = ledger
        self._rebuild_emitters = rebuild_emitters
        self._local = threading.local()

    @contextmanager
    def failures_in(self, event: str) -> Iterator[dict[str, BaseException]]:
        """Collect what plugins raise in this event, by plugin, within the block and on this thread."""
        outer = getattr(self._local, "watched", None)
        failures: dict[str, BaseException] = {}
        self._local.watched = event, failures
        try:
            yield failures
        finally:
            self._local.watched = outer

    def failed(
        self, implementation: Implementation, error: BaseException, failures: list[Exception] | None
    ) -> list[Exception] | None:
        """Record a failure. Exceptions added to `failures` are raised after all other plugins have been called."""
        if isinstance(error, (KeyboardInterrupt, Interruption)) and not implementation.background:
            raise error
        plugin, event = implementation.plugin, implementation.event.name
        who = f"plugin {plugin!r}{f' ({implementation.distribution})' if implementation.distribution else ''}"
        fault = self._ledger.record(plugin, event, error)
        watched = getattr(self._local, "watched", None)
        if watched is not None and watched[0] == event:
            watched[1][plugin] = error
        implementation.streak += 1
        if not implementation.has_failed:
            implementation.has_failed = True
            self._rebuild_emitters()
        if implementation.policy == "raise":
            return [*(failures or ()), _to_raise(error, who, event)]
        if _is_power_of_ten(fault.count):
            times = f", {fault.count} times so far" if fault.count > 1 else ""
            traceback = error if fault.count == 1 else None
            logger.warning("%s failed in %s%s: %s", who, event, times, describe_error(error), exc_info=traceback)
        if implementation.policy == "disable":
            self._quarantine(plugin, f"failed in {event}")
        elif implementation.streak >= QUARANTINE_AFTER:
            self._quarantine(plugin, f"failed {implementation.streak} times in a row in {event}")
        return failures

    def _quarantine(self, plugin: str, why: str) -> None:
        if plugin not in self._ledger.quarantined:
            self._ledger.quarantined[plugin] = why
            logger.warning("plugin %r %s: it is quarantined and no longer called in this run", plugin, why)
            self._rebuild_emitters()


def _to_raise(error: BaseException, who: str, event: str) -> Exception:
    if isinstance(error, Exception):
        error.add_note(f"raised by {who} in {event}")
        return error
    return PluginExitError(f"in {event} {who}", error)


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


def error_policy_of(plugin: object, name: str) -> ErrorPolicy:
    """The plugin's `on_error`; by default `raise` for a `critical` plugin and `warn` for others."""
    policy = getattr(plugin, "on_error", None)
    if policy is None:
        return "raise" if getattr(plugin, "critical", False) else "warn"
    if policy not in get_args(ErrorPolicy):
        raise PluginError(
            plugin,
            f"plugin {name!r}: on_error must be 'raise', 'warn' or 'disable', not {policy!r}"
            f"{did_you_mean(str(policy), get_args(ErrorPolicy))}",
        )
    return policy  # type: ignore[no-any-return]


def raise_failures(event: str, failures: list[Exception]) -> NoReturn:
    """Raise the failures of plugins with the policy `raise`, after all others have been called."""
    if len(failures) == 1:
        raise failures[0]
    raise ExceptionGroup(f"{len(failures)} plugins failed in {event}", failures)
