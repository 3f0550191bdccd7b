"""The Python API: mlx-lm's functions and responses, for a draft model of any tokenizer.

import tokalign

model, tokenizer = tokalign.load("speakleash/Bielik-11B-v3.0-Instruct-MLX-8bit")
draft_model, draft_tokenizer = tokalign.load("mlx-community/Llama-3.2-1B-Instruct-4bit")
for response in tokalign.stream_generate(model, tokenizer, prompt, draft_model=draft_model):
    print(response.text, end="", flush=True)

Every function takes the keywords of mlx-lm's function of that name, with the same meaning, and
more. `text.py` has the functions that give text; `call.py` runs them, and has the one that gives
ids. `objects.py` turns mlx-lm's objects into tokalign's, `patch.py` puts tokalign into mlx-lm's own
programs. `assemble.py` puts a decoder together from names or loaded models, for the commands and
the server too; `choosing.py` chooses the method and the tables. Neither imports mlx by itself.
"""
