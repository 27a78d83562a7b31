"""Which part may import which, and which distribution declares what it imports.

All of it is read off the source, so that imports inside functions are seen as well as those at the head of a module.
`require("jax", ...)` and `import_module("jax")` are imports. Imports for type checkers alone are not.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pluggy
import pytest
from packaging.requirements import Requirement

import hookline_hookspecs

ROOT = Path(__file__).parents[1]

PLUGIN_MANAGER = "plugin_manager"
"""The package of core that holds the plugin manager."""

PARTS: Mapping[str, tuple[str, ...]] = {
    PLUGIN_MANAGER: (),
    "http": (),
    "policies": (),
    "session": (PLUGIN_MANAGER,),
    "testing": (PLUGIN_MANAGER, "policies", "rewards", "rollout"),
    "hooks": (PLUGIN_MANAGER,),
    "rewards": (PLUGIN_MANAGER, "http", "policies"),
    "rollout": (PLUGIN_MANAGER, "hooks", "policies", "rewards", "session"),
    "training": (PLUGIN_MANAGER, "hooks", "policies", "rewards", "rollout", "session"),
    "cli": (PLUGIN_MANAGER, "session", "training"),
}
"""The packages of core, and which others each of them may import. The modules beside them are for all to import."""

BY_PUBLIC_NAMES = {("rollout", "rewards"), ("training", "rewards"), ("training", "rollout")}
"""Parts of which the other may import only what a package's `__init__` names."""

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "torch": ("training/*", "policies/*_torch.py", "rollout/engines/transformers_engine.py", "testing/tiny_models.py"),
    "jax": ("rollout/*", "rng_keys.py", "policies/*_jax.py", "testing/engine.py", "testing/environments.py"),
    "mlx": ("rewards/*", "rollout/engines/mlx_engine.py"),
}
"""Where in core a framework may be imported."""

FRAMEWORKS_INSIDE_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "torch": ("policies/*", "testing/engine.py"),
    "jax": ("policies/*",),
}
"""Where besides it may be, if not at the head of a module."""

CORE_FOR_PLUGINS: Mapping[str, tuple[str, ...]] = {
    "hookline_environments": (
        "hookline.errors",
        "hookline.importing",
        "hookline.rollout.environments",
        "hookline.rollout.errors",
        "hookline.rollout.text",
    ),
    "hookline_evaluation": ("hookline.http.*", "hookline.parsing", "hookline.training"),
    "hookline_ray": ("hookline.rollout.errors", "hookline.rollout.sources"),
    "hookline_status": ("hookline.http.*",),
    "hookline_verifiers": ("hookline.rewards", "hookline.text_verifier"),
}
"""What plugins may import of core. The others make do with the hookspecs."""

FRAMEWORKS_FOR_PLUGINS = {"hookline_environments": "jax"}
"""The framework of a plugin's environments. The others take the arrays of any framework."""

CORE_FOR_BRIDGES = ("hookline.errors", "hookline.plugin_manager.settings", "hookline.rewards", "hookline.session")
"""What bridges may import of core."""

EXTRAS_AT_HEAD = {"hookline"}
"""Distributions whose modules may import a package of an extra at their head: what imports them has asked for it."""

NOT_IMPORTED = {
    "alembic": "mlflow-skinny needs it for its default store, and does not declare it",
    "hookline_metrics": "it opens the sinks of trackers",
    "six": "gymnax imports it and does not declare it",
    "sqlalchemy": "as alembic",
}
"""What is declared though no module imports it, and why."""


OTHER_IMPORT_NAMES = {"mlflow-skinny": "mlflow"}
"""Distributions whose package has another name."""


