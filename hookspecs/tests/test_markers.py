"""What `hookimpl` and `hookspec` leave on a function."""

import pytest

from hookline_hookspecs import Every, hookimpl, hookspec


def test_hookimpl_works_with_and_without_arguments() -> None:
    @hookimpl
    def plain() -> None: ...

    @hookimpl(every=5, tryfirst=True)
    def scheduled() -> None: ...

    assert plain.hookline_impl["schedule"] is None
    assert scheduled.hookline_impl["schedule"] == Every(5)
    assert scheduled.hookline_impl["tryfirst"] is True


def test_a_coroutine_function_is_a_background_implementation() -> None:
    @hookimpl
    async def later() -> None: ...

    assert later.hookline_impl["background"] is True


def test_every_and_schedule_together_are_refused() -> None:
    with pytest.raises(TypeError, match="every= or schedule=, not both"):
        hookimpl(every=1, schedule=Every(2))


def test_a_decide_event_is_a_firstresult_hook_to_pluggy() -> None:
    @hookspec(kind="decide", clock="step", scope="driver")
    def choose() -> None: ...

    assert choose.hookline_spec["firstresult"] is True
    assert (choose.hookline_spec["clock"], choose.hookline_spec["scope"]) == ("step", "driver")
