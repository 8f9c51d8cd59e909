"""The ranks that `scripts/bench_torch.py` starts: the same GPT here (`ours`) and in PyTorch (`theirs`)."""