# -- reading the source -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One import: where it is, of which module, and whether it runs with the module that it is in."""

    file: Path
    line: int
    module: str
    at_head: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Distribution:
    """One folder with a pyproject.toml, whose package is in `src`."""

    folder: Path

    @cached_property
    def project(self) -> Mapping[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text())

    @property
    def name(self) -> str:
        return _import_name(self.project["project"]["name"])

    @property
    def package(self) -> Path:
        return self.folder / "src" / self.name

    @cached_property
    def imports(self) -> list[Import]:
        return [own for file in sorted(self.package.rglob("*.py")) for own in _imports_of(file, self.folder / "src")]

    @cached_property
    def dependencies(self) -> set[str]:
        return {_import_name(Requirement(text).name) for text in self.project["project"].get("dependencies", ())}

    @cached_property
    def extras(self) -> Mapping[str, set[str]]:
        extras = self.project["project"].get("optional-dependencies", {})
        return {extra: {_import_name(Requirement(text).name) for text in own} for extra, own in extras.items()}

    def where(self, own: Import) -> str:
        return f"{own.file.relative_to(self.folder)}:{own.line} imports {own.module}"


def _import_name(distribution: str) -> str:
    """The package that a distribution brings."""
    return OTHER_IMPORT_NAMES.get(distribution, distribution.lower().replace("-", "_"))


def _imports_of(file: Path, source: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text(), file.name)
    yield from _find_imports(tree, file, source, at_head=True)


def _find_imports(node: ast.AST, file: Path, source: Path, *, at_head: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.orelse:
            yield from _find_imports(child, file, source, at_head=at_head)
        return
    for module in _imported_by(node, file, source):
        yield Import(file, node.lineno, module, at_head)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _survives_a_missing_package(node):
        at_head = False
    for child in ast.iter_child_nodes(node):
        yield from _find_imports(child, file, source, at_head=at_head)


def _survives_a_missing_package(node: ast.AST) -> bool:
    caught = [ast.unparse(own.type) for own in getattr(node, "handlers", ()) if own.type is not None]
    return any("ImportError" in names or "ModuleNotFoundError" in names for names in caught)


def _imported_by(node: ast.AST, file: Path, source: Path) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            folders = file.relative_to(source).parts
            base = ".".join([*folders[: len(folders) - node.level], *filter(None, [node.module])])
            module = base if node.level else str(node.module)
            return sorted({_module_or_name(module, alias.name, source) for alias in node.names})
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]):
            return [module] if name in ("require", "import_module", "__import__") else []
    return []


def _module_or_name(module: str, name: str, source: Path) -> str:
    """`from a import b` is an import of `a.b` where that is a module, and else one of `a`."""
    place = source.joinpath(*module.split("."), name)
    return f"{module}.{name}" if place.is_dir() or place.with_suffix(".py").exists() else module


def _is_package(module: str, source: Path) -> bool:
    return source.joinpath(*module.split(".")).is_dir()


# -- the rules --------------------------------------------------------------------------------------------------------


def wrong_frameworks(core: Distribution) -> list[str]:
    """Frameworks that are imported in a part of core that is not theirs."""
    found = []
    for own in core.imports:
        place = own.file.relative_to(core.package).as_posix()
        allowed = FRAMEWORKS.get(own.package, ("*",))
        if not own.at_head:
            allowed += FRAMEWORKS_INSIDE_FUNCTIONS.get(own.package, ())
        if not any(fnmatch(place, pattern) for pattern in allowed):
            found.append(f"{core.where(own)}, which is only for {' and '.join(allowed)}")
    return found


def wrong_parts(core: Distribution) -> list[str]:
    """Imports between parts of core that the table does not have, and imports of plugins."""
    found = []
    for own in core.imports:
        part = own.file.relative_to(core.package).parts[0]
        other = own.module.removeprefix(f"{core.name}.").partition(".")[0]
        if own.package.startswith(f"{core.name}_") and own.package != hookline_hookspecs.__name__:
            found.append(f"{core.where(own)}: core knows of no plugin")
        elif own.package == core.name and part in PARTS and other in PARTS and part != other:
            if other not in PARTS[part]:
                found.append(f"{core.where(own)}: {part} may not import {other}")
            elif (part, other) in BY_PUBLIC_NAMES and not _is_package(own.module, core.folder / "src"):
                found.append(f"{core.where(own)}: {part} may import what a package of {other} names, and no module")
    return found


