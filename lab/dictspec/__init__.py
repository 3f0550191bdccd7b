"""DictSpec's dictionary (Syvokon, UNLP 2026), re-created: what tokalign's own is compared with.

word_ngrams.py          counting the word n-grams of a corpus
builder.py              the rest of every n-gram after every prefix of it; read it first
table.py                looking that up
"""
