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
from midspan.evaluation.identification import (
    Identified,
    identify,
    identify_scores,
    rank_k,
    tpir_at_fpir,
    tpir_at_fpir_rank,
    two_gallery_average,
)
from midspan.evaluation.pairs import Verification, score_pairs, verify
from midspan.evaluation.ranking import METRICS, parse_metric, relevant_ranks
from midspan.evaluation.retrieval import Retrieval, evaluate
from midspan.evaluation.search import search_exact
from midspan.evaluation.templates import (
    Fusion,
    Templates,
    fuse_templates,
    inverse_variance_fusion,
    pool_templates,
)
from midspan.evaluation.verification import (
    KFold,
    Roc,
    eer,
    kfold_accuracy,
    roc,
    tar_at_far,
    threshold_at_far,
)

__all__ = [
    "METRICS",
    "ChainSummary",
    "Comparison",
    "Curve",
    "Flips",
    "Fusion",
    "Gains",
    "Group",
    "Identified",
    "KFold",
    "PScores",
    "Retrieval",
    "Roc",
    "Templates",
    "Verification",
    "average_p_scores",
    "backfill_curve",
    "bootstrap_ci",
    "chain_summary",
    "compare",
    "compatibility_matrix",
    "eer",
    "evaluate",
    "flips",
    "flips_by_group",
    "fuse_templates",
    "gains",
    "identify",
    "identify_scores",
    "intra_class_distance",
    "inverse_variance_fusion",
    "is_compatible",
    "kfold_accuracy",
    "learner_correlation",
    "nmi",
    "p_scores",
    "pairwise_distance",
    "parse_metric",
    "pool_templates",
    "precision_flips",
    "rank_k",
    "relevant_ranks",
    "roc",
    "score_pairs",
    "search_exact",
    "tar_at_far",
    "threshold_at_far",
    "tpir_at_fpir",
    "tpir_at_fpir_rank",
    "two_gallery_average",
    "verify",
]
