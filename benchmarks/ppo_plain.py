"""The baseline: PPO on CartPole in one file and one function, as it is usually written, with CleanRL's hyperparameters.

    python benchmarks/ppo_plain.py [ITERATIONS]         # prints environment steps per second, of the median iteration

Our own text, after the published description of `ppo.py` (Huang et al., 2022): 4 environments, 128 steps, 4
minibatches, 4 epochs, learning rate 2.5e-4 annealed, clip 0.2 for policy and value, entropy 0.01, value 0.5, gradient
norm 0.5, gamma 0.99, lambda 0.95, two networks of 64-64 tanh.
"""

from __future__ import annotations

import math
import statistics
import sys
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

ENVIRONMENTS, STEPS, MINIBATCHES, EPOCHS = 4, 128, 4, 4
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP = 2.5e-4, 0.99, 0.95, 0.2
ENTROPY, VALUE, MAX_NORM = 0.01, 0.5, 0.5


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def network(outputs: int, gain: float) -> nn.Sequential:
    root = math.sqrt(2)
    return nn.Sequential(layer(4, 64, root), nn.Tanh(), layer(64, 64, root), nn.Tanh(), layer(64, outputs, gain))


def train(iterations: int, seed: int = 0) -> list[float]:
    """The environment steps per second of each iteration."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    environments = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS)
    actor, critic = network(2, 0.01), network(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=1e-5)

    obs = torch.zeros(STEPS, ENVIRONMENTS, 4)
    actions = torch.zeros(STEPS, ENVIRONMENTS)
    logprobs = torch.zeros(STEPS, ENVIRONMENTS)
    rewards = torch.zeros(STEPS, ENVIRONMENTS)
    dones = torch.zeros(STEPS, ENVIRONMENTS)
    values = torch.zeros(STEPS, ENVIRONMENTS)
    next_obs = torch.as_tensor(environments.reset(seed=seed)[0])
    next_done = torch.zeros(ENVIRONMENTS)
    batch = ENVIRONMENTS * STEPS
    rates = []
    for iteration in range(iterations):
        start = time.perf_counter()
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / iterations)

        for t in range(STEPS):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                policy = Categorical(logits=actor(next_obs))
                action = policy.sample()  # type: ignore[no-untyped-call]
                values[t] = critic(next_obs).flatten()
            actions[t], logprobs[t] = action, policy.log_prob(action)  # type: ignore[no-untyped-call]
            next_observation, reward, terminated, truncated, _ = environments.step(action.numpy())
            rewards[t] = torch.as_tensor(reward)
            next_obs = torch.as_tensor(next_observation)
            next_done = torch.as_tensor(terminated | truncated, dtype=torch.float32)

        with torch.no_grad():
            advantages = torch.zeros_like(rewards)
            following, last = critic(next_obs).flatten(), torch.zeros(ENVIRONMENTS)
            goes_on = 1 - next_done
            for t in reversed(range(STEPS)):
                delta = rewards[t] + GAMMA * following * goes_on - values[t]
                last = delta + GAMMA * GAE_LAMBDA * goes_on * last
                advantages[t] = last
                following, goes_on = values[t], 1 - dones[t]
            returns = advantages + values

        flat_obs, flat_actions = obs.reshape(-1, 4), actions.reshape(-1)
        flat_logprobs, flat_values = logprobs.reshape(-1), values.reshape(-1)
        flat_advantages, flat_returns = advantages.reshape(-1), returns.reshape(-1)
        for _ in range(EPOCHS):
            order = np.random.permutation(batch)
            for first in range(0, batch, batch // MINIBATCHES):
                rows = order[first : first + batch // MINIBATCHES]
                policy = Categorical(logits=actor(flat_obs[rows]))
                log_ratio = policy.log_prob(flat_actions[rows]) - flat_logprobs[rows]  # type: ignore[no-untyped-call]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - log_ratio).mean()
                    ((ratio - 1).abs() > CLIP).float().mean().item()
                advantage = flat_advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                value = critic(flat_obs[rows]).view(-1)
                target, old = flat_returns[rows], flat_values[rows]
                near = old + torch.clamp(value - old, -CLIP, CLIP)
                value_loss = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                loss = policy_loss - ENTROPY * policy.entropy().mean() + VALUE * value_loss  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
        rates.append(batch / (time.perf_counter() - start))
    environments.close()
    return rates


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(statistics.median(train(int(sys.argv[1]) if len(sys.argv) > 1 else 40)))
