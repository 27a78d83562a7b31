"""Runners make the rollouts and evaluations of a lesson. There is one module for each kind of environment."""
