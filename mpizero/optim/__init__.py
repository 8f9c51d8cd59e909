"""Adam on flat slices, loss scaling, norms and learning rates. NumPy only; knows no ranks."""

from mpizero.optim.adam import Adam, Decayed, adam_update, adam_update_ranges
from mpizero.optim.lr import learning_rate
from mpizero.optim.norms import clip_coefficient, largest_magnitude, sum_of_squares
from mpizero.optim.scaler import LossScaler

__all__ = ["Adam", "Decayed", "LossScaler", "adam_update", "adam_update_ranges", "clip_coefficient", "largest_magnitude", "learning_rate",
           "sum_of_squares"]
