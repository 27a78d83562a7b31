"""The rollout worker samples a lesson from a curriculum, plays it with the current weights, and emits events.

    worker = RolloutWorker(RolloutWorkerConfig())       # a small CartPole worker
    rollout = worker.rollout()

Importing this package imports no framework. Creating a worker imports JAX, but never torch.
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
