"""Tables of feature rows by id, which grow with the stream."""

from tgflow.tables._native import DamagedFile as DamagedFile
from tgflow.tables.feature_table import FeatureTable as FeatureTable
from tgflow.tables.table import PendingGather as PendingGather
