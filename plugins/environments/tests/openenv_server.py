"""An OpenEnv server for tests, in the Python that has openenv: python openenv_server.py PORT_FILE"""

import random
import socket
import sys
from pathlib import Path

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    guess: str


class Hint(Observation):
    hint: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, highest=9):
        self.number = random.Random(seed).randint(1, highest)
        return Hint(hint=f"1 to {highest}?")

    def step(self, action, timeout_s=None):
        guess = int(action.guess)
        if guess == self.number:
            return Hint(hint="yes", done=True, reward=1.0)
        return Hint(hint="more" if guess < self.number else "less", reward=-0.25)

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=64)
    listening = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[1]).write_text(str(listening.getsockname()[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
