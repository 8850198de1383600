"""Rows of results: files, intervals, comparisons."""
