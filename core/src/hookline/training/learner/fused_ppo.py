"""PPO on a small MLP with a hand-written gradient: the same step as autograd's, several times faster.

For networks this small, the overhead of autograd and of optimizer calls exceeds the arithmetic. Here forward, losses
and backward are a few dozen NumPy and BLAS calls. All parameters lie in one buffer that one fused kernel updates. The
learner uses this path where `fused_ppo` returns one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hookline.policies.mlp_torch import ActorCritic
from hookline.policies.protocol import Discrete
from hookline.training.config import OptimizerConfig
from hookline.training.experience import Experience
from hookline.training.learner.data_parallel import Batch
from hookline.training.learner.learner import Gradient
from hookline.training.losses.loss import Loss
from hookline.training.losses.ppo_actor import MAX_WEIGHT, PPOActor
from hookline.training.losses.ppo_critic import PPOCritic
from hookline_hookspecs import TrainerState

__all__ = ["FlatAdam", "FusedPPO", "fused_ppo"]

Layer = tuple[Tensor, Tensor]
"""Weight (outputs x inputs) and bias, both with a gradient."""

KNOWN_OPTIONS: Final = frozenset({"betas", "eps", "weight_decay"})


def fused_ppo(policy: nn.Module, losses: Sequence[Loss], optimizer: OptimizerConfig) -> FusedPPO | None:
    """The hand-written step if it is equivalent for this policy, losses and optimizer; else None."""
    kinds = {(p.device.type, p.dtype, p.requires_grad) for p in policy.parameters()}
    fits = (
        type(policy) is ActorCritic  # a subclass of the policy or a loss may compute something else
        and isinstance(policy.policy.actions, Discrete)
        and kinds in ({("cpu", torch.float32, True)}, {("cpu", torch.float64, True)})
        and all(type(loss) in (PPOActor, PPOCritic) for loss in losses)
        and optimizer.name.lower() in ("adam", "adamw")
        and KNOWN_OPTIONS.issuperset(optimizer.options)
    )
    return FusedPPO(policy, optimizer) if fits and isinstance(policy, ActorCritic) else None


class FusedPPO:
    """Gradients and updates of one actor-critic."""

    def __init__(self, policy: ActorCritic, optimizer: OptimizerConfig) -> None:
        self.optimizer = FlatAdam(list(policy.parameters()), optimizer)
        self._gradient = self.optimizer.gradient
        self._actor, self._critic = _layers(policy.actor), _layers(policy.critic)

    def supports(self, losses: Sequence[Loss]) -> bool:
        return all(type(loss) in (PPOActor, PPOCritic) for loss in losses)

    @torch.no_grad()
    @np.errstate(all="ignore")  # no warnings about infinities, as in torch: the learner checks for them
    def gradient(
        self, losses: Sequence[Loss], batch: Batch | None, state: TrainerState, experience: Experience | None
    ) -> Gradient:
        del experience
        assert batch is not None  # a single rank has all rows
        self.optimizer.zero_grad()
        values: list[float] = []
        stats: dict[str, float] = {}
        for loss in losses:
            if isinstance(loss, PPOActor):
                value, numbers = self._actor_gradient(loss, batch, state)
                stats |= {f"{loss.name}/{name}": number for name, number in numbers.items()}
            else:
                assert isinstance(loss, PPOCritic)
                value = self._critic_gradient(loss, batch)
            values.append(value)
        return Gradient(values, torch.linalg.vector_norm(self._gradient).item(), stats)

    def apply(self, norm: float | Tensor, max_norm: float | None) -> None:
        if max_norm is not None and norm > max_norm:
            self._gradient.mul_(max_norm / (float(norm) + 1e-6))
        self.optimizer.step()

    def _actor_gradient(self, loss: PPOActor, batch: Batch, state: TrainerState) -> tuple[float, dict[str, float]]:
        config, clip = loss.config, loss.clip(state)
        advantages = loss.of_batch(batch, "advantages").numpy()
        rows = advantages.size
        if config.normalize_advantages:
            centred = advantages - advantages.sum() / rows
            advantages = centred / (math.sqrt(centred @ centred / max(rows - 1, 1)) + 1e-8)

        *inputs, outputs = _forward(self._actor, batch["obs"])
        logits = outputs.numpy()
        shifted = logits - logits.max(-1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(-1, keepdims=True)
        logprobs, probs = shifted - np.log(sums), exponentials / sums
        entropies = -(probs * logprobs).sum(-1)
        chosen = (np.arange(rows), batch["actions"].numpy())

        old = batch["logprobs"].numpy()
        proximal = batch["proximal_logprobs"].numpy() if "proximal_logprobs" in batch else old
        if proximal is not old:  # the weight of a row is a factor of its advantage
            advantages = advantages * np.exp(proximal - old).clip(max=MAX_WEIGHT)
        log_ratio = logprobs[chosen] - proximal
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1 - clip, 1 + clip)
        plain, limited = ratio * advantages, clipped * advantages
        surrogate = np.minimum(plain, limited).sum() / rows
        entropy = entropies.sum() / rows

        # d ratio / d logprob is the ratio itself. Where the clipped term is smaller, the gradient is zero.
        of_logprob = np.where(plain > limited, 0, plain) * (-loss.weight / rows)
        # d log p(a) / d logit_i = [i = a] - p_i, and d H / d logit_i = -p_i (log p_i + H).
        of_logits = -of_logprob[:, None] * probs
        of_logits[chosen] += of_logprob
        if config.entropy:
            of_logits += (loss.weight * config.entropy / rows) * probs * (logprobs + entropies[:, None])
        _backward(self._actor, inputs, torch.from_numpy(of_logits.astype(logits.dtype, copy=False)))
        return float(-(surrogate + config.entropy * entropy)), {
            "entropy": float(entropy),
            "approx_kl": float((ratio - log_ratio).sum() / rows - 1),
            "clip_fraction": np.count_nonzero(ratio != clipped) / rows,
        }

    def _critic_gradient(self, loss: PPOCritic, batch: Batch) -> float:
        returns, clip = loss.of_batch(batch, "returns").numpy(), loss.config.clip
        *inputs, outputs = _forward(self._critic, batch["obs"])
        values, rows = outputs.numpy()[:, 0], returns.size
        gradient = values - returns  # of half the squared error
        error = gradient**2
        if clip is not None:
            old = batch["values"].numpy()
            limited = (old + (values - old).clip(-clip, clip) - returns) ** 2
            # The loss is the larger of the two. Where that is the clipped one, the gradient is zero. A value that is
            # not clipped may differ from `old + (value - old)` by rounding alone.
            gradient = np.where((limited > error) & (np.abs(values - old) > clip), 0, gradient)
            error = np.maximum(error, limited)
        of_values = (gradient * (loss.weight / rows)).astype(values.dtype, copy=False)
        _backward(self._critic, inputs, torch.from_numpy(of_values[:, None]))
        return float(0.5 * error.sum() / rows)


def _layers(modules: nn.ModuleList) -> list[Layer]:
    return [(layer.weight, layer.bias) for layer in cast(Iterable[nn.Linear], modules)]


def _forward(layers: Sequence[Layer], x: Tensor) -> list[Tensor]:
    """The input of each layer, and the output of the last one."""
    activations = [x]
    for weight, bias in layers[:-1]:
        x = linear(x, weight, bias)
        array = x.numpy()
        np.tanh(array, out=array)  # six times faster than torch's
        activations.append(x)
    activations.append(linear(x, *layers[-1]))
    return activations


def _backward(layers: Sequence[Layer], inputs: Sequence[Tensor], g: Tensor) -> None:
    """Backpropagate the gradient `g` of the last layer's output; add to the parameters' gradients."""
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


class FlatAdam:
    """Adam or AdamW over parameters in one buffer, with the state dict of `torch.optim`.

    The parameters become views of one buffer and their gradients views of another, so the update, the norm and zeroing
    are one call each. torch's own optimizers also import its compiler, which takes a second in each process.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = parameters
        self._kernel = torch._fused_adam_ if config.name.lower() == "adam" else torch._fused_adamw_
        decay = 0.0 if config.name.lower() == "adam" else 0.01
        options = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": decay, **config.options}
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": config.learning_rate, **options}]
        self._values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradient, self._mean, self._variance = (torch.zeros_like(self._values) for _ in range(3))
        self._step = torch.zeros((), dtype=torch.float32)
        self._gradient_views = self._views(self.gradient)
        for parameter, view in zip(parameters, self._views(self._values), strict=True):
            parameter.data = view
        self.zero_grad()

    def _views(self, buffer: Tensor) -> list[Tensor]:
        parts = torch.split_with_sizes(buffer, [parameter.numel() for parameter in self._parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]

    def zero_grad(self) -> None:
        """Set all gradients to zero in place."""
        self.gradient.zero_()
        # The module's `zero_grad()` removes the views.
        if self._parameters[0].grad is not self._gradient_views[0]:
            for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
                parameter.grad = view

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters from their gradients."""
        (group,) = self.param_groups
        self._step += 1
        self._kernel(
            [self._values],
            [self.gradient],
            [self._mean],
            [self._variance],
            [],
            [self._step],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """In the format of `torch.optim.Adam`. The state is empty before the first step."""
        moments = zip(self._views(self._mean), self._views(self._variance), strict=True)
        state = {
            number: {"step": self._step.clone(), "exp_avg": mean, "exp_avg_sq": variance}
            for number, (mean, variance) in enumerate(moments)
        }
        group = {**self.param_groups[0], "params": list(range(len(self._parameters)))}
        return {"state": state if self._step > 0 else {}, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state, also one of `torch.optim`'s Adam or AdamW over the same parameters."""
        (group,) = state_dict["param_groups"]
        known = self.param_groups[0].keys() - {"params"}
        self.param_groups[0].update({name: group[name] for name in known})
        state = state_dict["state"]
        self._step.fill_(float(state[0]["step"]) if state else 0.0)
        for buffer, name in ((self._mean, "exp_avg"), (self._variance, "exp_avg_sq")):
            for number, view in enumerate(self._views(buffer)):
                view.copy_(state[number][name]) if state else view.zero_()
