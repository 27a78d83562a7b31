"""Rewards, four verifiers and filtering, beside the plain per-episode reference and beside `str.split`; and models.

    python benchmarks/rewards.py [--json FILE]

Every figure is processor time, the best of several runs on one core: the three ways in turn, each three times in a
row. The reference is the oracle that the tests hold both backends to; `str.split` reads the same responses, no more.
The promise is for MLX and episodes that are records; NumPy and dictionaries are measured beside them.

`rewards_models.py` measures perplexity and reward models, if mlx-lm, torch and transformers are installed.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from measuring import Table, describe_machine, format_seconds, json_option, report
from rewards_models import model_tables

from hookline.rewards import IntegratedRewardConfig, RewardConfig, create_integrated_reward_system
from hookline_hookspecs import Episode

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZES = (32, 128, 512, 4096)
WORDS = 62
SAMPLES = 8
"""Responses to one prompt, as GRPO has them."""
KEYWORDS = ["quantum", "computer", "algorithm"]
THRESHOLD = 0.7
PROMISES = {512, 4096}
OF_SPLIT, OF_REFERENCE = 4.0, 10.0

VOCABULARY = """
the a of to and in that it is was for on are with as his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no
most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
set three want air well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother world near build
self earth father head stand own page should country found answer school grow study still learn plant cover food
""".split()  # noqa: SIM905
BAD = [
    "You are an idiot and a moron.",
    "Everyone knows it, trust me, it is guaranteed.",
    "Kill yourself, stupid loser.",
]


def make_responses(count: int, seed: int = 7) -> list[str]:
    """Responses of 62 words, of which about a third will be rejected: insults, claims, repetition."""
    rng = random.Random(seed)
    return [_response(rng) for _ in range(count)]


def _response(rng: random.Random) -> str:
    kind = rng.random()
    words = [rng.choice(VOCABULARY) for _ in range(WORDS)]
    if rng.random() < 0.5:
        words[rng.randrange(WORDS)] = rng.choice(KEYWORDS)
    if kind < 0.27:
        bad = rng.choice(BAD).split()
        words[20 : 20 + len(bad)] = bad
    elif kind < 0.42:
        words = [rng.choice(words[:5]) for _ in range(WORDS)]
    for start in range(0, WORDS, 12):
        words[start] = words[start].capitalize()
        words[min(start + 11, WORDS - 1)] += "."
    return " ".join(words)


def load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.parent.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reference:
    """The oracle, one episode after the other."""

    def __init__(self) -> None:
        self.text = load_module(ROOT / "core/tests/rewards/oracle.py")
        self.verifiers = load_module(ROOT / "tests/verification/oracle.py")
        self.hedges = self._word_list("hookline.rewards", "hedges")
        names = ("severe", "rude", "claims", "support")
        self.lists = {name: self._word_list("hookline_verifiers", name) for name in names}

    def _word_list(self, package: str, name: str) -> list[str]:
        text = resources.files(package).joinpath(f"data/{name}.txt").read_text(encoding="utf-8")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return list(dict.fromkeys(self.text.canonical(line) for line in lines if line))

    def process(self, prompts: list[str], responses: list[str]) -> tuple[list[float], list[bool]]:
        rewards, accepted = [], []
        for prompt, response in zip(prompts, responses, strict=True):
            reward = self.text.reward(prompt, response, hedges=self.hedges, keywords=KEYWORDS)
            verdict = self.verifiers.combine(self.verifiers.verify(self.text, response, self.lists))
            rewards.append(reward)
            accepted.append(
                self.verifiers.accepts(
                    reward, verdict, strict=True, min_reward=THRESHOLD, max_reward=1.0, least=THRESHOLD
                )
            )
        return rewards, accepted


def split_all(responses: list[str]) -> None:
    for response in responses:
        response.split()


def best_times(ways: list[tuple[Callable[[], Any], Callable[[Any], Any]]], rounds: int) -> list[float]:
    """The shortest time of each way, all in turn, with what its first function prepares outside of the time."""
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        for index, (prepare, way) in enumerate(ways):
            for prepared in [prepare() for _ in range(3)]:
                gc.disable()  # as timeit does: no contender collects another's garbage within its own time
                start = time.process_time()  # other processes disturb it less than the clock
                way(prepared)
                best[index] = min(best[index], time.process_time() - start)
                gc.enable()
    return best


def measure(reference: Reference, count: int, table: Table, *, compiled: bool, dicts: bool) -> None:
    """Add a row for batches of one size."""
    responses = make_responses(count)
    prompts = [f"Explain how quantum computer number {index // SAMPLES} works." for index in range(count)]
    config = IntegratedRewardConfig(
        reward_config=RewardConfig(keywords=KEYWORDS, batch_size=count),
        strict_filtering=True,
        min_reward_threshold=THRESHOLD,
        batch_size=count,
        enable_mlx_compilation=compiled,
    )
    with create_integrated_reward_system(config) as system:

        def make_episodes() -> list[Any]:
            pairs = zip(prompts, responses, strict=True)
            if dicts:
                return [{"prompt": prompt, "response": response} for prompt, response in pairs]
            return [Episode(prompt, response) for prompt, response in pairs]

        rewards, accepted, rejected = system.process_episodes(make_episodes())
        expected, expected_accepted = reference.process(prompts, responses)
        assert max(abs(ours - theirs) for ours, theirs in zip(rewards.tolist(), expected, strict=True)) < 1e-6
        assert len(accepted) == sum(expected_accepted)

        few = min(count, 128)
        ours, split, plain = best_times(
            [
                (make_episodes, system.process_episodes),  # an episode is processed once, as in a run
                (lambda: responses, split_all),
                (lambda: (prompts[:few], responses[:few]), lambda texts: reference.process(*texts)),
            ],
            rounds=max(20, min(200, 40_000 // count)),
        )
    plain *= count / few
    keeps = ours / split <= OF_SPLIT and plain / ours >= OF_REFERENCE
    table.add(
        [
            str(count),
            f"{len(rejected) / count:.0%}",
            *(format_seconds(seconds / count) for seconds in (ours, split, plain)),
            f"{ours / split:.2f}",
            f"{plain / ours:.1f}",
            "-" if count not in PROMISES or not compiled or dicts else "yes" if keeps else "no",
        ],
        episodes=count,
        seconds=ours,
        of_split=ours / split,
        of_reference=plain / ours,
    )


def table_for(reference: Reference, backend: str, episodes: str) -> Table:
    table = Table(
        f"Rewards, four verifiers and filtering, {WORDS}-word responses, one core: {backend}, {episodes}",
        "at most 4 x str.split, at least 10 x as fast as the reference, at 512 and 4096",
        ["batch", "rejected", "an episode", "str.split", "reference", "ours / split", "reference / ours", "held"],
    )
    for count in BATCH_SIZES:
        measure(reference, count, table, compiled=backend == "MLX", dicts=episodes == "dictionaries")
    return table


def main() -> None:
    json_file = json_option(__doc__)
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.execv(sys.executable, [sys.executable, *sys.argv])  # libraries count the cores when they are imported
    reference = Reference()
    ways = [("MLX", "records"), ("NumPy", "records"), ("MLX", "dictionaries")]
    tables = [table_for(reference, *way) for way in ways]
    if all(map(importlib.util.find_spec, ("mlx_lm", "torch", "transformers"))):
        tables += model_tables(VOCABULARY)
    machine = describe_machine("mlx", "numpy", "mlx-lm", "torch", "transformers")
    report(machine, tables, json_file)


if __name__ == "__main__":
    main()
