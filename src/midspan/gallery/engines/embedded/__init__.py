"""Vectors in the SQLite file of the catalogue, searched through mapped snapshots in a folder."""
