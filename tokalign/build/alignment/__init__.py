"""Compare two vocabularies byte for byte and find the target's merge sites."""
