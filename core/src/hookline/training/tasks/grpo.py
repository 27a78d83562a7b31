"""`grpo`: reinforcement learning of a Hugging Face policy on text lessons, after a warm start if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from hookline.errors import did_you_mean
from hookline.importing import NamedObject, NotFoundError
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.policies import HuggingFacePolicy
from hookline.rewards import IntegratedRewardConfig
from hookline.rollout import CurriculumConfig, Lesson
from hookline.rollout.text import (
    ARITHMETIC_LEVELS,
    Checker,
    Limits,
    TextEnvironment,
    TextTask,
    arithmetic_lessons,
    exact_match,
)
from hookline.training.config import OptimizerConfig, RolloutConfig, TrainerConfig
from hookline.training.errors import DatasetError, TrainerConfigError
from hookline.training.tasks.sft import POLICY, Share, check_required, examples_of
from hookline.training.tasks.task import Task
from hookline.training.text_examples import read_problems, split
from hookline.training.trainer import Trainer
from hookline.training.warm_start import WarmStart, WarmStartConfig

__all__ = ["GRPOTaskConfig", "LessonConfig", "WarmStartFile", "grpo"]

CHECKERS: Final[Mapping[str, Checker]] = {"exact_match": exact_match}


def _beside_the_file(name: str, info: ValidationInfo) -> str:
    """`file.py:NAME` and `process:file.py` with the path of the run file's folder."""
    if info.context is None or ".py" not in name:
        return name
    process = "process:" if name.startswith("process:") else ""
    return f"{process}{info.context['folder'] / name.removeprefix(process)}"


def _names_as_tables(lessons: Any) -> Any:
    return [{"name": own} if isinstance(own, str) else own for own in lessons] if isinstance(lessons, list) else lessons


@dataclass
class LessonConfig:
    """A text lesson. In a run file, a lesson of which only the name is given may be that name alone."""

    name: str = ""
    """The lesson's name, by default that of the environment. Without `environment` and `dataset`, it names an
    arithmetic lesson or a plugin's environment."""
    environment: Annotated[str | None, AfterValidator(_beside_the_file)] = None
    """A plugin's environment, such as `reasoning-gym:countdown`, or `file.py:NAME`: a text environment of your own, or
    a class or function that makes it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, or arguments of the class or function."""
    dataset: Path | None = None
    """In the place of an environment: a JSONL file of problems, each with `prompt` and `answer`."""
    held_out: Path | None = None
    """A JSONL file of problems for evaluations."""
    held_out_share: Share = 0.0
    """The share of `dataset` that is held out for evaluations, if there is no `held_out`."""
    checker: Annotated[str, AfterValidator(_beside_the_file)] = "exact_match"
    """What rewards a response: `exact_match`, or `file.py:FUNCTION`, a function of the problem and the response."""
    max_new_tokens: int | None = None
    """The maximum length of a response, including its end token. None for the environment's own limit; 16 of a
    dataset."""
    max_turns: int | None = None
    """Responses of the policy in a conversation. None for the environment's own limit."""
    max_tokens: int | None = None
    """Tokens of a conversation. None for the environment's own limit, or the policy's context."""
    seconds: float | None = None
    """For each answer of the environment, and for drawing each problem. None for the environment's own limit."""
    patience: float | None = None
    """Seconds after which a round goes on without the environments that have not answered. None for the environment's
    own limit."""
    success_above: float = 0.0
    """A response is a success when its reward is greater than this."""
    dependencies: dict[str, float] = field(default_factory=dict)
    """The success rate that other lessons must reach before this one is played."""


@dataclass
class WarmStartFile(WarmStartConfig):
    """Supervised epochs before the first rollout."""

    dataset: Path
    """A JSONL file of examples, as for the task `sft`."""


@dataclass
class GRPOTaskConfig(TrainerConfig):
    """The config of the task `grpo`."""

    lessons: Annotated[tuple[LessonConfig, ...], BeforeValidator(_names_as_tables)] = ()
    """The lessons: names of arithmetic lessons or of plugins' environments, and tables. Required."""
    warm_start: WarmStartFile | None = None
    """Supervised training on a dataset until the policy solves a share of each lesson. None for none."""
    rewards: IntegratedRewardConfig | None = None
    """How the reward processor rewards, verifies and filters responses. None for the checkers' rewards."""
    smoothing: float = 0.9
    """The decay of the moving average of a lesson's success, by which lessons are sampled."""


