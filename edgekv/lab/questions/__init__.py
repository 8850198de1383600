"""The questions that are studied: each compares with full attention in the same run, and gives rows to keep."""
