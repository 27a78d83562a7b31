"""Hookline's plugins inside stable-baselines3.

from stable_baselines3 import PPO
from hookline_sb3 import HooklineCallback

model = PPO("MlpPolicy", "CartPole-v1", seed=1)
with HooklineCallback("runs/cartpole") as hookline:
    model.learn(100_000, callback=hookline)
"""

from hookline_sb3.callback import HooklineCallback

__all__ = ["HooklineCallback"]
