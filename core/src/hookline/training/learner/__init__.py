"""The learner: turns minibatches into updates of a policy.

`learner.py` reads top to bottom: losses, gradient, clipping, optimizer. `optimizers.py` finds optimizers by name and
knows the learning-rate schedules. `data_parallel.py` is what ranks do together, and `fsdp2.py` the same where each
holds a part of the policy. `fused_ppo.py` is the one hand-written step, for a small MLP on a CPU; without that
file everything works the same, only slower.
"""

from hookline.training.learner.learner import Learner

__all__ = ["Learner"]
