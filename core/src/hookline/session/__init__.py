"""A run of any training loop, with all installed plugins: open a session, announce the moments you have, close it.

    with open_session("runs/mine", policy=model, optimizer=optimizer, total_epochs=10) as session:
        for epoch in session.epochs():
            for batch in batches:
                session.begin_step()
                loss = train_on(batch)
                session.end_step({"train/loss": loss})

The loop may be of torch, JAX, MLX or nothing of the kind: this package imports no framework. Hookline's own trainer
goes through the same session.
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
