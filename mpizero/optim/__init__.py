"""Optimizers on flat slices, loss scaling, norms and learning rates. NumPy only; knows no ranks."""

from mpizero.optim.adam import Adam, adam_update
from mpizero.optim.lr import learning_rate
from mpizero.optim.norms import clip_coefficient, sum_of_squares
from mpizero.optim.optimizer import Optimizer
from mpizero.optim.scaler import LossScaler

__all__ = ["Adam", "LossScaler", "Optimizer", "adam_update", "clip_coefficient", "learning_rate", "sum_of_squares"]
