"""Every code block of the rollout worker's hook document, with only the import line changed.

Blocks that elide arguments (`EvaluationHook(frequency=5, ...)`) are given the others' defaults.
"""

from __future__ import annotations

import inspect
import logging
import time
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import jax.random as jrandom
import pytest

from hookline import hookimpl
from hookline.hooks import (
    CheckpointHook,
    CompositeHook,
    EvaluationHook,
    Hook,
    HookContext,
    HookManager,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
)
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig


@pytest.fixture
def config() -> RolloutWorkerConfig:
    return RolloutWorkerConfig()


@pytest.fixture
def worker(config: RolloutWorkerConfig) -> RolloutWorker:
    worker = RolloutWorker(config)
    worker.clear_hooks()
    return worker


def test_core_components() -> None:
    assert inspect.isabstract(Hook)
    assert Hook.__abstractmethods__ == {"should_run", "run"}
    fields = inspect.signature(HookContext).parameters
    assert list(fields) == ["worker", "step", "rng", "lesson_id", "metadata"]
    for name, parameters in {
        "register_hook": ["self", "hook"],
        "unregister_hook": ["self", "hook"],
        "clear_hooks": ["self"],
        "run_hooks": ["self", "context"],
    }.items():
        assert list(inspect.signature(getattr(HookManager, name)).parameters) == parameters


def test_built_in_hook_types() -> None:
    class Plain(PeriodicHook):
        def run(self, context: HookContext) -> dict[str, Any] | None:
            return None

    hook = Plain(frequency=5)
    assert (hook.frequency, hook.start_step) == (5, 0)

    EvaluationHook(
        frequency=100,  # How often to run
        n_examples=64,  # Number of evaluation examples
        eval_type="eval",  # Type of evaluation
        evaluate_all_lessons=True,  # Evaluate all or just current lesson
    )
    for cls in (LoggingHook, MetricsHook, CheckpointHook, CompositeHook):
        assert issubclass(cls, Hook)


def test_basic_usage(config: RolloutWorkerConfig, caplog: pytest.LogCaptureFixture) -> None:
    # Create worker with config
    worker = RolloutWorker(config)

    # Register a custom evaluation hook
    custom_eval = EvaluationHook(frequency=50, n_examples=32, eval_type="custom_eval")
    worker.register_hook(custom_eval)

    # Add logging
    logging_hook = LoggingHook(frequency=100)
    worker.register_hook(logging_hook)

    with caplog.at_level(logging.INFO, logger="hookline.hooks"):
        worker.run(steps=100)
    assert worker.tracker.latest["custom_eval/cartpole/episodes"] == 32
    assert worker.tracker.latest["micro_eval/cartpole/episodes"] == 8
    assert worker.tracker.latest["eval/cartpole/episodes"] == 64
    assert [record.message for record in caplog.records if "step 100, lesson 'cartpole'" in record.message]


class CustomMonitoringHook(PeriodicHook):
    """Monitor rollout generation health."""

    def __init__(self):
        super().__init__(frequency=25)
        self.metrics = []

    def run(self, context: HookContext) -> dict[str, Any] | None:
        # Collect custom metrics
        metrics = {
            "monitoring.step": context.step,
            "monitoring.lesson": context.lesson_id,
            "monitoring.timestamp": time.time(),
        }
        self.metrics.append(metrics)

        # Log to worker's tracker
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


def test_custom_hook_implementation(worker: RolloutWorker) -> None:
    # Register the custom hook
    worker.register_hook(CustomMonitoringHook())

    (hook,) = worker.get_hooks()
    worker.run(steps=50)
    assert [metrics["monitoring.step"] for metrics in hook.metrics] == [25, 50]
    assert worker.tracker.latest["monitoring.lesson"] == "cartpole"


def test_monkey_patching_as_before(config: RolloutWorkerConfig) -> None:
    worker = RolloutWorker(config)

    # OLD: Monkey-patching approach
    def mock_evaluate_lesson(self, *args, **kwargs):
        return {"mocked": True}

    worker._evaluate_lesson = mock_evaluate_lesson

    worker.run(steps=10)
    assert worker.tracker.latest["micro_eval/cartpole/mocked"] is True


