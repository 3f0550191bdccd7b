"""Drafters: each guesses how the target goes on, in target ids."""
