"""Sampling with a key-value cache inside one scan gives what a plain forward over the whole text would give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline.policies import TransformerPolicy, to_jax, transformer_jax
from hookline.rollout.text.sampling import Sampled, sample

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


def draw(weights, prompts, seed: int = 0, **options) -> Sampled:
    sampled = sample(
        POLICY, weights, prompts, prompts != PAD, jax.random.key(seed), new_tokens=NEW, end=END, pad=PAD, **options
    )
    return Sampled(*map(np.asarray, sampled))


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
    together, apart = draw(weights, prompts, samples=3), draw(weights, np.repeat(prompts, 3, axis=0))
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
        for tokens, logprobs, valid in zip(*sampled, strict=True):
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


def test_samples_follow_the_distribution_at_each_temperature(weights) -> None:
    prompt = np.tile(np.array([[3, 4, 5]], np.int32), (4096, 1))
    logits = full_logits(weights, prompt[:1], prompt[:1] != PAD)[0, -1]
    for temperature in (0.5, 1.0, 2.0):
        options = {"new_tokens": 1, "end": END, "pad": PAD}
        key = jax.random.key(7)
        sampled = sample(POLICY, weights, prompt, prompt != PAD, key, temperature, **options)
        shares = np.bincount(np.asarray(sampled.tokens)[:, 0], minlength=13) / 4096
        np.testing.assert_allclose(shares, jax.nn.softmax(logits / temperature), atol=0.03)
        # The log-probability is the policy's own, whatever the temperature.
        np.testing.assert_allclose(
            sampled.logprobs[:, 0], jax.nn.log_softmax(logits)[np.asarray(sampled.tokens)[:, 0]], atol=1e-5
        )