def test_testing_with_hooks(worker: RolloutWorker) -> None:
    # NEW: Hook-based approach
    class TestEvaluationHook(Hook):
        def __init__(self):
            self.evaluations = []

        def should_run(self, context):
            return context.step % 5 == 0

        def run(self, context):
            result = {"test_eval": context.step}
            self.evaluations.append(result)
            return result

    test_hook = TestEvaluationHook()
    worker.register_hook(test_hook)

    # Run worker and check test_hook.evaluations
    worker.run(steps=12)
    assert test_hook.evaluations == [{"test_eval": 5}, {"test_eval": 10}]


def test_dynamic_hook_management(worker: RolloutWorker) -> None:
    HealthMonitoringHook = CustomMonitoringHook  # noqa: N806

    # Add hooks during runtime
    health_monitor = HealthMonitoringHook()
    worker.register_hook(health_monitor)
    assert worker.get_hooks() == [health_monitor]

    # Remove hooks when no longer needed
    assert worker.unregister_hook(health_monitor)
    assert not worker.unregister_hook(health_monitor)

    # Clear all hooks (useful for testing)
    worker.register_hook(health_monitor)
    worker.clear_hooks()

    # Get current hooks
    current_hooks = worker.get_hooks()
    assert current_hooks == []


def test_migration_for_existing_code(config: RolloutWorkerConfig) -> None:
    # No changes needed - default hooks are registered automatically
    worker = RolloutWorker(config)
    # Micro-eval and full eval will run as before
    micro, full = worker.get_hooks()
    assert (micro.frequency, micro.eval_type, micro.evaluate_all_lessons) == (10, "micro_eval", False)
    assert (full.frequency, full.eval_type, full.evaluate_all_lessons) == (100, "eval", True)


def test_migration_for_custom_evaluation(config: RolloutWorkerConfig, caplog: pytest.LogCaptureFixture) -> None:
    # Before: Modifying evaluation frequencies required config changes
    config.curriculum_config.micro_eval_frequency = 5
    config.curriculum_config.eval_frequency = 50
    worker = RolloutWorker(config)
    assert [hook.frequency for hook in worker.get_hooks()] == [5, 50]

    # After: Add custom hooks without changing config
    worker.register_hook(EvaluationHook(frequency=5, n_examples=2))
    worker.register_hook(EvaluationHook(frequency=50, n_examples=2))
    assert len(worker.get_hooks()) == 4

    with caplog.at_level(logging.WARNING):
        worker.run(steps=60)
    # At step 50 all three evaluations fall together, each of the later two saying so once.
    assert len(caplog.records) == 2


def test_migration_for_tests(worker: RolloutWorker) -> None:
    CustomTestHook = CustomMonitoringHook  # noqa: N806

    def mock_method(*args, **kwargs):
        return {"mocked": True}

    # Before
    original_method = worker._evaluate_lesson
    worker._evaluate_lesson = mock_method
    try:
        # run test
        assert worker.evaluate() == {"eval/cartpole/mocked": True}
    finally:
        worker._evaluate_lesson = original_method

    # After
    test_hook = CustomTestHook()
    worker.register_hook(test_hook)
    # run test
    worker.run(steps=25)
    worker.unregister_hook(test_hook)
    worker.run(steps=25)
    assert len(test_hook.metrics) == 1


class Results:
    """Notes at which steps a hook has run, by its results."""

    def __init__(self, ran):
        self.ran = ran

    @hookimpl(trylast=True)
    def on_rollout_end(self, context):
        self.ran += context.metadata["hook_results"].values()


