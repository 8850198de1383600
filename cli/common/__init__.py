"""Common parts of commands: options, lists, tables, progress."""
