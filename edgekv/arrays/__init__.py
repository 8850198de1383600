"""Array maths of policies, planner and migration: NumPy is the truth (`ops`), CuPy overrides it on a GPU (`cupy_ops`)."""
