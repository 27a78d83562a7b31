"""Hosts a taskset of verifiers: the policy responds to a task's prompt, and the task scores the response."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping
from typing import Any

from . import Conversation, serve

__all__ = ["Tasks"]


class Tasks:
    """The tasks of a taskset. The rewards of a task, with their weights, are those of verifiers.

    :param taskset: the name of an installed taskset.
    :param config: fields of the taskset's config.
    """

    limits = {"max_turns": 1, "max_new_tokens": 512}  # noqa: RUF012 - read, never written

    def __init__(self, taskset: str, size: int, held_out_size: int, config: Mapping[str, Any]) -> None:
        try:
            import verifiers.v1 as vf
        except ImportError as error:
            raise RuntimeError(
                f"{sys.executable} cannot import verifiers 0.4 ({error}): install it there, with the taskset, or set "
                "the option python to a Python that has them"
            ) from error
        self._vf = vf
        loaded = vf.load_taskset(vf.taskset_config_type(taskset)(id=taskset, **config))
        self._tasks = list(itertools.islice(loaded, size))
        if len(self._tasks) <= held_out_size:
            raise ValueError(f"the taskset has {len(self._tasks)} tasks, which is too few to hold out {held_out_size}")
        self._held_out = held_out_size
        for task in self._tasks:
            self._check(task, vf.environment_class(taskset))

    def _check(self, task: Any, environment: type) -> None:
        """Raise an error for what takes more than a prompt and a response."""
        needs = {
            "an environment of its own": environment is not self._vf.SingleAgentEnv,
            "tools": task.toolsets(task.config),
            "a container": type(task).NEEDS_CONTAINER or task.data.image is not None,
            "a user who begins": task.data.prompt is None,
        }
        for what, is_needed in needs.items():
            if is_needed:
                raise ValueError(f"task {task.data.idx} needs {what}, and only tasks with a prompt alone can be played")

    def draw(self, seed: int, held_out: bool) -> dict[str, Any]:
        count, first = len(self._tasks) - self._held_out, 0
        if held_out and self._held_out:
            count, first = self._held_out, count
        index = first + seed % count
        return {"metadata": {"task": index}, "answer": str(getattr(self._tasks[index].data, "answer", None) or "")}

    def converse(self, problem: Mapping[str, Any]) -> Conversation:
        task, vf = self._tasks[problem["metadata"]["task"]], self._vf
        messages = [vf.SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
        prompt = task.data.prompt
        messages += [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        response = yield [(message.role, vf.types.content_text(message.content)) for message in messages]
        return self._score(task, [*messages, vf.AssistantMessage(content=response)])

    def _score(self, task: Any, messages: list[Any]) -> Any:
        vf = self._vf
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=vf.state.state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )
        for index, message in enumerate(messages):
            is_last = index == len(messages) - 1
            trace.nodes.append(vf.MessageNode(parent=index - 1 if index else None, message=message, sampled=is_last))
        asyncio.run(task.score(trace))
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing or not trace.rewards:
            return None
        return trace.reward


if __name__ == "__main__":
    serve(Tasks)
