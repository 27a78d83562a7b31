"""Use plugins in any training loop: open a session, and announce the events of the run.

    with open_session("runs/mine", policy=model, optimizer=optimizer, total_epochs=10) as session:
        for epoch in session.epochs():
            for batch in batches:
                session.begin_step()
                loss = train_on(batch)
                session.end_step({"train/loss": loss})

The loop may use torch, JAX, MLX or no framework: this package imports none. Hookline's own trainer uses the same
session.
"""

from hookline.session.opening import is_bridge_disabled, open_session
from hookline.session.run_folder import RunFolderError, holds_run
from hookline.session.session import Session, StateTypeError
from hookline.session.signals import Terminated

__all__ = [
    "RunFolderError",
    "Session",
    "StateTypeError",
    "Terminated",
    "holds_run",
    "is_bridge_disabled",
    "open_session",
]
