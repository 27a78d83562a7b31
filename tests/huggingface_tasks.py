"""GRPO on sums with a tiny Hugging Face model in the folder `model`, under each engine, for the tests of resumed runs.

python tests/huggingface_tasks.py model                         # makes the model
hookline train tests/huggingface_tasks.py:transformers          # trains it
"""

import sys
from pathlib import Path

from hookline import PluginManager
from hookline.policies import LoraConfig
from hookline.rollout import CurriculumConfig
from hookline.rollout.text import arithmetic_lessons
from hookline.testing.tiny_models import tiny_model
from hookline.training import LearnerConfig, OptimizerConfig, RolloutConfig, Task, Trainer, TrainerConfig


def grpo(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    lessons = arithmetic_lessons("addition-1", max_new_tokens=3)
    return Trainer(config, CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None), plugins=plugins)


def grpo_with(engine: str, precision: str, lora: LoraConfig | None = None) -> Task:
    config = TrainerConfig(
        policy="model",
        lora=lora,
        threads=1,
        losses={"grpo": {"kl": 0.1}},
        optimizer=OptimizerConfig("adam", learning_rate=1e-3, schedule="constant"),
        learner=LearnerConfig(precision=precision),
        rollout=RolloutConfig(
            num_environments=4,
            samples_per_prompt=4,
            minibatches=2,
            update_epochs=1,
            temperature=1.2,
            top_k=10,
            engine=engine,
            precision=precision,
        ),
    )
    return Task(grpo, config)


transformers = grpo_with("transformers", "fp32")
transformers_lora_bf16 = grpo_with("transformers", "bf16", LoraConfig(r=4))
jax_lora = grpo_with("jax", "fp32", LoraConfig(r=4, dropout=0.1))
jax_bf16 = grpo_with("jax", "bf16")


if __name__ == "__main__":
    tiny_model(
        Path(sys.argv[1]), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32
    )
