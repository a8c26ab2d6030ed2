"""Measures of retrieval, compatibility and upgrades: pure functions, per query first."""

from midspan.evaluation.bootstrap import bootstrap_ci
from midspan.evaluation.clustering import nmi
from midspan.evaluation.compare import Comparison, Group, compare
from midspan.evaluation.compatibility import (
    ChainSummary,
    Gains,
    PScores,
    average_p_scores,
    chain_summary,
    compatibility_matrix,
    gains,
    is_compatible,
    p_scores,
)
from midspan.evaluation.curves import Curve, backfill_curve
from midspan.evaluation.flips import Flips, flips, flips_by_group, precision_flips
from midspan.evaluation.geometry import (
    intra_class_distance,
    learner_correlation,
    pairwise_distance,
)
from midspan.evaluation.ranking import METRICS, parse_metric, relevant_ranks
from midspan.evaluation.retrieval import Retrieval, evaluate
from midspan.evaluation.search import search_exact

__all__ = [
    "METRICS",
    "ChainSummary",
    "Comparison",
    "Curve",
    "Flips",
    "Gains",
    "Group",
    "PScores",
    "Retrieval",
    "average_p_scores",
    "backfill_curve",
    "bootstrap_ci",
    "chain_summary",
    "compare",
    "compatibility_matrix",
    "evaluate",
    "flips",
    "flips_by_group",
    "gains",
    "intra_class_distance",
    "is_compatible",
    "learner_correlation",
    "nmi",
    "p_scores",
    "pairwise_distance",
    "parse_metric",
    "precision_flips",
    "relevant_ranks",
    "search_exact",
]
