"""How well clusters found without labels agree with the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, MissingDependency
from midspan.evaluation.scores import as_matrix


def nmi(vectors: npt.NDArray[Any], labels: npt.NDArray[Any], *, seed: int = 0) -> float:
    """Normalised mutual information of the labels and k-means with as many clusters as labels.

    Normalised by the arithmetic mean of the two entropies, as scikit-learn does since 0.22 (before,
    and in papers of that time, by the geometric mean: those values are larger). One k-means++
    start; vectors are taken as they are, so normalise them first in a cosine space.

    Args:
        vectors: (N, D).
        labels: (N,) the class of each vector.
        seed: Of k-means.

    Returns:
        From 0 (clusters say nothing of the labels) to 1.

    Raises:
        EvaluationError: Labels do not fit the vectors, or a vector is not finite.
        MissingDependency: scikit-learn is not installed.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
        >>> round(ms.evaluation.nmi(vectors, np.arange(12) // 4), 3)
        1.0
    """
    matrix = as_matrix(vectors, what="vectors")
    values = np.asarray(labels)
    if values.shape != (len(matrix),):
        raise EvaluationError(f"{values.shape} labels for {len(matrix)} vectors; give one a vector")
    if len(matrix) == 0:
        raise EvaluationError("no vectors to cluster")
    try:
        from sklearn.cluster import KMeans
        from sklearn.metrics import normalized_mutual_info_score
    except ImportError as error:
        raise MissingDependency("scikit-learn", extra="train", required_for="nmi") from error
    n_clusters = len(np.unique(values))
    if not np.isfinite(matrix).all():
        raise EvaluationError("vectors have NaN or infinite values; remove those rows")
    n_different = len(np.unique(matrix, axis=0)) if n_clusters > 1 else 1
    clusters = KMeans(min(n_clusters, n_different), n_init=1, random_state=seed).fit_predict(matrix)
    return float(normalized_mutual_info_score(values, clusters, average_method="arithmetic"))
