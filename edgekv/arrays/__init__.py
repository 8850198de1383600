"""Array maths of policies, planner and migration: NumPy is the reference (`ops`), CuPy overrides it on a GPU (`cupy_ops`)."""
