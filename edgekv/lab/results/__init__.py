"""Rows of results: what a mode keeps of full attention's answers, and the tables of studies."""