def wrong_in_plugin(plugin: Distribution) -> list[str]:
    """Imports of frameworks, of other plugins, and of more of core than the table allows."""
    found = []
    for own in plugin.imports:
        if own.package in FRAMEWORKS and own.package != FRAMEWORKS_FOR_PLUGINS.get(plugin.name):
            found.append(f"{plugin.where(own)}: a plugin takes the arrays of any framework")
        elif own.package == "hookline":
            if not any(fnmatch(own.module, pattern) for pattern in CORE_FOR_PLUGINS.get(plugin.name, ())):
                found.append(f"{plugin.where(own)}: a plugin imports of core only what CORE_FOR_PLUGINS says")
        elif own.package.startswith("hookline_") and own.package not in (plugin.name, hookline_hookspecs.__name__):
            found.append(f"{plugin.where(own)}: a plugin imports no other plugin")
    return found


def wrong_in_bridge(bridge: Distribution) -> list[str]:
    """Imports of plugins and other bridges, and of more of core than a bridge needs."""
    found = []
    for own in bridge.imports:
        if own.package == "hookline" and own.module not in CORE_FOR_BRIDGES:
            found.append(f"{bridge.where(own)}: a bridge imports of core only what CORE_FOR_BRIDGES says")
        elif own.package.startswith("hookline_") and own.package not in (bridge.name, hookline_hookspecs.__name__):
            found.append(f"{bridge.where(own)}: a bridge imports no plugin and no other bridge")
    return found


def undeclared(distribution: Distribution) -> list[str]:
    """Imports of packages that the distribution does not require; at a module's head an extra is not enough."""
    in_extras = set().union(*distribution.extras.values())
    found = []
    for own in distribution.imports:
        if own.package in (*sys.stdlib_module_names, distribution.name, *distribution.dependencies):
            continue
        if own.package not in in_extras:
            found.append(f"{distribution.where(own)}, which its pyproject.toml does not declare")
        elif own.at_head and distribution.name not in EXTRAS_AT_HEAD:
            found.append(f"{distribution.where(own)} at its head, which only an extra declares")
    return found


def declared_in_vain(distribution: Distribution) -> list[str]:
    """Packages that the distribution requires, or an extra of it, and that no module imports. Tests have an extra."""
    used = {own.package for own in distribution.imports} | {distribution.name, *NOT_IMPORTED}
    tests = {
        own.package for file in distribution.folder.glob("tests/**/*.py") for own in _imports_of(file, file.parent)
    }
    wanted = {"dependencies": distribution.dependencies, **distribution.extras}
    return [
        f"{distribution.name}: {package} in {where} is imported by no module"
        for where, packages in wanted.items()
        for package in sorted(packages - used - (tests if where == "test" else set()))
    ]


