"""Array maths of policies and planner: NumPy is the truth that any faster version is tested against."""
