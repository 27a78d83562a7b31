"""Hookline's plugins inside Lightning.

Installing this distribution is enough: Lightning finds `hookline_lightning.factory` by its entry point, and every
`trainer.fit(...)` is a run of Hookline's. By hand, with a folder of your own:

    trainer = Trainer(callbacks=[HooklineCallback(run_dir="runs/mine")])
"""

from hookline_lightning.callback import HooklineCallback

__all__ = ["HooklineCallback"]
