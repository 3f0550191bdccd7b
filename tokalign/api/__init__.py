"""The Python API: mlx-lm's functions and responses, for a draft model of any tokenizer.

`text.py` has the functions that give text, `call.py` runs them and has the one that gives ids;
`together.py` has the one for several prompts.
`objects.py` turns mlx-lm's objects into tokalign's; `patch.py` puts tokalign into mlx-lm's own
programs. `assemble.py` puts a decoder together, for the commands and the server too, and
`choosing.py` chooses the method and the tables. Neither of these two imports mlx by itself.
"""
