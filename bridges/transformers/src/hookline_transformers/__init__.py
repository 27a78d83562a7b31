"""Hookline's plugins inside the trainers of transformers and TRL.

    callback = HooklineCallback(run_dir="runs/mine")
    trainer = SFTTrainer(model, args, train_dataset=dataset, callbacks=[callback])
    with hookline_run(trainer):
        trainer.train()

`hookline_reward(config)` is a reward function for `GRPOTrainer`, in which rewards, verifiers and filters take part.
"""

from hookline_transformers.callback import HooklineCallback, hookline_run
from hookline_transformers.reward import hookline_reward

__all__ = ["HooklineCallback", "hookline_reward", "hookline_run"]
