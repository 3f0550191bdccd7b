"""One reader per kind of tokenizer file; each returns a `TokenizerSpec`.

A reader raises VocabularyError with a message that goes on from the file's name ("holds a WordPiece
model; ..."), and KeyError, TypeError or ValueError for a file that is broken.
"""
