"""`MLPPolicy` on a minibatch, and its gradient, by hand: the same as `ActorCritic.evaluate_actions` and autograd give.

Networks this small are over before autograd has written down what they did: recording each operation, and playing the
record back, takes longer than the numbers. Here the backward pass is written as one derives it on paper, and adds to
the gradients of the parameters where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["EvaluateDiscrete", "Layer"]

Layer = tuple[Tensor, Tensor]
"""Weight (outputs x inputs) and bias."""


class EvaluateDiscrete:
    """Evaluates actions that were taken; the parameters must have gradients to add to."""

    def __init__(self, actor: Sequence[Layer], critic: Sequence[Layer]) -> None:
        self._actor = actor
        self._critic = critic

    def __call__(self, obs: Tensor, actions: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Callable[[], None]]:
        """Log-probabilities, entropy and values as new leaves, and what carries their gradients on to the parameters.

        :param obs: (rows, inputs).
        :param actions: one number for each row.
        """
        with torch.no_grad():
            *actor_inputs, outputs = _perceptron(self._actor, obs)
            *critic_inputs, values = _perceptron(self._critic, obs)
        logits = outputs.numpy()
        shifted = logits - logits.max(-1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(-1, keepdims=True)
        logprobs, probs = shifted - np.log(sums), exponentials / sums
        entropy = -(probs * logprobs).sum(-1)
        chosen = (np.arange(len(logits)), actions.numpy())
        leaves = torch.from_numpy(logprobs[chosen]), torch.from_numpy(entropy), values.squeeze(-1).detach()
        for leaf in leaves:
            leaf.requires_grad_()

        def pull_back() -> None:
            of_logprob, of_entropy, of_value = (leaf.grad for leaf in leaves)
            of_logits = np.zeros_like(probs)
            if of_logprob is not None:  # d log p(a) / d logit_i is 1 for i = a, less p_i
                slope = of_logprob.numpy()
                of_logits -= slope[:, None] * probs
                of_logits[chosen] += slope
            if of_entropy is not None:  # d H / d logit_i is -p_i (log p_i + H)
                of_logits -= of_entropy.numpy()[:, None] * probs * (logprobs + entropy[:, None])
            with torch.no_grad():
                _pull_back(self._actor, actor_inputs, torch.from_numpy(of_logits))
                if of_value is not None:
                    _pull_back(self._critic, critic_inputs, of_value.unsqueeze(-1))

        return leaves, pull_back


def _perceptron(layers: Sequence[Layer], x: Tensor) -> list[Tensor]:
    """What each layer has for its input, and what the last one gives."""
    found = [x]
    for weight, bias in layers[:-1]:
        x = linear(x, weight, bias)
        array = x.numpy()
        np.tanh(array, out=array)  # a sixth of the time of torch's
        found.append(x)
    found.append(linear(x, *layers[-1]))
    return found


def _pull_back(layers: Sequence[Layer], inputs: Sequence[Tensor], g: Tensor) -> None:
    """Add to the parameters' gradients, from the gradient of what the last layer gave."""
    for depth in reversed(range(len(layers))):
        weight, bias = layers[depth]
        x = inputs[depth]
        assert weight.grad is not None
        assert bias.grad is not None
        # y = x W' + b, so dL/dW = g' x, dL/db is g summed over the rows, and dL/dx = g W.
        weight.grad.addmm_(g.t(), x)
        bias.grad.add_(g.sum(0))
        if depth:
            g = torch.ops.aten.tanh_backward(g.mm(weight), x)  # x = tanh(z), so dL/dz = dL/dx (1 - x^2)
