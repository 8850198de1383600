"""What `edgekv doctor --gpu` runs on a card: its facts and rates, our kernels against the processor's, the whole data plane on a tiny model,
memory against the plan, and speed.

Each part is a process of its own (`child`); `run` starts them and keeps what they tell in a file (`report`). What failed in such a file runs again on the
emulated device (`run.replay`)."""
