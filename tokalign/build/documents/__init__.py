"""A user's own documents as a corpus: found, read, kept as text, and forgotten.

    finding.py          which files of a folder are read, and which are left alone
    reading.py          one file of any kind -> its text
    kept_documents.py   the texts that were read, in one file
    collection.py       what was read so far, brought up to date with the folders
    learning.py         a collection -> its private dictionaries

Everything about a collection lies in one folder of the user's data folder. Nothing here opens a
connection.
"""
