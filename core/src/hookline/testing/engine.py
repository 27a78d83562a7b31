"""`check_engine`: the test that every rollout engine should pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hookline.importing import require
from hookline.policies.protocol import PolicySpecification
from hookline.rollout import SamplingConfig
from hookline.rollout.engines import EngineFactory, EngineRequest, Generated, RolloutEngine

__all__ = ["check_engine"]

NEW_TOKENS: Final = 6
LENGTHS: Final = (4, 1, 3, 17)
"""The prompts' lengths: one is much longer than the others."""
SAMPLES: Final = 2048
"""Draws of one token, to compare their shares with the distribution."""
LARGEST_ERROR: Final = 0.05
"""Of a share. Its std is at most 0.011."""

TEMPERATURES: Final = (SamplingConfig(2), SamplingConfig(2, temperature=0.7), SamplingConfig(2, temperature=1.6))
TRUNCATIONS: Final = (
    SamplingConfig(2, top_k=4),
    SamplingConfig(2, top_p=0.6),
    SamplingConfig(2, temperature=1.4, top_k=9, top_p=0.7),
)
GREEDY: Final = SamplingConfig(temperature=0.0)


def check_engine(factory: EngineFactory, request: EngineRequest, *, atol: float = 1e-4) -> None:
    """Build an engine and compare it with the torch module of the request. Raises an AssertionError on a fault.

    Use a small model with a vocabulary of at most a few hundred tokens and a context of at least 32. Its probabilities
    should differ: multiply the weights of a new model by 4.

    :param factory: the function that `register_engines` returns for the engine's name.
    :param request: with a `module`, a text policy in float32.
    :param atol: the largest error of a log-probability. Our own engines are held to 0.3 with `precision="bf16"`.
    """
    require("torch", "check_engine")
    require("jax", "check_engine")
    check = _Check(factory(request), request.module, atol)
    check.takes_the_likeliest_tokens()
    check.reports_the_logprobs_of_what_it_sampled_from()
    check.samples_by_the_distribution()
    check.repeats_itself_with_the_same_key()
    check.ends_responses_at_stop_tokens()
    check.samples_with_the_weights_that_it_has()
    check.leaves_the_module_as_it_was()
    if isinstance(request.policy, PolicySpecification):
        engine = factory(replace(request, module=None))
        engine.update_weights(request.module.state_dict(), 7)
        _Check(engine, request.module, atol).takes_the_likeliest_tokens()


