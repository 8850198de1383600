"""What `edgekv doctor --gpu` runs on a card: its facts and rates, our kernels against the processor's, and the whole data plane on a tiny model.

Each part is a process of its own (`child`); `run` starts them and keeps what they tell in a file (`report`)."""
