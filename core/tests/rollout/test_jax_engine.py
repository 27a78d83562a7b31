"""Sampling with a key-value cache inside one loop gives what a plain forward over the whole text would give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline.policies import HuggingFacePolicy, LoraConfig, TransformerPolicy, to_jax, transformer_jax
from hookline.policies.weights import share_with_jax
from hookline.rollout import SamplingConfig
from hookline.rollout.engines import Generated, jax_engine, jax_tokens
from hookline.rollout.engines.jax_engine import JaxEngine, padded_length, padded_size

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
    return engine.generate(tokens, config, jax.random.key(seed), max_new_tokens=new_tokens, stop=(END,))


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


def test_a_new_prompt_length_is_seldom_a_new_compilation(weights) -> None:
    policy = TransformerPolicy(vocabulary=13, width=8, layers=1, heads=1, context=140)
    engine = JaxEngine(policy, policy.initial_weights(0))
    before = jax_engine._sample._cache_size()
    for length in (1, 3, 8, 9, 16, 65, 70, 80, 113, 127, 128):
        engine.generate([[2] * length], SamplingConfig(2), jax.random.key(0), max_new_tokens=2)
    assert jax_engine._sample._cache_size() - before == 4
    lengths = {padded_length(length) for length in range(1, 1025)}
    assert len(lengths) == 8 + 4 * 4
    assert all(length <= padded_length(length) <= max(length + 7, 1.25 * length) for length in range(1, 5000))


def test_other_numbers_of_one_kind_of_sampling_are_no_new_compilation(weights, prompts) -> None:
    draw(weights, prompts, top_k=3, top_p=0.9)
    before = jax_engine._sample._cache_size(), jax_engine._prefill._cache_size()
    for sampling in ({"top_k": 5}, {"top_k": 2, "top_p": 0.5}, {"top_k": 13, "temperature": 0.7}):
        draw(weights, prompts, **sampling)
    assert (jax_engine._sample._cache_size(), jax_engine._prefill._cache_size()) == before
    engine = JaxEngine(POLICY, weights)
    engine.generate([[3]] * 8, SamplingConfig(), jax.random.key(0), max_new_tokens=NEW)
    before = jax_engine._sample._cache_size(), jax_engine._prefill._cache_size()
    engine.generate([[3]] * 8, SamplingConfig(temperature=2), jax.random.key(0), max_new_tokens=NEW, stop=(4, 5))
    assert (jax_engine._sample._cache_size(), jax_engine._prefill._cache_size()) == before
    engine.generate([[3]] * 8, SamplingConfig(top_p=0.5), jax.random.key(0), max_new_tokens=NEW)
    assert jax_engine._prefill._cache_size() == before[1], "the prompts are read by the same function"


def test_uniform_numbers_are_those_of_jax_whatever_their_shape() -> None:
    key = jax.random.key(3)
    np.testing.assert_array_equal(jax_engine._uniform(key, 5, 7), jax.random.uniform(key, (5, 7)))
    np.testing.assert_array_equal(jax_engine._uniform(key, 100, 50), jax.random.uniform(key, (100, 50)))


def test_conversations_that_grow_and_end_one_by_one_are_seldom_a_new_compilation() -> None:
    policy = TransformerPolicy(vocabulary=13, width=8, layers=1, heads=1, context=140)
    engine = JaxEngine(policy, policy.initial_weights(0))
    before = jax_engine._sample._cache_size()
    for rows, length in ((16, 9), (14, 11), (13, 12), (12, 17), (11, 19), (9, 24), (8, 26), (5, 30), (3, 32), (1, 31)):
        made = engine.generate([[2] * length] * rows, SamplingConfig(), jax.random.key(0), max_new_tokens=2)
        assert made.tokens.shape == (rows, 2)
    assert jax_engine._sample._cache_size() - before == 3
    assert all(size <= padded_size(size) <= max(8, 1.5 * size) for size in range(1, 5000))


def test_rows_of_padding_change_no_response_and_do_not_make_the_others_longer(weights) -> None:
    engine = JaxEngine(POLICY, weights)
    prompts = [[3 + row, 4, 5] for row in range(8)]
    valid = np.ones((8, 3), bool)
    read = jax_engine._prefill(POLICY, engine._weights, np.array(prompts), valid, slots=3 + NEW - 1)
    rows = jax_engine._sample(
        POLICY, engine._weights, *read, valid, np.full((NEW, 8), 0.3, np.float32), np.arange(8) >= 5,
        np.array([-1]), **jax_engine._settings(SamplingConfig(), 13), samples=1,
    )  # fmt: skip
    assert np.asarray(rows.valid).all(axis=1).tolist() == [True] * 5 + [False] * 3
    assert not np.asarray(rows.valid)[5:].any()
    five = engine.generate(prompts[:5], SamplingConfig(temperature=0), jax.random.key(3), max_new_tokens=NEW)
    eight = engine.generate(prompts, SamplingConfig(temperature=0), jax.random.key(3), max_new_tokens=NEW)
    np.testing.assert_array_equal(five.tokens, eight.tokens[:5])
    np.testing.assert_array_equal(five.logprobs, eight.logprobs[:5])


def test_the_padding_of_prompts_changes_no_logprob(weights) -> None:
    engine = JaxEngine(POLICY, weights)
    prompts = [[3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 2, 3, 4, 5]]
    together = engine.generate(prompts, SamplingConfig(temperature=0), jax.random.key(0), max_new_tokens=NEW)
    for row, prompt in enumerate(prompts):
        alone = engine.generate([prompt], SamplingConfig(temperature=0), jax.random.key(0), max_new_tokens=NEW)
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        np.testing.assert_allclose(together.logprobs[row], alone.logprobs[0], atol=1e-5)


def test_a_response_ends_with_any_of_several_stop_tokens(weights, prompts) -> None:
    engine = JaxEngine(POLICY, weights)
    tokens = [[token for token in row if token != PAD] for row in prompts.tolist()]
    stop = (1, 5, 7)
    sampled = engine.generate(tokens, SamplingConfig(), jax.random.key(0), max_new_tokens=NEW, stop=stop)
    last = {int(row[valid][-1]) for row, valid in zip(sampled.tokens, sampled.valid, strict=True) if not valid.all()}
    assert len(last) > 1
    assert last <= set(stop)
    assert not np.isin(sampled.tokens[:, :-1][sampled.valid[:, 1:]], stop).any(), "no token follows a stop token"


def test_generation_ends_when_all_responses_have(weights) -> None:
    steps = []

    @dataclass(frozen=True)
    class Counted(TransformerPolicy):
        def jax_decode(self, *arguments):
            jax.debug.callback(lambda: steps.append(1))
            return super().jax_decode(*arguments)

    engine = JaxEngine(Counted(**asdict(POLICY)), weights)
    every_token = range(13)
    made = engine.generate([[3], [4]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW, stop=every_token)
    jax.effects_barrier()
    assert made.valid.sum(axis=1).tolist() == [1, 1]
    assert made.valid.shape == (2, NEW)
    assert len(steps) == 1
    engine.generate([[3], [4]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW)
    jax.effects_barrier()
    assert len(steps) == 1 + NEW - 1


def test_no_token_without_probability_is_ever_drawn() -> None:
    generator = np.random.default_rng(0)
    logits = np.where(generator.random((4096, 50)) < 0.5, -np.inf, generator.normal(0, 3, (4096, 50)))
    logits[:, 17] = 0.0
    edges = np.nextafter(np.float32(1), np.float32(0)), np.float32(0), np.float32(0.5)
    for uniform in (*(np.full(4096, edge) for edge in edges), generator.random(4096)):
        place, mass = jax_tokens._place(jnp.asarray(logits, jnp.float32), jnp.asarray(uniform, jnp.float32))
        assert np.isfinite(logits[np.arange(4096), place]).all()
    np.testing.assert_allclose(mass, np.log(np.exp(logits).sum(axis=1)), atol=1e-5)


def test_a_large_vocabulary_is_sampled_in_proportion() -> None:
    logits = np.zeros((20000, 1000), np.float32)
    logits[:, ::10] = 2.0
    uniform = jax.random.uniform(jax.random.key(0), 20000)
    place = np.asarray(jax_tokens._place(jnp.asarray(logits), uniform)[0])
    assert (place % 10 == 0).mean() == pytest.approx(np.exp(2) / (np.exp(2) + 9), abs=0.01)
    assert np.bincount(place // 100).tolist() == pytest.approx([2000] * 10, rel=0.1)


def test_weights_of_torch_on_the_cpu_are_read_in_place() -> None:
    weights = dict(POLICY.torch_module().state_dict())
    shared = share_with_jax(weights, jnp.float32)
    for name, tensor in weights.items():
        assert shared[name].unsafe_buffer_pointer() == tensor.data_ptr()
    engine = JaxEngine(POLICY, weights)
    first = engine.generate([[3]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW)
    for tensor in weights.values():
        tensor.mul_(2)
    second = engine.generate([[3]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW)
    assert (first.logprobs != second.logprobs).any()


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_weights_of_a_hugging_face_model_are_read_in_place(lora: LoraConfig | None, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason='pip install "hookline[hf]"')
    from hookline.testing.tiny_models import tiny_model

    weights = HuggingFacePolicy(str(tiny_model(tmp_path)), lora).torch_module().full_state_dict()
    shared = share_with_jax(weights, jnp.float32)
    for name, tensor in weights.items():
        assert shared[name].unsafe_buffer_pointer() == tensor.data_ptr(), name


def test_weights_that_are_not_given_keep_their_values(weights) -> None:
    engine, expected = JaxEngine(POLICY, weights), JaxEngine(POLICY)
    changed = {"blocks.1.mlp.up.weight": np.zeros((128, 32), np.float32)}
    engine.update_weights(changed, 3)
    expected.update_weights({**weights, **changed}, 3)
    made = [
        one.generate([[3, 4]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW) for one in (engine, expected)
    ]
    np.testing.assert_array_equal(made[0].logprobs, made[1].logprobs)
    before = JaxEngine(POLICY, weights).generate([[3, 4]], SamplingConfig(), jax.random.key(0), max_new_tokens=NEW)
    assert (made[0].logprobs != before.logprobs).any()


def test_bf16_is_close_to_fp32_and_its_logprobs_are_those_of_a_distribution(weights) -> None:
    prompts, sampling = [[3, 4], [5, 6, 7]], SamplingConfig(top_k=1)
    exact, rounded = (
        JaxEngine(POLICY, weights, precision=precision).generate(prompts, sampling, jax.random.key(0), max_new_tokens=1)
        for precision in ("fp32", "bf16")
    )
    assert rounded.logprobs.dtype == np.float32
    np.testing.assert_allclose(rounded.log_mass, exact.log_mass, atol=0.1)
    assert (rounded.log_mass != exact.log_mass).any()
