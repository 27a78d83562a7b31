"""The trainer learns: each mode on the smallest task that shows it."""

from __future__ import annotations

from hookline import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import CharacterTokenizer, TextProblem, TextTask
from hookline.testing import EventRecorder
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig


def rewards(events: EventRecorder) -> list[float]:
    return [
        event.arguments["state"].rollout_stats["rollout/mean_reward"] for event in events.of("on_train_phase_start")
    ]


def test_ppo_learns_to_balance_a_pole(hookline_manager: PluginManager, hookline_events: EventRecorder) -> None:
    config = TrainerConfig(
        epochs=14,
        losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None}},
        optimizer=OptimizerConfig(learning_rate=2e-3),
        rollout=RolloutConfig(num_environments=64, steps_per_rollout=32, minibatches=4, update_epochs=8),
    )
    Trainer(config, CurriculumConfig(micro_eval_frequency=None, eval_frequency=None), plugins=hookline_manager).train()
    found = rewards(hookline_events)
    assert 10 < found[0] < 30  # what chance gives
    assert sum(found[-3:]) / 3 > 100


def test_grpo_learns_the_one_answer_that_is_rewarded(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    tokenizer = CharacterTokenizer("0123456789=")
    policy = TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16)
    lesson = Lesson("sevens", TextTask([TextProblem("1=", "7"), TextProblem("2=", "7")], max_new_tokens=1))
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig([lesson], micro_eval_frequency=None, eval_frequency=None),
            policy=policy,
            num_environments=16,
            sampling=SamplingConfig(samples_per_prompt=8),
            tokenizer=tokenizer,
        ),
        hookline_manager,
    )
    config = TrainerConfig(
        epochs=30,
        losses={"grpo": {}},
        optimizer=OptimizerConfig(learning_rate=1e-2, schedule="constant"),
        rollout=RolloutConfig(minibatches=2, update_epochs=1),
    )
    Trainer(config, policy=policy, worker=worker).train()
    found = rewards(hookline_events)
    assert found[0] < 0.3
    assert found[-1] > 0.9


def test_a_curriculum_whose_lessons_have_all_graduated_ends_the_run(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    easy = Lesson("easy", success_above=0.0, stop_threshold=0.5, plateau_window=2, max_episode_steps=4)
    lessons = CurriculumConfig([easy], micro_eval_frequency=None, eval_frequency=3, eval_n_examples=2)
    sizes = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=1)
    trainer = Trainer(TrainerConfig(epochs=50, rollout=sizes), lessons, plugins=hookline_manager)
    trainer.train()
    assert trainer.state.epoch < 10
    assert "on_curriculum_update" in hookline_events.names()
    assert hookline_events.names()[-2:] == ["on_training_complete", "on_worker_stop"]
