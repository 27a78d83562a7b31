"""The learner: turns minibatches into updates of a policy.

`learner.py` reads top to bottom: losses, gradient, clipping, optimizer. `optimizers.py` finds optimizers by name and
knows the learning-rate schedules. `fused_ppo.py` is the one hand-written step, for a small MLP on a CPU; without that
file everything works the same, only slower.
"""

from hookline.training.learner.learner import Learner

__all__ = ["Learner"]
