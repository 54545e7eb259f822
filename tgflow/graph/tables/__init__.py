"""Tables of feature rows by id, which grow with the stream."""

from tgflow.graph.tables._native import DamagedFile as DamagedFile
from tgflow.graph.tables.feature_table import FeatureTable as FeatureTable
from tgflow.graph.tables.table import PendingGather as PendingGather
