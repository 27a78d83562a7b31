"""Environments that a lesson can name: JAX-native ones, gymnax's, and Gymnasium's."""
