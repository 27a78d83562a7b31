"""A hook of your own: it stops a run as soon as CartPole is balanced well enough.

    python examples/custom_hook.py [WANTED_RETURN]

A hook is a plugin that you have at hand: the same class, given an entry point, would be found by `hookline train`.
"""

import sys

import hookline
from hookline_hookspecs import HookContext, Rollout, TrainerState, hookimpl


class StopWhenGoodEnough:
    """Ends the run once the mean return of the latest 20 episodes is what was wanted."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.returns: list[float] = []

    @hookimpl
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self.returns += [episode.reward for episode in rollout.episodes if episode.reward is not None]
        context.worker.tracker.log({"episodes_seen": len(self.returns)}, step=context.step)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        latest = self.returns[-20:]
        mean = sum(latest) / max(len(latest), 1)
        if len(latest) == 20 and mean >= self.wanted:
            state.stop_reason = f"a mean return of {mean:.0f} after epoch {state.epoch}"


def main(wanted: float) -> None:
    trainer = hookline.train("cartpole", epochs=60, hooks=[StopWhenGoodEnough(wanted)])
    print("stopped early:", trainer.state.stop_reason or "no, the epochs were over first")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
