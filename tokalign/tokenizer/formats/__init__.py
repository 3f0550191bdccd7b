"""One reader per kind of tokenizer file; each returns a `TokenizerSpec`.

What is asked of all of them is in `spec.py`. A reader raises VocabularyError with a message that
goes on from the file's name ("lists a merge twice; ..."), and KeyError, TypeError or ValueError for
a file that is broken.
"""
