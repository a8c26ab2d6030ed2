"""The search index that a process keeps in memory: a mirror of the live vectors of a gallery."""
