"""The options of the evaluation plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hookline_hookspecs import EvaluationRequest

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What is evaluated, how often, and in which process."""

    mode: Literal["in-process", "workers", "background", "remote"] = "in-process"
    """`in-process`: training waits. `workers`: it waits for the workers of its source of rollouts, which play the
    lessons. `background`: a child process evaluates checkpoints while training goes on. `remote`: the server at `url`
    evaluates them."""
    every: int | None = None
    """Epochs between two full evaluations. None for about ten in a run, every 10 epochs of up to 100, every 20 of up to
    200, and so on; or for none by epochs where `every_steps` is given."""
    every_steps: int | None = None
    """Gradient steps between two full evaluations, also in the middle of an epoch; None for none by steps. Evaluations
    of checkpoints take the newest one."""
    lessons: tuple[str, ...] = ()
    """The lessons of a full evaluation; empty means all."""
    n_examples: int = 64
    """Examples or episodes for each lesson."""
    greedy: bool = True
    """Take the most likely action or token; false samples."""
    samples_per_problem: int = 1
    """Responses to each problem of a text lesson; more than one needs `greedy = false`."""
    pass_at: tuple[int, ...] = ()
    """The k of each pass@k to compute, at most `samples_per_problem`."""
    seed: int = 0
    """The seed of each evaluation. Fixed, so that runs are comparable."""
    micro_every: int | None = None
    """Epochs between two micro evaluations, which are short and of the current lesson only; None for none."""
    micro_n_examples: int = 8
    """Examples or episodes of a micro evaluation."""
    replays: int = 2
    """How many episodes of each lesson a full evaluation saves as a replay."""
    url: str | None = None
    """The URL of the evaluation server, for `mode = "remote"`. Its token is in HOOKLINE_EVALUATION_TOKEN."""
    timeout_seconds: float = 600.0
    """How long an evaluation of a checkpoint may take."""
    deadline_seconds: float = 60.0
    """How long the end of the run waits for evaluations of checkpoints. Then they are stopped."""

    def __post_init__(self) -> None:
        at_least_one = {
            "every": 1 if self.every is None else self.every,
            "every_steps": 1 if self.every_steps is None else self.every_steps,
            "n_examples": self.n_examples,
            "samples_per_problem": self.samples_per_problem,
            "micro_every": 1 if self.micro_every is None else self.micro_every,
            "micro_n_examples": self.micro_n_examples,
        }
        for name, value in at_least_one.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.replays < 0:
            raise ValueError(f"replays must be 0 or more, got {self.replays}")
        if self.greedy and self.samples_per_problem > 1:
            raise ValueError(
                f"samples_per_problem is {self.samples_per_problem}, but greedy is true, so all samples of a problem "
                "would be the same. Set greedy = false"
            )
        for k in self.pass_at:
            if not 1 <= k <= self.samples_per_problem:
                raise ValueError(f"pass_at has {k}, but samples_per_problem is {self.samples_per_problem}")
        if self.mode == "remote":
            from hookline.http.requests import url_problem  # imported here so that listing plugins stays quick

            problem = url_problem(self.url, "HOOKLINE_EVALUATION_TOKEN")
            if problem is not None:
                raise ValueError(f"mode is 'remote', but url {problem}")

    def full_interval(self, total_epochs: int | None) -> int | None:
        """Epochs between two full evaluations of a run of this length; None for none by epochs."""
        if self.every is not None or self.every_steps is not None:
            return self.every
        # Five times as many as between two checkpoints, or a few tens: an epoch that is evaluated is one that is saved.
        return 10 * max(1, -(-(total_epochs or 0) // 100))

    def full_request(self) -> EvaluationRequest:
        return EvaluationRequest(
            kind="full",
            lessons=self.lessons,
            n_examples=self.n_examples,
            greedy=self.greedy,
            seed=self.seed,
            samples_per_problem=self.samples_per_problem,
            pass_at=self.pass_at,
            replays=self.replays,
            on_workers=self.mode == "workers",
        )

    def micro_request(self) -> EvaluationRequest:
        return EvaluationRequest(
            kind="micro",
            n_examples=self.micro_n_examples,
            greedy=self.greedy,
            seed=self.seed,
            on_workers=self.mode == "workers",
        )
