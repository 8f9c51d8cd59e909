"""Operators, gradients and models on NumPy arrays. Knows no ranks."""
