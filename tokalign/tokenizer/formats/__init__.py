"""One reader per kind of tokenizer file; each returns a `TokenizerSpec`.

Each models whatever changes ids, or refuses it by name; `limits.py` and `patterns.py` hold what is
asked of all of them. A reader raises VocabularyError with a message that goes on from the file's
name ("holds a WordPiece model; ..."), and KeyError, TypeError or ValueError for a file that is
broken.
"""
