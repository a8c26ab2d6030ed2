"""Image sets in WebDataset shards: tar files that are indexed once and read in place."""
