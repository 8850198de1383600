"""The command line: thin click commands that parse, call and render."""
