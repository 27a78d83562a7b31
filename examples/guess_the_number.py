"""A game of several turns: the policy guesses a number, and is told whether it is larger or smaller.

    hookline train examples/guess_the_number.py:game --run-dir runs/game
    python examples/guess_the_number.py 7                   # seed 7, and print how many games are won

The number is a hexadecimal digit from 1 to f. A guess is answered by `>` (the number is larger) or `<` (it is smaller).
Four guesses are enough for a player who halves the range each time. A game that is won is worth 1, any other nothing.

The warm start shows games of a player who guesses at random within the range that is left. GRPO makes the guesses
better. docs/environments.md explains environments like this one.
"""

import sys

import jax
import numpy as np

import hookline
from hookline import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.text import CharacterTokenizer, Conversation, Limits, TextProblem
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig, task
from hookline.training.rollout_loop import worker_options
from hookline.training.text_examples import conversation
from hookline.training.warm_start import WarmStart
from hookline_hookspecs import EvaluationRequest, Turn

NUMBERS = "123456789abcdef"  # in this order as characters too
TOKENIZER = CharacterTokenizer(NUMBERS + "<>?")


class GuessTheNumber:
    limits = Limits(max_turns=4, max_new_tokens=2)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        return TextProblem(answer=str(rng.choice(list(NUMBERS))))

    def converse(self, problem: TextProblem) -> Conversation:
        guess = yield "?"
        while guess != problem.answer:  # at the fourth wrong guess, the limit ends the game with a reward of 0
            guess = yield ">" if guess < problem.answer else "<"
        return 1.0


def random_game(rng: np.random.Generator) -> list[Turn]:
    """A game of random guesses, each within the range that is left."""
    left = list(NUMBERS)
    number = rng.choice(left)
    turns = [Turn("user", "?")]
    while True:
        guess = rng.choice(left)
        turns.append(Turn("assistant", str(guess)))
        if guess == number or len(turns) == 8:
            return turns
        turns.append(Turn("user", ">" if guess < number else "<"))
        left = [own for own in left if (own > guess) == (number > guess) and own != guess]


@task(
    epochs=60,
    losses={"grpo": {}},
    optimizer=OptimizerConfig("adam", learning_rate=1e-3, schedule="constant", max_grad_norm=1.0),
    rollout=RolloutConfig(num_environments=32, samples_per_prompt=16, minibatches=8, update_epochs=1),
)
def game(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """A warm start on random games until a third is won, then GRPO."""
    lessons = [Lesson("game", GuessTheNumber())]
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None, heeds_evaluations=False),
            policy=TransformerPolicy(TOKENIZER.size, width=64, layers=2, heads=4, context=16),
            tokenizer=TOKENIZER,
            seed=config.seed,
            worker_index=plugins.rank,
            **worker_options(config.rollout),
        ),
        plugins,
    )
    rng = np.random.default_rng(config.seed)
    shown = [conversation(random_game(rng), TOKENIZER) for _ in range(4096)]
    warm_start = WarmStart(
        shown, until={"game": 0.33}, n_examples=128, steps_per_epoch=32, batch_size=64, learning_rate=2e-3
    )
    return Trainer(config, plugins=plugins, worker=worker, warm_start=warm_start)


def scores(worker: RolloutWorker, n_examples: int = 512) -> dict[str, float]:
    """How many new games are won; sampled as in training."""
    (episodes,) = worker.play(EvaluationRequest(n_examples=n_examples, greedy=False), jax.random.key(1)).values()
    return {"won": sum(episode.reward or 0.0 for episode in episodes) / n_examples}


if __name__ == "__main__":
    trainer = hookline.train(game, seed=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(scores(trainer.worker))