class _Check:
    def __init__(self, engine: RolloutEngine, module: Any, atol: float) -> None:
        self.engine = engine
        self.module = module
        self.atol = atol
        assert engine.context >= max(LENGTHS) + NEW_TOKENS, f"the context of {engine.context} is too short for the test"
        vocabulary = engine.vocabulary
        self.prompts = [[(7 * row + 3 * t * t) % vocabulary for t in range(n)] for row, n in enumerate(LENGTHS)]

    def takes_the_likeliest_tokens(self) -> None:
        np = require("numpy", "check_engine")
        made = self._generate(GREEDY)
        assert made.valid.all(), "without stop tokens, every response has max_new_tokens"
        assert made.log_mass is None, "greedy tokens are not truncated, so log_mass must be None"
        for row, prompt in enumerate(self.prompts):
            for t, expected in enumerate(self._distributions(prompt, made.tokens[row, :-1].tolist())):
                chosen, best = expected[made.tokens[row, t]], expected.max()
                assert chosen >= best - self.atol, (
                    f"greedy: row {row}, token {t}: the engine took {made.tokens[row, t]} (log-probability "
                    f"{chosen:.5f}), the likeliest is {np.argmax(expected)} ({best:.5f}). A fault in rows other than "
                    "the last is often one of left padding: its positions, or its mask"
                )
                self._close(made.logprobs[row, t], chosen, f"greedy: row {row}, token {t}")

    def reports_the_logprobs_of_what_it_sampled_from(self) -> None:
        first = self._distributions(self.prompts[0])[0]
        for sampling in (*TEMPERATURES, *TRUNCATIONS):
            made = self._generate(sampling)
            rows = len(self.prompts) * sampling.samples_per_prompt
            assert made.tokens.shape == (rows, NEW_TOKENS), f"{sampling}: tokens of shape {made.tokens.shape}"
            whole = made.logprobs
            if sampling in TRUNCATIONS:
                assert made.log_mass is not None, f"{sampling}: log_mass is missing"
                assert (made.log_mass <= self.atol).all(), f"{sampling}: log_mass is above 0"
                whole = made.logprobs + made.log_mass
                kept = _truncated(first / sampling.temperature, sampling)
                for row in range(sampling.samples_per_prompt):
                    where = f"{sampling}: row {row}, token 0, of the tokens that are kept"
                    self._close(made.logprobs[row, 0], kept[made.tokens[row, 0]], where)
            else:
                assert made.log_mass is None, f"{sampling}: log_mass must be None without truncation"
            for row in range(rows):
                prompt = self.prompts[row // sampling.samples_per_prompt]
                expected = self._logprobs(self.module, prompt, made.tokens[row].tolist(), sampling.temperature)
                for t in range(NEW_TOKENS):
                    self._close(whole[row, t], expected[t], f"{sampling}: row {row}, token {t}")

    def samples_by_the_distribution(self) -> None:
        np = require("numpy", "check_engine")
        own = self._distributions(self.prompts[0])[0]
        for sampling in (TEMPERATURES[0], TEMPERATURES[2], TRUNCATIONS[2]):
            draw = replace(sampling, samples_per_prompt=SAMPLES)
            made = self.engine.generate(self.prompts[:1], draw, _key(3), max_new_tokens=1)
            expected = _truncated(own / sampling.temperature, sampling)
            shares = np.bincount(made.tokens[:, 0], minlength=len(own)) / SAMPLES
            worst = int(np.abs(shares - np.exp(expected)).argmax())
            assert abs(shares[worst] - np.exp(expected[worst])) < LARGEST_ERROR, (
                f"{sampling}: token {worst} is {shares[worst]:.3f} of the samples, its probability is "
                f"{np.exp(expected[worst]):.3f}"
            )
            for token, logprob in zip(made.tokens[:, 0].tolist(), made.logprobs[:, 0].tolist(), strict=True):
                assert np.isfinite(expected[token]), f"{sampling}: token {token} was cut off, and sampled"
                self._close(logprob, expected[token], f"{sampling}: token {token}")

    def repeats_itself_with_the_same_key(self) -> None:
        one, same, other = (self._generate(TEMPERATURES[2], seed) for seed in (0, 0, 1))
        assert (one.tokens == same.tokens).all(), "the same key and weights gave other tokens"
        assert (one.tokens != other.tokens).any(), "another key gave the same tokens"
        of_each = one.tokens.reshape(len(self.prompts), -1, NEW_TOKENS)
        assert (of_each != of_each[:, :1]).any(), "all samples of a prompt are the same"

    def ends_responses_at_stop_tokens(self) -> None:
        whole = self._generate(GREEDY)
        stop = sorted({int(whole.tokens[0, 1]), int(whole.tokens[-1, 3])})
        made = self._generate(GREEDY, stop=stop)
        for row, tokens in enumerate(whole.tokens.tolist()):
            length = next((t + 1 for t, token in enumerate(tokens) if token in stop), NEW_TOKENS)
            assert made.valid[row].tolist() == [t < length for t in range(NEW_TOKENS)], (
                f"row {row} is {tokens} without stop tokens. With {stop} it has {length} valid tokens, the stop token "
                f"among them, not {made.valid[row].tolist()}"
            )
            assert made.tokens[row, :length].tolist() == tokens[:length], f"row {row}: stop tokens changed the response"

    def samples_with_the_weights_that_it_has(self) -> None:
        own = dict(self.module.state_dict())
        before = {name: tensor.clone() for name, tensor in own.items()}
        others = _perturbed(own)
        other = copy.deepcopy(self.module)
        other.load_state_dict(others)
        self._check_weights(others, 1, other, "other weights")
        assert all((own[name] == before[name]).all() for name in own), "other weights were written into the module"
        self._check_weights(own, 2, self.module, "the first weights again")
        one = max(own, key=lambda name: own[name].numel())
        other.load_state_dict({**own, one: others[one]})
        self._check_weights({one: others[one]}, 3, other, f"{one} alone, which leaves the others as they are")
        self._check_weights(own, 4, self.module, "the first weights again")
        for name, tensor in own.items():  # in place, as an optimizer does
            tensor.copy_(others[name])
        try:
            self._check_weights(own, 5, self.module, "the module's tensors after a gradient step")
        finally:
            for name, tensor in own.items():
                tensor.copy_(before[name])
            self.engine.update_weights(own, 6)

    def _check_weights(self, weights: Mapping[str, Any], version: int, oracle: Any, what: str) -> None:
        self.engine.update_weights(weights, version)
        assert self.engine.version == version, f"the version is {self.engine.version!r} after an update to {version}"
        made = self._generate(TEMPERATURES[0])
        for row in range(len(made.tokens)):
            expected = self._logprobs(oracle, self.prompts[row // 2], made.tokens[row].tolist(), 1.0)
            for t in range(NEW_TOKENS):
                self._close(made.logprobs[row, t], expected[t], f"after an update with {what}: row {row}, token {t}")

    def leaves_the_module_as_it_was(self) -> None:
        torch = require("torch", "check_engine")
        was_training, rng = self.module.training, torch.get_rng_state()
        trained = [own.requires_grad for own in self.module.parameters()]
        self.module.train()
        modes = [part.training for part in self.module.modules()]
        try:
            self._generate(TEMPERATURES[0])
            assert modes == [part.training for part in self.module.modules()], "the module's mode has changed"
        finally:
            self.module.train(was_training)
        assert (torch.get_rng_state() == rng).all(), "torch's global rng was used: use an rng of the key's own"
        assert trained == [own.requires_grad for own in self.module.parameters()], "requires_grad has changed"

    # -- parts ----------------------------------------------------------------------------------------------------

    def _generate(self, sampling: SamplingConfig, seed: int = 0, stop: Sequence[int] = ()) -> Generated:
        return self.engine.generate(self.prompts, sampling, _key(seed), max_new_tokens=NEW_TOKENS, stop=stop)

    def _close(self, found: float, expected: float, where: str) -> None:
        assert abs(found - expected) <= self.atol, (
            f"{where}: the log-probability is {found:.6f}, torch's forward has {expected:.6f}"
        )

    def _distributions(self, prompt: list[int], response: Sequence[int] = ()) -> Any:
        """The log-probability of each token after the prompt, and after each token of the response."""
        np = require("numpy", "check_engine")
        places, vocabulary = range(len(prompt), len(prompt) + len(response) + 1), self.engine.vocabulary
        whole = [*prompt, *response]
        rows = [[*whole[:end], token, *whole[end:]] for end in places for token in range(vocabulary)]
        found = _forward(self.module, rows)  # what comes after a token does not change its log-probability
        return [found[np.arange(vocabulary) + i * vocabulary, end - 1] for i, end in enumerate(places)]

    def _logprobs(self, module: Any, prompt: list[int], response: list[int], temperature: float) -> Any:
        return _forward(module, [[*prompt, *response]], temperature)[0, len(prompt) - 1 :]


def _forward(module: Any, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> Any:
    """The log-probability of each token but the first, of rows of one length."""
    torch = require("torch", "check_engine")
    device = next(module.parameters()).device
    tokens = torch.tensor(rows, device=device)
    was_training = module.training
    module.eval()
    with torch.no_grad():
        heat = torch.full((len(rows),), temperature, device=device)
        found = module.token_logprobs(tokens, torch.ones_like(tokens, dtype=torch.bool), heat)
    module.train(was_training)
    return found.float().cpu().numpy()


def _truncated(logits: Any, sampling: SamplingConfig) -> Any:
    """Log-probabilities after top-k and top-p, one token at a time: -inf for what is cut off."""
    np = require("numpy", "check_engine")
    order = np.argsort(-logits, kind="stable")[: sampling.top_k]
    weights = np.exp(logits[order] - logits.max())
    before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
    kept = order if sampling.top_p is None else order[before < sampling.top_p]
    found = np.full(len(logits), -np.inf)
    found[kept] = logits[kept] - np.log(np.exp(logits[kept]).sum())
    return found


def _perturbed(weights: Mapping[str, Any]) -> dict[str, Any]:
    torch = require("torch", "check_engine")
    rng = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(own.shape, generator=rng).to(own) for name, own in weights.items()}
    return {name: own + 0.3 * max(float(own.float().std()), 0.1) * noise[name] for name, own in weights.items()}


def _key(seed: int) -> Any:
    return require("jax", "check_engine").random.key(seed)
