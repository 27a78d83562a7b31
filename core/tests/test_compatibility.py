"""Plugins for other versions of the hookspecs: they are used if all is there, and told what is missing if not.

Older and newer hookspecs are copies of ours, changed, built and installed by pip. A process that finds a copy first runs with
that version, as an environment with it would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

import hookline_hookspecs
from hookline import PluginManager
from hookline.plugin_manager import compatibility
from hookline.plugin_manager.events import Lifetime, parse_contract
from hookline.plugin_manager.manager import Overrides
from hookline_hookspecs import hookimpl, hookspec
from hookline_hookspecs.history import REMOVED, Removed

if TYPE_CHECKING:
    from conftest import Site

pytest.importorskip("flit_core")

ROOT = Path(__file__).parents[2]
NEW_EVENT = '''

@hookspec(scope="driver")
def on_loss_spike(state: TrainerState, size: float) -> None:
    """The loss has jumped.

    When: after the step.
    Emitted by: trainer.
    Where: rank 0, training thread.
    Args:
        state: the run.
        size: by how much. Added: 9.1. Until: 9.9, use scale.
    Returns: ignored.
    Added: 9.0.
    """
'''
PLUGINS = {
    "of-today": """
        from hookline_hookspecs import hookimpl
        class Plugin:
            @hookimpl
            def on_epoch_end(self, state): ...
    """,
    "of-tomorrow": """
        from hookline_hookspecs import hookimpl
        class Plugin:
            @hookimpl
            def on_loss_spike(self, state, size): ...
    """,
    "tomorrows-argument": """
        from hookline_hookspecs import hookimpl
        class Plugin:
            @hookimpl
            def on_epoch_end(self, state, summary): ...
    """,
    "tomorrows-import": """
        from hookline_hookspecs import LossSpike, hookimpl
        class Plugin: ...
    """,
    "tomorrows-option": """
        from hookline_hookspecs import hookimpl
        class Plugin:
            @hookimpl(retries=2)
            def on_epoch_end(self, state): ...
    """,
    "of-yesterday": """
        from hookline_hookspecs import Interval, hookimpl
        class Plugin: ...
    """,
    "yesterdays-event": """
        from hookline_hookspecs import hookimpl
        class Plugin:
            @hookimpl
            def on_mb_end(self, state): ...
    """,
}
"""Plugins by name, and the hookspecs that their distributions declare."""
BUILT_FOR = {
    "of-tomorrow": ">=9",
    "tomorrows-import": ">=9,<10",
    "tomorrows-option": ">=9",
    "yesterdays-event": "<9",
}


def build_and_install(project: Path, site: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    result = subprocess.run([*pip, str(project)], capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr


def write_plugins(folder: Path) -> Path:
    """One distribution for each plugin would take pip a second each: this is what it leaves, written by hand."""
    for name, source in PLUGINS.items():
        module = f"plugin_{name.replace('-', '_')}"
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir()
        needs = f"hookline-hookspecs{BUILT_FOR.get(name, '>=0.1')}"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {needs}\n")
        (info / "entry_points.txt").write_text(f"[hookline]\n{name} = {module}:Plugin\n")
    return folder


@pytest.fixture(scope="module")
def plugins_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """`hookline plugins --json` with the hookspecs of another version: {name: (state, reason)}."""
    folder = tmp_path_factory.mktemp("versions")
    plugins = write_plugins(folder)

    def change(version: str, edit: Callable[[Path], None]) -> Path:
        copy = folder / f"source-{version}"
        shutil.copytree(ROOT / "hookspecs", copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        edit(copy / "src" / "hookline_hookspecs")
        for file in (copy / "pyproject.toml", copy / "src" / "hookline_hookspecs" / "__init__.py"):
            own = hookline_hookspecs.__version__
            file.write_text(re.sub(rf'(version.*)"{own}"', rf'\1"{version}"', file.read_text()))
        build_and_install(copy, folder / version)
        return folder / version

    def newer(package: Path) -> None:
        training = package / "training.py"
        kept, _, rest = training.read_text().partition('@hookspec(clock="step")\ndef on_mb_end')
        assert rest, "on_mb_end is declared otherwise by now"
        after = rest.partition("\n\n\n")[2]
        training.write_text(kept.replace('    "on_mb_end",\n', "") + after + NEW_EVENT)
        markers = package / "markers.py"
        option = "    every: int | None = None,"
        assert option in markers.read_text()
        markers.write_text(markers.read_text().replace(option, f"    retries: int = 0,\n{option}"))
        history = package / "history.py"
        removed = (
            'REMOVED: Final[Mapping[str, Removed]] = {\n    "on_mb_end": Removed("0.1", "9.0", "post_training_step"),'
        )
        history.write_text(history.read_text().replace("REMOVED: Final[Mapping[str, Removed]] = {", removed))

    def older(package: Path) -> None:
        init = package / "__init__.py"
        init.write_text(init.read_text() + "\nInterval = Watch\n")

    paths = {"9.1.0": change("9.1.0", newer), "0.0.9": change("0.0.9", older), "": None}

    def listing(version: str) -> dict[str, Any]:
        path = os.pathsep.join(map(str, filter(None, [paths[version], plugins])))
        environ = os.environ | {"PYTHONPATH": path, "HOOKLINE_ALLOW": ",".join(PLUGINS), "HOOKLINE_DISABLE": ""}
        command = [sys.executable, "-m", "hookline", "plugins", "--json"]
        result = subprocess.run(
            command, capture_output=True, text=True, env=environ, cwd=folder, timeout=500, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        found = json.loads(result.stdout)["plugins"]
        return {own["name"]: (own["state"], own["reason"]) for own in found if own["name"] in PLUGINS}

    return listing


def test_a_plugin_for_newer_hookspecs_is_told_what_is_missing_and_what_to_upgrade(
    plugins_with: Callable[[str], dict[str, Any]],
) -> None:
    found, now = plugins_with(""), hookline_hookspecs.__version__
    assert found["of-today"] == ("active", "")
    assert found["of-tomorrow"] == (
        "failed",
        f"cannot be used: plugin 'of-tomorrow' implements 'on_loss_spike', which is not an event in hookline-hookspecs {now}. "
        f"of-tomorrow is built for hookline-hookspecs>=9, and {now} is installed: pip install --upgrade hookline-hookspecs",
    )
    assert found["tomorrows-argument"] == (
        "failed",
        "cannot be used: plugin 'tomorrows-argument': on_epoch_end has an argument 'summary' that the event does not have in "
        f"hookline-hookspecs {now}; the event is on_epoch_end(state)",
    )
    assert found["tomorrows-import"] == (
        "failed",
        f"cannot be used: it imports 'LossSpike' of hookline_hookspecs, which is not there in hookline-hookspecs {now}. "
        f"tomorrows-import is built for hookline-hookspecs<10,>=9, and {now} is installed: "
        "pip install --upgrade hookline-hookspecs",
    )
    assert found["tomorrows-option"] == (
        "failed",
        "cannot be imported: TypeError: hookimpl() got an unexpected keyword argument 'retries'. tomorrows-option is built "
        f"for hookline-hookspecs>=9, and {now} is installed: pip install --upgrade hookline-hookspecs",
    )


def test_a_plugin_for_older_hookspecs_is_told_what_took_the_place_of_what_is_gone(
    plugins_with: Callable[[str], dict[str, Any]],
) -> None:
    assert plugins_with("0.0.9")["of-yesterday"] == ("failed", "cannot be used: Plugin implements no event: mark methods that "
        "are named after events with @hookimpl. of-yesterday is built for hookline-hookspecs>=0.1, and 0.0.9 is installed: "
        "pip install --upgrade hookline-hookspecs")  # its import is there  # fmt: skip
    found, now = plugins_with(""), hookline_hookspecs.__version__
    assert found["of-yesterday"] == (
        "failed",
        f"cannot be used: it imports 'Interval' of hookline_hookspecs, which is not there since 0.2, and "
        f"hookline-hookspecs {now} is installed: use 'Watch'",
    )


def test_newer_hookspecs_take_plugins_of_today_but_for_what_they_removed(
    plugins_with: Callable[[str], dict[str, Any]],
) -> None:
    found = plugins_with("9.1.0")
    for name in ("of-today", "of-tomorrow", "tomorrows-option"):
        assert found[name] == ("active", ""), name
    assert found["yesterdays-event"] == (
        "failed",
        "cannot be used: plugin 'yesterdays-event' implements 'on_mb_end', which is not an event since 9.0, and "
        "hookline-hookspecs 9.1.0 is installed: use 'post_training_step'. yesterdays-event is built for "
        "hookline-hookspecs<9, and 9.1.0 is installed: pip install --upgrade yesterdays-event",
    )


def test_a_plugin_that_has_all_it_needs_is_used_in_spite_of_its_metadata_and_the_run_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    source = "class Plugin:\n    @hookimpl\n    def on_epoch_end(self): ...\n"
    site.install("older", source, requires=["pluggy", "Hookline_Hookspecs<0.1"], version="3.0")
    _, (record,) = site.load()
    assert record.state == "active"
    now = hookline_hookspecs.__version__
    assert caplog.messages == [
        "plugin 'older' (test-older 3.0) is used, since all that it implements is there, but test-older is built for "
        f"hookline-hookspecs<0.1, and {now} is installed: pip install --upgrade test-older"
    ]


# -- deprecations -----------------------------------------------------------------------------------------------------


class Aging:
    """Events of a later version."""

    @hookspec
    def on_old_event(self, state: Any, size: Any) -> None:
        """It happened.

        Args:
            state: the run.
            size: how large. Added: 0.2. Until: 0.4, use state.size.
        Added: 0.1.
        Until: 0.5, use on_new_event.
        """

    @hookspec
    def on_new_event(self, state: Any, old: Any = None) -> None:
        """It happened.

        Args:
            state: the run.
            old: as before. Until: 0.5, use state.
        Added: 0.3.
        """


def test_an_event_and_each_argument_know_their_versions() -> None:
    manager = PluginManager()
    manager.add_hookspecs(Aging)
    old, new = (manager.events[name].contract for name in ("on_old_event", "on_new_event"))
    assert old.lifetime == Lifetime("0.1", "0.5", "on_new_event")
    assert old.arguments == {"state": "the run.", "size": "how large."}
    assert (old.lifetime_of("state"), old.lifetime_of("size")) == (
        Lifetime("0.1"),
        Lifetime("0.2", "0.4", "state.size"),
    )
    assert (new.lifetime, new.lifetime_of("old")) == (Lifetime("0.3"), Lifetime("0.3", "0.5", "state"))


def test_what_is_deprecated_is_warned_of_once_with_what_to_use(caplog: pytest.LogCaptureFixture) -> None:
    class Old:
        @hookimpl
        def on_old_event(self, size: Any) -> None: ...

        @hookimpl
        def on_new_event(self, state: Any) -> None: ...

    compatibility._warn_once.cache_clear()
    for _ in range(2):
        manager = PluginManager()
        manager.add_hookspecs(Aging)
        manager.register(Old(), "old", overrides=Overrides(distribution="old-plugin 1.0"))
    assert caplog.messages == [
        "plugin 'old' (old-plugin 1.0) uses the event on_old_event, which will be gone in 0.5: use on_new_event",
        "plugin 'old' (old-plugin 1.0) uses the argument 'size' of on_old_event, which will be gone in 0.4: use state.size",
    ]


def test_an_argument_that_is_gone_is_named_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        @hookimpl
        def on_epoch_end(self, losses: Any) -> None: ...

    removed = Removed("0.1", "0.2", "state.loss_stats")
    monkeypatch.setattr(compatibility, "REMOVED", {"on_epoch_end.losses": removed})
    with pytest.raises(compatibility.MissingInHookspecsError) as caught:
        PluginManager().register(Old(), "old")
    assert str(caught.value) == (
        "plugin 'old': on_epoch_end has an argument 'losses' that the event does not have since 0.2, and hookline-hookspecs "
        f"{hookline_hookspecs.__version__} is installed: use 'state.loss_stats'; the event is on_epoch_end(state)"
    )


def test_versions_in_the_contracts_are_those_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = {Version(found).release[:2] for found in re.findall(r"^## (\d\S+)", changelog, re.MULTILINE)}
    for event in PluginManager().events.values():
        for lifetime in (event.contract.lifetime, *map(event.contract.lifetime_of, event.arguments)):
            assert Version(lifetime.added).release[:2] in released, event.name
            if lifetime.until:
                assert Version(lifetime.until) > Version(hookline_hookspecs.__version__), f"{event.name} should be gone"
                assert lifetime.instead, event.name
    for name, removed in REMOVED.items():
        event, _, argument = name.partition(".")
        assert Version(removed.added) < Version(removed.until)
        assert name not in hookline_hookspecs.__all__
        known = PluginManager().events.get(event)
        assert known is None or argument not in ("", *known.arguments), f"{name} is still there"


def test_a_docstring_without_versions_has_none() -> None:
    assert parse_contract("It happened.").lifetime == Lifetime()
