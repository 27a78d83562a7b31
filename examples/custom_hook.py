"""A hook of your own: it stops a CartPole run as soon as the mean return reaches a target.

    python examples/custom_hook.py [TARGET_RETURN]

A hook is a plugin object that you pass to a run. With an entry point, `hookline train` would find the same class.
"""

import sys

import hookline
from hookline_hookspecs import HookContext, Rollout, TrainerState, hookimpl


class StopWhenGoodEnough:
    """Stops the run once the mean return of the latest 20 episodes reaches the target."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.returns: list[float] = []

    @hookimpl
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self.returns += [episode.reward for episode in rollout.episodes if episode.reward is not None]
        context.worker.tracker.log({"episodes_seen": len(self.returns)}, step=context.step)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        latest = self.returns[-20:]
        mean = sum(latest) / max(len(latest), 1)
        if len(latest) == 20 and mean >= self.target:
            state.stop_reason = f"a mean return of {mean:.0f} after epoch {state.epoch}"


def main(target: float) -> None:
    trainer = hookline.train("cartpole", epochs=60, hooks=[StopWhenGoodEnough(target)])
    print("stopped early:", trainer.state.stop_reason or "no, the epochs were over first")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
