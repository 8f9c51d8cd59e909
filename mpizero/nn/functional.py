"""Every operator under one name: pairs f / f_backward on stored arrays. See the files for shapes."""

from mpizero.nn.activation import gelu, gelu_backward
from mpizero.nn.attention import attention, attention_backward
from mpizero.nn.embedding import embedding, embedding_backward
from mpizero.nn.linear import (
           linear,
           linear_backward,
           linear_backward_params,
           relu,
           relu_backward,
)
from mpizero.nn.loss import cross_entropy, cross_entropy_backward
from mpizero.nn.matmul import matmul
from mpizero.nn.normalization import (
           layer_norm,
           layer_norm_again,
           layer_norm_backward,
           new_stats,
)

__all__ = ["attention", "attention_backward", "cross_entropy", "cross_entropy_backward", "embedding", "embedding_backward", "gelu",
           "gelu_backward", "layer_norm", "layer_norm_again", "layer_norm_backward", "linear", "linear_backward", "linear_backward_params",
           "matmul", "new_stats", "relu", "relu_backward"]
