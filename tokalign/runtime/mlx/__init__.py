"""Everything that touches mlx: sessions of models, trees, and how ids are chosen."""
