"""Evaluations of a checkpoint elsewhere than in the training process: in a child process, or by a server."""
