"""A policy of your own: a torch module made for an environment, trained by PPO.

    python examples/own_policy.py [EPOCHS]

All that PPO needs of it is a forward that returns logits and a value. docs/policies.md has what else a policy may do.
"""

import statistics
import sys

import gymnasium
import torch
from torch import Tensor, nn

import hookline
from hookline.rollout import CurriculumConfig, Lesson
from hookline.training import OptimizerConfig, RolloutConfig, TrainerConfig
from hookline_hookspecs import Rollout, TrainerState, hookimpl


class Agent(nn.Module):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(env.observation_space.shape[0], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        )
        self.logits = nn.Linear(64, int(env.action_space.n))
        self.value = nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(obs)
        return self.logits(x), self.value(x)


class PrintReturns:
    def __init__(self) -> None:
        self.returns: list[float] = []

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        self.returns += [episode.reward for episode in rollout.episodes if episode.reward is not None]

    @hookimpl(every=4)
    def on_epoch_end(self, state: TrainerState) -> None:
        print(f"epoch {state.epoch}: a mean return of {statistics.mean(self.returns[-50:]):.0f}")


def main(epochs: int) -> None:
    torch.manual_seed(0)
    agent = Agent(gymnasium.make("CartPole-v1"))
    config = TrainerConfig(
        epochs=epochs,
        losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None}},
        optimizer=OptimizerConfig(learning_rate=3e-3),
        rollout=RolloutConfig(num_environments=32, steps_per_rollout=64, minibatches=4, update_epochs=8),
    )
    lessons = CurriculumConfig([Lesson("balance", "gymnasium:CartPole-v1")], micro_eval_frequency=None)
    trainer = hookline.train(config, lessons, agent, hooks=[PrintReturns()])
    print("trained:", ", ".join(trainer.policy.state_dict()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