def users_of_pluggys_inside(distribution: Distribution) -> list[str]:
    """The modules that use or override a private attribute of pluggy's classes, or import a private module of it."""
    manager = pluggy.PluginManager("any")
    owners = (manager, manager.hook, pluggy.HookCaller, pluggy.HookImpl)
    private = {name for owner in owners for name in dir(owner) if name.startswith("_") and not name.endswith("__")}
    files = []
    for file in sorted(distribution.package.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {getattr(node, "attr", None) or getattr(node, "name", None) for node in nodes}
        modules = {module for node in nodes for module in _imported_by(node, file, distribution.folder / "src")}
        attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        if names & private or any(name.startswith("pluggy._") for name in modules | attributes):
            files.append(file.relative_to(distribution.package).as_posix())
    return files


# -- our own source ---------------------------------------------------------------------------------------------------

HOOKSPECS, CORE = Distribution(ROOT / "hookspecs"), Distribution(ROOT / "core")
PLUGINS = [Distribution(file.parent) for file in sorted(ROOT.glob("plugins/*/pyproject.toml"))] + [
    Distribution(ROOT / "examples" / "third_party_plugin")
]
BRIDGES = [Distribution(file.parent) for file in sorted(ROOT.glob("bridges/*/pyproject.toml"))]
ALL = [HOOKSPECS, CORE, *PLUGINS, *BRIDGES]


def by_name(distributions: list[Distribution]) -> Any:
    return pytest.mark.parametrize("distribution", distributions, ids=lambda own: own.name)


def test_every_package_of_core_has_its_place_in_the_table() -> None:
    assert {folder.parent.name for folder in CORE.package.glob("*/__init__.py")} == set(PARTS)


def test_the_table_has_no_circle_of_parts() -> None:
    in_order = TopologicalSorter(PARTS).static_order()  # raises a CycleError that names the parts of a circle
    assert set(in_order) == set(PARTS)


def test_no_part_of_core_imports_the_framework_of_another() -> None:
    assert wrong_frameworks(CORE) == []


def test_parts_of_core_import_each_other_in_one_direction_and_no_plugin() -> None:
    assert wrong_parts(CORE) == []


@by_name(PLUGINS)
def test_a_plugin_imports_no_framework_no_other_plugin_and_of_core_only_what_it_must(
    distribution: Distribution,
) -> None:
    assert wrong_in_plugin(distribution) == []


@by_name(BRIDGES)
def test_a_bridge_imports_no_plugin_no_other_bridge_and_of_core_only_the_session(distribution: Distribution) -> None:
    assert wrong_in_bridge(distribution) == []


@by_name(ALL)
def test_every_import_is_declared(distribution: Distribution) -> None:
    assert undeclared(distribution) == []


@by_name(ALL)
def test_everything_declared_is_imported(distribution: Distribution) -> None:
    assert declared_in_vain(distribution) == []


def test_hookspecs_need_nothing_but_pythons_own_library() -> None:
    assert HOOKSPECS.dependencies == set()


def test_the_inside_of_pluggy_is_used_in_one_module() -> None:
    (user,) = [f"{own.name}/{file}" for own in ALL for file in users_of_pluggys_inside(own)]
    assert user.startswith(f"hookline/{PLUGIN_MANAGER}/")


# -- the rules can fail -----------------------------------------------------------------------------------------------


def distribution_of(
    folder: Path,
    files: Mapping[str, str],
    *,
    name: str = "hookline",
    dependencies: tuple[str, ...] = (),
    extras: str = "",
) -> Distribution:
    """A distribution with these files in its package."""
    package = folder / "src" / _import_name(name)
    for path, text in files.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    project = (
        f'[project]\nname = "{name}"\ndependencies = {list(dependencies)}\n[project.optional-dependencies]\n{extras}'
    )
    (folder / "pyproject.toml").write_text(project)
    return Distribution(folder)


def test_a_framework_in_another_part_is_found_wherever_it_is_imported(tmp_path: Path) -> None:
    core = distribution_of(
        tmp_path,
        {
            "training/good.py": "import torch.nn",
            "training/lazy.py": "def f():\n    import jax",
            "training/required.py": 'mx = require("mlx.core", "rewards")',
            "rollout/__init__.py": "from torch import nn",
            "policies/mlp_jax.py": "import jax",
            "policies/mlp.py": "import jax\n\ndef f():\n    import torch",
            "session/typed.py": "if TYPE_CHECKING:\n    import torch\nelse:\n    import jax",
            "loose.py": "import torch",
        },
    )
    assert sorted(found.partition(",")[0] for found in wrong_frameworks(core)) == [
        "src/hookline/loose.py:1 imports torch",
        "src/hookline/policies/mlp.py:1 imports jax",
        "src/hookline/rollout/__init__.py:1 imports torch",
        "src/hookline/session/typed.py:4 imports jax",
        "src/hookline/training/lazy.py:2 imports jax",
        "src/hookline/training/required.py:1 imports mlx.core",
    ]


def test_a_part_that_imports_upwards_past_public_names_or_a_plugin_is_found(tmp_path: Path) -> None:
    core = distribution_of(
        tmp_path,
        {
            "rollout/__init__.py": "",
            "rollout/scores.py": "def f():\n    from hookline.training import Trainer",
            "rewards/__init__.py": "from ..rollout import Curriculum",
            "training/__init__.py": "from hookline.rollout import Curriculum, scores\nimport hookline_hookspecs",
            "training/loop.py": "import hookline.rewards.scoring",
            "cli/app.py": "import hookline_metrics",
        },
    )
    assert sorted(wrong_parts(core)) == [
        "src/hookline/cli/app.py:1 imports hookline_metrics: core knows of no plugin",
        "src/hookline/rewards/__init__.py:1 imports hookline.rollout: rewards may not import rollout",
        "src/hookline/rollout/scores.py:2 imports hookline.training: rollout may not import training",
        "src/hookline/training/__init__.py:1 imports hookline.rollout.scores: "
        "training may import what a package of rollout names, and no module",
        "src/hookline/training/loop.py:1 imports hookline.rewards.scoring: "
        "training may import what a package of rewards names, and no module",
    ]


def test_a_plugin_that_imports_a_framework_core_or_another_plugin_is_found(tmp_path: Path) -> None:
    plugin = distribution_of(
        tmp_path,
        {
            "__init__.py": "from hookline_hookspecs import hookimpl\nfrom hookline.http.client import HTTPClient",
            "plugin.py": "from hookline_metrics import Metrics\nimport hookline.session\n\ndef f():\n    import torch",
        },
        name="hookline-status",
    )
    assert wrong_in_plugin(plugin) == [
        "src/hookline_status/plugin.py:1 imports hookline_metrics: a plugin imports no other plugin",
        "src/hookline_status/plugin.py:2 imports hookline.session: "
        "a plugin imports of core only what CORE_FOR_PLUGINS says",
        "src/hookline_status/plugin.py:5 imports torch: a plugin takes the arrays of any framework",
    ]


def test_a_bridge_that_imports_a_plugin_another_bridge_or_more_of_core_is_found(tmp_path: Path) -> None:
    bridge = distribution_of(
        tmp_path,
        {
            "__init__.py": "from hookline.session import open_session\nimport acme_trainer, torch",
            "callback.py": "import hookline_metrics\nimport hookline_lightning\nfrom hookline.training import Trainer",
        },
        name="hookline-acme",
    )
    assert wrong_in_bridge(bridge) == [
        "src/hookline_acme/callback.py:1 imports hookline_metrics: a bridge imports no plugin and no other bridge",
        "src/hookline_acme/callback.py:2 imports hookline_lightning: a bridge imports no plugin and no other bridge",
        "src/hookline_acme/callback.py:3 imports hookline.training: "
        "a bridge imports of core only what CORE_FOR_BRIDGES says",
    ]


def test_what_is_not_declared_or_declared_in_vain_is_found(tmp_path: Path) -> None:
    plugin = distribution_of(
        tmp_path,
        {
            "__init__.py": "import os, rich\nimport numpy as np\nfrom hookline_hookspecs import hookimpl",
            "sinks.py": "import wandb\n\ndef f():\n    import wandb",
            "optional.py": "try:\n    import wandb\nexcept ImportError:\n    wandb = None",
        },
        name="hookline-acme",
        dependencies=("hookline-hookspecs>=0.1", "NumPy", "psutil>=6; sys_platform == 'linux'"),
        extras='wandb = ["wandb"]\ntest = ["hypothesis", "hookline-acme[wandb]", "httpx"]',
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_acme.py").write_text("from hypothesis import given")
    assert undeclared(plugin) == [
        "src/hookline_acme/__init__.py:1 imports rich, which its pyproject.toml does not declare",
        "src/hookline_acme/sinks.py:1 imports wandb at its head, which only an extra declares",
    ]
    assert declared_in_vain(plugin) == [
        "hookline_acme: psutil in dependencies is imported by no module",
        "hookline_acme: httpx in test is imported by no module",
    ]


def test_every_use_of_pluggys_inside_is_found(tmp_path: Path) -> None:
    core = distribution_of(
        tmp_path,
        {
            "public.py": "import pluggy\n\nclass Own(pluggy.PluginManager):\n    _own = 1\n    __slots__ = ()",
            "attribute.py": "def f(caller):\n    return caller._hookimpls",
            "override.py": "class Own:\n    def _verify_hook(self): ...",
            "module.py": "from pluggy._hooks import HookImpl",
            "path.py": "import pluggy\nx = pluggy._hooks.HookImpl",
        },
    )
    assert users_of_pluggys_inside(core) == ["attribute.py", "module.py", "override.py", "path.py"]