def test_hook_configuration(worker: RolloutWorker) -> None:
    class ConfigurableHook(PeriodicHook):
        def __init__(self, frequency=100, threshold=0.9, enabled=True):
            super().__init__(frequency)
            self.threshold = threshold
            self.enabled = enabled

        def should_run(self, context):
            return self.enabled and super().should_run(context)

        def run(self, context):
            return {"ran": context.step}

    assert ConfigurableHook().should_run(HookContext(worker, step=100))
    assert not ConfigurableHook(enabled=False).should_run(HookContext(worker, step=100))

    hook, ran = ConfigurableHook(frequency=4), []
    worker.register_hook(hook)
    worker.plugins.register(Results(ran))
    for enabled in (True, False, True):
        hook.enabled = enabled
        worker.run(steps=7)
    assert ran == [4, 16, 20]


def test_testing_hooks() -> None:
    class CustomHook(PeriodicHook):
        def __init__(self):
            super().__init__(frequency=50)

        def run(self, context):
            return {"expected_key": jrandom.uniform(context.rng)}

    mock_worker = SimpleNamespace()

    def test_custom_hook():
        hook = CustomHook()
        context = HookContext(worker=mock_worker, step=100, rng=jrandom.PRNGKey(42))

        # Test should_run logic
        assert hook.should_run(context)

        # Test run logic
        result = hook.run(context)
        assert "expected_key" in result

    test_custom_hook()
    manager = HookManager()
    manager.register_hook(CustomHook())
    results = manager.run_hooks(HookContext(worker=mock_worker, step=100, rng=jrandom.PRNGKey(42)))
    assert isinstance(results["expected_key"], jnp.ndarray)


def test_conditional_hooks() -> None:
    class ConditionalHook(Hook):
        def __init__(self):
            self.ran = []

        def should_run(self, context):
            # Run only when specific conditions are met
            return (
                context.step > 1000
                and context.lesson_id == "advanced_lesson"
                and context.metadata.get("performance") > 0.8
            )

        def run(self, context):
            self.ran.append(context.step)

    curriculum = CurriculumConfig([Lesson("advanced_lesson")], eval_frequency=None, micro_eval_frequency=None)
    worker = RolloutWorker(RolloutWorkerConfig(curriculum))
    hook = ConditionalHook()
    worker.register_hook(hook)
    worker.step = 998
    worker.run(steps=4)
    assert hook.ran == [1001, 1002]


def test_stateful_hooks(worker: RolloutWorker) -> None:
    class StatefulHook(PeriodicHook):
        def __init__(self):
            super().__init__(frequency=50)
            self.state = {"runs": 0, "total_reward": 0}

        def run(self, context):
            self.state["runs"] += 1
            reward = context.metadata.get("reward", 0)
            self.state["total_reward"] += reward

            return {"avg_reward": self.state["total_reward"] / self.state["runs"]}

    hook = StatefulHook()
    worker.register_hook(hook)
    worker.run(steps=100)
    assert hook.state["runs"] == 2
    assert hook.state["total_reward"] > 10


def test_hook_composition(worker: RolloutWorker) -> None:
    # Combine multiple hooks into one
    composite = CompositeHook(
        [
            EvaluationHook(frequency=100, n_examples=8),
            LoggingHook(frequency=50),
            MetricsHook(frequency=25, metrics_fn=lambda context: {"quarter": context.step}),
        ]
    )
    worker.register_hook(composite)
    worker.run(steps=100)
    logged = [entry.step for entry in worker.tracker.entries if "quarter" in entry.metrics]
    assert logged == [25, 50, 75, 100]
    assert worker.tracker.latest["eval/cartpole/episodes"] == 8


def test_debugging(worker: RolloutWorker, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("hookline.hooks").setLevel(logging.DEBUG)
    try:
        worker.register_hook(CustomMonitoringHook())
        worker.run(steps=25)
    finally:
        logging.getLogger("hookline.hooks").setLevel(logging.NOTSET)
    (record,) = [record for record in caplog.records if record.name == "hookline.hooks"]
    assert "hook 'CustomMonitoringHook' ran at step 25 (lesson 'cartpole')" in record.message
    assert "monitoring.step, monitoring.lesson, monitoring.timestamp" in record.message
