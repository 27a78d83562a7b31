"""What a policy must offer. Nothing in Hookline asks for a class of its own: these methods are all there is to it.

A policy is given to the trainer as one of two things:

- a torch module. For control it has the methods of `ControlPolicy`, or a `forward(obs)` that returns `(logits, value)`;
  for text those of `TextPolicy`, or a `forward(tokens)` that returns logits. `hookline.policies.forward_torch` makes
  the methods from the forward. Of `torch.nn.Module`, `parameters`, `state_dict`, `load_state_dict`, `to`, `train` and
  `eval` are used; the names in its state dict stay its own.
- a `PolicySpecification`: plain data that makes such a module, as `MLPPolicy` and `TransformerPolicy` do.

Two things are optional:

- a JAX forward, for fast rollouts: a specification that is also a `JaxControlPolicy` or a `JaxTextPolicy`. A torch
  module offers one by an attribute `specification`. Without it an environment is played by torch, step by step;
  rollouts of text need it.
- `gradient_checkpointing_enable()`, for `learner.gradient_checkpointing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline.errors import HooklineError
from hookline.policies.actions import Actions

if TYPE_CHECKING:
    import jax
    import numpy as np
    from torch import Tensor, nn

__all__ = [
    "Actor",
    "ControlPolicy",
    "JaxControlPolicy",
    "JaxTextPolicy",
    "PolicyError",
    "PolicySpecification",
    "TextPolicy",
    "missing_methods",
]


class PolicyError(HooklineError, TypeError):
    """A policy lacks what its lessons need."""


@runtime_checkable
class ControlPolicy(Protocol):
    """A torch module that plays environments. Observations are (rows, size) float32: a Box is flattened to a vector.

    Rows are independent of one another and of earlier calls: a policy with a hidden state is not supported.
    """

    def act(self, obs: Tensor, *, greedy: bool) -> Tensor:
        """Choose actions: (rows,) whole numbers for discrete actions, (rows, size) numbers for continuous ones.

        :param greedy: take the likeliest action. Otherwise sample, from torch's global generators: they are seeded
            before each call, so that a run can be repeated, and put back after it.
        """

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probability of these actions, the entropy of the policy, and the value of the observation.

        Each is (rows,). The value does not depend on the action.
        """


@runtime_checkable
class TextPolicy(Protocol):
    """A torch module that writes text."""

    def token_logprobs(self, tokens: Tensor, valid: Tensor, temperature: Tensor | None = None) -> Tensor:
        """The log-probability of each token but the first, given those before it: (rows, length - 1).

        :param valid: false where a token is padding, on either side. No other token may depend on it.
        :param temperature: what the logits of each row are divided by, (rows,); None for the logits as they are.
        """


@runtime_checkable
class PolicySpecification(Protocol):
    """A policy as plain data, hashable and without a framework."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each weight by name."""

    def initial_weights(self, seed: int = 0) -> Mapping[str, np.ndarray]:
        """Fresh weights."""

    def torch_module(self, weights: Mapping[str, Any] | None = None) -> nn.Module:
        """A module to train whose state dict has these names and shapes."""


@runtime_checkable
class JaxControlPolicy(Protocol):
    """The optional part of a specification with which whole rollouts of an environment are one compiled function."""

    @property
    def observation_size(self) -> int: ...

    @property
    def actions(self) -> Actions: ...

    def jax_forward(self, weights: Mapping[str, jax.Array], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits or means, and the value, for observations of any leading shape. A pure function.

        For continuous actions, `weights["log_std"]` is the logarithm of the std.
        """


@runtime_checkable
class JaxTextPolicy(Protocol):
    """The part of a specification with which text is sampled: one pass over the prompts, then token by token."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int:
        """The longest sequence, prompt and response together."""

    def jax_prefill(
        self, weights: Mapping[str, jax.Array], tokens: jax.Array, valid: jax.Array, slots: int
    ) -> tuple[jax.Array, Any]:
        """Read prompts, padded on the left; returns the next token's logits and a cache of so many slots."""

    def jax_decode(
        self, weights: Mapping[str, jax.Array], token: jax.Array, position: jax.Array, slot: jax.Array, cache: Any
    ) -> tuple[jax.Array, Any]:
        """Read one more token of each sequence into `slot`; returns the next token's logits and the new cache."""


class Actor(Protocol):
    """Plays a policy for the rollout worker, which does not know the framework: arrays in, arrays out.

    `JaxActor` plays a specification that has a JAX forward, `TorchActor` any torch module.
    """

    policy: Any
    """What it plays: a specification, or a torch module."""
    jax_policy: Any
    """The specification where its forward can be compiled into a rollout, else None."""

    def check(self, lesson: str, observation_size: int, actions: Actions) -> None:
        """Raise a `PolicyError` when the policy cannot play this environment.

        :param lesson: the lesson and its environment, for the message.
        """

    def initial_weights(self, seed: int) -> Any:
        """The weights before any were loaded, in the form that the methods below take."""

    def load_weights(self, weights: Mapping[str, Any]) -> Any:
        """A copy of weights from any framework, checked by name and shape, in the form that the methods below take."""

    def playing(self, weights: Any, seed: Sequence[int] | None) -> Callable[[np.ndarray], np.ndarray]:
        """A function from (rows, size) observations to actions, to be called once a step.

        :param seed: decides on all that the function samples; None to take the likeliest actions.
        """

    def logprobs_and_values(
        self, weights: Any, arrays: Mapping[str, np.ndarray], last_obs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """`logprobs`, `values` and `next_values` of a rollout, (steps, copies) each.

        `next_values` is the value of what follows a step: zero after an end, and after a cut that of the `final_obs`.

        :param arrays: `obs`, `actions`, `final_obs`, `terminated` and `truncated` of the rollout.
        :param last_obs: the observations after its last step.
        """


def missing_methods(policy: Any, protocol: type) -> list[str]:
    """The methods of a protocol that a policy does not have."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    return [name for name in methods if not callable(getattr(policy, name, None))]
