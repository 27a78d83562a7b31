"""A taskset of verifiers for tests, in the Python that has verifiers."""

import verifiers.v1 as vf

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def exact(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, task, trace) -> float:
        return float(len(trace.last_reply) < 4 and trace.messages[0].content == task.system_prompt)


class SumConfig(vf.TasksetConfig):
    digits: int = 1
    image: str | None = None


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            prompt = f"{number % 10**self.config.digits}+1="
            answer = str(number % 10**self.config.digits + 1)
            data = SumData(prompt=prompt, answer=answer, system_prompt="Add.", image=self.config.image)
            yield SumTask(data, self.config.task)
            number += 1
