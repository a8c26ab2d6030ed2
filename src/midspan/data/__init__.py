"""Image sets and which part of them the old encoder saw. One file for each format or data set."""

from __future__ import annotations

from midspan.data.allocations import ALLOCATIONS, Allocation, allocate, hold_out_classes
from midspan.data.any_path import open_images
from midspan.data.cache import cache_dir
from midspan.data.checks import check_evaluable, check_trainable
from midspan.data.font_glyphs import glyphs
from midspan.data.from_csv import csv
from midspan.data.from_folder import folder
from midspan.data.from_npz import npz, save_npz
from midspan.data.images import Fit, ImageSet, ImageSource, Skipped
from midspan.data.sklearn_digits import digits
from midspan.data.split import in_classes, save_csv
from midspan.data.webdataset.dataset import webdataset
from midspan.image_size import ImageSize

# [data] name = … in a run file
DATASETS = {
    "npz": "midspan.data.from_npz:npz",
    "folder": "midspan.data.from_folder:folder",
    "csv": "midspan.data.from_csv:csv",
    "webdataset": "midspan.data.webdataset.dataset:webdataset",
    "glyphs": "midspan.data.font_glyphs:glyphs",
    "digits": "midspan.data.sklearn_digits:digits",
}

__all__ = [
    "ALLOCATIONS",
    "DATASETS",
    "Allocation",
    "Fit",
    "ImageSet",
    "ImageSize",
    "ImageSource",
    "Skipped",
    "allocate",
    "cache_dir",
    "check_evaluable",
    "check_trainable",
    "csv",
    "digits",
    "folder",
    "glyphs",
    "hold_out_classes",
    "in_classes",
    "npz",
    "open_images",
    "save_csv",
    "save_npz",
    "webdataset",
]
