"""Runners: how rollouts and evaluations are made of a lesson, one module for each kind of environment."""
