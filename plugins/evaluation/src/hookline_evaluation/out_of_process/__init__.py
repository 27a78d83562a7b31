"""Evaluates checkpoints outside of the training process: in a child process, or by a server."""
