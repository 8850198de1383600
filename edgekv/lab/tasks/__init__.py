"""Questions about long contexts, generated from a seed and graded exactly: one file for each kind."""

from edgekv.lab.tasks import needles, variables, words, records, facts_in_text  # noqa: F401  (each registers its tasks)
from edgekv.lab.tasks import multi_value, multi_query, needles_only, four_hops, grid, forms  # noqa: F401  (asked by name)
from edgekv.lab.tasks.task import TASKS, Blank, Context, Question, TaskSample, Task, default_tasks

__all__ = ["TASKS", "Blank", "Context", "Question", "Task", "TaskSample", "default_tasks"]
