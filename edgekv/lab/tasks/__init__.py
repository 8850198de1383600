"""Questions about long contexts, generated from a seed and graded exactly: one file for each kind."""

from edgekv.lab.tasks import needles, variables, words, records, facts_in_text  # noqa: F401  (each registers its tasks)
from edgekv.lab.tasks.task import TASKS, Blank, Context, Question, Task, TaskSample

__all__ = ["TASKS", "Blank", "Context", "Question", "Task", "TaskSample"]
