"""The parts of every measurement: modes, contexts, passes, figures."""
