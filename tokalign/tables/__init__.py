"""Read-only tables, made by `build` and used by `runtime`, which meet only here: their file
(`bundle.py`), what it says of itself (`header.py`), and how they are found and opened."""