def _build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    assert isinstance(config, GRPOTaskConfig)
    lessons = 'lessons: set lessons = ["addition-2"], or a table with name and dataset for each'
    check_required("grpo", config, {"policy": POLICY, "lessons": lessons})
    assert config.policy is not None
    policy = HuggingFacePolicy(config.policy, config.lora)
    environments = collect_registered(plugins, "register_environments", "an environment")
    warm_start = None
    if config.warm_start is not None:
        options = vars(config.warm_start) | {"dataset": examples_of(config.warm_start.dataset, policy)}
        warm_start = WarmStart(**options)
    return Trainer(
        config,
        # No lesson graduates: the run has its epochs, and held-out problems do not influence it.
        CurriculumConfig(
            [_lesson(own, environments) for own in config.lessons],
            smoothing=config.smoothing,
            micro_eval_frequency=None,
            eval_frequency=None,
            heeds_evaluations=False,
        ),
        policy,
        plugins=plugins,
        rewards=config.rewards,
        warm_start=warm_start,
    )


def _lesson(config: LessonConfig, environments: Mapping[str, Any]) -> Lesson:
    limits = {own.name: getattr(config, own.name) for own in fields(Limits)}
    name = config.environment or config.name
    environment: Any = name
    options = dict(config.options)
    if config.dataset is not None:
        if config.environment is not None:
            raise TrainerConfigError(f"lesson {config.name!r} has an environment and a dataset: give it one of them")
        environment = _text_task(config, config.dataset)
    elif ".py" in name and not name.startswith("process:"):
        environment, options = _from_file(config.name, "environment", name), {}
        if isinstance(environment, type) or not isinstance(environment, TextEnvironment):
            environment = environment(**config.options)
    elif name in ARITHMETIC_LEVELS:
        (lesson,) = arithmetic_lessons(name)
        environment = lesson.environment
    elif name not in environments and ":" not in name:
        known = [*ARITHMETIC_LEVELS, *environments]
        raise TrainerConfigError(
            f"there is no lesson {name!r}{did_you_mean(name, known)}; known are {', '.join(known)}, "
            "and a lesson of your own has an environment or a dataset"
        )
    return Lesson(
        config.name or Path(name).name,
        environment,
        dependencies=dict(config.dependencies),
        success_above=config.success_above,
        options=options,
        limits={own: value for own, value in limits.items() if value is not None},
    )


def _text_task(config: LessonConfig, dataset: Path) -> TextTask:
    problems = read_problems(dataset)
    held_out = None if config.held_out is None else read_problems(config.held_out)
    if held_out is None and config.held_out_share:
        problems, held_out = split(problems, config.held_out_share, lambda problem: problem.prompt)
        if not problems or not held_out:
            raise DatasetError(
                f"lesson {config.name!r}: {dataset} has too few problems for held_out_share = {config.held_out_share}"
            )
    return TextTask(problems, _find_checker(config), held_out=held_out)


def _find_checker(config: LessonConfig) -> Checker:
    if ".py" in config.checker:
        checker: Checker = _from_file(config.name, "checker", config.checker)
        return checker
    if config.checker not in CHECKERS:
        raise TrainerConfigError(
            f"lesson {config.name!r}: there is no checker {config.checker!r}{did_you_mean(config.checker, CHECKERS)}; "
            f"known are {', '.join(CHECKERS)}, and file.py:FUNCTION"
        )
    return CHECKERS[config.checker]


def _from_file(lesson: str, what: str, named: str) -> Any:
    """The object of this name, `file.py:NAME`."""
    reference = NamedObject.parse(named, Path.cwd())
    if reference is None or not reference.attribute:
        raise TrainerConfigError(f"lesson {lesson!r}: its {what} {named!r} is not of the form file.py:NAME")
    try:
        return reference.load()
    except NotFoundError as error:
        raise TrainerConfigError(f"lesson {lesson!r}, its {what}: {error}") from error


grpo = Task(
    _build,
    GRPOTaskConfig(
        epochs=100,
        losses={"grpo": {}},
        optimizer=OptimizerConfig(learning_rate=1e-5, schedule="constant", max_grad_norm=1.0),
        rollout=RolloutConfig(num_environments=16, samples_per_prompt=8, minibatches=1, update_epochs=1),
    ),
)
