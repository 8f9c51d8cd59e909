"""Optimizers on flat slices, loss scaling, norms and learning rates. NumPy only; knows no ranks."""

from mpizero.optim.adam import Adam
from mpizero.optim.lion import Lion
from mpizero.optim.lr import learning_rate
from mpizero.optim.norms import clip_coefficient, sum_of_squares, sums_of_squares
from mpizero.optim.optimizer import Optimizer
from mpizero.optim.scaler import LossScaler
from mpizero.optim.sgd import SGD
from mpizero.optim.workers import ALONE, Workers

__all__ = ["ALONE", "SGD", "Adam", "Lion", "LossScaler", "Optimizer", "Workers", "clip_coefficient", "learning_rate",
           "sum_of_squares", "sums_of_squares"]
