"""Datasets addressed by global sample index, and the samplers that say which samples a rank computes.

NumPy only; knows no MPI.
"""

from mpizero.data.arrays import ArrayData
from mpizero.data.dataset import IGNORE, Batch, Dataset
from mpizero.data.load import load
from mpizero.data.sampler import eval_batches, global_samples, until
from mpizero.data.teacher import TeacherTask
from mpizero.data.text import Text, find_text

__all__ = ["IGNORE", "ArrayData", "Batch", "Dataset", "TeacherTask", "Text", "eval_batches", "find_text",
           "global_samples", "load", "until"]
