"""What happens when a plugin fails: policy, attribution, quarantine, and a ledger for the end of the run."""

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
    from hookline.plugin_manager.implementations import Implementation

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
"""An implementation that fails so often in a row takes its plugin out of the run."""


class Interruption(BaseException):
    """Ends the run from outside, as Ctrl-C does: it passes through plugins and is no failure of theirs."""


class PluginExitError(HooklineError):
    """A plugin or an environment raised what is meant to end the process or its thread, such as `SystemExit`."""

    def __init__(self, who: str, error: BaseException) -> None:
        super().__init__(
            f"{who} raised {error!r}. Only the owner of the process may end it: a plugin ends a run by "
            "state.stop_reason, and a failure is an exception"
        )
        self.__cause__ = error


@contextmanager
def exits_as_errors(who: str) -> Iterator[None]:
    """Raise `PluginExitError` for what would end the process from within a part of the run."""
    try:
        yield
    except (Exception, KeyboardInterrupt, Interruption):
        raise
    except BaseException as error:
        raise PluginExitError(who, error) from error


@dataclass(slots=True)
class Fault:
    """One way in which one plugin failed in one event, and how often."""

    plugin: str
    event: str
    error: str
    """The exception's type and message, the first time."""
    count: int = 0


@dataclass(slots=True)
class FaultLedger:
    """All failures of a run, by plugin and event."""

    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    """Why a plugin is no longer called, by plugin."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Background calls that a full queue or the end of the run pushed out, by plugin."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, plugin: str, event: str, error: BaseException) -> Fault:
        # Messages often carry numbers that differ each time: count by type, keep the first message.
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

    def __bool__(self) -> bool:
        return bool(self.faults or self.quarantined or self.dropped)


class FaultHandler:
    """Does with a failure as the plugin's policy says."""

    def __init__(self, ledger: FaultLedger, rebuild_emitters: Callable[[], None]) -> None:
        self._ledger = ledger
        self._rebuild_emitters = rebuild_emitters
        self._local = threading.local()

    @contextmanager
    def failures_in(self, event: str) -> Iterator[dict[str, BaseException]]:
        """What plugins raise in emissions of this event within the block, by plugin; those of this thread alone."""
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
        """Record a failure. What this adds to `failures` is to be raised once all other plugins have been called."""
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
            logger.warning("plugin %r %s: it is not called any more in this run", plugin, why)
            self._rebuild_emitters()


def _to_raise(error: BaseException, who: str, event: str) -> Exception:
    if isinstance(error, Exception):
        error.add_note(f"raised by {who} in {event}")
        return error
    return PluginExitError(f"in {event} {who}", error)


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


def error_policy_of(plugin: object, name: str) -> ErrorPolicy:
    """What the plugin asks for: `on_error`, else raise for a `critical` plugin and warn for all others."""
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
    """Raise what plugins with the policy `raise` raised, now that all others have been called."""
    if len(failures) == 1:
        raise failures[0]
    raise ExceptionGroup(f"{len(failures)} plugins failed in {event}", failures)
