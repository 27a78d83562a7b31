"""Gymnasium's environments by their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason='pip install "hookline-environments[gymnasium]"')

from hookline_environments.from_gymnasium import gymnasium_environment  # noqa: E402


def test_an_id_is_an_environment_with_the_options_of_gymnasiums_make(worker_for: Callable[..., Any]) -> None:
    worker = worker_for("gymnasium:CartPole-v1", max_episode_steps=5)
    rollout = worker.rollout()
    assert rollout.arrays["obs"].shape == (16, 2, 4)
    assert {episode.reward for episode in rollout.episodes} == {5.0}
    environment = gymnasium_environment("CartPole-v1", render_mode="rgb_array")()
    assert environment.render_mode == "rgb_array"
    environment.close()


def test_an_unknown_id_is_an_error_that_names_the_nearest(worker_for: Callable[..., Any]) -> None:
    from hookline.rollout.errors import UnknownEnvironmentError

    with pytest.raises(UnknownEnvironmentError, match=r"Gymnasium has no environment 'Acrobt-v1' \(did you mean 'Acro"):
        worker_for("gymnasium:Acrobt-v1")


def test_a_module_may_register_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source = 'import gymnasium\ngymnasium.register("Own-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")\n'
    (tmp_path / "own_environments.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert gymnasium_environment("own_environments:Own-v0")().spec.id == "Own-v0"
