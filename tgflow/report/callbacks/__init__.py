"""Trainer callbacks that log figures: to TensorBoard, CSV, Weights & Biases, or a custom logger.

Example:
    >>> trainer = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph())
    >>> with tg.callbacks.CSVLogger("figures.csv") as logger:
    ...     _ = trainer.run([many], [logger])
"""

from tgflow.report.callbacks.csv_logger import CSVLogger
from tgflow.report.callbacks.logger import FigureCallback, Logger
from tgflow.report.callbacks.tensorboard import TensorBoard
from tgflow.report.callbacks.wandb import WandB

__all__ = ["CSVLogger", "FigureCallback", "Logger", "TensorBoard", "WandB"]
