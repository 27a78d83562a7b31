"""The learner: turns minibatches into updates of a policy.

- `learner.py` reads top to bottom: losses, gradient, clipping, optimizer.
- `optimizers.py` finds optimizers by name and computes learning-rate schedules.
- `data_parallel.py` combines the gradients of ranks that each hold the whole policy.
- `fsdp2.py` does the same for ranks that each hold a shard of it.
- `fused_ppo.py` is a hand-written fast path for a small MLP on a CPU. It is optional and changes no result.
"""

from hookline.training.learner.learner import Learner

__all__ = ["Learner"]
