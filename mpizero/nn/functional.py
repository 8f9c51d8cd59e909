"""Every operator under one name: pairs f / f_backward on stored arrays. See the files of `ops` for shapes."""

from mpizero.nn.ops.activation import gelu, gelu_backward
from mpizero.nn.ops.attention import attention, attention_backward
from mpizero.nn.ops.embedding import embedding, embedding_backward
from mpizero.nn.ops.linear import linear, linear_backward, linear_backward_params, relu, relu_backward
from mpizero.nn.ops.loss import cross_entropy, cross_entropy_backward, cross_entropy_of_parts, cross_entropy_part
from mpizero.nn.ops.matmul import matmul
from mpizero.nn.ops.normalization import layer_norm, layer_norm_again, layer_norm_backward, new_stats

__all__ = ["attention", "attention_backward", "cross_entropy", "cross_entropy_backward", "cross_entropy_of_parts",
           "cross_entropy_part", "embedding", "embedding_backward", "gelu", "gelu_backward", "layer_norm",
           "layer_norm_again", "layer_norm_backward", "linear", "linear_backward", "linear_backward_params", "matmul",
           "new_stats", "relu", "relu_backward"]
