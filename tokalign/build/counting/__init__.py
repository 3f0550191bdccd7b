"""Count n-grams of a corpus of any size in bounded memory."""
