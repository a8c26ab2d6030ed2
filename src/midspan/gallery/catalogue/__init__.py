"""The transactional part of a gallery: state, spaces, items, work list, audit log, blobs."""
