"""A loop of its own without torch, for interpreters that torch is not installed for.

    python tests/numpy_loop.py RUN_DIR [--resume] [--kill-in EPOCH]

A linear policy learns by REINFORCE in NumPy, with every installed plugin. It prints the digest of its weights, which
is the same for a run that was killed and resumed as for one that was not.
"""

import argparse
import hashlib
import os
import signal

import numpy as np

from hookline.session import open_session

EPOCHS, STEPS, BATCH = 12, 4, 64


class Policy:
    """Logits of three actions, linear in two observations."""

    def __init__(self) -> None:
        self.weights = np.zeros((2, 3))

    def probabilities(self, obs: np.ndarray) -> np.ndarray:
        logits = obs @ self.weights
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.weights = np.array(state["weights"])


class Momentum:
    """Gradient ascent with momentum."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.velocity = np.zeros_like(policy.weights)

    def step(self, gradient: np.ndarray) -> None:
        self.velocity = 0.9 * self.velocity + gradient
        self.policy.weights = self.policy.weights + 0.3 * self.velocity

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.velocity = np.array(state["velocity"])


def reinforce(policy: Policy, optimizer: Momentum, rng: np.random.Generator) -> float:
    """One step; the right action is the number of observations above zero. Returns the mean reward."""
    obs = rng.standard_normal((BATCH, 2))
    probabilities = policy.probabilities(obs)
    actions = (rng.random((BATCH, 1)) > probabilities.cumsum(axis=1)[:, :-1]).sum(axis=1)
    rewards = (actions == (obs > 0).sum(axis=1)).astype(float)
    advantages = rewards - rewards.mean()
    optimizer.step(obs.T @ (advantages[:, None] * (np.eye(3)[actions] - probabilities)) / BATCH)
    return float(rewards.mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-in", type=int)
    told = parser.parse_args()
    policy = Policy()
    optimizer = Momentum(policy)
    rewards = []
    with open_session(
        told.run_dir, policy=policy, optimizer=optimizer, total_epochs=EPOCHS, resume=told.resume
    ) as session:
        for epoch in session.epochs():
            rng = np.random.default_rng([7, epoch])
            for step in range(STEPS):
                if (epoch, step) == (told.kill_in, STEPS - 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                session.begin_step()
                rewards.append(reinforce(policy, optimizer, rng))
                session.end_step({"train/reward": rewards[-1]})
    assert len(rewards) == EPOCHS * STEPS or told.resume, "a run that was not resumed has all steps"
    print(hashlib.sha256(policy.weights.tobytes()).hexdigest(), len(rewards), f"{rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
