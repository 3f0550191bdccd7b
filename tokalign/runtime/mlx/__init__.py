"""Everything that imports mlx: sessions of models, passes over trees, and how ids are chosen."""
