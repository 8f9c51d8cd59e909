"""One training run on real ranks: what a rank holds, what each action does there, and the loop around it."""
