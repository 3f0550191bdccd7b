"""A user's own documents as a corpus: found, read, counted, and forgotten.

    finding.py     which files of a folder are read, and which are left alone
    reading.py     one file of any kind -> its text
    learning.py    folders -> private dictionaries, and what is kept of them; read it first

Everything about a collection lies in one folder of the user's data folder. Nothing here opens a
connection.
"""
