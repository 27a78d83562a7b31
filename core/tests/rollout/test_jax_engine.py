"""Sampling with a key-value cache inside one scan gives what a plain forward over the whole text would give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline.policies import TransformerPolicy, to_jax, transformer_jax
from hookline.rollout import SamplingConfig
from hookline.rollout.engines import Generated
from hookline.rollout.engines.jax_engine import JaxEngine

POLICY = TransformerPolicy(vocabulary=13, width=32, layers=2, heads=4, context=32)
END, PAD = 1, 0
NEW = 8


@pytest.fixture(scope="module")
def weights() -> dict[str, jax.Array]:
    # Larger than fresh ones, so that the policy has opinions.
    return to_jax({name: 4 * array if array.ndim > 1 else array for name, array in POLICY.initial_weights(0).items()})


@pytest.fixture(scope="module")
def prompts() -> np.ndarray:
    generator = np.random.default_rng(0)
    tokens = generator.integers(2, 13, size=(16, 6))
    return np.where(np.arange(6) >= generator.integers(5, size=(16, 1)), tokens, PAD).astype(np.int32)


def draw(
    weights, prompts: np.ndarray, seed: int = 0, *, greedy: bool = False, new_tokens: int = NEW, **sampling
) -> Generated:
    engine = JaxEngine(POLICY)
    engine.update_weights(weights, 0)
    config = SamplingConfig(**sampling, **({"temperature": 0.0} if greedy else {}))
    tokens = [[token for token in row if token != PAD] for row in prompts.tolist()]
    return engine.generate(tokens, config, jax.random.key(seed), max_new_tokens=new_tokens, stop=END)


def full_logits(weights, tokens: np.ndarray, valid: np.ndarray) -> jax.Array:
    return jax.jit(transformer_jax.forward, static_argnums=0)(POLICY, weights, tokens, valid)


def test_logprobs_are_those_of_a_plain_forward_over_the_whole_text(weights, prompts) -> None:
    sampled = draw(weights, prompts)
    tokens = np.concatenate([prompts, sampled.tokens], axis=1)
    valid = np.concatenate([prompts != PAD, sampled.valid], axis=1)
    logprobs = jax.nn.log_softmax(full_logits(weights, tokens, valid))[:, 5:-1]
    expected = jnp.take_along_axis(logprobs, sampled.tokens[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(sampled.logprobs[sampled.valid], np.asarray(expected)[sampled.valid], atol=1e-5)
    assert len(set(sampled.tokens[sampled.valid].tolist())) > 3


def test_many_samples_of_a_prompt_are_those_of_as_many_equal_prompts(weights, prompts) -> None:
    together, apart = draw(weights, prompts, samples_per_prompt=3), draw(weights, np.repeat(prompts, 3, axis=0))
    np.testing.assert_array_equal(together.tokens, apart.tokens)
    np.testing.assert_array_equal(together.valid, apart.valid)
    np.testing.assert_allclose(together.logprobs, apart.logprobs, atol=1e-5)
    of_each_prompt = together.tokens.reshape(16, 3, NEW)
    assert (of_each_prompt != of_each_prompt[:, :1]).any(), "its samples differ"


def test_greedy_takes_the_likeliest_token_of_a_plain_forward_at_every_step(weights, prompts) -> None:
    sampled = draw(weights, prompts, greedy=True)
    tokens, valid = prompts, prompts != PAD
    ended = np.zeros(len(prompts), bool)
    for t in range(NEW):
        room = ((0, 0), (0, NEW - t))  # one shape, one compilation
        logits = full_logits(weights, np.pad(tokens, room), np.pad(valid, room))[:, tokens.shape[1] - 1]
        likeliest = np.where(ended, PAD, np.asarray(logits).argmax(-1))
        np.testing.assert_array_equal(sampled.tokens[:, t], likeliest)
        ended |= likeliest == END
        tokens = np.concatenate([tokens, likeliest[:, None].astype(np.int32)], axis=1)
        valid = np.concatenate([valid, np.ones((len(prompts), 1), bool)], axis=1)


def test_a_response_ends_with_its_end_of_text_and_is_padded_after_it(weights, prompts) -> None:
    ended = 0
    for seed in range(4):
        sampled = draw(weights, prompts, seed)
        for tokens, logprobs, valid in zip(sampled.tokens, sampled.logprobs, sampled.valid, strict=True):
            length = int(valid.sum())
            assert valid.tolist() == [True] * length + [False] * (NEW - length)
            assert END not in tokens[: length - 1]
            assert (tokens[length:] == PAD).all()
            assert (logprobs[length:] == 0).all()
            assert (logprobs[:length] < 0).all()
            ended += length < NEW
    assert ended


def test_one_key_gives_one_sample_and_another_key_another(weights, prompts) -> None:
    one, same, other = (draw(weights, prompts, seed).tokens for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


def test_top_k_samples_among_the_likeliest_only(weights, prompts) -> None:
    first = draw(weights, prompts, greedy=True).tokens[:, 0]
    assert (draw(weights, prompts, top_k=1).tokens[:, 0] == first).all()
    logits = full_logits(weights, prompts, prompts != PAD)[:, -1]
    third = np.sort(np.asarray(logits), axis=1)[:, -3]
    chosen = set()
    for seed in range(8):
        tokens = draw(weights, prompts, seed, top_k=3).tokens[:, 0]
        assert (np.asarray(logits)[np.arange(16), tokens] >= third).all()
        chosen |= {(row, int(token)) for row, token in enumerate(tokens)}
    assert len(chosen) > 16


def processed(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """Log-probabilities after temperature, top-k and top-p, one token at a time: -inf for what is cut off."""
    scaled = logits.astype(np.float64) / temperature
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))[:top_k]
    weights = {token: np.exp(scaled[token] - scaled.max()) for token in order}
    support, share = [], 0.0
    for token in order:
        if top_p is None or share < top_p:
            support.append(token)
        share += weights[token] / sum(weights.values())
    total = sum(weights[token] for token in support)
    return np.array([np.log(weights[t] / total) if t in support else -np.inf for t in range(len(scaled))])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, None), (0.7, None, None), (2.0, None, None), (1.0, 3, None), (1.0, None, 0.8),
        (0.7, 5, None), (1.3, None, 0.5), (0.7, 6, 0.9), (2.0, 4, 0.3), (1.0, 13, 1.0),
    ],
)  # fmt: skip
def test_recorded_logprobs_are_those_of_the_distribution_that_was_sampled(
    weights, prompts, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    sampled = draw(weights, prompts, 3, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens = np.concatenate([prompts, sampled.tokens], axis=1)
    valid = np.concatenate([prompts != PAD, sampled.valid], axis=1)
    logits = np.asarray(full_logits(weights, tokens, valid))[:, 5:-1]
    for row, place in zip(*np.nonzero(sampled.valid), strict=True):
        token = sampled.tokens[row, place]
        expected = processed(logits[row, place], temperature, top_k, top_p)
        assert np.isfinite(expected[token]), "a sampled token is in the support"
        assert sampled.logprobs[row, place] == pytest.approx(expected[token], abs=1e-5)
        if top_k is None and top_p is None:
            assert sampled.log_mass is None
        else:
            whole = processed(logits[row, place], temperature, None, None)[token]
            assert sampled.logprobs[row, place] + sampled.log_mass[row, place] == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.5, None, None), (1.0, None, None), (2.0, None, None), (1.5, 8, 0.7)]
)
def test_samples_follow_the_distribution(weights, temperature: float, top_k: int | None, top_p: float | None) -> None:
    prompt = np.tile(np.array([[3, 4, 5]], np.int32), (4096, 1))
    logits = np.asarray(full_logits(weights, prompt[:1], prompt[:1] != PAD))[0, -1]
    sampled = draw(weights, prompt, 7, new_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
    shares = np.bincount(sampled.tokens[:, 0], minlength=13) / 4096
    np.testing.assert_allclose(shares, np.exp(processed(logits, temperature, top_k, top_p)), atol=0.03)


def test_a_truncation_that_cuts_nothing_off_changes_no_sample(weights, prompts) -> None:
    plain, greedy = draw(weights, prompts), draw(weights, prompts, greedy=True)
    np.testing.assert_allclose(draw(weights, prompts, temperature=1.0).logprobs, plain.logprobs)
    assert (draw(weights, prompts, greedy=True, top_k=2, top_p=0.5).tokens == greedy.tokens).all()
    own = np.concatenate([prompts, greedy.tokens], axis=1), np.concatenate([prompts != PAD, greedy.valid], axis=1)
    logprobs = jax.nn.log_softmax(full_logits(weights, *own))[:, 5:-1]
    expected = np.asarray(jnp.take_along_axis(logprobs, greedy.tokens[..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(greedy.logprobs[greedy.valid], expected[greedy.valid], atol=1e-5)


def test_an_engine_samples_with_the_weights_that_it_was_given_last(weights, prompts) -> None:
    engine = JaxEngine(POLICY)
    tokens = [[3, 4], [5]]
    made = []
    for version, own in enumerate([weights, POLICY.initial_weights(5)]):
        engine.update_weights(own, version)
        assert engine.version == version
        made.append(engine.generate(tokens, SamplingConfig(), jax.random.key(0), max_new_tokens=4))
    assert (made[0].logprobs != made[1].logprobs).any()
    assert made[0].valid.all(), "without a stop token a response goes on to its limit"
