"""The rollout worker: it samples a lesson from a curriculum, plays it with the current weights, and announces it.

    worker = RolloutWorker(RolloutWorkerConfig())       # a small CartPole worker
    worker.run(steps=100)
    rollouts = worker.take_rollouts()

Importing this package imports no framework; a worker imports JAX when it is made, and never torch.
"""

from hookline.rollout.config import RolloutWorkerConfig, SamplingConfig
from hookline.rollout.coordinator import create_rollout_coordinator
from hookline.rollout.curriculum import Curriculum, CurriculumConfig, Lesson
from hookline.rollout.tracker import TrackedNumbers
from hookline.rollout.worker import RolloutWorker

__all__ = [
    "Curriculum",
    "CurriculumConfig",
    "Lesson",
    "RolloutWorker",
    "RolloutWorkerConfig",
    "SamplingConfig",
    "TrackedNumbers",
    "create_rollout_coordinator",
]
