"""The methods that a policy needs. A policy does not have to derive from any class of Hookline.

The trainer takes a policy in one of three forms:

- a torch module. For control it has the methods of `ControlPolicy`, or a `forward(obs)` that returns `(logits, value)`.
  For text it has those of `TextPolicy`, or a `forward(tokens)` that returns logits. `hookline.policies.forward_torch`
  builds the methods from the forward. Of `torch.nn.Module`, Hookline uses `parameters`, `state_dict`,
  `load_state_dict`, `to`, `train` and `eval`. The state dict may use any names.
- a `PolicySpecification`: plain data that builds such a module: `MLPPolicy`, `TransformerPolicy`, `HuggingFacePolicy`.
- the folder or the hub name of a Hugging Face model, as a string, or a model that `transformers` or peft has loaded.

Two things are optional:

- a JAX forward, for fast rollouts. Then the specification is also a `JaxControlPolicy` or a `JaxTextPolicy`. A torch
  module has its specification in an attribute `specification`. Without a JAX forward, environments are played with
  torch, step by step. Rollouts of text need one.
- `gradient_checkpointing_enable()`, for `learner.gradient_checkpointing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline.errors import HooklineError

if TYPE_CHECKING:
    import jax
    import numpy as np
    from torch import Tensor, nn

    from hookline_hookspecs import Turn

__all__ = [
    "Actions",
    "Actor",
    "ActorWeights",
    "Continuous",
    "ControlPolicy",
    "Discrete",
    "JaxControlPolicy",
    "JaxTextPolicy",
    "PolicyError",
    "PolicySpecification",
    "TextPolicy",
    "Tokenizer",
    "missing_methods",
    "outputs_for",
]


class PolicyError(HooklineError, TypeError):
    """A policy does not fit its lessons."""


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, numbered from 0."""

    n: int


@dataclass(frozen=True)
class Continuous:
    """A vector of `size` numbers. They are clipped to `low..high` for the environment only."""

    size: int
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


Actions = Discrete | Continuous


def outputs_for(actions: Actions) -> int:
    """The number of policy outputs for one action: logits, or means."""
    return actions.n if isinstance(actions, Discrete) else actions.size


@runtime_checkable
class ControlPolicy(Protocol):
    """A torch module that plays environments. Observations are (rows, size) float32, with a Box flattened.

    Rows must not depend on one another or on earlier calls. Recurrent policies are not supported.
    """

    def act(self, obs: Tensor, *, greedy: bool) -> Tensor:
        """Choose actions: (rows,) integers for discrete actions, (rows, size) floats for continuous ones.

        :param greedy: take the likeliest action. Otherwise sample with torch's global generators. They are seeded
            before each call, so that a run can be repeated, and restored after it.
        """

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probability of these actions, the entropy of the policy, and the value of the observation.

        Each is (rows,). The value does not depend on the action.
        """


@runtime_checkable
class TextPolicy(Protocol):
    """A torch module that generates text."""

    def token_logprobs(
        self, tokens: Tensor, valid: Tensor, temperature: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        """The log-probability of each token but the first, given those before it: (rows, length - 1).

        :param valid: false where a token is padding, on either side. No other token may attend to it.
        :param temperature: the divisor of each row's logits, (rows,). None leaves the logits as they are.
        :param needed: (rows, length - 1), true where the log-probability is used. The others may have any finite
            value, so their logits, the largest part of a forward pass, need not be computed. None for all.
        """


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into tokens and back. `CharacterTokenizer` is one; a Hugging Face policy brings its own."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    @property
    def end(self) -> tuple[int, ...]:
        """The tokens that end a response. The first is the one that examples for training end with."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""

    def encode_messages(self, messages: Sequence[Turn], before: Sequence[Turn] = ()) -> list[int]:
        """The tokens of messages that a response follows, with what a chat template puts around them.

        :param before: the conversation so far, which ends with a response. Its tokens are not encoded again. The tokens
            that are returned begin with the one that ends a response, which most responses have already.
        """

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end token, without special tokens."""


@runtime_checkable
class PolicySpecification(Protocol):
    """A policy as plain, hashable data. It needs no framework."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each weight by name."""

    def initial_weights(self, seed: int = 0) -> Mapping[str, np.ndarray]:
        """New weights from a seed."""

    def torch_module(self, weights: Mapping[str, Any] | None = None, seed: int = 0) -> nn.Module:
        """A module for training, with these weights or the initial ones of the seed.

        Its state dict has the names and shapes of `shapes()`.
        """


@runtime_checkable
class JaxControlPolicy(Protocol):
    """The optional JAX forward of a specification. With it, a whole rollout compiles to one function."""

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
    """The JAX forward of a text specification: one pass over the prompts, then one token at a time."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int:
        """The longest sequence, prompt and response together."""

    def jax_prefill(
        self, weights: Mapping[str, jax.Array], tokens: jax.Array, valid: jax.Array, slots: int
    ) -> tuple[jax.Array, Any]:
        """Read prompts, padded on the left. Returns the next token's logits and a cache with `slots` slots."""

    def jax_decode(
        self, weights: Mapping[str, jax.Array], token: jax.Array, position: jax.Array, slot: jax.Array, cache: Any
    ) -> tuple[jax.Array, Any]:
        """Read one more token of each sequence into `slot`. Returns the next token's logits and the new cache."""


ActorWeights = Any
"""Weights in the form that `Actor.load_weights` returns."""


class Actor(Protocol):
    """Plays a policy for the rollout worker, with NumPy arrays as inputs and outputs. It hides the framework.

    `JaxActor` plays a specification that has a JAX forward, `TorchActor` any torch module.
    """

    policy: Any
    """A specification or a torch module."""
    jax_policy: Any
    """The specification if its JAX forward can be compiled into a rollout, else None."""

    def check(self, lesson: str, observation_size: int, actions: Actions) -> None:
        """Raise a `PolicyError` when the policy cannot play this environment.

        :param lesson: the lesson and its environment, for the message.
        """

    def initial_weights(self, seed: int) -> ActorWeights:
        """The weights to start with, in the form that the methods below take."""

    def load_weights(self, weights: Mapping[str, Any]) -> ActorWeights:
        """A copy of weights from any framework, checked by name and shape, in the form that the methods below take."""

    def playing(self, weights: ActorWeights, seed: Sequence[int] | None) -> Callable[[np.ndarray], np.ndarray]:
        """A function from (rows, size) observations to actions. Call it once per step.

        :param seed: the seed of all sampling. None takes the likeliest actions.
        """

    def logprobs_and_values(
        self, weights: ActorWeights, arrays: Mapping[str, np.ndarray], last_obs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """`logprobs`, `values` and `next_values` of a rollout, (steps, environments) each.

        `next_values` is the value after a step: zero after termination, that of `final_obs` after truncation.

        :param arrays: `obs`, `actions`, `final_obs`, `terminated` and `truncated` of the rollout.
        :param last_obs: the observations after its last step.
        """


def missing_methods(policy: Any, protocol: type) -> list[str]:
    """The methods of a protocol that a policy does not have."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    return [name for name in methods if not callable(getattr(policy, name, None))]
