"""A plain PyTorch loop that runs all installed plugins. It needs the few lines that are marked with `# +`.

    python examples/own_loop.py [RUN_DIR]

With the metrics, checkpoint and status plugins installed, the run's folder then has `stats.sqlite`, checkpoints and
`status.json`. Without the marked lines it is the same loop, without Hookline.
"""

import sys

import torch
from torch import nn

from hookline.session import open_session  # +

EPOCHS, BATCH = 12, 32


def main(run_dir: str) -> None:
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 512)[:, None]
    y = torch.sin(x)
    held_out_x, held_out_y = x[::8], y[::8]
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    with open_session(run_dir, policy=model, optimizer=optimizer, total_epochs=EPOCHS) as session:  # +
        for epoch in session.epochs():  # +
            for indices in torch.randperm(len(x)).split(BATCH):
                session.begin_step()  # +
                loss = (model(x[indices]) - y[indices]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.end_step({"train/loss": loss.item()})  # +

            session.begin_validation(is_last_step=epoch == EPOCHS - 1)  # +
            with torch.no_grad():
                held_out = (model(held_out_x) - held_out_y).square().mean().item()
            session.end_validation(held_out)  # +
            print(f"epoch {epoch}: {held_out:.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own-loop")
