"""`TorchActor`: plays a torch module. It is for policies without a JAX forward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookline.policies.forward_torch import ControlFromForward, control_policy
from hookline.policies.protocol import Actions, ControlPolicy, Discrete, PolicyError, outputs_for
from hookline.policies.weights import check_weights

__all__ = ["TorchActor"]

Weights = dict[str, Tensor]


class TorchActor:
    """Plays a copy of a module on its own device, under `torch.no_grad()` and in eval mode.

    With a copy, the learner's steps do not change a rollout while it is made. In eval mode dropout is off and batch
    norms use their running statistics, so an action's log-probability is that of the distribution that it was sampled
    from. The learner's module keeps its own mode.
    """

    jax_policy = None

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.policy: Any = module
        self._name = f"the policy, a {type(module).__name__}"
        self._device = torch.device(device)
        try:
            copied = copy.deepcopy(module)
        except Exception as error:
            raise PolicyError(
                f"{self._name}, cannot be copied for rollouts ({type(error).__name__}: {error}): keep environments, "
                "files and locks out of its attributes, or define __deepcopy__"
            ) from error
        self._copy = copied.to(self._device).eval().requires_grad_(False)
        self._weights: Weights | None = None

    @cached_property
    def _control(self) -> ControlPolicy:
        return control_policy(self._copy)

    def check(self, lesson: str, observation_size: int, actions: Actions) -> None:
        """Test the policy on three random observations."""
        rows = np.random.default_rng(0).standard_normal((3, observation_size)).astype(np.float32)
        try:
            with torch.no_grad(), self._seeded(0):
                self._try_out(self._tensor(rows), actions)
        except PolicyError as error:
            raise PolicyError(f"{lesson}: {error}") from None
        except Exception as error:
            raise PolicyError(
                f"{lesson} has observations of shape (rows, {observation_size}), and {self._name}, raised "
                f"{type(error).__name__}: {error}. Its methods must take observations alone. A recurrent policy is "
                "not supported"
            ) from error

    def _try_out(self, obs: Tensor, actions: Actions) -> None:
        if isinstance(self._control, ControlFromForward):
            self._check_outputs(self._control, obs, actions)
        chosen = self._control.act(obs, greedy=False)
        discrete = isinstance(actions, Discrete)
        shape = (3,) if discrete else (3, outputs_for(actions))
        if chosen.shape != shape or chosen.is_floating_point() == discrete:
            raise PolicyError(
                f"act() of {self._name}, returned {chosen.dtype} of shape {tuple(chosen.shape)} for three "
                f"observations, and for {actions} it must be {'integers' if discrete else 'floats'} of shape {shape}"
            )
        found = self._control.evaluate_actions(obs, chosen)
        for name, part in zip(("log-probabilities", "entropies", "values"), found, strict=True):
            if part.shape != (3,):
                raise PolicyError(
                    f"evaluate_actions() of {self._name}, returned {name} of shape {tuple(part.shape)} for three "
                    "observations, not (3,): it must return log-probabilities, entropies and values, in this order"
                )
        again = self._control.evaluate_actions(obs.flip(0), chosen.flip(0))
        if not all(torch.allclose(one, other.flip(0), atol=1e-4) for one, other in zip(found, again, strict=True)):
            raise PolicyError(
                f"evaluate_actions() of {self._name}, returned other results for the same observations in another "
                "order: rows must not depend on one another or on earlier calls. A recurrent policy is not supported"
            )

    def _check_outputs(self, control: ControlFromForward, obs: Tensor, actions: Actions) -> None:
        needed = (len(obs), outputs_for(actions))
        if not isinstance(actions, Discrete) and not isinstance(getattr(self._copy, "log_std", None), Tensor):
            raise PolicyError(
                f"the actions are continuous, and {self._name}, has no log_std: add "
                f"self.log_std = nn.Parameter(torch.zeros({needed[1]})), the logarithm of the std, "
                "or define act(obs, greedy=...) and evaluate_actions(obs, actions)"
            )
        outputs, _ = control.outputs(obs)
        if outputs.shape != needed:
            raise PolicyError(
                f"forward(obs) of {self._name}, returned logits or means of shape {tuple(outputs.shape)} for three "
                f"observations, and for {actions} they must be of shape {needed}"
            )

    def initial_weights(self, seed: int) -> Weights:
        """The weights of the module when the actor was made."""
        del seed
        return self.load_weights(self._copy.state_dict())

    def load_weights(self, weights: Mapping[str, Any]) -> Weights:
        check_weights(weights, {name: tuple(own.shape) for name, own in self._copy.state_dict().items()})
        return {name: self._tensor(value).clone() for name, value in weights.items()}

    def playing(self, weights: Weights, seed: Sequence[int] | None) -> Callable[[np.ndarray], np.ndarray]:
        rng = np.random.default_rng(seed or 0)

        @torch.no_grad()
        def choose(obs: np.ndarray) -> np.ndarray:
            self._put_in(weights)
            with self._seeded(int(rng.integers(2**63))):
                actions = self._control.act(self._tensor(obs), greedy=seed is None)
            chosen: np.ndarray = actions.cpu().numpy()
            return chosen.astype(np.float32 if actions.is_floating_point() else np.int32)

        return choose

    def logprobs_and_values(
        self, weights: Weights, arrays: Mapping[str, np.ndarray], last_obs: np.ndarray
    ) -> dict[str, np.ndarray]:
        self._put_in(weights)
        actions, terminated = arrays["actions"], arrays["terminated"]
        # There is no action after the last step. Values do not depend on actions, so the last actions are used again.
        logprobs, values = self._evaluate(
            np.concatenate([arrays["obs"], last_obs[None]]), np.concatenate([actions, actions[-1:]])
        )
        next_values = values[1:].copy()
        cut = arrays["truncated"] & ~terminated
        if cut.any():
            next_values[cut] = self._evaluate(arrays["final_obs"][cut], actions[cut])[1]
        next_values[terminated] = 0.0
        return {"logprobs": logprobs[:-1], "values": values[:-1], "next_values": next_values}

    @torch.no_grad()
    def _evaluate(self, obs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities and values, for any number of leading dimensions. The module is called with flat rows."""
        leading = obs.shape[:-1]
        rows = self._tensor(obs.reshape(-1, obs.shape[-1]))
        taken = self._tensor(actions.reshape(-1, *actions.shape[len(leading) :]))
        with self._seeded(0):
            logprobs, _, values = self._control.evaluate_actions(rows, taken)
        both: np.ndarray = torch.stack([logprobs, values]).float().cpu().numpy()
        return both[0].reshape(leading), both[1].reshape(leading)

    def _put_in(self, weights: Weights) -> None:
        """Point the module at these weights, without copying them."""
        if weights is not self._weights:
            self._copy.load_state_dict(weights, assign=True)
            self._weights = weights

    def _tensor(self, value: Any) -> Tensor:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        return tensor.to(self._device)

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed torch's global generators, and restore them afterwards, so that training's draws do not change."""
        generators = [torch.default_generator]
        if self._device.type == "cuda":
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            generators.append(torch.cuda.default_generators[index])
        elif self._device.type == "mps":
            generators.append(torch.mps._get_default_mps_generator())
        states = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
